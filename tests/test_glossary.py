"""The glossary: each word in two lines, the second of which is a place that exists."""

import ast
import re
from pathlib import Path

GLOSSARY = Path(__file__).parents[1] / "docs/glossary.md"
ENTRY = re.compile(r"- \*\*(?P<word>.+)\*\*: .+\.\n  \[`(?P<name>[\w.]+)`\]\((?P<path>\S+)\)\n")
ENTRIES = list(ENTRY.finditer(GLOSSARY.read_text()))


def test_words_in_order_each_once() -> None:
    text = GLOSSARY.read_text()
    assert ENTRY.sub("", text).count("\n") < 5, "an entry is not as the others are"
    words = [entry["word"].lower() for entry in ENTRIES]
    assert words == sorted(set(words))
    assert max(map(len, text.splitlines())) <= 100
    assert set(words) > {"node", "master", "rank", "slot", "world size", "collective"}
    assert set(words) > {"bucket", "overlap", "shard"}


def test_each_place_exists() -> None:
    missing = [
        entry["word"]
        for entry in ENTRIES
        if entry["name"] not in defined(ast.parse((GLOSSARY.parent / entry["path"]).read_text()))
    ]
    assert missing == []


def defined(tree: ast.Module | ast.ClassDef, inside: str = "") -> set[str]:
    """Names of a module, and of its classes as `Class.name`; arguments of functions too."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {inside + node.name} | defined(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names |= {inside + node.name}
            names |= {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names |= {inside + ast.unparse(target) for target in targets}
    return names
