"""The one error that ends a command with a message instead of a traceback, and the exit codes."""

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_AUDIT = 66
"""All ranks ended well, but the audit found errors."""
EXIT_STALLED = 75
"""No rank made progress, and the run was to end then (sysexits.h: EX_TEMPFAIL)."""
EXIT_TIMEOUT = 124
"""As timeout(1) has it."""
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
"""Nobody reads the output any more: what the signal for that, SIGPIPE, does to other commands."""


class LabError(Exception):
    """Something the user can put right. The message says what is wrong and how.

    Attributes:
        exit_code: what the process ends with: 2 for wrong usage or input, 1 for everything else.
    """

    exit_code = EXIT_FAILURE


class UsageError(LabError, ValueError):
    """The command line or an input file is wrong; nothing was started."""

    exit_code = EXIT_USAGE
