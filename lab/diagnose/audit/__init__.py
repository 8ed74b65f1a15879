"""Judges of the audit: ranks note facts (`lab.rank.audit`), which are compared here.

A judge takes the records of some checks and returns what it finds, as soon as it is sure. To add
one: a class with the attributes of `Judge`, in a file named after what it judges, and its place in
`audit.JUDGES`.
"""

from lab.diagnose.audit.audit import Audit, Judge

__all__ = ["Audit", "Judge"]
