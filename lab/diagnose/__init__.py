"""Judges: what was seen of a run goes in as data, findings come out. Nothing here touches a node."""
