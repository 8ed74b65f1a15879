"""What ranks tell of how they have split all-to-alls; scripts notice nothing of it."""

import json

from tests.conftest import Lab


def test_newest_are_told_in_bytes_for_each_rank(lab: Lab) -> None:
    script = lab.script("""
import json, sys, torch
import torch.distributed as dist
assert dist.all_to_all_single.__name__ == "all_to_all_single"
dist.init_process_group("gloo")
rank = dist.get_rank()
told = sys.modules["_lab_rank.exchanges"].told
sent, expected = ([3, 1], [3, 2]) if rank == 0 else ([2, 4], [1, 4])
dist.all_to_all_single(
    torch.zeros(sum(expected), 2), torch.ones(sum(sent), 2), expected, input_split_sizes=sent
)
first = told()
for _ in range(20):
    dist.all_to_all_single(torch.zeros(4), torch.ones(4))
if rank == 0:
    print("told", json.dumps([first, told()]), flush=True)
try:
    dist.all_to_all_single(torch.zeros(4), "no tensor")
except Exception as error:
    assert isinstance(error, (TypeError, ValueError, AttributeError, RuntimeError)), error
""")
    done = lab("run", "--nodes", "2", "--on", "local", script)
    assert done.returncode == 0, done.stderr
    first, all_of_them = json.loads(done.stdout.partition("told ")[2].splitlines()[0])
    assert first == [{"group": "0", "number": 1, "sent": [24, 8], "expected": [24, 16]}]
    assert [one["number"] for one in all_of_them] == [*range(14, 22)]
    assert all_of_them[-1]["sent"] == all_of_them[-1]["expected"] == [8, 8]


def test_a_traceback_shows_nothing_of_it(lab: Lab) -> None:
    script = lab.script("""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_to_all_single(torch.zeros(4), torch.ones(4), [9], [9])
""")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 1
    assert "all_to_all_single(" in done.stderr
    assert "exchanges.py" not in done.stderr
