"""Which files --collect means on a node."""

from pathlib import Path

import pytest

from lab.node.results import matching


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
        ("odd*", ["odd name\n"]),
        ("out/*", []),
        ("nothing", []),
    ],
)
def test_files_and_what_is_below_folders_but_nothing_that_links_lead_to(
    folder: Path, pattern: str, names: list[str]
) -> None:
    found = dict.fromkeys(str(path.relative_to(folder)) for path in matching(folder, pattern))
    assert list(found) == names
