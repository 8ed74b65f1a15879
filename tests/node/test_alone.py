"""One node of a run that has no controller, with its own agent and rank."""

from pathlib import Path

import pytest

from lab.node.alone import NodeRun, judge
from lab.node.meeting import RunBoard, read
from lab.node.settings import Settings

RAISES_WHEN_ENDED = """
import signal, sys, time
def end(*_):
    raise ValueError("I was not done")
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
with open("runs/now/node1/failures.json", "w") as file:  # now the other node has failed
    file.write('[{"consequence": 0}]')
while True:
    time.sleep(0.01)
"""


def run_node(folder: Path, script: str) -> RunBoard:
    """node0 of two, with this script, to its end."""
    (folder / "script.py").write_text(script)
    run = folder / "runs/now"
    for node in ("node0", "node1"):
        (run / node).mkdir(parents=True)
    slots = {"node0": 1, "node1": 1}
    settings = Settings("node0", "pair", slots, folder, "127.0.0.1", 29500, ("script.py",))
    board = RunBoard(run, "node0", slots)
    NodeRun(settings, run, board).run()
    return board


def test_a_rank_that_raises_when_it_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = run_node(tmp_path, RAISES_WHEN_ENDED)
    run = board.path
    assert "[0 node0] ready" in capsys.readouterr().out
    assert read(run / "node0/ended.json") is not None  # it is not counted as lost
    (failure,) = read(run / "node0/failures.json")
    assert failure["code"] == 1


EXITS_AFTER_ITS_PEER = """
import sys
try:
    raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1")
except RuntimeError:
    sys.exit(5)
"""


def test_the_cause_is_blamed_though_it_is_told_later(tmp_path: Path) -> None:
    board = run_node(tmp_path, EXITS_AFTER_ITS_PEER)
    (victim,) = board.failures()
    assert (victim["code"], victim["consequence"]) == (5, 2)
    cause = victim | {"at": victim["at"] + 1, "rank": 1, "code": 7, "consequence": 0}
    other = RunBoard(board.path, "node1", ["node0", "node1"])
    other.report([cause])
    other.end()
    assert judge(board)["exit_code"] == 7
