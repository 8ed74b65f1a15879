"""`from lab import run`: functions and scripts on real local ranks, from programs that are run."""

import os
import subprocess
import sys

import pytest

from tests.conftest import Lab

HEAD = """
import os, sys
from lab import RankError, RunError, run
from lab.errors import LabError, UsageError

"""


def python(lab: Lab, text: str, *argv: str) -> subprocess.CompletedProcess[str]:
    lab.script(HEAD + text, "program.py")
    return subprocess.run(
        [sys.executable, *(argv or ["program.py"])],
        cwd=lab.cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_results_of_a_function_of_the_script_itself(lab: Lab) -> None:
    text = """
class Point:
    def __init__(self, x): self.x = x

def work(base, *, factor):
    print("at work")
    return Point(base.x + factor * int(os.environ["RANK"]))

if __name__ == "__main__":
    done = run(work, "quad", on="local", args=[Point(1)], kwargs={"factor": 10}, quiet=True)
    print([point.x for point in done.results], done.verdict.kind, done.directory.name[-9:-5])
"""
    for argv in (["program.py"], ["-m", "program"]):
        done = python(lab, text, *argv)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[1, 11, 21, 31] ok quad\n"


def test_a_function_of_a_module_and_its_output(lab: Lab) -> None:
    lab.script("def work():\n    print('said')\n    return 7", "sub/mine.py")
    text = """
sys.path.insert(0, "sub")
import mine
print(run(mine.work, "solo", on="local", env={"X": "1"}).results)
"""
    done = python(lab, text)
    assert done.stdout == "[0 node0] said\n(7,)\n", done.stderr


def test_the_first_ranks_exception_comes_back(lab: Lab) -> None:
    text = """
class MyError(Exception):
    pass

def work():
    if os.environ["RANK"] == "1":
        raise MyError("boom", 3)
    import time; time.sleep(1000)

if __name__ == "__main__":
    try:
        run(work, "pair", on="local", quiet=True)
    except RankError as error:
        print(error.rank, error.node, error.exit_code, type(error.__cause__).__name__)
        print(isinstance(error.__cause__, MyError) and error.__cause__.args)
        print(error)
        print(error.traceback)
"""
    done = python(lab, text)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["1 node1 1 MyError", "('boom', 3)"], done.stderr
    assert lines[2].startswith("rank 1 on node1: MyError: ('boom', 3) (")
    assert "program.py" in lines[2]
    assert "in work" in done.stdout
    assert "lab/rank" not in done.stdout


def test_exceptions_that_cannot_be_sent_and_other_ends(lab: Lab) -> None:
    text = """
class Odd(Exception):
    def __init__(self, a, b): super().__init__(a)

def work(how):
    if how == "odd": raise Odd(1, 2)
    if how == "exit": os._exit(5)
    if how == "lock": import threading; return threading.Lock()
    if how == "sleep": import time; time.sleep(1000)
    if how == "leave": sys.exit(0)
    if how == "lose": os.kill(os.getppid(), 9); import time; time.sleep(1000)

def attempt(how, **options):
    try:
        run(work, "solo", on="local", args=[how], quiet=True, **options)
    except (RankError, RunError, LabError) as error:
        print(type(error).__name__, error.exit_code, error.__cause__, str(error).splitlines()[0])

if __name__ == "__main__":
    for how in ("odd", "exit", "lock", "leave", "lose"): attempt(how)
    attempt("sleep", timeout=1)
"""
    done = python(lab, text)
    odd, code, lock, leave, lose, sleep = done.stdout.splitlines()
    assert odd.startswith("RankError 1 None rank 0 on node0: Odd: 1 ("), done.stderr
    assert code == "RankError 5 None rank 0 on node0: exited with code 5"
    assert lock.startswith("RankError 1 None rank 0 on node0: TypeError: what work returned cannot")
    assert leave == ("LabError 1 None work did not return on rank 0, which ended with exit code 0")
    assert lose.startswith("RunError 1 None rank 0 on node0: its agent "), lose
    assert sleep == "RunError 124 None not done after 1 s (--timeout)"


def test_a_script(lab: Lab) -> None:
    lab.script("import sys; print(sys.argv[1:])", "train.py")
    text = """
done = run("train.py", "solo", on="local", args=["--epochs", 3])
print(done.results)
try:
    run("nosuch.py", "solo", on="local")
except UsageError as error:
    print(error.exit_code, error)
"""
    lines = python(lab, text).stdout.splitlines()
    assert lines[:2] == ["[0 node0] ['--epochs', '3']", "()"]
    assert lines[2].startswith("2 there is no script nosuch.py")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("run(lambda: 1, 'solo', on='local')", "define it there with def"),
        ("run(inner(), 'solo', on='local')", "not at the top level"),
        ("run(print, 'solo', on='local', args=[lambda: 1])", "the arguments of print cannot"),
        ("run('x.py', 'solo', on='local', kwargs={'a': 1})", "kwargs are for functions"),
        ("run(print, 'solo', on='local', env={'RANK': '1'})", "RANK is set by lab"),
        ("run(print, load_topology('solo'), slots=2)", "give it none beside it"),
        ("run(print, 'solo', on='local', min_nodes=1)", "not for functions"),
        ("run(print, 'solo', on='local', engine='x')", "spawn or torchrun"),
        ("run(print, 'solo', on='local', cwd='nosuch')", "does not exist"),
        ("run(print, 'solo', on='local', grace=float('nan'))", "0 or more"),
        ("run(print, 'solo', on='local', timeout=0)", "more than 0"),
        ("run(print, 'solo', on='local', max_restarts=-1)", "0 or more"),
        ("run(print, 'solo', on='local', backend='x')", "nccl"),
        ("run(Job(command=('-m', 'x'), cwd='.'), 'solo', module=True)", "none beside it"),
    ],
)
def test_what_cannot_be_sent(lab: Lab, call: str, words: str) -> None:
    text = f"""
from lab import Job, load_topology
def inner():
    def function(): pass
    return function
try:
    {call}
except UsageError as error:
    print(error)
"""
    done = python(lab, text)
    assert words in done.stdout, done.stderr
    assert lab.runs() == []


