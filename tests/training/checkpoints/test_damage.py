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
from lab.training.checkpoints import Checkpoints
from lab.training.checkpoints.manifest import (
    NAME,
    Extent,
    FileEntry,
    Manifest,
    _checksum,
    read_manifest,
)
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
    forge(checkpoint, lambda true: replace(manifest, files=true.files))


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


def rewritten(**change: Any) -> Callable[[dict[str, Any]], None]:
    """Changes of the manifest's top."""
    return lambda content: content.update(change)


def weight(content: dict[str, Any], **change: Any) -> None:
    """Changes of one tensor."""
    content["tensors"]["model.first.weight"].update(change)


def chunk(content: dict[str, Any], **change: Any) -> None:
    """Changes of its one part."""
    content["tensors"]["model.first.weight"]["chunks"][0].update(change)


@pytest.mark.parametrize(
    "change",
    [
        rewritten(saved="9999-12-31T23:59:59.999999"),
        rewritten(saved="soon"),
        rewritten(saved=7),
        rewritten(step=-1),
        rewritten(step=2.0),
        rewritten(step=True),
        rewritten(world_size=10**30),
        rewritten(optimizer=None),
        rewritten(torch={}),
        rewritten(progress=[]),
        rewritten(tensors=[]),
        rewritten(objects={"progress": {}}),
        rewritten(files={DATA: 5}),
        rewritten(files={DATA: {"bytes": "5", "sha256": ""}}),
        rewritten(files={DATA: {"bytes": float("inf"), "sha256": ""}}),
        rewritten(files={DATA: {"bytes": 1e999, "sha256": ""}}),
        rewritten(files={DATA: {"bytes": 5, "sha256": 5}}),
        rewritten(files={DATA: {"bytes": 5, "sha256": "", "\x1b[31mmore": 1}}),
        rewritten(surprise=1),
        lambda content: content.pop("step"),
        lambda content: weight(content, shape=[10**12, 10**6]),
        lambda content: weight(content, shape=[float("inf"), 5]),
        lambda content: weight(content, shape="75"),
        lambda content: weight(content, shape=[7]),
        lambda content: weight(content, dtype=7),
        lambda content: weight(content, chunks=[]),
        lambda content: weight(content, chunks={}),
        lambda content: chunk(content, offsets=[-1, 0]),
        lambda content: chunk(content, offsets=[1, 0]),
        lambda content: chunk(content, sizes=[7, 4]),
        lambda content: chunk(content, extent={"file": DATA, "start": 0, "bytes": 1}),
        lambda content: chunk(content, extent={"file": DATA, "start": 10**9, "bytes": 200}),
        lambda content: chunk(content, extent={"file": "\x1b]0;x", "start": 0, "bytes": 200}),
    ],
)
def test_a_forged_manifest_is_refused_in_words(
    folder: Path, capsys: pytest.CaptureFixture[str], change: Any
) -> None:
    path = folder / "step-00000002" / NAME
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps({**content, "sha256": _checksum(content)}))
    assert load(folder) == {"step": 1}
    (line,) = capsys.readouterr().err.splitlines()
    assert f"its {NAME} is damaged: " in line
    assert line.isprintable()
    save("none", folder, steps=3)  # to look for the time of the last one is harmless as well
    assert load(folder) == {"step": 3}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format": "lab.checkpoint", "version": 1, "progress": ' + "[" * 900 + "]" * 900 + "}",
        '{"format": "lab.checkpoint", "version": 1, "step": ' + "9" * 5000 + "}",
    ],
)
def test_a_manifest_that_overtaxes_its_reader(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (folder / "step-00000002" / NAME).write_text(text)
    assert load(folder) == {"step": 1}
    assert "damaged" in capsys.readouterr().err


def test_one_that_was_saved_at_the_end_of_time(folder: Path) -> None:
    forge(
        folder / "step-00000002",
        lambda manifest: replace(manifest, saved="9999-12-31T23:59:59.999999+00:00"),
    )
    save("none", folder, steps=3)
    assert load(folder) == {"step": 3}


def test_a_progress_may_hold_itself_or_more_than_can_be_shown(tmp_path: Path) -> None:
    training = Training("none")
    progress: dict[str, Any] = {"step": 1, "history": []}
    inner = progress["history"]
    for _ in range(200):
        inner.append([])
        inner = inner[0]
    Checkpoints(tmp_path).save(1, training.model, training.optimizer, progress)
    assert load(tmp_path) == progress
    progress["self"] = progress
    Checkpoints(tmp_path).save(2, training.model, training.optimizer, progress)
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded["step"] == loaded["self"]["self"]["step"] == 1


def bad_object(checkpoint: Path, manifest: Manifest, name: str, value: Any) -> Manifest:
    extent = replaced(checkpoint, manifest.objects[name], value)
    return replace(manifest, objects={**manifest.objects, name: extent})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("progress", [1]),
        ("groups", 5),
        ("groups", [{"params": 5}]),
        ("random.0", {"python": (3, (1, 2), None), "torch": torch.zeros(3)}),
        ("random.0", None),
    ],
)
def test_plain_data_of_another_kind(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any
) -> None:
    forged(folder, lambda c, m: bad_object(c, m, name, value))
    assert load(folder) == {"step": 1}
    assert "cannot be used: what it holds does not fit: " in capsys.readouterr().err


