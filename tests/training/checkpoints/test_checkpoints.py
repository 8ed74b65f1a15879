"""Checkpoints load into any other way of training, with every bit, on any number of ranks."""

import shutil
import subprocess
import sys
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from lab.errors import LabError
from lab.prove.round_trip import same_bits
from lab.training.checkpoints import Checkpoints
from lab.training.checkpoints.manifest import read_manifest
from tests.ranks import RankPool
from tests.training.checkpointed import (
    KINDS,
    Net,
    Training,
    go_on,
    load_and_save,
    save,
)

STEP_2 = "step-00000002"


def whole(checkpoint: Path) -> dict[str, Any]:
    """All tensors of a checkpoint, as torch's own tool puts them together."""
    dcp_to_torch_save(checkpoint, checkpoint.with_suffix(".pt"))
    state: dict[str, Any] = torch.load(checkpoint.with_suffix(".pt"), weights_only=True)
    model = {f"model.{name}": value for name, value in state.pop("model").items()}
    return {name: value for name, value in {**state, **model}.items() if "random" not in name}


def same(one: Any, other: Any) -> bool:
    """Bit by bit for tensors."""
    if isinstance(one, torch.Tensor):
        return same_bits(one, other)
    return bool(one == other)


def differences(one: Path, other: Path) -> list[str]:
    """Names of what is not the same."""
    a, b = whole(one), whole(other)
    return [
        name for name in {**a, **b} if name not in a or name not in b or not same(a[name], b[name])
    ]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zero1-torch"])
def test_from_any_wrapping_to_any_and_to_other_numbers_of_ranks(
    ranks: RankPool, tmp_path: Path, kind: str
) -> None:
    ranks.run(3, save, kind, tmp_path / kind)
    folder, others = tmp_path / kind, [k for k in KINDS if k not in (kind, "zero1-torch")]
    for other, size in zip([*others, kind], cycle((2, 1, 3)), strict=False):
        copy = tmp_path / f"{other}-{size}"
        ranks.run(size, load_and_save, other, folder, copy)
        assert differences(tmp_path / kind / STEP_2, copy / STEP_2) == []
        folder = copy


def test_torchs_zero_which_has_one_group(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, save, "zero1-torch", tmp_path / "saved")
    ranks.run(3, load_and_save, "zero1-torch", tmp_path / "saved", tmp_path / "copy")
    assert differences(tmp_path / "saved" / STEP_2, tmp_path / "copy" / STEP_2) == []


def test_torchs_own_tool_gives_the_bare_models_state(tmp_path: Path) -> None:
    save("none", tmp_path)
    training = Training("none")
    dcp_to_torch_save(tmp_path / STEP_2, tmp_path / "whole.pt")
    state = torch.load(tmp_path / "whole.pt", weights_only=True)["model"]
    Checkpoints(tmp_path).load(training.model, training.optimizer)
    assert state.keys() == {n for n in training.model.state_dict() if "again" not in n}
    assert all(same_bits(state[name], training.model.state_dict()[name]) for name in state)
    missing = Net().load_state_dict(state, strict=False)
    assert missing.unexpected_keys == []
    assert all("first_again" in name for name in missing.missing_keys), "tied: saved once"


@pytest.mark.parametrize(
    ("kind", "asynchronous"),
    [("ddp", False), ("fsdp", True), ("fsdp-torch", False), ("zero2", True)],
)
def test_what_follows_is_bitwise_what_would_have_followed(
    ranks: RankPool, tmp_path: Path, kind: str, asynchronous: bool
) -> None:
    straight = ranks.run(2, go_on, kind, tmp_path / "straight", 6)
    parts = [
        ranks.run(2, go_on, kind, tmp_path / "again", steps, asynchronous) for steps in (2, 3, 6)
    ]
    assert straight[0] != straight[1], "each rank has its own data and dropout"
    assert [[*chain(*losses)] for losses in zip(*parts, strict=True)] == straight