def test_what_lab_run_takes(lab: Lab) -> None:
    """A module, a folder, an executable, beginning again: without a Job built by hand."""
    lab.script(
        "import os, sys\n"
        "print(os.path.basename(os.getcwd()), sys.argv[1:], os.environ['X'], flush=True)\n"
        "sys.exit(0 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 3)",
        "sub/mine.py",
    )
    text = """
options = dict(on="local", cwd="sub", env={"X": 7}, max_restarts=1)
run("mine", "solo", module=True, args=["a"], **options)
run("mine.py", "solo", args=["b"], **options)
run("sh", "solo", python=False, args=["-c", "echo $X; pwd"], **options)
"""
    done = python(lab, text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *["[0 node0] sub ['a'] 7"] * 2,
        *["[0 node0] sub ['b'] 7"] * 2,
        "[0 node0] 7",
        f"[0 node0] {lab.cwd / 'sub'}",
    ]


def test_a_function_starts_where_it_is_told_and_begins_again(lab: Lab) -> None:
    (lab.cwd / "sub").mkdir()
    text = """
def work():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": raise ValueError
    return os.path.basename(os.getcwd())

if __name__ == "__main__":
    print(run(work, "pair", on="local", cwd="sub", max_restarts=1, quiet=True).results)
"""
    assert python(lab, text).stdout == "('sub', 'sub')\n"


