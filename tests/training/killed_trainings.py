"""Kill trainings of two ranks at random moments, go on, and compare with one that was not killed.

python -m tests.training.killed_trainings FOLDER 20
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset

from tests.training.killed_saves import Killer, started
from tests.training.training_jobs import Job, dataset, train

STEPS = 100
SAVE_EVERY = 10
SAMPLES_A_STEP = 8
"""Of each rank."""
BOUNDARIES = 15
"""Moments in a save of rank 0 at which it can be killed, at least."""


class Deadly(Dataset[tuple[Tensor, Tensor]]):
    """Ends the process when the n-th sample is taken."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __len__(self) -> int:
        return len(dataset())

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.at -= 1
        if self.at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, target = dataset()[index]
        return inputs, target


def options(kind: str, **more: Any) -> dict[str, Any]:
    """All that a step can depend on."""
    return {
        "parallel": kind,
        "steps": STEPS,
        "accumulate": 2,
        "schedule": "cosine",
        "save_every": SAVE_EVERY,
        **more,
    }


def rank_work(rank: int, folder: Path, given: dict[str, Any], killer: Callable[[], Any]) -> None:
    """Train as one of two ranks; leave losses and parameters, if it comes so far."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    data = killer() if rank == given.pop("victim") else None
    job = Job({"dropout": 0.4}, data if isinstance(data, Deadly) else dataset())
    result = train(folder, given, job)
    if result.error:
        raise RuntimeError(result.error)
    if rank == 0:
        torch.save((result.losses, result.parameters), folder / "result.pt")


def run(folder: Path, given: dict[str, Any], killer: Callable[[], Any], victim: int) -> list[int]:
    """Both ranks' wait statuses."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("meeting", "events.jsonl"):
        (folder / name).unlink(missing_ok=True)
    given = {**given, "victim": victim}
    pids = [started(partial(rank_work, rank, folder, given, killer)) for rank in (0, 1)]
    return [os.waitpid(pid, 0)[1] for pid in pids]


def main(folder: Path, kills: int) -> None:
    """Kill so often; print how many bits were others, and where it was killed."""
    torch.set_num_threads(1)
    chance = random.Random(os.environ.get("KILLS_SEED", "1"))
    straight = {}
    for kind in ("ddp", "fsdp", "zero2")[: max(1, kills - 1)]:
        assert run(folder / kind, options(kind), lambda: None, 2) == [0, 0]
        straight[kind] = torch.load(folder / kind / "result.pt")
    for number in range(kills):
        kind = list(straight)[number % len(straight)]
        given = options(kind, asynchronous=bool(number % 2))
        victim = chance.randrange(2)
        place = folder / f"{number}"
        killer: Callable[[], Any]
        if number % 3 == 2:  # in the midst of a save
            victim, at = 0, chance.randrange(1, STEPS // SAVE_EVERY * BOUNDARIES)
            where, killer = f"boundary {at} of saving", partial(Killer, place / "checkpoints", at)
        else:
            at = chance.randrange(1, STEPS * SAMPLES_A_STEP)
            where, killer = f"step {1 + at // SAMPLES_A_STEP}", partial(Deadly, at)
        statuses = run(place, given, killer, victim)
        assert statuses[victim] == signal.SIGKILL, statuses
        assert run(place, {**given, "resume": "auto"}, lambda: None, 2) == [0, 0]
        losses, parameters = torch.load(place / "result.pt")
        expected_losses, expected = straight[kind]
        other = sum(a != b for a, b in zip(losses[::-1], expected_losses[::-1], strict=False))
        other += sum(not torch.equal(expected[name], parameters[name]) for name in expected)
        print(
            f"{kind}: rank {victim} killed at {where}, gone on for {len(losses)} of {STEPS} steps, "
            f"{other} differences",
            flush=True,
        )
        assert other == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
