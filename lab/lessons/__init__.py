"""The exercises of the lessons, each a command with its answer: `lab lesson list|run|explain`."""

from lab.lessons.registry import LESSONS, Lesson, find_lessons
from lab.lessons.report import RESULT, Finding, Report

__all__ = ["LESSONS", "RESULT", "Finding", "Lesson", "Report", "find_lessons"]
