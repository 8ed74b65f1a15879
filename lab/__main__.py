"""The `lab` command: turns every end into an exit code, and errors into one line."""

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
from types import FrameType

from lab import interrupts
from lab.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_UNREAD, EXIT_USAGE, LabError

GARBAGE = 200_000
"""New objects after which Python looks for garbage; its own 700 come up 200 times in a start."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What writing says where there is no room."""


def _end(number: int, _frame: FrameType | None) -> None:
    """Unwind as Ctrl-C does, so that whatever was begun is undone.

    Once only: a terminal that closes sends two HUPs.
    """
    for heard in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(heard, signal.SIG_IGN)
    raise interrupts.Terminated(128 + interrupts.cause(number))


def _complain(text: str) -> None:
    """On stderr; where nobody reads that, the exit code has to say it alone."""
    with contextlib.suppress(BrokenPipeError):
        print(f"lab: error: {text}", file=sys.stderr)


def _reopen_closed() -> None:
    """What the caller has closed (`>&-`) is None in `sys`; have it lead nowhere.

    Nothing that is opened later gets its descriptor, either.
    """
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115 - it stays open


def main() -> None:
    """Run the command line; the process ends with the documented exit code."""
    # A quarter of a start went into looking through what had just been imported, and once more at
    # the end, where the system takes all back anyhow.
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)
    _reopen_closed()
    interrupts.catch()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if not interrupts.is_unwanted(number):
            signal.signal(number, _end)
    try:
        os.getcwd()  # noqa: PTH109 - only whether there is one
    except FileNotFoundError:
        _complain("the current folder has gone: go to another one")
        sys.exit(EXIT_USAGE)
    from lab.cli.output import print_nowhere

    try:
        from lab.cli.main import app  # takes a moment, in which Ctrl-C should be quiet too
        from lab.cli.usage import call

        code = call(app)
        sys.stdout.flush()  # here, where it is known what to say if it cannot be
        sys.exit(code)
    except LabError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `lab logs | head`; not 0: a command that did not come to its end
        print_nowhere(sys.stdout)
        sys.exit(EXIT_UNREAD)
    except OSError as error:
        if error.errno not in FULL:
            raise
        print_nowhere(sys.stdout)
        what = error.filename or "what is printed here"
        _complain(f"{what} cannot be written: {error.strerror}")
        sys.exit(EXIT_FAILURE)


if __name__ == "__main__":
    main()
