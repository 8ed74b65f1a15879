"""How lab's code is kept on a host, and when it goes."""

import os
import subprocess
import sys
from pathlib import Path

from lab.transport.ssh_bundle import KEEP, bundle


def keep(agents: Path, name: str) -> None:
    argv = [sys.executable, "-I", "-c", KEEP, str(agents / name)]
    subprocess.run(argv, input=bundle().data, check=True)


def test_it_is_kept_whole_and_once(tmp_path: Path) -> None:
    for _ in range(2):
        keep(tmp_path / "agents", "this")
    assert [path.name for path in (tmp_path / "agents").iterdir()] == ["this"]
    assert (tmp_path / "agents/this/lab/node/agent.py").is_file()


def test_what_no_run_has_begun_with_for_a_week_goes_unless_one_still_runs(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    for name in ("old", "running", "new"):
        (agents / name).mkdir(parents=True)
        (agents / name / "used").touch()
    for name in ("old", "running"):
        os.utime(agents / name / "used", (0, 0))
    env = {"PYTHONPATH": f"{agents}/running:/elsewhere"}
    with subprocess.Popen(["sleep", "1000"], env=env) as process:
        try:
            keep(agents, "this")
        finally:
            process.kill()
    assert {path.name for path in agents.iterdir()} == {"running", "new", "this"}
