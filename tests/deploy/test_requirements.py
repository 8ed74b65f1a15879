"""What a requirements file says, and pip's complaints in one line."""

from pathlib import Path

import pytest

from lab.deploy.requirements import Requirements
from lab.errors import UsageError


def read(folder: Path, text: str, name: str = "wanted.txt") -> Requirements:
    (folder / name).write_text(text)
    return Requirements.read(folder / name)


def test_comments_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    plain = read(tmp_path, "six==1.0\nurl @ https://example.org/a.whl#sha256=1\n", "plain.txt")
    written = read(
        tmp_path,
        "\ufeff# what we need\r\n\r\nsix==1.0  # not 2\n url @ https://example.org/a.whl#sha256=1\n",
    )
    assert written.text == plain.text


def test_a_line_may_go_on_in_the_next(tmp_path: Path) -> None:
    assert read(tmp_path, "six \\\n  >=1.0\n").lines == ("six   >=1.0",)


def test_a_line_that_goes_on_counts_as_those_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"wanted\.txt:5: -e \."):
        read(tmp_path, "six \\\r\n  >=1.0 \\\n\\\n <2\n-e \\\n.\n")
    assert read(tmp_path, "six\\").lines == ("six",)


def test_included_files_are_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    read(tmp_path / "more", "six\n", "inner.txt")
    for include in ("-r more/inner.txt", "-rmore/inner.txt", "--requirement=more/inner.txt"):
        assert read(tmp_path, f"toolz\n{include}\n").lines == ("toolz", "six")


def test_an_endless_inclusion(tmp_path: Path) -> None:
    read(tmp_path, "", "a.txt")
    (tmp_path / "b.txt").write_text("--requirement=a.txt\n")
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    with pytest.raises(UsageError, match=r"a\.txt includes itself"):
        Requirements.read(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "line",
    [
        *("-e .", "--editable=src", "./wheels/a.whl", "../other", "/home/me/a.whl"),
        *("file:///a.whl", "six @ file:///tmp/six.whl", "-c limits.txt", "-climits.txt"),
        *("-f wheels", "-fwheels", "--find-links=wheels", "--find-links  /wheels", "-e."),
        *("sub/dir/x-1.0-py3-none-any.whl", "x-1.0.whl ; python_version > '3'", "x-1.tar.gz"),
        *(".", "..", ".[dev]", "~/x", "x.whl[extra]", "-i file:///index", "git+file:///x"),
        *("six @ git+file:///six", "--extra-index-url=file:/index"),
    ],
)
def test_what_only_this_machine_has(line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"wanted\.txt:2: .*not from this machine's files"):
        read(tmp_path, f"toolz\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        *("six", "zope.interface>=1", "x.zip-tools", "a[b,c]==1 ; os_name == 'a/b'"),
        *("-f https://example.org/wheels", "--find-links=https://example.org/x/", "--pre"),
        *("--extra-index-url https://example.org/a/b", "https://example.org/a-1.whl"),
        *("git+https://example.org/a@main", "a @ https://example.org/a-1.zip", "a --hash=sha256:1"),
    ],
)
def test_what_nodes_can_install_too(line: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"{line}\n").lines == (line,)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--requirements .*gone\.txt: No such file"):
        Requirements.read(tmp_path / "gone.txt")
    with pytest.raises(UsageError, match="Is a directory"):
        Requirements.read(tmp_path)
    (tmp_path / "latin").write_bytes(b"# caf\xe9\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        Requirements.read(tmp_path / "latin")


CONFLICT = """\
Collecting torch==2.1
ERROR: Cannot install torch==2.1 because these package versions have conflicting dependencies.

The conflict is caused by:
    The user requested torch==2.1
    The user requested (constraint) torch==2.13.0

To fix this you could try to:
1. loosen the range of package versions you've specified

ERROR: ResolutionImpossible: for help visit https://example.org
"""
IN_A_BUILD = "".join(f"#12 1.270 {line}".rstrip() + "\n" for line in CONFLICT.splitlines())


@pytest.mark.parametrize("output", [CONFLICT, IN_A_BUILD])
def test_another_torch(output: str, tmp_path: Path) -> None:
    told = read(tmp_path, "torch==2.1\n").failure(output.splitlines(), "2.13.0")
    assert told == (
        f"{tmp_path}/wanted.txt asks for another torch than the nodes' 2.13.0, which stays as it "
        "is: The user requested torch==2.1; leave torch out of it, or loosen the versions"
    )


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement nosuch (from versions: "
            "none)\nERROR: No matching distribution found for nosuch",
            "requirement nosuch (from versions: none); look at its name and version",
        ),
        (
            "WARNING: Retrying after NewConnectionError('... [Errno 111] Connection refused')\n"
            "ERROR: Could not find a version that satisfies the requirement six (from versions: )"
            "\nERROR: No matching distribution found for six",
            "the package index does not answer",
        ),
        (
            "ERROR: Invalid requirement: 'a b' (from line 1 of /x/requirements.txt)",
            "installed: Invalid requirement: 'a b';",
        ),
        (
            "ERROR: Cannot install a and b because of conflicts.\n\nThe conflict is caused by:\n"
            "    a 1 depends on c<1\n    b 2 depends on c>2\n\nTo fix this",
            "a 1 depends on c<1; b 2 depends on c>2: loosen the versions",
        ),
        (
            "  error: subprocess-exited-with-error\nerror: metadata-generation-failed\n\nhint: x",
            "installed: error: metadata-generation-failed; correct it; to see more: pip install -r",
        ),
        ("Killed", "installed: Killed;"),
        ("", "pip said nothing"),
    ],
)
def test_what_pip_said(output: str, words: str, tmp_path: Path) -> None:
    told = read(tmp_path, "six\n").failure(output.splitlines(), "2.13.0")
    assert words in told
    assert "\n" not in told
