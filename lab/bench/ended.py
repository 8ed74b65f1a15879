"""The end of a run that is measured."""

from lab.errors import EXIT_INTERRUPTED
from lab.interrupts import Terminated
from lab.runs.controller import RunController
from lab.runs.verdict import Verdict


def ended(run: RunController) -> Verdict:
    """Run it to its end; who interrupts it wants no more measurements.

    Raises:
        KeyboardInterrupt: Ctrl-C has ended it.
        Terminated: another signal to lab itself has.
    """
    verdict = run.run()
    if verdict.kind == "interrupted":
        if verdict.exit_code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        raise Terminated(verdict.exit_code)
    return verdict
