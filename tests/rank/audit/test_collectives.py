"""Collectives are told by what the script's lines say, where their lines are not the same."""

import json

from tests.conftest import Lab


def test_branches_in_another_order_are_told_though_nothing_hangs(lab: Lab) -> None:
    script = lab.script(
        """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
loss, accuracy = torch.ones(()), torch.zeros(())
for _ in range(2):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        dist.all_reduce(accuracy)
    else:
        dist.all_reduce(accuracy)
        dist.all_reduce(loss)
dist.destroy_process_group()
"""
    )
    run = lab("run", "--on", "local", "--nodes", "3", "--audit", script)
    assert run.returncode == 66, run.stderr
    (finding,) = json.loads((lab.runs()[-1] / "verdict.json").read_text())["findings"]
    assert (finding["kind"], finding["ranks"]) == ("mismatched-collective", [0])
    assert finding["line"] == 8
    assert "the other way round" in finding["summary"]
