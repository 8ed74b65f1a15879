"""Input from somebody at a terminal: prompts, the debugger, keys, jobs in the background."""

import contextlib
import os
import pty
import re
import select
import shlex
import signal
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import COMMAND

LAB = [sys.executable, *COMMAND, "run", "-t", "pair", "--on", "local"]
ASK = """
import os
if os.environ["RANK"] == "0":
    print("hello", input("name? "))
    print("again", input())
"""


class Terminal:
    """A program on a terminal of its own, and somebody who sits there."""

    def __init__(self, argv: Sequence[str], cwd: Path, size: tuple[int, int]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            termios.tcsetwinsize(0, size)
            env = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "PS1": "$ "}
            os.execve(argv[0], [*argv], env)
        self.screen = ""
        self._seen = 0

    def expect(self, *texts: str) -> None:
        """Wait until they have come, in this order, after what was expected before."""
        give_up = time.monotonic() + 60
        for text in texts:
            while (at := self.screen.find(text, self._seen)) < 0:
                if not self._read(give_up - time.monotonic()):
                    raise AssertionError(f"no {text!r} after {self._seen} of {self.screen}")
            self._seen = at + len(text)

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self._fd, (rows, columns))

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait(self) -> int:
        """Wait for the program's end; its exit code as a shell says it."""
        while self._read(60):
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        return code if code >= 0 else 128 - code

    def _read(self, timeout: float) -> bool:
        if not select.select([self._fd], [], [], max(0, timeout))[0]:
            return False
        try:
            self.screen += os.read(self._fd, 4096).decode().replace("\r\n", "\n")
        except OSError:  # EIO: nobody has the terminal any more
            return False
        return True

    def close(self) -> None:
        os.close(self._fd)  # a hangup
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGHUP)
            os.waitpid(self.pid, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ask.py").write_text(ASK)
    return tmp_path


@contextlib.contextmanager
def terminal(
    argv: Sequence[str], cwd: Path, size: tuple[int, int] = (24, 80)
) -> Iterator[Terminal]:
    running = Terminal(argv, cwd, size)
    try:
        yield running
    finally:
        running.close()


def test_a_prompt_is_shown_before_its_line_ends(folder: Path) -> None:
    with terminal([*LAB, "ask.py"], folder) as user:
        user.expect("[0 node0] name? ")
        user.type("Ada\n")
        user.expect("Ada\n[0 node0] hello Ada\n")
        user.type("x\n")
        user.expect("[0 node0] again x\n", "2 ranks ended well")
        assert user.wait() == 0


def test_other_ranks_do_not_write_into_a_prompt(folder: Path) -> None:
    (folder / "ask.py").write_text(
        """
import os, time
if os.environ["RANK"] == "0":
    print("hello", input("name? "))
else:
    while not os.path.exists("go"): time.sleep(0.01)
    print("beside it", flush=True)
"""
    )
    with terminal([*LAB, "ask.py"], folder) as user:
        user.expect("[0 node0] name? ")
        (folder / "go").touch()
        user.expect("\n[1 node1] beside it\n")
        user.type("Ada\n")
        user.expect("[0 node0] hello Ada\n")
        assert user.wait() == 0


def test_a_prompt_of_a_rank_that_is_not_shown_leaves_no_trace(folder: Path) -> None:
    with terminal([*LAB, "--quiet", "ask.py"], folder) as user:
        user.type("Ada\nx\n")
        assert user.wait() == 0
        assert re.fullmatch(r"Ada\nx\nlab: 2 ranks ended well in [\d.]+ s\n", user.screen)


def test_the_debugger(folder: Path) -> None:
    (folder / "bug.py").write_text(
        "import os\nx = 41\nif os.environ['RANK'] == '0':\n    breakpoint()\nprint('x is', x)\n"
    )
    with terminal([*LAB, "bug.py"], folder) as user:
        user.expect("[0 node0] -> print('x is', x)\n", "[0 node0] (Pdb) ")
        user.type("x + 1\n")
        user.expect("[0 node0] 42\n[0 node0] (Pdb) ")
        user.type("x = 43\n")
        user.expect("[0 node0] (Pdb) ")
        user.type("c\n")
        user.expect("[0 node0] x is 43\n")
        assert user.wait() == 0


def test_ctrl_d_is_the_end_of_input(folder: Path) -> None:
    with terminal([*LAB, "ask.py"], folder) as user:
        user.expect("name? ")
        user.type("\x04")
        user.expect("\n[0 node0] Traceback", "EOFError")
        assert user.wait() == 1


def test_ctrl_c_at_a_prompt_ends_the_run(folder: Path) -> None:
    with terminal([*LAB, "ask.py"], folder) as user:
        user.expect("name? ")
        user.type("\x03")
        user.expect("\nlab: ending the ranks", "\nlab: interrupted; all ranks have ended")
        assert user.wait() == 130


@pytest.mark.parametrize("how", ["&", "Ctrl-Z and bg"])
def test_in_the_background_it_waits_for_the_foreground(folder: Path, how: str) -> None:
    """The shell's rule is that a job which reads in the background is stopped, all of it."""
    run = shlex.join([*LAB, "ask.py"])
    with terminal(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], folder) as user:
        user.expect("$ ")
        if how == "&":
            user.type(f"{run} &\n")
            user.expect("name? ")
        else:
            user.type(f"{run}\n")
            user.expect("name? ")
            user.type("\x1a")
            user.expect("Stopped", "$ ")
            user.type("bg\n")
            user.expect("$ ")
        time.sleep(0.5)  # what would stop it has had its time
        user.type("jobs\n")
        user.expect("Running")
        user.type("fg\n")
        user.expect("ask.py\n")
        user.type("Ada\n")
        user.expect("[0 node0] hello Ada\n")
        user.type("x\n")
        user.expect("[0 node0] again x\n", "2 ranks ended well", "$ ")
        user.type("exit\n")
        assert user.wait() == 0
