"""`python lab/rank SCRIPT|-m MODULE [ARGS]`: run a user's script as Python itself would.

What the script finds (`__main__`, `sys.argv`, `sys.path`, the traceback it prints) is what it finds
under `python SCRIPT`; pickling and multiprocessing work as they do there. The one addition: when
the script raises, the agent is told at once through the descriptor LAB_EVENTS_FD, while the process
may take seconds to end and its peers already blame their lost connections. And the probe answers
whoever asks what the rank does (`probe.py`).
"""

import atexit
import contextlib
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import threading
import time
import traceback
import types
import zipimport
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

OWN_FILES = {__file__, str(Path(__file__).with_name("call.py")), runpy.__file__, "<frozen runpy>"}

START_FOLDER = os.getcwd()  # noqa: PTH109 - as the interpreter has it


def _find_own_modules() -> None:
    """Make this folder the package `_lab_rank`, since the script may have a `lab` of its own."""
    folder = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "_lab_rank", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules["_lab_rank"] = importlib.util.module_from_spec(spec)


if TYPE_CHECKING:
    from lab.rank import endings, exchanges, groups, helpers, messages, stores
    from lab.rank.audit.recorder import Recorder
    from lab.rank.events import Events
    from lab.rank.exceptions import described
    from lab.rank.frames import RANK
    from lab.rank.probe import Probe
else:
    _find_own_modules()
    from _lab_rank import endings, exchanges, groups, helpers, messages, stores
    from _lab_rank.events import Events
    from _lab_rank.exceptions import described
    from _lab_rank.frames import RANK
    from _lab_rank.probe import Probe


def _start_audit(events: Events | None) -> "Recorder | None":
    """Note what the judges of `lab.diagnose.audit` compare, where the run asks for it."""
    if events is None or os.environ.get("LAB_AUDIT") != "1":
        return None
    from _lab_rank import audit  # type: ignore[import-not-found]  # it has no such name elsewhere

    recorder: Recorder = audit.start(events)
    return recorder


def _report_exception(
    events: Events, error: BaseException, trace: types.TracebackType | None
) -> None:
    events.send(
        type="exception",
        **described(error, trace, START_FOLDER),
        traceback="".join(traceback.format_exception(type(error), error, trace))[-20_000:],
    )
    _report_state(events, trace)


def _report_exit(events: Events, end: SystemExit) -> None:
    trace = _without_own_frames(end.__traceback__)
    told = described(end, trace, START_FOLDER)
    chain = told["chain"] if len(told["chain"]) > 1 else []
    if told["file"] is not None or chain:
        events.send(type="context", file=told["file"], line=told["line"], chain=chain)
    if chain:
        _report_state(events, trace)


def _report_state(events: Events, trace: types.TracebackType | None) -> None:
    """Say what this rank did when it raised: nobody can ask it any more."""
    with contextlib.suppress(
        Exception
    ):  # the script's own objects are looked at, and may do anything
        from _lab_rank.state import state  # type: ignore[import-not-found]  # as above

        events.send(type="state", probe=state(START_FOLDER, trace))


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in OWN_FILES:
        trace = trace.tb_next
    last = trace
    while last is not None and (following := last.tb_next) is not None:
        if following.tb_frame.f_code.co_filename.startswith(RANK):  # counts messages, or audits
            last.tb_next = following.tb_next
        else:
            last = following
    return trace


def _run_script(path: str) -> None:
    """As `python PATH`, without the `__spec__` by which spawned children would import us."""
    path = _absolute(path)
    if _has_main(path):
        sys.path.insert(0, path)
        _new_main()
        # As the interpreter does: False, since it is not the name of a module.
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    _put_first_on_path(str(Path(path).resolve().parent))
    source = Path(path).read_bytes()
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main = _new_main()
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the job


