"""A small training, wrapped in every way there is, for tests of checkpoints on ranks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.parallel import (
    DistributedDataParallel,
    FullyShardedDataParallel,
    ZeroRedundancyOptimizer,
)
from lab.training.checkpoints import Checkpoints

KINDS = ("ddp", "ddp-torch", "fsdp", "fsdp-torch", "zero1", "zero2", "zero1-torch")
"""`none` is one process."""


class Net(nn.Module):
    """Odd shapes, tied weights, buffers, and memory that is not row by row."""

    def __init__(self, memory_format: torch.memory_format = torch.channels_last) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.second: nn.Module = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.ones(1))
        conv: Any = nn.Conv2d(2, 3, 2)
        self.conv = conv.to(memory_format=memory_format)
        self.first_again = self.first
        self.last = nn.Linear(7, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        hidden = torch.relu(self.second(hidden)) * self.scale
        hidden = torch.dropout(hidden, 0.2, self.training)
        image = torch.cat([hidden, hidden[:, :1]], dim=1).view(-1, 2, 2, 2)
        outputs: Tensor = self.last(hidden) + self.conv(image).flatten(1)
        return outputs


class Training:
    """A model and its optimiser on this rank, or in one process."""

    def __init__(self, kind: str, *, seed: int = 0, frozen: bool = True, **options: Any) -> None:
        torch.manual_seed(seed)
        # torch's fully_shard takes no other.
        row_by_row = torch.contiguous_format
        net = Net(row_by_row) if kind == "fsdp-torch" else Net()
        net.last.bias.requires_grad_(not frozen)
        self.model: Any = net
        if kind in ("ddp", "zero1", "zero2", "zero1-torch"):
            self.model = DistributedDataParallel(net)
        elif kind == "ddp-torch":
            self.model = TorchDDP(net)
        elif kind == "fsdp":
            net.second = FullyShardedDataParallel(net.second)
            self.model = FullyShardedDataParallel(net)
        elif kind == "fsdp-torch":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            fully_shard(net.second, mesh=mesh)
            fully_shard(net, mesh=mesh)
        self.optimizer = self._optimizer(kind, {"lr": 0.1, **options})

    def _optimizer(self, kind: str, options: dict[str, Any]) -> Any:
        named = list(self.model.named_parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for name, p in named if "bias" in name and p.requires_grad]},
            {"params": [p for name, p in named if "bias" not in name], "weight_decay": 0.5},
        ]
        if kind == "zero1":
            return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **options)
        if kind == "zero2":
            return ZeroRedundancyOptimizer(
                groups, torch.optim.AdamW, stage=2, model=self.model, **options
            )
        if kind == "zero1-torch":
            from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero

            options["parameters_as_bucket_view"] = True
            groups = groups[1:]  # it takes one group when it is made
            return TorchZero(groups[0]["params"], torch.optim.AdamW, **options)
        return torch.optim.AdamW(groups, **options)

    def step(self) -> float:
        """One, on random data of this rank's own. Its loss."""
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, 5)).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def evaluate(self) -> None:
        """On what nobody trains on; without dropout."""
        self.model.eval()
        self.model(torch.ones(4, 5))
        self.model.train()


def seed_by_rank() -> None:
    """Other random numbers on every rank."""
    torch.manual_seed(100 + (dist.get_rank() if dist.is_initialized() else 0))


def save(kind: str, folder: Path, steps: int = 2, **options: Any) -> None:
    """Train and save after each step."""
    training = Training(kind)
    checkpoints = Checkpoints(folder, **options)
    seed_by_rank()
    for step in range(1, steps + 1):
        training.step()
        training.evaluate()  # after it, fully_shard has its parameters whole
        checkpoints.save(step, training.model, training.optimizer, {"step": step})
    checkpoints.finish()


def load_and_save(kind: str, folder: Path, copy: Path) -> None:
    """Load into another training, and save what was loaded."""
    training = Training(kind, seed=9, lr=0.7)
    progress = Checkpoints(folder).load(training.model, training.optimizer)
    assert progress is not None
    Checkpoints(copy).save(progress["step"], training.model, training.optimizer, progress)


def go_on(kind: str, folder: Path, steps: int, asynchronous: bool = False) -> list[float]:
    """Go on to so many steps from the last checkpoint, or from the beginning. The losses."""
    training = Training(kind)
    checkpoints = Checkpoints(folder, asynchronous=asynchronous)
    seed_by_rank()
    progress = checkpoints.load(training.model, training.optimizer) or {"step": 0}
    losses = []
    for step in range(progress["step"] + 1, steps + 1):
        losses.append(training.step())
        checkpoints.save(step, training.model, training.optimizer, {"step": step})
    checkpoints.finish()
    return losses
