"""Start a training file in several processes of this machine, with nothing but PyTorch.

    python -m lab.training.spawn --nproc 4 -m lab.training.wine --epochs 3
    python -m lab.training.spawn --nproc 4 --rendezvous file train.py

The step between one process and several nodes, where `lab run` or torchrun does the same. Each
process finds RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as under those, and meets the others

- by TCP, at MASTER_ADDR and MASTER_PORT. The store is in the launcher, on a port that the system
  has picked, so nobody can take it before a rank does: what two trainings on one machine with the
  guides' fixed port 12355 run into. `init_process_group()` without arguments finds it.
- by a file, for where no port may be opened. LAB_INIT_METHOD names it, and `join_world` or a script
  of your own hands it to `init_process_group` as `init_method`.

It ends with the first process that fails: its exit code, 128 + n for signal n, and its traceback.
"""

import argparse
import importlib.util
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from lab.errors import EXIT_USAGE
from lab.training.arguments import ArgumentParser, positive_int
from lab.training.world import INIT_METHOD

PROGRAM = "lab.training.spawn"
Rendezvous = Literal["tcp", "file"]
LOOPBACK = "127.0.0.1"


def spawn(
    function: Callable[..., object], nproc: int, *args: Any, rendezvous: Rendezvous = "tcp"
) -> None:
    """Call `function(*args)` in `nproc` new processes that can meet in a process group.

    Args:
        function: importable, a plain function at the top of a module.
        nproc: the world size.
        args: picklable.
        rendezvous: by TCP or by a file.

    Raises:
        ProcessRaisedException: a process raised first; the message has its traceback.
        ProcessExitedException: a process was ended first, or exited with another code than 0.
    """
    if nproc > 1:  # as torchrun does it: with a thread for each core they would wait for each other
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    with _meeting_place(rendezvous) as place:
        processes = start_processes(_rank, (nproc, place, function, args), nproc, join=False)
        try:
            while not processes.join():
                pass
        finally:
            for process in processes.processes:  # Ctrl-C: none may go on behind our back
                process.terminate()


@contextmanager
def _meeting_place(rendezvous: Rendezvous) -> Iterator[dict[str, str]]:
    """The variables that name it, valid inside."""
    if rendezvous == "file":
        with tempfile.TemporaryDirectory(prefix="lab-spawn-") as folder:
            yield {INIT_METHOD: f"file://{folder}/rendezvous"}
        return
    made = dist.TCPStore  # type: ignore[attr-defined]  # public, absent from __all__
    store = made(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    yield {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(store.port),
        # Rank 0 connects as the others do (torch/distributed/rendezvous.py, _create_c10d_store).
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",  # older versions of torch want it beside
    }


def _rank(
    rank: int,
    nproc: int,
    place: Mapping[str, str],
    function: Callable[..., object],
    args: tuple[Any, ...],
) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    os.environ.update(zip(names, map(str, (rank, rank, nproc, nproc)), strict=True))
    os.environ.update(place)
    function(*args)


def _run(name: str, args: Sequence[str], is_module: bool) -> None:
    """As `python -m NAME ARGS` or `python NAME ARGS` would."""
    sys.argv = [name, *args]
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(name).resolve().parent)
        runpy.run_path(name, run_name="__main__")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = ArgumentParser(
        PROGRAM,
        description="Start a training file in several processes of this machine.",
        usage=f"python -m {PROGRAM} --nproc N [--rendezvous tcp|file] SCRIPT|-m MODULE [ARGS]",
        allow_abbrev=False,
    )
    parser.add_argument("--nproc", type=positive_int, required=True, help="how many processes")
    parser.add_argument("--rendezvous", choices=("tcp", "file"), default="tcp", help="(tcp)")
    parser.add_argument("-m", dest="module", action="store_true", help="it is a module's name")
    parser.add_argument("script", metavar="SCRIPT|MODULE", help="what to run")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    if options.module and not _exists(options.script):
        parser.error(f"no module named {options.script}")
    if not options.module and not Path(options.script).is_file():
        parser.error(f"no script {options.script} here")
    return options


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # of the package that it would be in; not a name
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line names; the exit code."""
    options = _parse(argv)
    what = options.script, options.args, options.module
    try:
        spawn(_run, options.nproc, *what, rendezvous=options.rendezvous)
    except ProcessRaisedException as error:
        print(f"{PROGRAM}: rank {error.error_index} failed{error}", file=sys.stderr)
        return 1
    except ProcessExitedException as error:
        code = error.exit_code
        if code == EXIT_USAGE:  # the file itself has said it, in one line
            return code
        how = f"was ended by {error.signal_name}" if code < 0 else f"ended with exit code {code}"
        print(f"{PROGRAM}: rank {error.error_index} {how}", file=sys.stderr)
        return code if code > 0 else 128 - code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
