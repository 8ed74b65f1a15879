"""`lab new`: a training script to begin with, that depends on torch alone."""

import ast
import shlex
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lab.errors import LabError, UsageError

if TYPE_CHECKING:
    from lab.templates.compose import Own


NEEDED = ("torch", "numpy")
"""By the script on the nodes; here they may be missing."""


def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The script to write.")],
    parallel: Annotated[
        Literal["ddp", "fsdp"],
        typer.Option(help="Whole replicas of the model, or each rank a part of it."),
    ] = "ddp",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="mlp, cnn, gpt, or a class of yours, MODULE:CLASS.")
    ] = "mlp",
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write a training script that is right on one process and on many nodes.

    It needs torch alone, and runs as it stands: under python, lab run, torchrun and srun. Replace
    its model and its data by yours. docs/recipe.md explains each of its steps.
    """
    from lab.runs.files import write_atomically
    from lab.templates.compose import MODELS, compose

    if file.suffix != ".py":
        raise UsageError(f"{file}: a script's name ends in .py")
    if str(file).startswith("-"):
        raise UsageError(f"{file} would be taken for options: take a name without a dash before it")
    if file.exists() and not force:
        raise UsageError(f"{file} exists: take another name, or --force to write over it")
    if ":" not in model and model not in MODELS:
        raise UsageError(
            f"there is no model {model}; the models are {', '.join(MODELS)}, or a class of yours, "
            "MODULE:CLASS"
        )
    _refuse_to_hide_a_module(file, model)
    if not file.parent.exists():
        folder = shlex.quote(str(file.parent))
        raise UsageError(f"there is no folder {file.parent}; make it first: mkdir -p {folder}")
    chosen = _own(model, file) if ":" in model else model
    try:
        write_atomically(file, compose(file.name, parallel, chosen))
    except OSError as error:
        raise LabError(f"{file} cannot be written: {error.strerror}") from error
    script = shlex.quote(str(file))
    if ":" in model:
        print(f"lab: {file} trains {model}; look at its data and its losses", file=sys.stderr)
    print(f"python {script}\nlab run {script}\ntorchrun --nproc-per-node 2 {script}")


def _refuse_to_hide_a_module(file: Path, model: str) -> None:
    """A script's folder is where Python looks first, also for what torch imports.

    Raises:
        UsageError: the script has the name of a module that it needs, or may need.
    """
    name = file.stem
    elsewhere = [path for path in sys.path if path and Path(path).resolve() != Path.cwd()]
    needed = {*sys.stdlib_module_names, *NEEDED, model.partition(":")[0].partition(".")[0]}
    if name in needed or (name.isidentifier() and PathFinder.find_spec(name, elsewhere)):
        raise UsageError(
            f"{file} would hide the module {name} from itself and all beside it: take another name"
        )


def _own(model: str, file: Path) -> "Own":
    """The user's class, looked up in its source, which is not run.

    Raises:
        UsageError: there is no such module or class.
    """
    from lab.templates.compose import Own

    module, _, name = model.partition(":")
    words = module.split(".")
    if not all(word.isidentifier() for word in (*words, name)):
        raise UsageError(f"--model {model}: write MODULE:CLASS, such as mymodule:MyModel")
    inside = file.parent.joinpath(*words)
    source = next(
        (path for path in (inside.with_suffix(".py"), inside / "__init__.py") if path.is_file()),
        None,
    )
    if source is None:
        if find_spec(words[0]) is None:
            raise UsageError(
                f"--model {model}: there is no {inside.with_suffix('.py')}, and no package "
                f"{words[0]} is installed"
            )
        return Own(module, name, has_dataset=False, beside=False)
    if source.resolve() == file.resolve():
        raise UsageError(f"{file} has the model itself: take another name for the script")
    names = _top_level(source)
    if name not in names:
        classes = ", ".join(key for key, is_class in names.items() if is_class)
        raise UsageError(f"{source} has no {name}; its classes are {classes or 'none at all'}")
    return Own(module, name, has_dataset="dataset" in names, beside=True)


def _top_level(source: Path) -> dict[str, bool]:
    """The names that a module defines or imports, and whether each is a class made there."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{source} is no Python: {error}") from None
    names: dict[str, bool] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names[node.name] = isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.ImportFrom):
            names.update((alias.asname or alias.name, False) for alias in node.names)
        elif isinstance(node, ast.Assign):
            targets = (target for target in node.targets if isinstance(target, ast.Name))
            names.update((target.id, False) for target in targets)
    return names
