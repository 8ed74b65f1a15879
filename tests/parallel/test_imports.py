"""lab.parallel is usable in anyone's script: it needs torch and nothing else."""

import ast
import sys
from pathlib import Path

import lab.parallel

FOLDER = Path(lab.parallel.__file__).parent


def test_it_imports_only_torch_and_itself() -> None:
    found = set()
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    assert "lab.parallel.reducer" in found
    foreign = {
        name
        for name in found
        if not f"{name}.".startswith("lab.parallel.")
        and name.partition(".")[0] not in {"torch", *sys.stdlib_module_names}
    }
    assert foreign == set()


def test_the_names_of_torchs_classes_are_there() -> None:
    assert lab.parallel.DDP is lab.parallel.DistributedDataParallel
    for name in lab.parallel.__all__:
        assert hasattr(lab.parallel, name)
