"""Runs from Python: a script or a function on every rank, and what came of it.

Ranks import the script that calls this, on nodes that need not have what a controller needs: it is
imported when a run begins.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

from lab.errors import EXIT_INTERRUPTED, LabError, UsageError
from lab.rank.call import refuse_runs

if TYPE_CHECKING:
    from lab.runs.job import Engine, Job
    from lab.runs.listener import Listener
    from lab.runs.stall import OnStall
    from lab.runs.verdict import Verdict
    from lab.topology import Topology

T = TypeVar("T")


@dataclass(frozen=True)
class RunResult(Generic[T]):
    """A run that ended well."""

    results: tuple[T, ...]
    """What the function returned on each rank, by rank; empty for a script."""
    verdict: "Verdict"
    directory: Path
    """The run directory, with the logs of every rank."""


class RunError(LabError):
    """A run that did not end well, through no rank's own failure: a timeout, a lost node.

    Attributes:
        verdict: what `verdict.json` holds.
        directory: the run directory.
        exit_code: what `lab run` would have ended with.
    """

    def __init__(self, verdict: "Verdict", directory: Path) -> None:
        self.verdict = verdict
        self.directory = directory
        self.exit_code = verdict.exit_code
        hint = f"\n{verdict.hint}" if verdict.hint else ""
        super().__init__(f"{verdict.summary}{hint}")


class RankError(RunError):
    """A rank failed first. Where it raised, `__cause__` is that exception, if it could be sent.

    Attributes:
        rank: which.
        node: the node that it was on.
        traceback: the text of the exception's traceback in the rank; None where none was raised.
    """

    def __init__(self, verdict: "Verdict", directory: Path) -> None:
        super().__init__(verdict, directory)
        assert verdict.first is not None
        self.rank = verdict.first.rank
        self.node = verdict.first.node
        self.traceback = verdict.first.traceback
        if self.traceback:
            self.add_note(f"in rank {self.rank} on {self.node}:\n{self.traceback.rstrip()}")


class _Options(TypedDict, total=False):
    """What `run` takes whatever it runs, for its overloads; see there."""

    args: Sequence[Any]
    nodes: str | int | None
    slots: int | None
    on: str | None
    backend: str | None
    cwd: str | Path | None
    env: Mapping[str, str] | None
    requirements: str | Path | None
    engine: "Engine"
    max_restarts: int | None
    timeout: float | None
    grace: float | None
    stall: float
    on_stall: "OnStall"
    audit: bool
    cold: bool
    quiet: bool


@overload
def run(
    what: Callable[..., T],
    topology: "Topology | str | Path | None" = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    **options: "Unpack[_Options]",
) -> RunResult[T]: ...


@overload
def run(
    what: "str | Path | Job",
    topology: "Topology | str | Path | None" = None,
    *,
    module: bool = False,
    python: bool = True,
    min_nodes: int | None = None,
    **options: "Unpack[_Options]",
) -> RunResult[None]: ...


def run(
    what: "Callable[..., Any] | str | Path | Job",
    topology: "Topology | str | Path | None" = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    module: bool = False,
    python: bool = True,
    nodes: str | int | None = None,
    slots: int | None = None,
    on: str | None = None,
    backend: str | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    requirements: str | Path | None = None,
    engine: "Engine" = "spawn",
    min_nodes: int | None = None,
    max_restarts: int | None = None,
    timeout: float | None = None,
    grace: float | None = None,
    stall: float = 60.0,
    on_stall: "OnStall" = "report",
    audit: bool = False,
    cold: bool = False,
    quiet: bool = False,
) -> RunResult[Any]:
    """Run a script or a function on every rank of a topology, as `lab run` does.

    A function is sent by its name, like those of `multiprocessing`: it must be at the top level of
    a module or of the script that calls this, which then needs `if __name__ == "__main__":`
    around the call. Its arguments and what it returns must be picklable.

    Args:
        what: a function, the path of a script (its `args` are strings), or a whole `Job`.
        topology: a topology, or the preset or file to load one from; as for `lab run -t`.
        args: positional arguments.
        kwargs: keyword arguments of a function.
        module: `what` is a module's name, as for `lab run -m`.
        python: False: `what` is an executable, as for `lab run --no-python`.
        nodes: other nodes than the topology's (not for a `Topology`, which says it all).
        slots: other ranks per node; likewise.
        on: another place than the topology's: local, docker.
        backend: another one than the topology's: auto, gloo, nccl.
        cwd: where the ranks start; a script is looked for there. None: here.
        env: variables for the ranks, on top of the topology's.
        requirements: a file of packages for the ranks, as for `lab run --requirements`.
        engine: what starts the ranks, as for `lab run --engine`.
        min_nodes: with the engine torchrun: go on when nodes are lost, while there are so many.
            Not for functions: what they return is by rank, and ranks change.
        max_restarts: how often all ranks begin again after a failure, as for `lab run`.
        timeout: seconds after which the run is ended.
        grace: seconds between SIGTERM and SIGKILL for ranks that are ended; None: 30 after Ctrl-C
            or `timeout`, 1 after another rank's failure.
        stall: seconds without progress of any rank after which it is said why; 0: never.
        on_stall: whether the run then goes on (`report`) or is ended (`stop`).
        audit: look for what is silently wrong, as `lab run --audit`; errors make it a RunError.
        cold: start the ranks from nothing, though nodes may have a warm process.
        quiet: do not print what the ranks write; it is in the run directory either way.

    Raises:
        RankError: a rank failed; it tells which, where and how.
        RunError: the run failed otherwise, such as by `timeout`, `on_stall` or `audit`.
        UsageError: what was asked for cannot be run; nothing was started.
        LabError: the nodes could not be had.
        KeyboardInterrupt: Ctrl-C ended the run.
    """
    refuse_runs()
    from lab.batch.execute import execute
    from lab.runs.call import Call
    from lab.runs.job import Job
    from lab.runs.stall import Stall

    loaded = _topology(topology, nodes, slots, on, backend)
    here = Path.cwd()
    call: Call | None = None
    settings: dict[str, Any] = {
        "module": module,
        "python": python,
        "start": None if cwd is None else Path(cwd),
        "env": {name: str(value) for name, value in (env or {}).items()},
        "requirements": None if requirements is None else Path(requirements),
        "cold": cold,
        "engine": engine,
        "min_nodes": min_nodes,
        "audit": audit,
    }
    if isinstance(what, Job):
        script = module or not python or engine != "spawn" or min_nodes is not None
        if any((args, kwargs, script, cwd, env, requirements, cold, audit)):
            raise UsageError("a Job has its arguments and variables in it; give it none beside it")
        job = what
        job.check(loaded)
    elif isinstance(what, str | Path):
        if kwargs:
            raise UsageError("kwargs are for functions; a script takes args, each a string")
        words = [str(what), *map(str, args)]
        job = Job.from_command_line(words, topology=loaded, cwd=here, **settings)
    else:
        if module or not python or min_nodes is not None:
            raise UsageError("module, python and min_nodes are for scripts, not for functions")
        if loaded.on == "ssh":  # what it returns would be pickles that came over a network
            raise UsageError("functions are not for hosts over ssh; put it into a script")
        call = Call.of(what, args, kwargs or {}, cwd=here, local=loaded.on == "local")
        settings["module"] = True
        job = Job.from_command_line(call.words, topology=loaded, cwd=here, **settings)

    listeners, progress = _console(loaded, quiet)
    run_directory, verdict = execute(
        loaded,
        job,
        progress,
        listeners,
        grace=grace,
        timeout=timeout,
        max_restarts=max_restarts,
        stall=Stall.of(stall, on_stall),
        prepare=None if call is None else call.write,
    )
    directory = run_directory.path
    if verdict.kind == "ok":
        results = () if call is None else call.results(directory, loaded.world_size)
        return RunResult(results, verdict, directory)
    if verdict.exit_code == EXIT_INTERRUPTED and verdict.kind == "interrupted":
        raise KeyboardInterrupt
    if verdict.first is None or verdict.first.kind in ("node-lost", "agent-error"):
        raise RunError(verdict, directory)
    cause = None if call is None else call.exception(directory, verdict.first.rank)
    raise RankError(verdict, directory) from cause


def _topology(
    topology: "Topology | str | Path | None",
    nodes: str | int | None,
    slots: int | None,
    on: str | None,
    backend: str | None,
) -> "Topology":
    from lab.topology import Topology, load_topology

    if not isinstance(topology, Topology):
        source = None if topology is None else str(topology)
        return load_topology(source, nodes=nodes, slots=slots, on=on, backend=backend)
    if nodes is not None or slots is not None:
        raise UsageError("a Topology has its nodes and slots in it; give it none beside it")
    other = {name: value for name, value in (("on", on), ("backend", backend)) if value is not None}
    return Topology.model_validate(topology.model_dump() | other) if other else topology


def _console(topology: "Topology", quiet: bool) -> tuple[Sequence["Listener"], Any]:
    if quiet:
        return (), nullcontext(lambda _step: None)
    from lab.cli.console import Prefixes, RunConsole, progress_line

    prefixes = Prefixes({rank.rank: rank.node.name for rank in topology.ranks()})
    return (RunConsole(prefixes),), progress_line()