def test_what_all_ranks_have_is_saved_once_by_all_of_them(ranks: RankPool, tmp_path: Path) -> None:
    save("none", tmp_path / "one", steps=1)
    ranks.run(4, save, "ddp", tmp_path / "four", 1)
    one, four = (read_manifest(tmp_path / name / "step-00000001") for name in ("one", "four"))
    numbers = [
        sum(
            torch.Size(chunk.sizes).numel()
            for entry in manifest.tensors.values()
            for chunk in entry.chunks
        )
        for manifest in (one, four)
    ]
    assert numbers[0] == numbers[1], "not once per rank"
    files = [
        {chunk.extent.file for entry in four.tensors.values() for chunk in entry.chunks},
        {name for name in four.files if name != ".metadata"},
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 4, "each rank wrote a part"


def test_the_last_saved_few_stay(tmp_path: Path) -> None:
    save("none", tmp_path, steps=5, keep=2)
    assert names(tmp_path) == ["step-00000004", "step-00000005"]


def test_the_last_saved_is_loaded_though_others_have_a_higher_step(tmp_path: Path) -> None:
    save("none", tmp_path, steps=3, keep=2)
    save("none", tmp_path, steps=1, keep=2)  # another course of the training
    assert names(tmp_path) == ["step-00000001", "step-00000003"]
    training = Training("none")
    assert Checkpoints(tmp_path).load(training.model, training.optimizer) == {"step": 1}


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save("none", tmp_path, steps=1)
    training = Training("none", seed=5)
    Checkpoints(tmp_path).save(1, training.model, training.optimizer, {"second": True})
    assert names(tmp_path) == ["step-00000001"]
    assert Checkpoints(tmp_path).load(training.model) == {"second": True}


def names(folder: Path) -> list[str]:
    """Of everything in it."""
    return sorted(path.name for path in folder.iterdir())


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    training = Training("none")
    assert Checkpoints(tmp_path / "missing").load(training.model, training.optimizer) is None
    assert not (tmp_path / "missing").exists()


def test_all_random_generators_go_on(tmp_path: Path) -> None:
    import random

    import numpy as np

    def draw() -> tuple[float, float, float, float]:
        return (
            random.random(),
            np.random.rand(),
            np.random.randn(),
            float(torch.rand(())),
        )

    training = Training("none")
    training.step()
    draw()
    Checkpoints(tmp_path).save(1, training.model, training.optimizer, {})
    expected = draw()
    draw()
    Checkpoints(tmp_path).load(training.model, training.optimizer)
    assert draw() == expected


def test_progress_must_be_plain_data(tmp_path: Path) -> None:
    training = Training("none")
    with pytest.raises(ValueError, match="plain data only"):
        Checkpoints(tmp_path).save(1, training.model, training.optimizer, {"model": training})
    assert not list(tmp_path.iterdir())


class Narrow(torch.nn.Module):
    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, width, dtype=dtype)


class Wider(Narrow):
    def __init__(self) -> None:
        super().__init__(3)
        self.c = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            lambda: Narrow(4),
            r"its b\.weight is float32 \[3, 2\], and this model's float32 \[4, 2\]",
        ),
        (lambda: Narrow(3, torch.float64), r"b\.weight is float32 .*, and this model's float64"),
        (Wider, r"it has no c\.weight, which this model has"),
        (lambda: Narrow(3).a, r"it has no weight, which this model has"),
        (lambda: torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2)}), r"it has b\.bias, which this"),
    ],
)
def test_another_models_is_refused_naming_the_first_difference(
    tmp_path: Path, other: Any, difference: str
) -> None:
    model = Narrow(3)
    Checkpoints(tmp_path).save(1, model, torch.optim.SGD(model.parameters(), lr=1.0), {})
    another = other()
    before = {name: value.clone() for name, value in another.state_dict().items()}
    with pytest.raises(LabError, match=difference):
        Checkpoints(tmp_path).load(another, torch.optim.SGD(another.parameters(), lr=1.0))
    assert all(torch.equal(before[name], value) for name, value in another.state_dict().items())


def test_another_optimisers_is_refused(tmp_path: Path) -> None:
    model = Narrow(3)
    Checkpoints(tmp_path).save(1, model, torch.optim.SGD(model.parameters(), lr=1.0), {})
    with pytest.raises(LabError, match="its optimiser is SGD, and this one Adam"):
        Checkpoints(tmp_path).load(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(LabError, match="groups have other parameters"):
        Checkpoints(tmp_path).load(model, torch.optim.SGD(model.a.parameters(), lr=1.0))
    assert Checkpoints(tmp_path).load(model) == {}, "the model alone"


def test_other_groups_are_refused_before_the_model_is_overwritten(tmp_path: Path) -> None:
    saved, model = Narrow(3), Narrow(3)
    Checkpoints(tmp_path).save(1, saved, torch.optim.SGD(saved.parameters(), lr=1.0), {})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    groups = [{"params": model.a.parameters()}, {"params": model.b.parameters()}]
    with pytest.raises(LabError, match="groups have other parameters"):
        Checkpoints(tmp_path).load(model, torch.optim.SGD(groups, lr=1.0))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_foreign_parameter_in_the_optimiser_is_refused(tmp_path: Path) -> None:
    model = Narrow(3)
    optimizer = torch.optim.SGD([*model.parameters(), torch.nn.Parameter(torch.ones(5))], lr=1.0)
    with pytest.raises(LabError, match=r"a parameter of \[5\] that is not the model's"):
        Checkpoints(tmp_path).save(1, model, optimizer, {})


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.LBFGS(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ],
)
def test_other_optimisers(tmp_path: Path, optimizer: Any) -> None:
    """States that are no tensors, of other shapes, missing, or lists of tensors."""

    def train(model: torch.nn.Module, optim: torch.optim.Optimizer, steps: int) -> list[float]:
        def loss() -> torch.Tensor:
            optim.zero_grad()
            total: torch.Tensor = model(torch.ones(2, 4)).square().mean()
            total.backward()
            return total

        return [float(optim.step(loss)) for _ in range(steps)]  # type: ignore[arg-type]

    model = torch.nn.Linear(4, 3)
    optim = optimizer(model.parameters())
    train(model, optim, 2)
    Checkpoints(tmp_path).save(2, model, optim, {})
    expected = train(model, optim, 3)
    again = torch.nn.Linear(4, 3)
    optim = optimizer(again.parameters())
    Checkpoints(tmp_path).load(again, optim)
    assert train(again, optim, 3) == expected


