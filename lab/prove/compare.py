"""The ranks' traces against the one process's."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lab.prove.report import RankRow, StepRow, worst
from lab.prove.trace import Trace


def compare_steps(ranks: Sequence[Trace], one: Trace) -> tuple[StepRow, ...]:
    """A row for each step, with the worst rank's differences."""
    return tuple(_compare_step(step, ranks, one) for step in range(len(one.losses)))


def _compare_step(step: int, ranks: Sequence[Trace], one: Trace) -> StepRow:
    gradients = [(rank.gradients[step], one.gradients[step]) for rank in ranks]
    parameters = [(rank.parameters[step], one.parameters[step]) for rank in ranks]
    states = [pair for rank in ranks for pair in _pairs_of_states(rank, one, step)]
    losses = sum(rank.losses[step] for rank in ranks) / len(ranks), one.losses[step]
    return StepRow(
        step=step + 1,
        epoch=one.epochs[step],
        one_process_loss=losses[1],
        ranks_loss=losses[0],
        one_process_parameter_sum=_sum(one.parameters[step]),
        ranks_parameter_sum=_sum(ranks[0].parameters[step]),
        one_process_sha256=one.sha256[step],
        ranks_sha256=ranks[0].sha256[step],
        gradient_difference=worst(max_difference(a, b) for a, b in gradients),
        parameter_difference=worst(max_difference(a, b) for a, b in parameters),
        optimizer_difference=worst(max_difference(a, b) for a, b in states),
        relative_difference=worst(
            relative_difference(a, b)
            for a, b in [*gradients, *parameters, *states, tuple(map(torch.tensor, losses))]
        ),
        ranks_equal=len({rank.sha256[step] for rank in ranks}) == 1,
    )


def compare_ranks(nodes: Sequence[str], ranks: Sequence[Trace], one: Trace) -> tuple[RankRow, ...]:
    """A row for each rank, with its worst step's differences. `nodes`: where each rank is."""
    return tuple(
        RankRow(
            rank=number,
            node=node,
            parameter_sum=_sum(rank.parameters[-1]),
            gradient_norm=float(torch.linalg.vector_norm(rank.gradients[-1].double())),
            gradient_difference=_worst_pair(rank.gradients, one.gradients),
            parameter_difference=_worst_pair(rank.parameters, one.parameters),
        )
        for number, (node, rank) in enumerate(zip(nodes, ranks, strict=True))
    )


def max_difference(a: Tensor, b: Tensor) -> float:
    """Max |a - b| of two tensors of one shape; NaN where either has one."""
    return float((a.double() - b.double()).abs().max())


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Max |a - b| / max |b|; 0 where both are all zeros."""
    difference, largest = max_difference(a, b), float(b.double().abs().max())
    return difference if difference == 0 else difference / max(largest, 1e-38)


def _pairs_of_states(rank: Trace, one: Trace, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    states, expected = rank.states[step], one.states[step]
    assert expected is not None
    if states is not None:
        assert states.keys() == expected.keys()
        yield from ((states[name], value) for name, value in expected.items())


def _worst_pair(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return worst(max_difference(a, b) for a, b in zip(ours, theirs, strict=True))


def _sum(tensor: Tensor) -> float:
    return float(tensor.double().sum())
