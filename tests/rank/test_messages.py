"""What ranks tell of their point-to-point messages; scripts notice nothing of the counting."""

import json

from tests.conftest import Lab

SCRIPT = """
import inspect, json, os, pickle, sys, torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import irecv
assert irecv is dist.irecv and pickle.loads(pickle.dumps(irecv)) is irecv
assert list(inspect.signature(dist.isend).parameters)[:2] == ["tensor", "dst"]
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(2)
alone = [dist.new_group([r]) for r in range(2)]
if rank == 0:
    dist.send(x, 1)
    dist.isend(x, group_dst=1, tag=3).wait()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)]):
        work.wait()
    dist.send_object_list([1], 1)
else:
    dist.recv(x)  # from whoever sends
    dist.irecv(x, 0, None, 3).wait()
    dist.isend(x, dst=0).wait()
    got = [None]
    dist.recv_object_list(got, src=0)
try:
    dist.isend(x, rank)
except RuntimeError:
    pass
dist.barrier()
told = sys.modules["_lab_rank.messages"].told()
print("told", json.dumps(told), flush=True)
dist.destroy_process_group()
"""


def test_each_message_is_counted_once_by_its_peer_and_tag(lab: Lab) -> None:
    script = lab.script(SCRIPT)
    done = lab("run", "-t", "solo", "--slots", "2", "--on", "local", script)
    assert done.returncode == 0, done.stderr
    told = {
        line.split()[0].strip("["): _by_lane(line.partition("told ")[2])
        for line in done.stdout.splitlines()
    }
    assert told["0"] == {(1, 0): (3, 1), (1, 3): (1, 0)}
    assert told["1"] == {(None, 0): (0, 1), (0, 3): (0, 1), (0, 0): (1, 2)}


def test_a_traceback_shows_nothing_of_the_counting(lab: Lab) -> None:
    script = lab.script("""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.isend(torch.ones(1), 0)
""")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 1
    assert "in isend" in done.stderr
    assert "messages.py" not in done.stderr


def _by_lane(text: str) -> dict[tuple[int | None, int], tuple[int, int]]:
    return {(one["peer"], one["tag"]): (one["sent"], one["received"]) for one in json.loads(text)}
