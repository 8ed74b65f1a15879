"""Ranks that have not met are told of, and those that have are not."""

import json

from tests.conftest import Lab

SCRIPT = """
import os
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def test_ranks_that_have_joined_under_one_number_are_in_worlds_of_their_own(lab: Lab) -> None:
    done = lab("run", "-t", "pair", "--on", "local", "--audit", lab.script(SCRIPT))
    assert done.returncode == 0, done.stderr
    verdict = json.loads((lab.runs()[-1] / "verdict.json").read_text())
    (finding,) = verdict["findings"]
    assert (finding["kind"], finding["ranks"], finding["line"]) == ("separate-worlds", [0, 1], 8)
    assert "ranks 0, 1 have each joined one as rank 0: each trains alone" in finding["summary"]
