"""Commands of lab's own, started by lab: they tidy up when they are ended, which takes a moment."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that is ended with the block, if that does not go to its end.

    It is asked to end, once, and waited for: `subprocess.run` would kill it. It is in a session of
    its own, since Ctrl-C in a terminal would come to it as well, and then be the second wish.

    Args:
        argv: the command.
        options: Popen's; what it prints is text.
    """
    with subprocess.Popen(argv, text=True, start_new_session=True, **options) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            process.communicate()  # which reads what it says: in a full pipe it would stop
            raise
