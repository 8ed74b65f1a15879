"""Bytes on the wire, bytes of tensors, and what they must be."""

import socket
import sys
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lab.prove import Recipe
from lab.prove.measure import ACTIVATIONS, measure
from lab.prove.memory import LiveBytes, storage_bytes
from lab.prove.resources import Memory, held_formula, unsharded_formula, wire_formula
from lab.prove.wire import received_bytes
from lab.training.world import World
from tests.ranks import RankPool


def test_the_kernels_count_is_of_tcp_payload_and_of_nothing_else() -> None:
    if sys.platform != "linux":
        assert received_bytes() is None
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        pair = socket.socketpair()
        with client, peer, pair[0], pair[1]:
            before = received_bytes()
            assert before is not None
            client.sendall(b"x" * 1000)
            pair[0].sendall(b"x" * 500)
            assert len(peer.recv(1000, socket.MSG_WAITALL)) == 1000
            assert received_bytes() == before + 1000
            client.sendall(b"y")
            assert peer.recv(1) == b"y", "the connection was left open"


def received_in_an_all_reduce() -> int | None:
    tensor = torch.ones(250_000)
    before = received_bytes()
    dist.barrier()
    dist.all_reduce(tensor)
    after = received_bytes()
    dist.barrier()
    return None if before is None or after is None else after - before


def test_an_all_reduce_of_gloo_is_a_ring(ranks: RankPool) -> None:
    for received in ranks.run(4, received_in_an_all_reduce):
        assert received is None or received == pytest.approx(2 * 3 / 4 * 1_000_000, rel=0.01)


def test_live_bytes_are_those_of_storages() -> None:
    with LiveBytes() as live:
        first = torch.zeros(1000)
        second = first + 1
        assert (live.live(), live.peak) == (8000, 8000)
        view = second[:10]
        del first, second
        assert live.live() == 4000, "the view holds it"
        view.untyped_storage().resize_(0)
        assert (live.live(), live.peak) == (0, 8000)


def test_views_share_their_bytes() -> None:
    tensor = torch.zeros(6)
    assert storage_bytes([tensor, tensor[:2], tensor.view(2, 3), torch.zeros(1)]) == 28


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({}, 2),
        ({"impl": "torch"}, 2),
        ({"all_reduce": "ordered", "accumulate": 3}, 2),
        ({"comm_hook": "fp16"}, 1),
        ({"parallel": "zero1"}, 3),
        ({"parallel": "zero1", "comm_hook": "bf16"}, 2),
        ({"parallel": "zero2"}, 2),
        ({"parallel": "fsdp"}, 3),
        ({"parallel": "fsdp", "accumulate": 2}, 5),
        ({"parallel": "fsdp", "reshard_after_forward": False}, 2),
        ({"parallel": "fsdp", "precision": "bfloat16"}, Fraction(3, 2)),
        ({"parallel": "none"}, 0),
    ],
)
def test_bytes_by_formula(arguments: dict[str, object], parts: Fraction) -> None:
    recipe = Recipe(**arguments)  # type: ignore[arg-type]  # options by name
    for size in (1, 2, 3, 8):
        assert wire_formula(recipe, size)[1] == pytest.approx(float(parts * (size - 1) / size))


def test_no_formula_where_it_depends_on_the_nodes() -> None:
    assert wire_formula(Recipe(all_reduce="hierarchical"), 4)[1] is None


@pytest.mark.parametrize(
    ("arguments", "held"),
    [
        ({}, 4 * 17),
        ({"optimizer": "sgd"}, 3 * 17),
        ({"parallel": "zero1"}, 18 + 17 + 2 * 6),
        ({"parallel": "zero2"}, 18 + 6 + 2 * 6),
        ({"parallel": "fsdp"}, 4 * (4 + 3)),
    ],
)
def test_memory_by_formula(arguments: dict[str, object], held: int) -> None:
    recipe = Recipe(**arguments)  # type: ignore[arg-type]  # options by name
    assert held_formula(recipe, [10, 7], ranks=3) == held


def test_whole_units_beside_the_shards_by_formula() -> None:
    sizes = [10, 7, 7]  # padded for 3 ranks: 12, 9, 9
    assert unsharded_formula(Recipe(parallel="fsdp"), sizes, 3) == (24, 24)
    stays = Recipe(parallel="fsdp", reshard_after_forward=False, accumulate=2)
    assert unsharded_formula(stays, sizes, 3) == (30, 54)
    assert unsharded_formula(Recipe(), sizes, 3) is None


def measured(arguments: dict[str, Any]) -> Memory:
    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo")
    return measure(Recipe(**arguments), world)[1]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_fsdps_peak_is_two_units_more_than_it_holds(
    ranks: RankPool, world_size: int, optimizer: str
) -> None:
    arguments = {"parallel": "fsdp", "optimizer": optimizer}
    for memory in ranks.run(world_size, measured, arguments):
        unit = -(-memory.unit // 4 // world_size) * world_size * 4
        assert memory.most == memory.expected + 2 * (unit + unit) + ACTIVATIONS
        assert memory.faults == []
        if world_size == 8:  # where few shards are still to come, so that the bound is felt
            assert max(memory.peak) > memory.most - unit


@pytest.mark.parametrize("world_size", [2, 4])
def test_zero_2s_peak_is_below_zero_1s(ranks: RankPool, world_size: int) -> None:
    one, two = (
        [max(memory.peak) for memory in ranks.run(world_size, measured, {"parallel": parallel})]
        for parallel in ("zero1", "zero2")
    )
    assert max(two) < min(one)
