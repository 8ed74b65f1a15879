"""What of a folder is deployed."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from lab.deploy.tree import LARGE, read_tree
from lab.errors import LabError


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def paths(folder: Path) -> list[str]:
    return [entry.path for entry in read_tree(folder).entries]


def test_git_says_what_belongs_to_the_project(tmp_path: Path) -> None:
    git(tmp_path, "init")
    write(tmp_path, a="tracked", b="to be deleted", new="untracked", big="ignored", dot="x")
    (tmp_path / ".gitignore").write_text("big\nbuild/\n")
    (tmp_path / "build").mkdir()
    write(tmp_path / "build", out="ignored")
    git(tmp_path, "add", "a", "b", ".gitignore")
    git(tmp_path, "commit", "-m", "x")
    (tmp_path / "b").unlink()

    assert paths(tmp_path) == [".gitignore", "a", "dot", "new"]


def test_below_a_repository_only_what_is_below_the_folder_is_sent(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "inside").mkdir()
    write(tmp_path, above="x")
    write(tmp_path / "inside", script="x")

    assert paths(tmp_path / "inside") == ["script"]


def test_a_folder_that_the_repository_around_it_ignores_is_sent_whole(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "inside").mkdir()
    write(tmp_path / "inside", script="x")

    assert paths(tmp_path / "inside") == ["script"]


def test_submodules_and_repositories_inside_are_looked_into(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init")
    write(inner, code="x", junk="x")
    (inner / ".gitignore").write_text("junk\n")
    git(inner, "add", ".gitignore", "code")
    git(inner, "commit", "-m", "x")
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", str(inner), "sub")
    shutil.copytree(inner, outer / "nested")

    assert paths(outer) == [
        ".gitmodules",
        "nested/.gitignore",
        "nested/code",
        "sub/.gitignore",
        "sub/code",
    ]


def test_without_git_obvious_junk_stays_here(tmp_path: Path) -> None:
    write(tmp_path, script="x")
    for folder in ("__pycache__", ".venv", "node_modules", "data"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, inside="x")
    (tmp_path / "old.pyc").write_text("x")

    assert paths(tmp_path) == ["data/inside", "script"]


def test_runs_of_lab_stay_here_and_other_things_named_so_are_sent(tmp_path: Path) -> None:
    for name in ("20260101-quad", "mine"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write(tmp_path / "runs" / name, out="x")
    write(tmp_path / "runs" / "20260101-quad", **{"state.json": "{}"})
    git(tmp_path, "init")

    assert paths(tmp_path) == ["runs/mine/out"]


HOSTILE = ["with space", "line\nbreak", "-rf", "ünï", "quote'\"", "$(touch x)", "tab\t", " ", "\\"]


def test_any_name_is_taken_as_it_is(tmp_path: Path) -> None:
    git(tmp_path, "init")
    for name in HOSTILE:
        write(tmp_path, **{name: name})
    (tmp_path / os.fsdecode(b"no\xffutf8")).write_text("bytes")

    assert sorted(paths(tmp_path)) == sorted([*HOSTILE, "no\udcffutf8"])
    tree = read_tree(tmp_path)
    assert all(source.path.exists() for source in tree.sources.values())


def test_links_are_sent_as_links_and_those_that_lead_out_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    write(folder, file="x")
    (folder / "near").symlink_to("file")
    (folder / "sub/up").symlink_to("../file")
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "sub/out").symlink_to("../../secret")
    (folder / "around").symlink_to("sub")

    tree = read_tree(folder)

    targets = {entry.path: entry.target for entry in tree.entries}
    assert targets == {
        "file": None,
        "near": "file",
        "around": "sub",
        "passwd": "/etc/passwd",
        "sub/up": "../file",
        "sub/out": "../../secret",
    }
    assert [warning.split()[0] for warning in tree.warnings] == ["passwd", "sub/out"]
    assert "the link is sent, not what it points to" in tree.warnings[0]


def test_a_large_file_is_warned_of(tmp_path: Path) -> None:
    with (tmp_path / "model.bin").open("wb") as file:
        file.truncate(LARGE)

    (warning,) = read_tree(tmp_path).warnings

    assert warning == (
        "model.bin has 105 MB: if it need not be on the hosts, put it into .gitignore"
    )


def test_what_is_no_file_is_left_out_with_a_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        tree = read_tree(tmp_path)

    assert tree.entries == ()
    assert [warning.split()[0] for warning in tree.warnings] == ["pipe", "socket"]


def test_equal_trees_have_equal_contents_and_any_change_shows(tmp_path: Path) -> None:
    write(tmp_path, a="1", b="2")
    (tmp_path / "link").symlink_to("a")
    first = read_tree(tmp_path).content
    os.utime(tmp_path / "a", (0, 0))
    assert read_tree(tmp_path).content == first

    contents = {first}
    (tmp_path / "a").chmod(0o755)
    contents.add(read_tree(tmp_path).content)
    write(tmp_path, b="3")
    contents.add(read_tree(tmp_path).content)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("b")
    contents.add(read_tree(tmp_path).content)
    (tmp_path / "b").rename(tmp_path / "c")
    contents.add(read_tree(tmp_path).content)
    assert len(contents) == 5


def test_git_that_is_missing_or_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    write(tmp_path, a="1")
    with pytest.raises(LabError, match=r"git cannot list the files of .*: fatal: "):
        read_tree(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="which is not on PATH: install git"):
        read_tree(tmp_path)
