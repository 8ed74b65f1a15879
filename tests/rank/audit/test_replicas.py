"""Faults are found and named where they are; what is as it should be stays as it is, bit by bit."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import Lab

FOLDER = Path(__file__).parent
HERE = {"weights-differ-at-start", "parameters-differ", "buffers-differ", "no-gradient", "nan"} | {
    *(
        "training-mode-differs",
        "gradients-not-reduced",
        "gradients-reduced-twice",
        "no-sync-at-step",
        "local-norm-clipping",
    )
}
"""The kinds that these scripts are about; batches are another matter."""


def _script(lab: Lab, name: str) -> str:
    shutil.copy(FOLDER / name, lab.cwd)
    return name


def _findings(lab: Lab) -> list[dict[str, Any]]:
    verdict = json.loads((lab.runs()[-1] / "verdict.json").read_text())
    return [finding for finding in verdict["findings"] if finding["kind"] in HERE]


def _lines(name: str) -> dict[str, int]:
    """Where the script's comments say that something is: what it is -> the line."""
    lines = (FOLDER / name).read_text().splitlines()
    return {
        line.partition("# line: ")[2]: number
        for number, line in enumerate(lines, start=1)
        if "# line: " in line
    }


def test_each_fault_is_found_with_its_ranks_step_and_line(lab: Lab) -> None:
    line = _lines("faulty.py")
    run = lab("run", "--on", "local", "--nodes", "3", "--audit", _script(lab, "faulty.py"))
    assert run.returncode == 66, run.stderr
    assert "check of the audit has failed" not in run.stderr
    found = {(f["kind"], tuple(f["ranks"]), f["step"], f["line"]) for f in _findings(lab)}
    everybody = (0, 1, 2)
    assert found == {
        ("weights-differ-at-start", everybody, 1, line["other"]),
        ("gradients-not-reduced", everybody, 1, line["step"]),
        ("gradients-not-reduced", everybody, 1, line["partly"]),
        ("no-sync-at-step", everybody, 1, line["no_sync"]),
        ("gradients-reduced-twice", everybody, 2, line["again"]),
        ("no-gradient", everybody, 4, line["never"]),
        ("parameters-differ", (1,), 1, line["step"]),
        ("buffers-differ", everybody, 4, line["eval"]),
        ("nan", (2,), 2, line["nan"]),
        ("training-mode-differs", (2,), 1, line["forgotten"]),
    }
    differ = next(f for f in _findings(lab) if f["kind"] == "parameters-differ")
    assert differ["summary"].endswith("; the optimizers' lr is 0.1 on ranks 0, 2, 0.2 on rank 1")
    partly = next(f for f in _findings(lab) if f["line"] == line["partly"])
    assert "b.bias" in partly["summary"]
    assert "a.weight" not in partly["summary"]
    assert "lab: nan: the loss of rank 2" in run.stderr