def test_what_does_not_fit_one_rank_is_refused_on_all(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, save, "ddp", tmp_path)
    forged(tmp_path, lambda c, m: bad_object(c, m, "random.1", 7))
    assert ranks.run(2, _load, "ddp", tmp_path) == [{"step": 1}, {"step": 1}]


def test_a_step_is_a_count(tmp_path: Path) -> None:
    training = Training("none")
    with pytest.raises(ValueError, match="step -1: steps count from 0"):
        Checkpoints(tmp_path).save(-1, training.model, training.optimizer, {})
    Checkpoints(tmp_path).save(torch.tensor(4), training.model, training.optimizer, {})  # type: ignore[arg-type]
    assert read_manifest(tmp_path / "step-00000004").step == 4


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
    checkpoints.claim()

    def save_third() -> None:
        checkpoints.save(3, training.model, training.optimizer, {"step": 3})
        checkpoints.finish()

    with files_of_at_most(count), pytest.raises(LabError) as caught:
        save_third()
    assert str(caught.value).startswith(
        f"the checkpoint of step 3 could not be saved in {folder}: rank 0: File too large; "
        "what was there before still is"
    )
    assert sorted(path.name for path in folder.glob("*step*")) == ["step-00000001", "step-00000002"]
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
    checkpoints = Checkpoints(folder)
    checkpoints.claim()
    with (
        files_of_at_most(1000 if dist.get_rank() == 1 else 10**9),
        pytest.raises(LabError) as caught,
    ):
        checkpoints.save(3, training.model, training.optimizer, {})
    checkpoints.close()
    return str(caught.value)


def test_a_folder_that_cannot_be_written_is_known_before_anything_is_saved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match=r"rank 0 on .* cannot write checkpoints in .*: Not a direc"):
        Checkpoints(tmp_path / "file" / "inner").claim()


def test_what_one_rank_cannot_write_all_are_told(ranks: RankPool, tmp_path: Path) -> None:
    for message in ranks.run(2, _claim_with_no_room_on_rank_1, tmp_path):
        assert message.startswith("rank 1 on ")
        assert f"cannot write checkpoints in {tmp_path}: File too large" in message
    assert list(tmp_path.iterdir()) == []


def _claim_with_no_room_on_rank_1(folder: Path) -> str:
    import torch.distributed as dist

    with (
        files_of_at_most(0 if dist.get_rank() == 1 else 10**9),
        pytest.raises(LabError) as caught,
    ):
        Checkpoints(folder).claim()
    return str(caught.value)