def test_nodes_may_be_lost(lab: Lab) -> None:
    text = """
done = run("w.py", "pair", on="local", engine="torchrun", min_nodes=1, quiet=True)
print(done.verdict.kind, __import__("json").loads((done.directory / "job.json").read_text())
    ["min_nodes"])
"""
    lab.script("", "w.py")
    done = python(lab, text)
    assert done.stdout == "ok 1\n", done.stderr


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("command=('nope.py',), cwd='.'", "there is no script nope.py"),
        ("command=('broken.py',), cwd='.'", "broken.py:1: "),
        ("command=('',), cwd='.'", "name is empty"),
        ("command=('-m',), cwd='.'", "-m needs a module"),
        ("command=('nosuchtool',), cwd='.', python=False", "no executable nosuchtool"),
        ("command=('good.py',), cwd='.', start='nosuch'", "does not exist"),
        ("command=('good.py',), cwd='.', start='sub'", "../good.py"),
        ("command=('good.py',), cwd='.', env={'RANK': '1'}", "RANK is set by lab"),
        ("command=('good.py',), cwd='.', env={'A B': '1'}", "'A B'"),
        ("command=('good.py',), cwd='.', min_nodes=1", "add --engine torchrun"),
        ("command=('good.py',), cwd='.', engine='torchrun', min_nodes=9", "from 1 to 2"),
        ("command=('good.py',), cwd='.', requirements='nosuch.txt'", "nosuch.txt"),
    ],
)
def test_a_job_made_by_hand_is_checked_as_any_other(lab: Lab, job: str, words: str) -> None:
    lab.script("", "good.py")
    lab.script("", "sub/x.py")
    lab.script("def f(:", "broken.py")
    text = f"""
from lab import Job
try:
    run(Job({job}), "pair", on="local")
except UsageError as error:
    print(error)
"""
    done = python(lab, text)
    assert words in done.stdout, done.stderr
    assert lab.runs() == []


def test_a_call_without_the_guard_does_not_breed(lab: Lab) -> None:
    text = "def work(): pass\nrun(work, 'solo', on='local', quiet=True)\n"
    done = python(lab, text)
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr
    assert len(lab.runs()) == 1


def test_an_interactive_function_has_no_file(lab: Lab) -> None:
    text = f"{HEAD}\ndef work(): pass\nrun(work, 'solo', on='local')"
    done = python(lab, "", "-c", text)
    assert "interactive session" in done.stderr
    assert lab.runs() == []


def test_names_are_there_for_ranks_on_nodes_without_a_controllers_packages(lab: Lab) -> None:
    text = """
sys.modules["pydantic"] = None  # as if it were not installed
from lab import Job, Topology, load_topology
def annotated(topology: Topology | None) -> None: ...
"""
    assert "ModuleNotFoundError" in python(lab, text).stderr
    importing = {**os.environ, "LAB_IMPORTING_MAIN": "1"}
    argv = [sys.executable, "program.py"]
    subprocess.run(argv, cwd=lab.cwd, env=importing, check=True)


@pytest.mark.docker
def test_on_containers(lab: Lab) -> None:
    text = """
from lab import Topology
def work(how):
    if how == "fail" and os.environ["RANK"] == "1":
        raise ValueError("no good")
    return os.environ["LAB_NODE"], os.uname().nodename

if __name__ == "__main__":
    print(run(work, "pair", on="docker", args=["well"], quiet=True).results)
    try:
        run(work, "pair", on="docker", args=["fail"], quiet=True)
    except RankError as error:
        print(repr(error.__cause__), error.node)
"""
    try:
        done = python(lab, text)
        assert done.stdout == (
            "(('node0', 'node0'), ('node1', 'node1'))\nValueError('no good') node1\n"
        ), done.stderr
    finally:
        lab("down", "-t", "pair", "--on", "docker")


def test_files_of_others_are_not_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    from lab.runs.call import _load

    path = lab.cwd / "rank0.result"
    path.write_bytes(pickle.dumps(1))
    assert _load(path) == 1
    (lab.cwd / "link").symlink_to(path)
    with pytest.raises(OSError, match="link"):
        _load(lab.cwd / "link")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(PermissionError):
        _load(path)


def test_importing_lab_is_light(lab: Lab) -> None:
    text = (
        "import sys, lab.parallel; from lab import RankError, run; "
        "print(sorted({'pydantic', 'rich', 'lab.runs'} & set(sys.modules)))"
    )
    done = python(lab, "", "-c", text)
    assert done.stdout == "[]\n", done.stderr


def test_a_run_that_stalls_is_ended_where_that_is_asked_for(lab: Lab) -> None:
    lab.script("import time; time.sleep(600)", "sleeps.py")
    text = """
try:
    run("sleeps.py", "solo", on="local", stall=1, on_stall="stop", quiet=True)
except RunError as error:
    print(error.verdict.kind, error.verdict.exit_code)
try:
    run("sleeps.py", "solo", on="local", on_stall="panic")
except UsageError as error:
    print(error)
"""
    done = python(lab, text)
    assert done.stdout == "stalled 75\n--on-stall panic: it is report or stop\n", done.stderr
