"""The packages of lab depend downward only: each on those above it in this list."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab

PACKAGE = Path(lab.__file__).parent
LAYERS = (
    ("children", "errors", "interrupts", "lazy", "lines", "parallel", "temporary", "threads"),
    ("packaged", "cache", "channel", "topology", "rank", "training"),
    ("node", "templates"),
    ("deploy", "diagnose"),
    ("transport",),
    ("runs",),
    ("batch",),
    ("prove", "doctor", "zoo"),
    ("bench",),
    ("lessons",),
    ("cli",),
    ("api", "__main__"),
    ("__init__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported(path: Path) -> Iterator[str]:
    """The parts of lab that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            own = node.module == "lab"
            names = [f"lab.{a.name}" for a in node.names] if own else [node.module or ""]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "lab" and rest in {"__version__"}:
                continue
            if first == "lab" and rest:
                yield rest.partition(".")[0]


def part(path: Path) -> str:
    """Which one a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("name", sorted({part(path) for path in PACKAGE.rglob("*.py")}))
def test_a_part_depends_on_lower_ones_alone(name: str) -> None:
    files = [path for path in PACKAGE.rglob("*.py") if part(path) == name]
    upward = {
        f"{path.relative_to(PACKAGE)} imports lab.{other}"
        for path in files
        for other in imported(path)
        if other != name and LEVEL[other] >= LEVEL[name]
    }
    assert not upward
