"""What is no good checkpoint is refused in words, runs no code, and the one before it is used."""

import hashlib
import io
import json
import os
import pickle
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.errors import LabError
from lab.training.checkpoint_manifest import NAME, Extent, FileEntry, Manifest, read_manifest
from lab.training.checkpoints import Checkpoints
from tests.ranks import RankPool
from tests.training.checkpointed import Training, save

DATA = "__0_0.distcp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With checkpoints of steps 1 and 2."""
    save("none", tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def load(folder: Path) -> dict[str, Any] | None:
    """Into a new training."""
    training = Training("none", seed=3)
    return Checkpoints(folder).load(training.model, training.optimizer)


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def forge(
    checkpoint: Path, change: Callable[[Manifest], Manifest] = lambda manifest: manifest
) -> None:
    """Let the manifest be true of files that were changed: a checksum keeps no attacker away."""
    manifest = read_manifest(checkpoint)
    files = {}
    for name in manifest.files:
        data = (checkpoint / name).read_bytes()
        files[name] = FileEntry(len(data), hashlib.sha256(data).hexdigest())
    (checkpoint / NAME).write_text(change(replace(manifest, files=files)).text())


def replaced(checkpoint: Path, extent: Extent, value: Any) -> Extent:
    """Add a value to a checkpoint's file. Where it is."""
    data = io.BytesIO()
    torch.save(value, data)
    with (checkpoint / DATA).open("ab") as file:
        start = file.tell()
        file.write(data.getvalue())
    return Extent(extent.file, start, len(data.getvalue()))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def newer(checkpoint: Path) -> None:
    content = json.loads((checkpoint / NAME).read_text())
    (checkpoint / NAME).write_text(json.dumps({**content, "version": 2, "sha256": "?"}))


def torchs_own(checkpoint: Path) -> None:
    (checkpoint / NAME).unlink()


def changed(checkpoint: Path) -> None:
    text = (checkpoint / NAME).read_text()
    (checkpoint / NAME).write_text(text.replace('"step": 2', '"step": 3'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: cut(c / DATA), rf"its {DATA} is cut off: \d+ of \d+ bytes"),
        (lambda c: flip(c / DATA), rf"its {DATA} was changed: the checksum is another"),
        (lambda c: (c / DATA).unlink(), rf"its {DATA} is missing"),
        (lambda c: flip(c / ".metadata"), r"its \.metadata was changed"),
        (lambda c: cut(c / NAME), rf"its {NAME} is cut off or damaged"),
        (lambda c: (c / NAME).write_text("[]"), "is not of a checkpoint that lab wrote"),
        (lambda c: (c / NAME).write_text('{"format": "other"}'), "is not of a checkpoint that lab"),
        (lambda c: (c / NAME).write_bytes(b"\xff\xfe\x00"), "is cut off or damaged"),
        (changed, "was changed: the checksum is another"),
        (torchs_own, f"it has no {NAME}: lab did not write it"),
        (newer, "it is of format 2, and this lab reads format 1: use the newer lab"),
    ],
)
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str], damage: Any, words: str
) -> None:
    damage(folder / "step-00000002")
    assert load(folder) == {"step": 1}
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert err.startswith(f"lab: {folder / 'step-00000002'} cannot be used: ")
    assert re.search(words, err)


def forged(folder: Path, of: Callable[[Path, Manifest], Manifest]) -> None:
    checkpoint = folder / "step-00000002"
    manifest = of(checkpoint, read_manifest(checkpoint))
    (checkpoint / NAME).write_text(manifest.text())
    forge(checkpoint, lambda m: m)


def evil_tensor(checkpoint: Path, manifest: Manifest, value: Any) -> Manifest:
    name = "model.first.weight"
    entry = manifest.tensors[name]
    (chunk,) = entry.chunks
    chunk = replace(chunk, extent=replaced(checkpoint, chunk.extent, value))
    return replace(manifest, tensors={**manifest.tensors, name: replace(entry, chunks=[chunk])})


def evil_object(checkpoint: Path, manifest: Manifest, value: Any) -> Manifest:
    extent = replaced(checkpoint, manifest.objects["progress"], value)
    return replace(manifest, objects={**manifest.objects, "progress": extent})


def unknown_dtype(checkpoint: Path, manifest: Manifest) -> Manifest:
    name = "optimizer.first.weight.exp_avg"
    entry = replace(manifest.tensors[name], dtype="load")
    return replace(manifest, tensors={**manifest.tensors, name: entry})


@pytest.mark.parametrize("where", [evil_tensor, evil_object])
def test_a_pickle_that_would_run_code_is_refused_though_all_checksums_are_right(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: Any
) -> None:
    forged(folder, lambda c, m: where(c, m, Evil(tmp_path / "owned")))
    assert load(folder) == {"step": 1}
    assert "UnpicklingError" in capsys.readouterr().err
    assert not (tmp_path / "owned").exists()


