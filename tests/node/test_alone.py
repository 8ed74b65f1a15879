"""One node of a run that has no controller, with its own agent and rank."""

from pathlib import Path

import pytest

from lab.node.alone import NodeRun
from lab.node.meeting import RunBoard, read
from lab.node.settings import Settings

RAISES_WHEN_ENDED = """
import signal, sys, time
def end(*_):
    raise ValueError("I was not done")
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
open("runs/now/node1/failures.json", "w").write("[]")  # now the other node has failed
while True:
    time.sleep(0.01)
"""


def test_a_rank_that_raises_when_it_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text(RAISES_WHEN_ENDED)
    run = tmp_path / "runs/now"
    for node in ("node0", "node1"):
        (run / node).mkdir(parents=True)
    slots = {"node0": 1, "node1": 1}
    settings = Settings("node0", "pair", slots, tmp_path, "127.0.0.1", 29500, ("script.py",))
    board = RunBoard(run, "node0", slots)
    NodeRun(settings, run, board).run()
    assert "[0 node0] ready" in capsys.readouterr().out
    assert read(run / "node0/ended.json") is not None  # it is not counted as lost
    (failure,) = read(run / "node0/failures.json")
    assert failure["code"] == 1
