"""`lab run` on a real terminal: one that is slow, one that is closed, and progress bars on it."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.conftest import COMMAND, Lab
from tests.runs.test_local_runs import living, verdict, wait_for_output


class Terminal:
    """A pseudo-terminal with `lab` on it, as a shell would start it there."""

    def __init__(self, lab: Lab, *argv: str) -> None:
        self.master, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *COMMAND, *argv],
            cwd=lab.cwd,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": ""},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)

    def read(self) -> str:
        """All that is written to it until nobody has it open any more."""
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while select.select([self.master], [], [], 60)[0]:
                data = os.read(self.master, 1 << 16)
                if not data:
                    break
                shown += data
        return shown.decode().replace("\r\n", "\n")

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
        self.master = -1


@pytest.fixture
def terminals(lab: Lab) -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.close()
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()


def plain(shown: str) -> str:
    """Without colours, and without what the line of progress before a run leaves."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).lstrip("\r")


WAIT = """
import os, signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready" + os.environ["RANK"], flush=True)
time.sleep(1000)
"""


def wait_for_both(lab: Lab) -> None:
    for rank in range(2):
        wait_for_output(lab, f"ready{rank}")


def test_a_terminal_that_is_not_read_loses_nothing(lab: Lab, terminals: list[Terminal]) -> None:
    script = lab.script("for i in range(20_000): print(i, 'x' * 80)")
    terminal = Terminal(lab, "run", "-t", "pair", "--on", "local", script)
    terminals.append(terminal)
    time.sleep(3)
    assert terminal.process.poll() is None  # it waits for its reader
    shown = plain(terminal.read())
    assert terminal.process.wait(60) == 0
    for rank in range(2):
        lines = [line for line in shown.splitlines() if line.startswith(f"[{rank} node{rank}] ")]
        assert [int(line.split()[2]) for line in lines] == list(range(20_000))


def test_a_closed_terminal_ends_the_run_in_order(lab: Lab, terminals: list[Terminal]) -> None:
    terminal = Terminal(lab, "run", "-t", "pair", "--on", "local", lab.script(WAIT))
    terminals.append(terminal)
    wait_for_both(lab)
    terminal.close()
    assert terminal.process.wait(60) == 128 + signal.SIGHUP
    assert verdict(lab)["kind"] == "interrupted"
    for rank in range(2):
        said = (lab.runs()[0] / f"node{rank}" / f"rank{rank}.out").read_text()
        assert said == f"ready{rank}\nsaved\n"
    assert living(lab) == []


def test_a_second_hangup_is_not_impatience(lab: Lab) -> None:
    """A closed terminal sends one to the leader of its session, and one to its foreground."""
    slow = WAIT.replace('print("saved"', 'time.sleep(2); print("saved"')
    running = lab.start("run", "-t", "pair", "--on", "local", lab.script(slow))
    wait_for_both(lab)
    running.send_signal(signal.SIGHUP)
    time.sleep(1)  # or they would be one to Python
    running.send_signal(signal.SIGHUP)
    assert running.wait(60) == 128 + signal.SIGHUP
    for rank in range(2):
        said = (lab.runs()[0] / f"node{rank}" / f"rank{rank}.out").read_text()
        assert said == f"ready{rank}\nsaved\n"


def test_a_terminal_that_closes_while_ranks_write(lab: Lab, terminals: list[Terminal]) -> None:
    script = lab.script("import time\nwhile True: print('x' * 80, flush=True); time.sleep(0.001)")
    terminal = Terminal(lab, "run", "-t", "pair", "--on", "local", "--grace", "2", script)
    terminals.append(terminal)
    wait_for_output(lab, "xxx")
    terminal.close()
    assert terminal.process.wait(60) == 128 + signal.SIGHUP
    state = json.loads((lab.runs()[0] / "state.json").read_text())
    assert state["state"] == "finished"
    assert verdict(lab)["kind"] == "interrupted"
    assert living(lab) == []


def test_nohup(lab: Lab) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        running = lab.start("run", "-t", "pair", "--on", "local", lab.script(WAIT))
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for_both(lab)
    running.send_signal(signal.SIGHUP)
    assert lab("stop").returncode == 0
    assert running.wait(60) == 130  # by Ctrl-C, which came after it


def test_ctrl_c_on_a_terminal_reaches_ranks_as_a_request(
    lab: Lab, terminals: list[Terminal]
) -> None:
    terminal = Terminal(lab, "run", "-t", "pair", "--on", "local", lab.script(WAIT))
    terminals.append(terminal)
    wait_for_both(lab)
    terminal.press(b"\x03")
    shown = plain(terminal.read())
    assert terminal.process.wait(60) == 130
    assert shown.count("saved") == 2
    assert "KeyboardInterrupt" not in shown


def test_tqdm_bars_of_two_ranks(lab: Lab, terminals: list[Terminal]) -> None:
    script = lab.script(
        """
import os, time
from tqdm import tqdm
for _ in tqdm(range(50), desc=f"epoch of {os.environ['RANK']}", mininterval=0):
    time.sleep(0.01)
print("done")
"""
    )
    terminal = Terminal(lab, "run", "-t", "pair", "--on", "local", script)
    terminals.append(terminal)
    shown = plain(terminal.read())
    assert terminal.process.wait(60) == 0
    for rank in range(2):
        lines = [line for line in shown.split("\n") if line.startswith(f"[{rank} node{rank}] ")]
        bars = [line for line in lines if "epoch of" in line]
        assert 1 <= len(bars) <= 3, bars  # now and then while it goes on, and its end
        assert f"epoch of {rank}: 100%" in bars[-1]
        assert "50/50" in bars[-1]
        assert lines[-1].endswith("done") or lines[-1] == bars[-1]
        assert all("\r" not in line for line in lines)
