"""Where a process was as a fatal signal ended it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from lab.node.crash import BEGIN, stacks
from tests.node.test_agent import agent, job

SCRIPT = """\
import faulthandler, os, threading, time
faulthandler.enable({fd}, all_threads=True)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
class Trainer:
    def step(self):
        os.abort()
Trainer().step()
"""


def test_all_threads_are_told_of_the_main_one_first(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(fd=theirs))
    try:
        ended = subprocess.run([sys.executable, str(script)], pass_fds=[theirs], check=False)
    finally:
        os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told = pipe.read()
    assert ended.returncode == -signal.SIGABRT
    assert told.startswith(BEGIN)

    main, other = stacks(told.decode(), str(tmp_path))
    assert main["main"]
    assert not other["main"]
    assert [(frame["file"], frame["line"], frame["function"]) for frame in main["frames"]] == [
        ("train.py", 6, "step"),
        ("train.py", 7, "<module>"),
    ]
    assert all(frame["user"] for frame in main["frames"])
    assert not any(frame["user"] for frame in other["frames"])  # threading's own


def test_a_rank_whose_children_live_on_is_told_of_as_it_ends(tmp_path: Path) -> None:
    """They hold its pipes, as a data loader's workers do."""
    script = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nos.abort()\n"
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        told = running.until("exit")
    assert told[-1]["signal"] == signal.SIGABRT
    (state,) = [one for one in told if one["type"] == "state"]
    (main,) = [thread for thread in state["probe"]["threads"] if thread["main"]]
    assert (main["frames"][0]["file"], main["frames"][0]["line"]) == ("script.py", 4)