def test_healthy_training_is_left_alone_bit_by_bit(lab: Lab) -> None:
    script = _script(lab, "healthy.py")
    where = ("run", "--on", "local", "--nodes", "2")
    plain = lab(*where, script)
    audited = lab(*where, "--audit", script)
    assert "check of the audit has failed" not in audited.stderr
    assert _findings(lab) == []
    assert sorted(audited.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert len(plain.stdout.splitlines()) > 20, plain.stderr


def test_norms_of_parts_are_not_norms_under_torchrun_too(lab: Lab) -> None:
    script = lab.script(
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = fully_shard(nn.Linear(6, 6), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 6)).square().sum().backward()
    gradients = [parameter.grad.to_local() for parameter in model.parameters()]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient /= norm
    optimizer.step()
dist.destroy_process_group()
"""
    )
    where = ("--on", "local", "--nodes", "2", "--engine", "torchrun")
    run = lab("run", *where, "--audit", script)
    assert run.returncode == 66, run.stderr
    (finding,) = _findings(lab)
    assert finding["kind"] == "local-norm-clipping"
    assert finding["ranks"] == [0, 1]
    assert finding["line"] == 18


def test_the_audit_is_for_python(lab: Lab) -> None:
    run = lab("run", "--on", "local", "--audit", "--no-python", "true")
    assert run.returncode == 2
    assert "--audit" in run.stderr


def test_modules_from_a_set_are_named_though_their_shapes_end_the_run(lab: Lab) -> None:
    script = lab.script(
        """\
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
names = {"cs", "de", "en", "es", "fi", "fr", "it", "ja", "ko", "nl", "pl", "pt"}
heads = nn.ModuleDict({name: nn.Linear(4, ord(name[0]) + ord(name[1])) for name in names})
DistributedDataParallel(heads)
"""
    )
    run = lab("run", "--on", "local", "--nodes", "2", "--audit", script)
    assert run.returncode == 1, run.stderr
    verdict = json.loads((lab.runs()[-1] / "verdict.json").read_text())
    (finding,) = [one for one in verdict["findings"] if one["kind"] == "parameter-order-differs"]
    assert (finding["ranks"], finding["line"]) == ([0, 1], 7)
    assert ".weight on rank 0" in finding["summary"]


def test_averages_by_hand_that_come_too_late_are_named_by_their_line(lab: Lab) -> None:
    """Not waited for, or after the step; and what is right: waited for one by one."""
    script = lab.script(
        """\
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(400, 400), nn.Linear(400, 1)) for _ in range(3)]
torch.manual_seed(dist.get_rank())
for name, model in zip(("unwaited", "late", "waited"), models):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 400)).square().mean().backward()
        if name == "unwaited":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, async_op=True)
        if name == "waited":
            works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
            for work in works:
                work.wait()
        optimizer.step()
        if name == "late":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
    dist.barrier()
dist.destroy_process_group()
"""
    )
    run = lab("run", "--on", "local", "--nodes", "2", "--audit", script)
    assert run.returncode == 66, run.stderr
    assert "check of the audit has failed" not in run.stderr
    found = {(f["kind"], f["line"]): f["summary"] for f in _findings(lab)}
    unwaited, late = ("gradients-not-reduced", 16), ("gradients-not-reduced", 24)
    assert found.keys() == {unwaited, late}
    assert "without waiting for" in found[unwaited]
    assert "after the step" in found[late]


def test_gradients_as_small_as_losses_are_gradients(lab: Lab) -> None:
    """In place after the step; and as copies, where one rank leaves a step out."""
    script = lab.script(
        """\
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
models = [nn.Linear(10, 2), nn.Linear(10, 2)]
torch.manual_seed(dist.get_rank())
for name, model in zip(("late", "left out"), models):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        if name == "left out":
            for parameter in model.parameters():
                copy = parameter.grad.clone()
                dist.all_reduce(copy)
                parameter.grad.copy_(copy)
        if name == "late" or step != 1 or dist.get_rank():
            optimizer.step()
        if name == "late":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
dist.destroy_process_group()
"""
    )
    run = lab("run", "--on", "local", "--nodes", "2", "--audit", script)
    assert run.returncode == 66, run.stderr
    found = {(f["kind"], f["line"]): f["summary"] for f in _findings(lab)}
    late, differ = ("gradients-not-reduced", 23), ("parameters-differ", 20)
    assert found.keys() == {late, differ}
    assert "put together after the step" in found[late]


def test_gradients_that_nobody_reduces_under_zero(lab: Lab) -> None:
    script = lab.script(
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    )
    run = lab("run", "--on", "local", "--nodes", "2", "--audit", script)
    assert run.returncode == 66, run.stderr
    (finding,) = _findings(lab)
    assert (finding["kind"], finding["step"]) == ("gradients-not-reduced", 1)
    assert (finding["ranks"], finding["line"]) == ([0, 1], 14)
