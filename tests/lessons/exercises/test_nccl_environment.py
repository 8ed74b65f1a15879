"""Backends and variables, and that the lesson would see ranks that cannot find each other."""

import os
from typing import Any

import torch.distributed as dist

from tests.lessons.doing import failures
from tests.ranks import RankPool


def accepts_anything(*_: Any) -> None:
    """As a backend that ignores what it is told."""


def host_of_its_own() -> str:
    return f"host{dist.get_rank()}"


def all_are_local_rank_0(name: str, default: int, prefix: str = "LOCAL_") -> int:
    return 0 if name == "RANK" else int(os.environ.get(f"{prefix}{name}", default))


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 2, "nccl_environment") == []


def test_a_loopback_address_for_several_hosts_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "nccl_environment", socket__gethostname=host_of_its_own)
    assert failed == ["MASTER_ADDR is one that all ranks reach"]


def test_ranks_with_one_local_rank_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "nccl_environment", local=all_are_local_rank_0)
    assert failed == ["ranks on the nodes before, and the local rank"]


def test_a_wrong_variable_without_an_error_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "nccl_environment", try_interface=accepts_anything)
    assert failed == ["gloo with GLOO_SOCKET_IFNAME=nosuch0"]
