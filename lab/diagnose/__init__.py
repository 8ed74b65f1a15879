"""Judges: what was seen of a run goes in as data, findings come out. They touch no node."""
