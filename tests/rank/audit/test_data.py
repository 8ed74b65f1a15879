"""Faults of data and communication are found where they are, and what is right is left alone."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import Lab

FOLDER = Path(__file__).parent


def _findings(lab: Lab) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads((lab.runs()[-1] / "verdict.json").read_text())[
        "findings"
    ]
    return findings


def test_each_fault_of_data_and_communication_is_found_at_its_line(lab: Lab) -> None:
    shutil.copy(FOLDER / "faulty_data.py", lab.cwd)
    lines = {
        line.rpartition("# line: ")[2]: number
        for number, line in enumerate((lab.cwd / "faulty_data.py").read_text().splitlines(), 1)
        if "# line: " in line
    }
    run = lab("run", "--on", "local", "--nodes", "2", "--audit", "faulty_data.py")
    assert run.returncode == 66, run.stderr
    assert "check of the audit has failed" not in run.stderr
    found = {(one["kind"], one["line"]): one["ranks"] for one in _findings(lab)}
    both = [0, 1]
    expected = {
        ("overlapping-samples", lines["overlap"]): both,
        ("order-never-changes", lines["order"]): both,
        ("missing-samples", lines["missing"]): [],
        ("different-random-state", lines["split"]): both,
        ("loss-not-averaged", lines["loss"]): [0],
        ("uneven-average", lines["uneven"]): both,
        ("same-file", lines["file"]): both,
        ("same-random-state", lines["noise"]): both,
        ("data-parallel", lines["data parallel"]): both,
        ("mismatched-collective", lines["reduce"]): both,
    }
    assert expected.items() <= found.items(), found
    others = {kind for kind, line in found if (kind, line) not in expected}
    assert others == {"same-batch"}


def test_data_and_communication_that_are_right_are_left_alone_bit_by_bit(lab: Lab) -> None:
    shutil.copy(FOLDER / "healthy_data.py", lab.cwd)
    where = ("run", "--on", "local", "--nodes", "2")
    plain = lab(*where, "healthy_data.py")
    audited = lab(*where, "--audit", "healthy_data.py")
    assert audited.returncode == 0, audited.stderr
    assert "check of the audit has failed" not in audited.stderr
    assert _findings(lab) == []
    assert sorted(audited.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert len(plain.stdout.splitlines()) > 20, plain.stderr


def test_ranks_that_send_more_often_than_others_are_still_in_step(lab: Lab) -> None:
    """Gloo counts sends among the collectives of a group: those in the middle have more of them."""
    script = lab.script(
        """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
for step in range(3):
    if rank > 0:
        dist.recv(torch.empty(4), rank - 1)
    if rank < last:
        dist.isend(torch.ones(4), rank + 1).wait()
    dist.all_reduce(torch.ones(step + 1))
    dist.broadcast(torch.ones(2), src=last)
dist.monitored_barrier()
dist.all_reduce(torch.ones(2))
dist.barrier()
"""
    )
    run = lab("run", "--on", "local", "--nodes", "3", "--audit", script)
    assert run.returncode == 0, run.stderr
    assert "check of the audit has failed" not in run.stderr
    assert _findings(lab) == []


def test_a_sampler_by_local_rank_is_named_by_both_of_its_findings(lab: Lab) -> None:
    script = lab.script(
        """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(64, 4)
dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(dataset, rank=int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(dataset, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
"""
    )
    run = lab("run", "--on", "local", "--nodes", "2", "--audit", script)
    assert run.returncode == 66, run.stderr
    same, missing = sorted(_findings(lab), key=lambda one: one["kind"] == "missing-samples")
    assert (same["kind"], missing["kind"]) == ("same-batch", "missing-samples")
    assert (same["ranks"], missing["ranks"]) == ([0, 1], [1])
    assert missing["summary"].startswith("32 of 64 samples are trained on by no rank in epoch 1")
    assert all("LOCAL_RANK" in one["cure"] for one in (same, missing))
