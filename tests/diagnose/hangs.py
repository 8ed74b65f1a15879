"""Scripts that hang or die, each for one reason, for the judge of `lab why`.

What lab gathers from a run of each is recorded in `recorded/`, so that the judge can be tested
without running them: see `test_recorded.py`.
"""

from dataclasses import dataclass

START = """\
import os, signal, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.ones(2)
"""
DDP = """\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""


@dataclass(frozen=True)
class Hang:
    """One script and where it runs."""

    script: str
    nodes: int = 3
    slots: int = 1


HANGS = {
    # Ranks that call different collectives.
    "skips-a-call": Hang(
        START
        + """\
for step in range(6):
    if not (rank == 1 and step == 3):
        dist.all_reduce(x)
    dist.all_gather([x.clone() for _ in range(world)], x)
"""
    ),
    "skips-one-of-two-alike": Hang(
        START
        + """\
for step in range(6):
    if not (rank == 1 and step == 3):
        dist.all_reduce(x)
    dist.all_reduce(x)  # gloo takes it for the one above: nothing hangs until the end
if rank == 1:
    time.sleep(1000)
"""
    ),
    "skips-and-there-are-two": Hang(
        START
        + """\
for step in range(6):
    if not (rank == 1 and step == 3):
        dist.all_reduce(x)
    dist.all_gather([x.clone() for _ in range(world)], x)
""",
        nodes=2,
    ),
    "skips-backward": Hang(
        START
        + DDP
        + """\
for step in range(6):
    loss = model(torch.randn(4, 8)).square().mean()
    if rank == 1 and step == 3:
        continue  # as where a loss is not finite
    loss.backward()
    optimizer.step()
"""
    ),
    "skips-backward-of-fsdp": Hang(
        START
        + """\
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world,))
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
for step in range(6):
    loss = model(torch.randn(4, 8)).square().mean()
    if rank == 1 and step == 3:
        continue
    loss.backward()
""",
        nodes=2,
    ),
    "only-one-does-not": Hang(
        START
        + """\
for step in range(6):
    dist.all_reduce(x)
    if step == 3 and rank != 2:
        dist.barrier()
"""
    ),
    "barrier-of-one": Hang(
        START
        + """\
for step in range(6):
    dist.all_reduce(x)
    if rank == 0 and step == 3:
        dist.barrier()
"""
    ),
    "other-operation": Hang(
        START
        + """\
if rank == 0:
    dist.broadcast(x, src=0)
else:
    dist.all_reduce(x)
"""
    ),
    "two-sides": Hang(
        START
        + """\
if rank == 0:
    dist.barrier()
else:
    dist.all_reduce(x)
""",
        nodes=2,
    ),
    "too-large-for-gloo": Hang(
        START
        + """\
for step in range(6):
    dist.all_reduce(torch.ones(8 if rank == 2 and step == 3 else 2))
"""
    ),
    "larger-broadcast-for-gloo": Hang(
        START
        + """\
for step in range(3):
    dist.broadcast(torch.ones(12 if rank == 0 and step == 2 else 10), src=0)
dist.all_reduce(x)
""",
        nodes=4,
    ),
    "smaller-gather-for-gloo": Hang(
        START
        + """\
for step in range(3):
    mine = torch.ones(3 if rank == 1 and step == 2 else 4)
    dist.all_gather([torch.empty_like(mine) for _ in range(world)], mine)
dist.barrier()
""",
        nodes=2,
    ),
    "metrics-swapped-for-gloo": Hang(
        START
        + """\
for step in range(4):
    metrics = [torch.ones(1), torch.ones(10)]
    for one in reversed(metrics) if rank == 1 and step > 1 else metrics:
        dist.all_reduce(one)
""",
        nodes=2,
    ),
    "object-of-one-for-gloo": Hang(
        START
        + """\
if rank == 0:
    dist.broadcast_object_list(["a checkpoint"], src=0)
for shape in [(4, 4), (4,)]:
    dist.broadcast(torch.ones(shape), src=0)
dist.all_reduce(x)
""",
        nodes=2,
    ),
    "sends-more-than-fits-for-gloo": Hang(
        START
        + """\
for step in range(4):
    if rank == 0:
        dist.send(torch.ones(6 if step == 3 else 4), 1)
    else:
        dist.recv(torch.ones(4), 0)
dist.barrier()
""",
        nodes=2,
    ),
    "scatters-objects-from-two-roots": Hang(
        START
        + """\
out = [None]
dist.scatter_object_list(out, [1] * world if rank < 2 else None, src=min(rank, 1))
dist.all_reduce(x)
""",
        nodes=4,
    ),
    # Ranks that handle an exception.
    "cleans-up-with-a-barrier": Hang(
        START
        + """\
try:
    for step in range(6):
        if rank == 1 and step == 3:
            raise ValueError("sample 7 is no number")
        dist.all_reduce(x)
finally:
    dist.barrier()
"""
    ),
    "logs-together": Hang(
        START
        + """\
def train():
    for step in range(6):
        dist.all_reduce(x)
        if rank == 1 and step == 3:
            int("no number")
try:
    train()
except ValueError as error:
    errors = [None] * world
    dist.all_gather_object(errors, str(error))
""",
        nodes=2,
    ),
    "handles-it-at-length": Hang(
        START
        + """\
for step in range(6):
    try:
        dist.all_reduce(x)
        if rank == 1 and step == 3:
            open("cache.bin")
    except FileNotFoundError:
        time.sleep(1000)
