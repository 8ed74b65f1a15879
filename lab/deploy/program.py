"""Small Python programs that are carried to a host over the stdin of its own Python.

Nothing has to be installed there: the host's Python starts with `BOOTSTRAP`, reads the program's
modules as one line, and runs `main` of the last one, for which the rest of stdin stays.
"""

import json
from collections.abc import Sequence
from importlib import resources

OLDEST_PYTHON = (3, 11)
"""Which lab runs on; only what looks a host over takes less."""
BOOTSTRAP = """\
import sys
sys.path[:] = [folder for folder in sys.path if folder]
def old(floor):
    if sys.version_info[:2] < floor:
        sys.stdout.write('{"type": "too-old", "python": "%d.%d.%d"}\\n' % sys.version_info[:3])
        sys.exit()
old((3, 6))
import json, types
program = json.loads(sys.stdin.buffer.readline().decode())
old(tuple(program["floor"]))
for name, source in program["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""
"""Any Python, also one that is far too old, understands this and says its version if need be.

The current folder is taken from the path: a json.py in somebody's home is not ours."""


def start_line(python: str) -> list[str]:
    """The command that starts a program on a host; names of files are UTF-8 whatever its locale."""
    return [python, "-X", "utf8", "-c", BOOTSTRAP]


def program(modules: Sequence[str], floor: tuple[int, int]) -> bytes:
    """The first line for its stdin.

    Args:
        modules: full names of lab's own, each after those that it imports; the last has `main`.
        floor: the oldest Python that can run them; an older one answers `too-old` and its version.
    """
    parents = {name.rpartition(".")[0] for name in modules}
    packages = {"lab", *parents, *(name.rpartition(".")[0] for name in parents)} - {""}
    sources = [[name, ""] for name in sorted(packages)]
    sources += [[name, _source(name)] for name in modules]
    return json.dumps({"floor": floor, "modules": sources}).encode() + b"\n"


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    return (resources.files(package) / f"{name}.py").read_text(encoding="utf-8")
