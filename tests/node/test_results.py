"""What a node hands over of a run, and which files --collect means there."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lab.node import results
from lab.node.results import END, hand_over, matching


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.pt", "ck/step-1/model.pt", "ck/log", "odd name\n"):
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "secret.pt").write_text("x")
    (tmp_path / "work/link.pt").symlink_to(tmp_path / "secret.pt")
    (tmp_path / "work/out").symlink_to(tmp_path)
    return tmp_path / "work"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.pt", ["a.pt"]),
        ("**/*.pt", ["a.pt", "ck/step-1/model.pt"]),
        ("ck", ["ck/log", "ck/step-1/model.pt"]),
        ("**", ["a.pt", "ck/log", "ck/step-1/model.pt", "odd name\n"]),
        ("odd*", ["odd name\n"]),
        ("out/*", []),
        ("nothing", []),
    ],
)
def test_files_and_what_is_below_folders_but_nothing_that_links_lead_to(
    folder: Path, pattern: str, names: list[str]
) -> None:
    assert [str(path.relative_to(folder)) for path in matching(folder, pattern)] == names


def question(run: Path, **others: Any) -> dict[str, Any]:
    return {
        "run_dir": str(run),
        "folder": str(run),
        "node": "node1",
        "limit": 100,
        "collect": [],
    } | others


def handed_over(asked: dict[str, Any]) -> dict[str, bytes]:
    out = io.BytesIO()
    hand_over(asked, out)
    out.seek(0)
    out.readline()
    with tarfile.open(fileobj=out, mode="r|") as archive:
        found = {m.name: content.read() for m in archive if (content := archive.extractfile(m))}
    assert list(found)[-1] == END
    del found[END]
    return found


def test_a_file_that_goes_before_its_turn_is_left_out_and_the_others_come(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = results.size_of

    def goes(path: Path) -> int:
        size = real(path)
        if path.name == "log":
            path.unlink()
        return size

    monkeypatch.setattr(results, "size_of", goes)
    assert set(handed_over(question(folder))) == {"a.pt", "ck/step-1/model.pt", "odd name\n"}


def test_a_second_name_of_a_file_comes_as_a_file(folder: Path) -> None:
    os.link(folder / "a.pt", folder / "b.pt")
    assert handed_over(question(folder))["b.pt"] == b"a.pt"
