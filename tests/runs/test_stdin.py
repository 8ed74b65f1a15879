"""`lab run` in the middle of pipes and loops: rank 0 reads what torchrun's rank 0 would read."""

import contextlib
import hashlib
import json
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Lab
from tests.runs.test_docker_runs import docker_lab as docker_lab
from tests.runs.test_local_runs import verdict, wait_for_output

SOLO = ["run", "-t", "solo", "--on", "local"]
ECHO = """
import os
try:
    print(os.environ["RANK"], input(), input())
except EOFError:
    print(os.environ["RANK"], "has none")
"""


@contextlib.contextmanager
def pipe_with(data: bytes, *, ended: bool = True) -> Iterator[int]:
    """The reading end of a pipe that holds this, which fits."""
    reader, writer = os.pipe()
    os.write(writer, data)
    if ended:
        os.close(writer)
    try:
        yield reader
    finally:
        os.close(reader)
        if not ended:
            os.close(writer)


def left_in(reader: int) -> bytes:
    """What is in a pipe."""
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(reader, 1 << 16)
    return b""


def test_rank_0_gets_the_input_and_the_others_find_its_end(lab: Lab) -> None:
    script = lab.script(ECHO)
    with pipe_with(b"one\ntwo") as stdin:
        done = lab("run", "-t", "quad2x2", "--on", "local", script, stdin=stdin)
    assert sorted(done.stdout.splitlines()) == [
        "[0 node0] 0 one two",
        *(f"[{rank} node{rank // 2}] {rank} has none" for rank in (1, 2, 3)),
    ]


@pytest.mark.parametrize("options", [[], ["--json"], ["--quiet"]])
def test_a_script_that_does_not_ask_takes_nothing(lab: Lab, options: list[str]) -> None:
    with pipe_with(b"one\ntwo\n", ended=False) as stdin:
        done = lab(*SOLO, *options, lab.script("print('hi')"), stdin=stdin)
        assert done.returncode == 0, done.stderr
        assert left_in(stdin) == b"one\ntwo\n"


def test_a_loop_loses_what_was_read_and_no_more(lab: Lab) -> None:
    """As with ssh -n or torchrun, and unlike with plain ssh."""
    run = shlex.join([sys.executable, *COMMAND, *SOLO, "--no-python"])
    (lab.cwd / "list").write_text("".join(f"{number}\n" for number in range(1, 7)))
    loop = f"""
while read x; do
    if [ $x = 1 ] || [ $x = 4 ]; then {run} sh -c 'read y; echo rank $y'; else echo shell $x; fi
done < list
"""
    done = subprocess.run(["sh", "-c", loop], cwd=lab.cwd, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        *("[0 node0] rank 2", "shell 3", "[0 node0] rank 5", "shell 6")
    ]


def test_a_detached_run_has_no_input(lab: Lab) -> None:
    with pipe_with(b"one\ntwo\n", ended=False) as stdin:
        run = lab("run", "-d", "-t", "solo", "--on", "local", lab.script(ECHO), stdin=stdin)
        logs = lab("logs", "-f", run.stdout.strip())
        assert logs.stdout == "[0 node0] 0 has none\n"
        assert left_in(stdin) == b"one\ntwo\n"