def test_a_module_with_extra_state(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):
        count = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"count": self.count}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    def made() -> torch.nn.ModuleDict:
        return torch.nn.ModuleDict({"a": torch.nn.Linear(1, 1), "b": Counting()})

    model, again = made(), made()
    model["b"].count = 7  # type: ignore[assignment]
    Checkpoints(tmp_path).save(1, model, torch.optim.SGD(model.parameters()), {})
    Checkpoints(tmp_path).load(again)
    assert again["b"].count == 7


def test_a_compiled_and_checkpointed_models_names_are_the_bare_ones(tmp_path: Path) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Narrow(3)
    Checkpoints(tmp_path).save(1, model, torch.optim.SGD(model.parameters()), {})
    again = Narrow(3)
    again.a = checkpoint_wrapper(again.a)  # type: ignore[assignment]
    compiled: Any = torch.compile(again)
    Checkpoints(tmp_path).load(compiled, torch.optim.SGD(compiled.parameters()))
    assert torch.equal(again.a.weight, model.a.weight)
    assert torch.equal(again.b.weight, model.b.weight)


def test_torchs_first_fsdp_is_refused_in_words(ranks: RankPool, tmp_path: Path) -> None:
    (message,) = ranks.run(1, _save_torchs_first_fsdp, tmp_path)
    assert "use its successor fully_shard" in message


def _save_torchs_first_fsdp(folder: Path) -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel as First

    model = First(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))
    with pytest.raises(LabError) as caught:
        Checkpoints(folder).save(1, model, torch.optim.SGD(model.parameters()), {})
    return str(caught.value)


def test_a_folder_that_the_ranks_do_not_share(ranks: RankPool, tmp_path: Path) -> None:
    for message in ranks.run(2, _save_apart, tmp_path):
        assert "rank 1 on " in message
        assert "one folder that all nodes share" in message
    assert names(tmp_path / "0") == []


def _save_apart(folder: Path) -> str:
    import torch.distributed as dist

    training = Training("ddp")
    checkpoints = Checkpoints(folder / str(dist.get_rank()))
    with pytest.raises(LabError) as caught:
        checkpoints.save(1, training.model, training.optimizer, {})
    return str(caught.value)


def test_with_waits_for_what_is_being_written(tmp_path: Path) -> None:
    training = Training("none")

    def train(folder: Path, *, broken: bool = False) -> None:
        with Checkpoints(folder, asynchronous=True) as checkpoints:
            checkpoints.claim()
            if broken:
                shutil.rmtree(folder)
                folder.touch()
            checkpoints.save(1, training.model, training.optimizer, {})
            raise KeyError("of the training")

    with pytest.raises(KeyError, match="of the training"):
        train(tmp_path / "good")
    assert names(tmp_path / "good") == ["step-00000001"]
    with pytest.raises(KeyError, match="of the training"):
        train(tmp_path / "file", broken=True)


def test_who_leaves_the_group_while_it_is_saved_has_the_one_before(
    ranks: RankPool, tmp_path: Path
) -> None:
    for message in ranks.run(2, _leave, tmp_path):
        assert "the process group was left before it was saved: call finish()" in message
    assert names(tmp_path) == ["step-00000001"]


def _leave(folder: Path) -> str:
    import threading

    import torch.distributed as dist

    training = Training("ddp")
    checkpoints = Checkpoints(folder, asynchronous=True)
    checkpoints.save(1, training.model, training.optimizer, {})
    checkpoints.finish()
    left = threading.Event()
    begin = checkpoints._write

    def write_later(*arguments: Any) -> None:
        left.wait()
        begin(*arguments)

    checkpoints._write = write_later  # type: ignore[method-assign, assignment]
    checkpoints.save(2, training.model, training.optimizer, {})
    default, dist.is_initialized = dist.is_initialized, lambda: False
    left.set()
    with pytest.raises(LabError) as caught:
        checkpoints.finish()
    dist.is_initialized = default
    checkpoints.close()
    return str(caught.value)


def test_to_look_at_checkpoints_needs_no_torch() -> None:
    code = "import sys, lab.training.checkpoints.folder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