def _new_main() -> types.ModuleType:
    """A `__main__` such as the interpreter begins with."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _put_first_on_path(folder: str) -> None:
    """Where Python looks for modules first, unless it was told that this is not safe."""
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _absolute(path: str) -> str:
    """As the interpreter makes a script's path absolute: what is `.` or `..` in it stays."""
    return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - pathlib would take out the `.`


def _has_main(path: str) -> bool:
    """Whether Python looks for a `__main__` in it: a folder, or a zip file of whatever name."""
    if Path(path).is_dir():
        return True
    try:
        zipimport.zipimporter(path)
    except zipimport.ZipImportError:
        return False
    return True


def _run_module(name: str, events: Events | None) -> None:
    """As `python -m NAME`: this is what the interpreter itself calls for it."""
    _new_main()
    no_module = runpy._Error  # type: ignore[attr-defined]  # the interpreter's own way has no other
    try:
        runpy._get_module_details(name, no_module)  # type: ignore[attr-defined]  # nothing is run
        missing = None
    except no_module as error:
        missing = str(error)
    if missing is not None:
        if events is not None:
            _report_exception(events, ModuleNotFoundError(missing), None)
            if os.environ.get("RANK") != "0":
                raise SystemExit(1)  # said once is enough; of each rank the verdict knows it
        raise SystemExit(f"{sys.executable}: {missing}")
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # no public way runs as __main__


def _run(arguments: list[str], events: Events | None) -> int:
    """Run what the command line names; the exit code that Python would end with."""
    sys.orig_argv = [sys.executable, "-u", *arguments]
    if not sys.flags.safe_path:
        del sys.path[0]  # this file's folder
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]  # until the module is found
            _put_first_on_path(os.getcwd())  # noqa: PTH109 - what Python itself puts there
            _run_module(arguments[1], events)
        else:
            sys.argv = arguments
            _run_script(arguments[0])
    except SystemExit as end:
        if not end.code and isinstance(end.code, int | None):
            return 0
        if events is not None:
            _report_exit(events, end)
        if isinstance(end.code, int):
            return end.code
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever the script let go
        trace = _without_own_frames(error.__traceback__)
        if events is not None:
            _report_exception(events, error, trace)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        # Python ends by the signal itself after Ctrl-C; its shell form is as good here.
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _tell_collectives(events: Events) -> None:
    """Say what this rank has called, for the case that others still wait for it.

    Then their lists tell who has left something out, or has called more; without it they tell only
    that this one has ended.
    """
    with contextlib.suppress(Exception):  # the script has ended as it has
        called = groups.history(START_FOLDER)
        if called["groups"]:
            events.send(type="state", probe={"time": time.time(), **called})


def _end_before_torch_does(code: int, events: Events | None) -> NoReturn:
    """End as the interpreter does, but for taking its modules apart.

    Threads of a process group that is still referenced (torch 2.13: where `torch._dynamo` was first
    imported after the group was made, as the first optimizer does) take the interpreter's lock to
    let go of a tensor, and abort the process when there is no interpreter any more: a script that
    has done all its work would fail, now and then.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    if events is not None and code == 0:
        _tell_collectives(events)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or replaced
            stream.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Run what the command line names; end as Python would end."""
    events = Events.from_environment()
    if events is not None:
        events.take_crashes()
        with contextlib.suppress(OSError):  # it cannot listen: stacks come from outside then
            Probe(START_FOLDER)
        helpers.watch(START_FOLDER)
        endings.watch(START_FOLDER)
        messages.watch()
        exchanges.watch()
        stores.watch()
        groups.watch(START_FOLDER)
    audit = _start_audit(events)
    code = _run(sys.argv[1:], events)
    if audit is not None:
        with contextlib.suppress(Exception):  # the script has ended as it has
            audit.record("ended", code=code)
            audit.close()
    if "torch.distributed" in sys.modules:
        _end_before_torch_does(code, events)
    sys.exit(code)


if __name__ == "__main__":
    main()