def test_a_run_from_python_has_no_input(lab: Lab) -> None:
    lab.script(ECHO)
    caller = "from lab import run\nrun('script.py', 'solo', on='local')\nprint(input())"
    done = subprocess.run(
        [sys.executable, "-c", caller], cwd=lab.cwd, input="one\n", capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["[0 node0] 0 has none", "one"], done.stderr


def test_a_caller_without_stdin(lab: Lab) -> None:
    run = shlex.join([sys.executable, *COMMAND, *SOLO, lab.script(ECHO)])
    done = subprocess.run(["sh", "-c", f"{run} <&-"], cwd=lab.cwd, capture_output=True, text=True)
    assert done.stdout == "[0 node0] 0 has none\n", done.stderr


HASH = """
import hashlib, os, sys
data = hashlib.sha256()
while chunk := sys.stdin.buffer.read(50_000): data.update(chunk)
if os.environ["RANK"] == "0": print(data.hexdigest())
"""


def hashed(lab: Lab, data: bytes, *options: str) -> tuple[str, int]:
    """What rank 0 makes of its input, and the most memory (KiB) of controller or agent."""
    (lab.cwd / "data").write_bytes(data)
    with subprocess.Popen(["cat", "data"], cwd=lab.cwd, stdout=subprocess.PIPE) as source:
        assert source.stdout is not None
        done = lab("run", *options, lab.script(HASH), stdin=source.stdout.fileno())
    assert done.returncode == 0, done.stderr
    used = json.loads((lab.runs()[-1] / "verdict.json").read_text())["max_rss_kib"]
    return done.stdout.removeprefix("[0 node0] ").strip(), max(used.values())


def test_much_binary_input_arrives_whole_in_little_memory(lab: Lab) -> None:
    data = random.Random(0).randbytes(10_000_000)
    _, before = hashed(lab, b"", "-t", "solo", "--on", "local")
    found, used = hashed(lab, data, "-t", "solo", "--on", "local")
    assert found == hashlib.sha256(data).hexdigest()
    assert used - before < 8 << 10


def test_whoever_writes_on_and_on_does_not_hold_a_run_up(lab: Lab) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as source:
        assert source.stdout is not None
        done = lab(*SOLO, lab.script("print(input())"), stdin=source.stdout.fileno())
        source.kill()
    assert done.stdout == "[0 node0] y\n", done.stderr


def test_a_run_that_begins_again_goes_on_reading(lab: Lab) -> None:
    code = "read x; echo $x; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"
    with pipe_with(b"one\ntwo\nthree\n", ended=False) as stdin:
        options = ["--max-restarts", "1", "--no-python"]
        done = lab(*SOLO, *options, "sh", "-c", code, stdin=stdin)
        assert done.stdout.splitlines() == ["[0 node0] one", "[0 node0] two"], done.stderr
        assert left_in(stdin) == b"three\n"


def test_what_comes_for_a_rank_that_has_died_is_for_the_next(lab: Lab) -> None:
    script = lab.script(
        """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        while not os.path.exists("asking"): time.sleep(0.01)
        time.sleep(1)
        sys.exit(3)
    open("asking", "w")
else:
    print("again", flush=True)
if os.environ["RANK"] == "0": print(input())
"""
    )
    reader, writer = os.pipe()
    run = lab.start(
        "run", "-t", "pair", "--on", "local", "--max-restarts", "1", script, stdin=reader
    )
    os.close(reader)
    wait_for_output(lab, "again")
    os.write(writer, b"late\n")
    out, err = run.communicate(timeout=60)
    os.close(writer)
    assert run.returncode == 0, err
    assert "[0 node0] late" in out.splitlines()


def test_a_run_ends_while_somebody_waits_for_input(lab: Lab) -> None:
    script = lab.script("import os\nprint('asking', flush=True)\nos.read(0, 1)")
    reader, writer = os.pipe()
    done = lab(*SOLO, "--timeout", "2s", script, stdin=reader)
    os.close(reader)
    os.close(writer)
    assert done.returncode == 124
    assert verdict(lab)["kind"] == "timeout"


@pytest.mark.docker
def test_containers_have_it_too_whether_warm_or_cold(docker_lab: Lab, tmp_path: Path) -> None:
    lab = docker_lab
    data = random.Random(0).randbytes(1_000_000)
    expected = hashlib.sha256(data).hexdigest()
    for options in ([], [], ["--cold"]):
        assert hashed(lab, data, "-t", "pair", "--on", "docker", *options)[0] == expected
        with pipe_with(b"one\ntwo\nthree\n", ended=False) as stdin:
            code = "read x; echo $RANK $x"
            words = ["--no-python", "sh", "-c", code]
            done = lab("run", "-t", "pair", "--on", "docker", *options, *words, stdin=stdin)
            lines = sorted(line.strip() for line in done.stdout.splitlines())
            assert lines == ["[0 node0] 0 one", "[1 node1] 1"], done.stderr
            assert left_in(stdin) == b"two\nthree\n"


def test_input_that_somebody_has_made_nonblocking(lab: Lab) -> None:
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    script = lab.script("open('asking', 'w').close(); print(input())")
    with open(writes, "wb") as answers:  # noqa: PTH123 - a descriptor
        running = lab.start(*SOLO, script, stdin=reads)
        os.close(reads)
        while not (lab.cwd / "asking").exists():
            assert running.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)  # by then it has been asked for
        answers.write(b"late\n")
    assert running.communicate(timeout=60)[0] == "[0 node0] late\n"
