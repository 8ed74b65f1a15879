"""Collectives by hand: send and receive, and nothing else.

Exercise
    Write broadcast, all-gather, reduce-scatter and all-reduce with `isend` and `irecv`. Count the
    rounds and the bytes that the busiest rank sends. Then watch a ring all-reduce at work.

Theory
    For N ranks and a tensor of S bytes, L = log2 N rounded up:

        collective      algorithm  rounds     bytes sent by the busiest rank
        broadcast       naive      1          (N-1) S         the root sends to each
                        tree       L          L S             whoever has it sends it on
                        ring       N          2 (N-1)/N S     scatter, then ring all-gather
        all-gather      naive      1          (N-1)/N S       each sends its part to each
                        ring       N-1        (N-1)/N S       pass on what came last
                        doubling   L          (N-1)/N S       twice as many parts each round
        reduce-scatter  naive      1          (N-1)/N S       each part goes to its owner
                        ring       N-1        (N-1)/N S       pass partial sums on
        all-reduce      naive      N          (N-1) S         rank 0 adds, and sends to each
                        ring       2 (N-1)    2 (N-1)/N S     reduce-scatter, then all-gather
                        doubling   log2 N     S log2 N        swap sums at distance 1, 2, 4, ...

    Doubling takes two rounds and S more where N is no power of two. Few rounds win where tensors
    are small and latency counts, few bytes where they are large. A ring's bytes hardly depend on N:
    that is why data parallelism scales.

    All-reduce is reduce-scatter and all-gather. ZeRO and FSDP use the two halves by themselves.

Read
    lab/parallel/algorithms.py: each in about ten lines; lab/parallel/collectives.py.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lab.lessons.notebook import Notebook, main
from lab.parallel import algorithms, collectives
from lab.parallel.wire import DEADLINE, Traffic, Wire

PART = 1024
"""Elements of one rank's part."""
MOST_WATCHED = 8
"""Ranks; of more the table would not fit on a screen."""


@dataclass(frozen=True)
class Case:
    """One algorithm of one collective, and what theory says of it."""

    collective: str
    algorithm: str
    rounds: int
    sent: float
    """By the busiest rank, in units of S."""


def cases(n: int) -> list[Case]:
    """The theory's table for N ranks."""
    part, steps = (n - 1) / n, ceil(log2(n))
    power = int(log2(n))  # doubling's steps among the largest power of two
    odd = n != 1 << power
    return [
        Case("broadcast", "naive", 1, n - 1),
        Case("broadcast", "tree", steps, steps),
        Case("broadcast", "ring", n, 2 * part),
        Case("all_gather", "naive", 1, part),
        Case("all_gather", "ring", n - 1, part),
        Case("all_gather", "doubling", steps, part),
        Case("reduce_scatter", "naive", 1, part),
        Case("reduce_scatter", "ring", n - 1, part),
        Case("all_reduce", "naive", n, n - 1),
        Case("all_reduce", "ring", 2 * (n - 1), 2 * part),
        Case("all_reduce", "doubling", power + 2 * odd, power + odd),
    ]


def exercise(notebook: Notebook) -> None:
    """Run each algorithm beside the backend's own, then the ring step by step."""
    n, rank = notebook.world.size, notebook.world.rank
    generator = torch.Generator().manual_seed(rank)
    # Whole numbers: their sums have no rounding, so every order gives the same bits.
    whole = torch.randint(100, (n * PART,), generator=generator).float().to(notebook.world.device)
    rows = []
    for case in cases(n):
        result, traffic = by_hand(case, whole)
        right = notebook.gather(torch.equal(result, by_backend(case.collective, whole)))
        traffics = notebook.gather(traffic)
        rounds = max(traffic.rounds for traffic in traffics)
        sent = max(traffic.sent_bytes for traffic in traffics)
        words = "as the backend's" if all(right) else "not as the backend's"
        notebook.expect(
            f"{case.collective}, {case.algorithm}",
            f"{words}, {rounds} rounds, {sent} bytes",
            f"as the backend's, {case.rounds} rounds, {round(case.sent * whole.nbytes)} bytes",
        )
        rows.append((case.collective, case.algorithm, rounds, sent / whole.nbytes))
    notebook.table(("collective", "algorithm", "rounds", "sent / S"), rows)
    if n <= MOST_WATCHED:
        watch_the_ring(notebook)


def by_hand(case: Case, whole: Tensor) -> tuple[Tensor, Traffic]:
    """What the algorithm makes of each rank's `whole`, and what this rank sent."""
    run: Any = getattr(collectives, case.collective)
    part = whole.chunk(dist.get_world_size())[dist.get_rank()].clone()
    output = whole.clone()
    if case.collective == "all_gather":
        return output, run(output, part, algorithm=case.algorithm)
    if case.collective == "reduce_scatter":
        return part, run(part, whole, algorithm=case.algorithm)
    return output, run(output, algorithm=case.algorithm)


def by_backend(collective: str, whole: Tensor) -> Tensor:
    """The same by torch.distributed."""
    n, rank = dist.get_world_size(), dist.get_rank()
    output = whole.clone()
    if collective == "broadcast":
        dist.broadcast(output, 0)
    elif collective == "all_gather":
        dist.all_gather(list(output.chunk(n)), whole.chunk(n)[rank].clone())
    else:
        dist.all_reduce(output)
    return output.chunk(n)[rank] if collective == "reduce_scatter" else output


class WatchedWire(Wire):
    """Keeps what `flat` held before each round."""

    def watch(self, flat: Tensor) -> None:
        """From now on."""
        self.flat = flat
        self.states: list[list[int]] = []

    def exchange(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]
    ) -> None:
        """One round."""
        self.states.append(self.flat.tolist())
        super().exchange(sends, receives)


def watch_the_ring(notebook: Notebook) -> None:
    """Each rank adds a digit of its own, so a partial sum shows whose parts are in it."""
    n, rank = notebook.world.size, notebook.world.rank
    flat = torch.full((n,), 10**rank, dtype=torch.int64, device=notebook.world.device)
    wire = WatchedWire(None, DEADLINE)
    wire.watch(flat)
    algorithms.ring_all_reduce(flat, wire)
    states = [*wire.states, flat.tolist()]
    everybodys = notebook.gather(states)
    notebook.say("a ring all-reduce of N parts; a digit for each rank whose value is in the sum:")
    notebook.table(
        ("after round", *(f"rank {other}" for other in range(n))),
        [
            (
                number,
                *(" ".join(f"{value:0{n}d}" for value in column[number]) for column in everybodys),
            )
            for number in range(len(states))
        ],
    )
    everything = int("1" * n)

    def complete(state: list[int]) -> list[int]:
        return [part for part, value in enumerate(state) if value == everything]

    half, end = complete(states[n - 1]), complete(states[-1])
    notebook.expect("complete parts after N-1 rounds: its own", half, [rank])
    notebook.expect("and after 2 (N-1): all", end, list(range(n)))


if __name__ == "__main__":
    sys.exit(main(exercise))