"""
    ),
    # Ranks that are late.
    "sleeps": Hang(
        START
        + """\
for step in range(6):
    if rank == 5 and step == 3:
        time.sleep(1000)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
""",
        nodes=2,
        slots=4,
    ),
    "sleeps-in-a-subgroup": Hang(
        START
        + """\
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
for step in range(6):
    if rank == 3 and step == 3:
        time.sleep(1000)
    dist.all_reduce(x, group=pairs[rank // 2])
    dist.all_reduce(x)
""",
        nodes=2,
        slots=2,
    ),
    "each-has-its-own-line": Hang(
        START
        + """\
for step in range(6):
    if rank == 0:
        dist.broadcast(x, src=0)
    else:
        dist.broadcast(x, src=0)  # another line, and no fault
    dist.all_reduce(x)
    if rank == 2 and step == 3:
        time.sleep(1000)
"""
    ),
    "roots-have-other-tensors": Hang(
        START
        + """\
for step in range(6):
    dist.scatter(x, [torch.ones(2)] * world if rank == 0 else None, src=0)
    dist.gather(x, [torch.ones(2) for _ in range(world)] if rank == 0 else None, dst=0)
    sizes = [1, 2, 3] if rank == 0 else [2, 2, 2]
    come = [[1, 2, 2], [2, 2, 2], [3, 2, 2]][rank]
    dist.all_to_all_single(torch.ones(sum(come)), torch.ones(sum(sizes)), come, sizes)
    if rank == 0 and step == 3:
        time.sleep(1000)
"""
    ),
    "saves": Hang(
        START
        + """\
os.mkfifo(f"checkpoint{rank}.pt")  # nobody ever reads it
for step in range(6):
    dist.all_reduce(x)
    if rank == 0 and step == 3:
        torch.save({"step": step}, "checkpoint0.pt")
"""
    ),
    "loader-with-workers": Hang(
        START
        + DDP
        + """\
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if rank == 1 and index == 40:
            time.sleep(1000)
        return torch.randn(8)
for batch in DataLoader(Slow(), batch_size=4, num_workers=2):
    model(batch).sum().backward()
""",
        nodes=2,
    ),
    "loader-with-a-stopped-worker": Hang(
        START
        + """\
from torch.utils.data import DataLoader, Dataset
class Stops(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if rank == 1 and index == 36:
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.ones(2)
for batch in DataLoader(Stops(), batch_size=4, num_workers=2):
    dist.all_reduce(batch)
""",
        nodes=2,
    ),
    "monitored-barrier": Hang(
        START
        + """\
dist.all_reduce(x)
if rank == 1:
    time.sleep(1000)
dist.monitored_barrier()
"""
    ),
    "receives-from-who-sleeps": Hang(
        START
        + """\
if rank == 0:
    dist.recv(x, src=2)
elif rank == 2:
    time.sleep(1000)
dist.barrier()
"""
    ),
    # Circles.
    "both-receive": Hang(
        START
        + """\
dist.recv(x, src=1 - rank)
dist.send(x, dst=1 - rank)
""",
        nodes=2,
    ),
    "groups-in-two-orders": Hang(
        START
        + """\
pair = dist.new_group([0, 1])
for step in range(6):
    turned = rank == 1 and step == 3
    for group in (pair, None) if turned else (None, pair):
        if group is None or rank < 2:
            dist.all_reduce(x, group=group)
"""
    ),
    "a-ring-with-a-hole": Hang(
        START
        + """\
ops = [dist.P2POp(dist.irecv, x.clone(), (rank - 1) % world)]
if rank != 1:
    ops.append(dist.P2POp(dist.isend, x, (rank + 1) % world))
for work in dist.batch_isend_irecv(ops):
    work.wait()
dist.barrier()
"""
    ),
    "a-pipeline-that-gets-nothing": Hang(
        START
        + """\
for step in range(5):
    if rank == 0 and step == 3:
        time.sleep(1000)
    if rank > 0:
        dist.irecv(x, rank - 1).wait()
    if rank < world - 1:
        dist.isend(x, rank + 1).wait()
"""
    ),
    # Ranks that are not there.
    "paused": Hang(
        START
        + """\
for step in range(6):
    dist.all_reduce(x)
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
"""
    ),
    "ends-early": Hang(
        START
        + """\
for step in range(4 if rank == 1 else 6):
    dist.all_reduce(x)
"""
    ),
    "killed": Hang(
        START
        + """\
for step in range(6):
    dist.all_reduce(x)
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    ),
    "raises": Hang(
        START
        + """\
for step in range(6):
    if rank == 1 and step == 3:
        raise ValueError("sample 7 is no number")
    dist.all_reduce(x)
"""
    ),
    "unused-everywhere": Hang(
        START
        + DDP
        + """\
class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(8, 1), nn.Linear(8, 1)
    def forward(self, inputs):
        return self.used(inputs)
model = DDP(TwoHeads())
for step in range(3):
    model(torch.randn(4, 8)).sum().backward()
""",
        nodes=2,
    ),
    # The start.
    "late-to-the-start": Hang(
        """\
import os, time
import torch.distributed as dist
if os.environ["RANK"] == "2":
    time.sleep(1000)
dist.init_process_group("gloo")
"""
    ),
    "world-too-large": Hang(
        """\
import os
import torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=9)
"""
    ),
    "all-are-rank-0": Hang(
        """\
import os
import torch.distributed as dist
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + int(os.environ["RANK"]))
dist.init_process_group("gloo", rank=0, world_size=3)
"""
    ),
}
