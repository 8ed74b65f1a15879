"""One script of the files beside this one. torch is not imported: they are read as text."""

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

METHODS = {"ddp": "DDP", "fsdp": "FSDP"}
MODELS = {
    "mlp": "a perceptron on rows of numbers",
    "cnn": "a convolutional network on pictures",
    "gpt": "a GPT on text",
}
_PACKAGE = "lab.templates."
_WIDTH = 100


class Own(NamedTuple):
    """A model of the user's: a class that is called without arguments."""

    module: str
    name: str
    has_dataset: bool
    """Whether the module has a function `dataset` as well."""
    beside: bool
    """Whether it is a file beside the script: its import is a block of its own then."""


def compose(file: str, method: str, model: str | Own) -> str:
    """The text of a training script that needs torch alone.

    Args:
        file: the script's name, for its docstring.
        method: one of METHODS.
        model: one of MODELS, or the user's own.
    """
    parts = {"ddp": method, "mlp": "mlp", "rows": "rows"}
    own: dict[str, str] = {}
    if isinstance(model, Own):
        own["mlp"] = f"{model.module}:{model.name}"
        if model.has_dataset:
            own["rows"] = f"{model.module}:dataset"
        title = model.name
    else:
        parts["mlp"] = model
        if model != "mlp":
            parts["rows"] = model  # these bring data of their own
        title = MODELS[model]
    script = _Script(parts, own)
    script.add("train")
    words = {"MODEL": title, "METHOD": METHODS[method], "FILE": _plain(file)}
    docstring = re.sub("MODEL|METHOD|FILE", lambda word: words[word[0]], script.docstring)
    first_party = {model.module.split(".")[0]} if isinstance(model, Own) and model.beside else set()
    body = "\n\n\n".join(script.bodies)
    gap = "\n\n\n" if body.startswith(("def ", "class ", "@")) else "\n\n"
    return f'"""{docstring}"""\n\n{_render(script.imports, first_party)}{gap}{body}\n'


class _Script:
    """What has been collected: each file's imports once, and the rest of it in order of use."""

    def __init__(self, parts: Mapping[str, str], own: Mapping[str, str]) -> None:
        self._parts = parts
        self._own = own
        self._seen: set[str] = set()
        self.docstring = ""
        """Of the file that was added last."""
        self.imports: set[tuple[str, str]] = set()
        """Module and the name taken from it; no name where the module itself is imported."""
        self.bodies: list[str] = []

    def add(self, part: str) -> None:
        """Add a file of this package after those that it imports."""
        if part in self._seen:
            return
        self._seen.add(part)
        text = Path(__file__).with_name(f"{part}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in reversed(imports):  # so data and model come before the method
            self._add_import(node)
        self.docstring = ast.get_docstring(tree, clean=False) or ""
        self.bodies.append("\n".join(text.splitlines()[imports[-1].end_lineno :]).strip("\n"))

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = [ast.unparse(alias) for alias in node.names]
        if isinstance(node, ast.Import):
            self.imports.update((name, "") for name in names)
            return
        module = node.module or ""
        part = module.removeprefix(_PACKAGE)
        if part == module:
            self.imports.update((module, name) for name in names)
        elif part in self._own:
            module, own = self._own[part].split(":")
            self.imports.update((module, own if own == n else f"{own} as {n}") for n in names)
        else:
            self.add(self._parts.get(part, part))


def _render(imports: set[tuple[str, str]], first_party: set[str]) -> str:
    """As ruff and isort sort them: Python's, others', one's own; `import x` before `from x`."""
    sections: tuple[list[str], ...] = ([], [], [])
    for module in sorted(module for module, name in imports if not name):
        sections[_section(module, first_party)].append(f"import {module}")
    for module in sorted({module for module, name in imports if name}):
        names = [name for origin, name in imports if name and origin == module]
        sections[_section(module, first_party)].append(_from(module, names))
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _section(module: str, first_party: set[str]) -> int:
    top = re.split(r"\W", module)[0]
    return 0 if top in sys.stdlib_module_names else 2 if top in first_party else 1


def _from(module: str, names: list[str]) -> str:
    """CONSTANTS before Classes before functions; names with `as` each by itself, and first."""
    lines = [f"from {module} import {name}" for name in sorted(names) if " as " in name]
    plain = [name for name in names if " as " not in name]
    plain.sort(key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    line = f"from {module} import {', '.join(plain)}"
    if len(line) > _WIDTH:
        line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in plain) + ")"
    return "\n".join([*lines, line] if plain else lines)


def _plain(file: str) -> str:
    """A file's name that may stand in a docstring as it is."""
    return file if re.fullmatch(r"[\w.-]{1,60}", file) else "SCRIPT"
