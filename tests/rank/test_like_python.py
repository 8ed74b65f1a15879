"""What a script finds is what it finds under Python itself, however it is named."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lab.node.spawn import BOOTSTRAP

DUMP = """
import inspect, json, multiprocessing, os, sys, traceback
def child(queue):
    queue.put([__name__, __file__, sys.argv, sys.path])
def spawned(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    process.join()
    return None if process.exitcode else queue.get()
if __name__ == "__main__":
    try:
        raise ValueError
    except ValueError:
        trace = traceback.format_exc()
    found = {
        "main": {name: str(value) for name, value in sys.modules["__main__"].__dict__.items()
                 if name.startswith("__") and name != "__loader__"},
        "loader": [type(__loader__).__name__, str(getattr(__loader__, "path", None)),
                   getattr(__loader__, "name", None)],
        "is_main": sys.modules["__main__"].__dict__ is globals(),
        "argv": sys.argv, "orig_argv": sys.orig_argv[2:], "path": sys.path, "trace": trace,
        "source": inspect.getsource(child), "cwd": os.getcwd(), "names": sorted(globals()),
    }
    if not __file__.endswith(os.path.join(".zip", "__main__.py")):
        found["children"] = {name: spawned(name) for name in ("spawn", "forkserver")}
    print(json.dumps(found))
"""


def _found(folder: Path, prefix: list[str], words: list[str], env: dict[str, str]) -> Any:
    command = [sys.executable, "-u", *prefix, *words, "--x", "y"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(re.sub(" at 0x[0-9a-f]+", "", done.stdout))


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ["script.py"],
        ["./script.py"],
        ["sub/script.py"],
        ["./sub/../sub/script.py"],
        ["../place/script.py"],
        ["link.py"],
        ["{absolute}/script.py"],
        ["app"],
        ["./app/"],
        ["app.zip"],
        ["-m", "script"],
        ["-m", "package"],
        ["-m", "package.module"],
    ],
    ids=" ".join,
)
def test_it_is_as_python_makes_it(tmp_path: Path, words: list[str], safe: bool) -> None:
    work = tmp_path / "place"
    names = ("script", "sub/script", "app/__main__", "package/__main__", "package/module")
    for name in names:
        path = (work / name).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DUMP)
    (work / "package" / "__init__.py").write_text("import sys; FIRST = sys.argv[0]")
    (work / "link.py").symlink_to("sub/script.py")
    with zipfile.ZipFile(work / "app.zip", "w") as archive:
        archive.writestr("__main__.py", DUMP)
    words = [word.format(absolute=work) for word in words]
    env = {"PYTHONPATH": str(work)} | ({"PYTHONSAFEPATH": "1"} if safe else {})
    assert _found(work, [str(BOOTSTRAP)], words, env) == _found(work, [], words, env)
