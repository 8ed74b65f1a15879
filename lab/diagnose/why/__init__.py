"""Why a run hangs or has died: `diagnose` names the rank from the evidence that was gathered."""

from lab.diagnose.why.judge import diagnose

__all__ = ["diagnose"]
