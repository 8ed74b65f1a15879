"""Putting code and packages on hosts: `lab deploy`, and what a run on ssh does first.

Below the transports: it needs nothing of a host but commands with streams (`Channel`).
"""
