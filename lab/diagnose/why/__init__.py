"""Why a run hangs or has died: which rank did it, and where, from what was gathered."""

from lab.diagnose.why.judge import diagnose, review

__all__ = ["diagnose", "review"]
