"""`lab show`, `lab stop`, `lab rm`, `lab ps` and runs without a terminal."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Lab
from tests.runs.test_local_runs import wait_for_output

SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"


def detached(lab: Lab, script: str, *options: str) -> str:
    done = lab("run", "-t", "pair", "--on", "local", "--detach", *options, script)
    assert done.returncode == 0, done.stderr
    (run_id,) = done.stdout.splitlines()
    assert done.stderr == ""
    return run_id


def shown(lab: Lab, *argv: str) -> Any:
    return json.loads(lab("show", "--json", *argv).stdout)


def wait_for_end(lab: Lab, run_id: str) -> None:
    for _ in range(300):
        if shown(lab, run_id)["state"] != "running":
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")


def end_all(lab: Lab) -> None:
    for run in lab.runs():
        state = json.loads((run / "state.json").read_text())
        if state["state"] == "running":
            with contextlib.suppress(ProcessLookupError):
                os.kill(state["controller"]["pid"], signal.SIGKILL)


def test_a_detached_run_goes_on_and_is_stopped(lab: Lab) -> None:
    try:
        run_id = detached(lab, lab.script(SLEEP))
        assert shown(lab)["state"] == "running"
        refused = lab("rm", run_id)
        assert refused.returncode == 2
        assert f"lab stop {run_id}" in refused.stderr
        done = lab("stop")
        assert done.returncode == 0, done.stderr
        assert f"run {run_id} has ended: interrupted" in done.stderr
        assert done.stdout == ""
        told = shown(lab, run_id)
        assert (told["state"], told["verdict"]["kind"]) == ("finished", "interrupted")
        log = (lab.runs()[0] / "console.log").read_text()
        assert "[0 node0] ready" in log
        assert "lab: interrupted; all ranks have ended" in log
        again = lab("stop", run_id)
        assert again.returncode == 2
        assert "has ended already: interrupted" in again.stderr
        assert lab("stop").returncode == 2
        assert lab("rm", run_id).stdout == f"{run_id}\n"
        assert lab.runs() == []
    finally:
        end_all(lab)


def test_a_detached_runs_exit_code_is_in_ps(lab: Lab) -> None:
    run_id = detached(lab, lab.script("import time; time.sleep(0.5); exit(7)"), "--quiet")
    wait_for_end(lab, run_id)
    (run,) = json.loads(lab("ps", "--json").stdout)["runs"]
    assert (run["id"], run["state"], run["exit_code"], run["nodes"]) == (run_id, "finished", 7, 2)
    table = lab("ps").stdout
    assert "NODES" in table
    assert run_id in table


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["nosuch.py"], 2, "there is no script"),
        (["--json", "good.py"], 2, "leave --json out"),
        (["--no-python", "/bin/sh/x"], 2, "does not exist"),
    ],
)
def test_errors_before_the_start_are_shown(
    lab: Lab, options: list[str], code: int, words: str
) -> None:
    lab.script("", "good.py")
    done = lab("run", "-t", "pair", "--on", "local", "-d", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_a_detached_run_whose_ranks_never_start_says_why(lab: Lab) -> None:
    (lab.cwd / "runs").write_text("in the way")
    done = lab("run", "-t", "pair", "--on", "local", "-d", lab.script(""))
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be written" in done.stderr


def test_of_a_run_without_ranks_logs_and_why_say_what_it_was_refused_for(lab: Lab) -> None:
    (lab.cwd / "host.yaml").write_text(
        "on: ssh\nnodes: [{name: a, address: 127.0.0.1}]\nssh: {port: 9}\n"
    )
    refused = lab("run", "-t", "host.yaml", lab.script(""))
    assert refused.returncode == 1
    reason = refused.stderr.splitlines()[-1].removeprefix("lab: error: ")
    (run,) = lab.runs()
    for command in ("logs", "why"):
        done = lab(command)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == f"lab: run {run.name}: {reason}\n"


def test_stop_now_does_not_wait_for_the_grace(lab: Lab) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    try:
        run_id = detached(lab, lab.script(ignore + SLEEP), "--grace", "1000")
        for _ in range(200):
            if "ready" in lab("logs", run_id).stdout:
                break
        assert lab("stop", "--now", run_id, timeout=60).returncode == 0
    finally:
        end_all(lab)


def test_a_lost_run(lab: Lab) -> None:
    run_id = detached(lab, lab.script(SLEEP))
    os.kill(shown(lab)["controller"]["pid"], signal.SIGKILL)
    wait_for_end(lab, run_id)
    assert shown(lab)["state"] == "died"
    assert "its controller was killed" in lab("show").stdout
    done = lab("stop", run_id)
    assert done.returncode == 2
    assert "no controller any more" in done.stderr
    assert lab("rm", "--all-finished").stdout == f"{run_id}\n"


def test_show_says_what_matters(lab: Lab) -> None:
    lab.script("nodes: 2\non: local\nname: two\nenv: {LR: 0.1}\n", "lab.yaml")
    lab("run", "--env", "MY_TOKEN=hush", "--env", "X=1", lab.script("exit(3)"), "--epochs", "3")
    text = lab("show").stdout
    for words in ("two on local", "script.py --epochs 3", "LR=0.1", "X=1", "MY_TOKEN=***"):
        assert words in text
    assert "exited with code 3 (script.py:1) (exit code 3)" in text
    assert "hush" not in text
    data = shown(lab)
    assert data["verdict"]["first"]["exit_code"] == 3
    assert set(data["places"]["nodes"]) == {"node0", "node1"}


def test_rm_stays_in_its_folder(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    lab("run", "-t", "solo", "--on", "local", lab.script(""))
    (run,) = lab.runs()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "state.json").write_text('{"state": "finished"}')
    (lab.cwd / "runs" / "link").symlink_to(elsewhere)
    (run / "out").symlink_to(elsewhere)
    refused = lab("rm", "link")
    assert refused.returncode == 2
    assert "is a link to" in refused.stderr
    assert lab("rm", run.name).returncode == 0
    assert not run.exists()
    assert (elsewhere / "state.json").exists()
    for name in ("../script.py", str(elsewhere), "nosuch"):
        assert lab("rm", name).returncode == 2
    assert Path(lab.cwd / "script.py").exists()
    assert lab("rm").returncode == 2


def test_a_reader_that_has_gone_ends_the_run(lab: Lab) -> None:
    script = lab.script(
        "import time\nfor i in range(1000):\n    print(i, flush=True)\n    time.sleep(0.05)"
    )
    running = lab.start("run", "-t", "pair", "--on", "local", script)
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    error = running.stderr.read()
    assert running.wait(60) == 141
    first, *_, last = (line for line in error.splitlines() if "warning" not in line)
    assert first.startswith("lab: nobody reads the output any more: ending the ranks, which have")
    assert last == "lab: nobody reads its output any more; all ranks have ended"
    assert "Traceback" not in error
    assert "BrokenPipe" not in error
    told = shown(lab)
    assert (told["state"], told["verdict"]["kind"]) == ("finished", "interrupted")
    running.stdout = None  # there is nothing left to read


def test_whoever_follows_a_run_interrupts_nothing_else(lab: Lab) -> None:
    lab.start("run", "-t", "solo", "--on", "local", lab.script(SLEEP))
    wait_for_output(lab, "ready")
    follower = lab.start("logs", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "[0 node0] ready\n"
    follower.send_signal(signal.SIGINT)
    _, error = follower.communicate(timeout=60)
    assert (follower.returncode, error) == (130, "")
    assert shown(lab)["state"] == "running"


def test_ids_that_are_ambiguous(lab: Lab) -> None:
    script = lab.script("")
    for _ in range(2):
        lab("run", "-t", "solo", "--on", "local", script)
    done = lab("show", "solo")
    assert done.returncode == 2
    assert "could be any of these runs" in done.stderr


def test_a_run_that_was_suspended_is_stopped_all_the_same(lab: Lab) -> None:
    try:
        run_id = detached(lab, lab.script(SLEEP))
        os.kill(shown(lab)["controller"]["pid"], signal.SIGSTOP)
        done = lab("stop")
        assert done.returncode == 0, done.stderr
        assert shown(lab, run_id)["verdict"]["kind"] == "interrupted"
    finally:
        end_all(lab)


def test_an_id_that_is_empty_names_no_run(lab: Lab) -> None:
    assert lab("run", "-t", "solo", "--on", "local", lab.script("")).returncode == 0
    done = lab("rm", "")
    assert (done.returncode, len(lab.runs())) == (2, 1)
    assert "id is empty" in done.stderr


def test_words_with_line_breaks_stay_in_their_row(lab: Lab) -> None:
    script = lab.script("")
    done = lab("run", "-t", "solo", "--on", "local", "-q", script, "a\nb", "\x1b[2J")
    assert done.returncode == 0
    rows = lab("ps").stdout.splitlines()
    assert rows[-1].endswith(r"script.py 'a\nb' '\x1b[2J'")
    (job,) = (line for line in lab("show").stdout.splitlines() if line.startswith("job "))
    assert job.endswith(r"script.py 'a\nb' '\x1b[2J'")


def test_show_has_the_nodes_in_the_order_of_their_ranks(lab: Lab) -> None:
    lab("run", "-t", "quad", "--slots", "2", "--on", "local", "-q", lab.script(""))
    lines = [line.split(maxsplit=1) for line in lab("show").stdout.splitlines()]
    assert ["topology", "quad on local: 4 nodes x 2, 8 ranks"] in lines
    nodes = [value for name, value in lines if name == "node"]
    assert [value.split(", ")[0] for value in nodes] == [
        "node0: ranks 0-1",
        "node1: ranks 2-3",
        "node2: ranks 4-5",
        "node3: ranks 6-7",
    ]


def test_down_ends_what_runs_on_the_nodes(lab: Lab) -> None:
    try:
        run_id = detached(lab, lab.script(SLEEP))
        other = lab("down", "-t", "solo", "--on", "local")
        assert (other.returncode, shown(lab, run_id)["state"]) == (0, "running")
        done = lab("down", "-t", "pair", "--on", "local")
        assert done.returncode == 0, done.stderr
        assert f"asked run {run_id} to end" in done.stderr
        told = shown(lab, run_id)
        assert (told["state"], told["verdict"]["kind"]) == ("finished", "interrupted")
    finally:
        end_all(lab)
