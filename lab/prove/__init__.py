"""Proof that N ranks compute what one process computes. `report` is what the controller reads."""

from lab.prove.report import RankRow, Report, Setting, StepRow

__all__ = ["RankRow", "Report", "Setting", "StepRow"]