def test_torchs_index_which_is_a_pickle_is_never_read(folder: Path, tmp_path: Path) -> None:
    checkpoint = folder / "step-00000002"
    data = io.BytesIO()
    pickle.dump(Evil(tmp_path / "owned"), data)
    (checkpoint / ".metadata").write_bytes(data.getvalue())
    forge(checkpoint)
    assert load(folder) == {"step": 2}
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (lambda c, m: evil_tensor(c, m, torch.ones(1)), "rank 0: "),
        (lambda c, m: evil_tensor(c, m, [1, 2]), "rank 0: "),
        (unknown_dtype, "it has a tensor of 'load', which torch does not know"),
        (lambda c, m: replace(m, objects={}), "groups"),
    ],
)
def test_one_that_holds_other_things_than_it_says(
    folder: Path, capsys: pytest.CaptureFixture[str], of: Any, words: str
) -> None:
    forged(folder, of)
    assert load(folder) == {"step": 1}
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../escaped", "/etc/passwd", "..", "a/b", ""])
def test_files_outside_of_the_folder_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    checkpoint = folder / "step-00000002"
    manifest = read_manifest(checkpoint)
    outside = replace(manifest, files={**manifest.files, name: FileEntry(0, "")})
    (checkpoint / NAME).write_text(outside.text())
    assert load(folder) == {"step": 1}
    assert f"{name!r} cannot be the name of one of its files" in capsys.readouterr().err


def test_where_none_is_good_nothing_begins_anew_in_silence(folder: Path) -> None:
    for checkpoint in folder.iterdir():
        cut(checkpoint / DATA)
    with pytest.raises(LabError, match=r"none of the checkpoints in .* can be used"):
        load(folder)


def test_damaged_ones_do_not_push_good_ones_out(folder: Path) -> None:
    save("none", folder, steps=3, keep=3)
    for step in (2, 3):
        cut(folder / f"step-{step:08d}" / DATA)
    training = Training("none")
    checkpoints = Checkpoints(folder, keep=2)
    assert checkpoints.load(training.model, training.optimizer) == {"step": 1}
    checkpoints.save(2, training.model, training.optimizer, {"step": 2})
    assert load(folder) == {"step": 2}
    assert (folder / "step-00000001").exists(), "the second good one"


def test_what_lab_did_not_write_is_not_rotated_away(tmp_path: Path) -> None:
    foreign = tmp_path / "step-00000001"
    foreign.mkdir()
    (foreign / "model.pt").touch()
    (tmp_path / "step-00000000").mkdir()
    training = Training("none")
    for step in (2, 3, 4):
        Checkpoints(tmp_path, keep=1).save(step, training.model, training.optimizer, {})
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["step-00000000", "step-00000001", "step-00000004"]
    assert (foreign / "model.pt").exists()


def test_a_damaged_one_is_refused_on_all_ranks_alike(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, save, "ddp", tmp_path)
    flip(tmp_path / "step-00000002" / "__1_0.distcp")
    assert ranks.run(2, _load, "fsdp", tmp_path) == [{"step": 1}, {"step": 1}]


def _load(kind: str, folder: Path) -> Any:
    training = Training(kind)
    return Checkpoints(folder).load(training.model, training.optimizer)


@contextmanager
def files_of_at_most(count: int) -> Iterator[None]:
    """Bytes: writing more fails, as on a disk that is full, but with another number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("count", [0, 5_000, 30_000])
def test_a_file_that_cannot_be_written_leaves_what_was_there(
    folder: Path, asynchronous: bool, count: int
) -> None:
    training = Training("none")
    checkpoints = Checkpoints(folder, asynchronous=asynchronous)

    def save_third() -> None:
        checkpoints.save(3, training.model, training.optimizer, {"step": 3})
        checkpoints.finish()

    with files_of_at_most(count), pytest.raises(LabError) as caught:
        save_third()
    assert str(caught.value).startswith(
        f"the checkpoint of step 3 could not be saved in {folder}: rank 0: File too large; "
        "what was there before still is"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000002"]
    assert load(folder) == {"step": 2}
    save_third()
    assert load(folder) == {"step": 3}, "the next one works"


def test_a_rank_that_cannot_write_is_named_on_all(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, save, "ddp", tmp_path)
    for message in ranks.run(2, _save_with_little_room_on_rank_1, tmp_path):
        assert "rank 1: File too large" in message
    assert ranks.run(1, _load, "ddp", tmp_path) == [{"step": 2}]
    assert len(list(tmp_path.iterdir())) == 2


def _save_with_little_room_on_rank_1(folder: Path) -> str:
    import torch.distributed as dist

    training = Training("ddp")
    with (
        files_of_at_most(1000 if dist.get_rank() == 1 else 10**9),
        pytest.raises(LabError) as caught,
    ):
        Checkpoints(folder).save(3, training.model, training.optimizer, {})
    return str(caught.value)


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    training = Training("none")
    with pytest.raises(LabError, match=r"could not be saved in .*: Not a directory"):
        Checkpoints(tmp_path / "file" / "inner").save(1, training.model, training.optimizer, {})
