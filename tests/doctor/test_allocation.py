"""The doctor in an allocation of Slurm, whose commands are played by scripts on PATH."""

import json
import os
import sys
from collections.abc import Callable, Mapping

import pytest

from tests.conftest import Lab

SRUN = """
import json, os, pathlib, subprocess, sys, threading, time
argv = sys.argv[1:]
pathlib.Path("srun.json").write_text(json.dumps(argv))
command = argv[next(n for n, word in enumerate(argv) if not word.startswith("--")):]
tasks = [
    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     env={**os.environ, "SLURM_NODEID": str(node),
                          "SLURM_STEP_NODELIST": "node[0-1]"})
    for node in range(2)
]
def pass_on(task):
    for line in task.stdout:
        for start in range(0, len(line), 1024):  # what is longer is mixed with what others say
            sys.stdout.buffer.write(line[start : start + 1024])
            sys.stdout.buffer.flush()
            time.sleep(0.005)
readers = [threading.Thread(target=pass_on, args=(task,)) for task in tasks]
for reader in readers:
    reader.start()
for line in sys.stdin.buffer:
    for task in tasks:
        task.stdin.write(line)
        task.stdin.flush()
for task in tasks:
    task.stdin.close()
for reader in readers:
    reader.join()
"""
"""Like the real one it keeps lines whole up to 1024 bytes."""
SCONTROL = """
import sys
print("Slurmctld(primary) at login is UP" if sys.argv[1] == "ping" else "127.0.0.1\\n127.0.0.1")
"""
Play = Callable[[str, str], None]


@pytest.fixture
def play(lab: Lab) -> Play:
    """`play(name, source)` puts a command, in Python, on `path(lab)`."""

    def put(name: str, source: str) -> None:
        lab.script(f"#!{sys.executable}\n{source}", f"bin/{name}")
        (lab.cwd / "bin" / name).chmod(0o755)

    lab.script(f"on: slurm\nname: x\nnodes: 2\nslurm: {{python: {sys.executable}}}\n", "lab.yaml")
    return put


def path(lab: Lab) -> Mapping[str, str]:
    return {"PATH": f"{lab.cwd / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


def test_it_is_a_step_of_the_job(lab: Lab, play: Play) -> None:
    for name, source in (("srun", SRUN), ("scontrol", SCONTROL), ("munge", "print('MUNGE:x')")):
        play(name, source)
    play("unmunge", "import sys; sys.exit(0 if sys.stdin.read() == 'MUNGE:x' else 'bad')")

    done = lab("doctor", "--json", env=path(lab), timeout=400)

    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if check["status"] != "pass"] == []
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert found["slurm"] == "munge and slurmctld answer on every host"
    assert found["roll-call"].startswith("an all-reduce over 2 nodes (gloo)")
    argv = json.loads((lab.cwd / "srun.json").read_text())
    assert "--overlap" in argv
    assert not [word for word in argv if word.startswith("--time")]


def test_slurm_that_gives_no_hosts(lab: Lab, play: Play) -> None:
    play("srun", "raise SystemExit('srun: error: Unable to allocate resources: Invalid account')")

    done = lab("doctor", env=path(lab), timeout=120)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("lab: error: srun gives no hosts: ")
    assert "Invalid account" in last
    assert not (lab.cwd / "runs").exists()


def test_a_host_that_writes_in_between(lab: Lab, play: Play) -> None:
    """What else is JSON counts for nothing; what breaks an answer in two is the end of all."""
    damaged = '{"type": "piece", "node": 0, "data": "bm9uZQ==", "last": true}'
    play("srun", f"print('{{}}')\nprint('{damaged}', flush=True)\nimport sys; sys.stdin.read()")

    done = lab("doctor", env=path(lab), timeout=120)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("lab: error: srun gives no hosts: what it says is damaged: ")
