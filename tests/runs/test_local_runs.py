"""Whole runs on local nodes: real agents, real processes, through the command line."""

import contextlib
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Lab

RENDEZVOUS = """
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
"""


def verdict(lab: Lab) -> dict[str, Any]:
    found = json.loads((lab.runs()[-1] / "verdict.json").read_text())
    assert isinstance(found, dict)
    return found


def living(lab: Lab) -> list[psutil.Process]:
    """Processes in the test's folder that stay; the kernel may take a moment to end one."""
    for _ in range(30):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()) == lab.cwd:
                    found.append(process)
        if not found:
            break
        time.sleep(0.1)
    return found


def wait_for_output(lab: Lab, text: str) -> None:
    for _ in range(300):
        if any(text in path.read_text() for path in lab.cwd.glob("runs/*/*/rank*.out")):
            return
        time.sleep(0.1)
    raise AssertionError(f"no rank wrote {text!r}")


def test_every_rank_runs_with_its_number_and_its_prefix(lab: Lab) -> None:
    script = lab.script("import os, sys; print('rank', os.environ['RANK'], sys.argv[1:])")
    done = lab("run", "-t", "quad2x2", "--on", "local", script, "--x", "a b", "$(id)", "-t")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines == [
        f"[{rank} node{rank // 2}] rank {rank} ['--x', 'a b', '$(id)', '-t']" for rank in range(4)
    ]
    assert "\033" not in done.stdout + done.stderr
    assert verdict(lab)["kind"] == "ok"
    assert (lab.runs()[0] / "node1" / "rank3.out").read_text().startswith("rank 3")


def test_a_module_takes_the_options_behind_it(lab: Lab) -> None:
    lab.script("import sys; print(__name__, sys.argv[1:])", "package/__main__.py")
    lab.script("", "package/__init__.py")
    done = lab("run", "-t", "solo", "--on", "local", "-m", "package", "--epochs", "3")
    assert done.stdout == "[0 node0] __main__ ['--epochs', '3']\n"


def test_the_topologys_job_is_the_default(lab: Lab) -> None:
    lab.script("import sys; print(sys.argv)", "train.py")
    lab.script("nodes: 1\non: local\njob: {script: train.py, args: [--epochs, 2]}\n", "lab.yaml")
    assert lab("run").stdout == "[0 node0] ['train.py', '--epochs', '2']\n"


def test_nodes_have_their_own_loopback_addresses(lab: Lab) -> None:
    script = lab.script(
        RENDEZVOUS
        + """
if rank == 0:
    with socket.create_server(master) as server:
        for _ in range(size - 1):
            server.accept()[0].recv(1)
    print("all came")
else:
    while True:
        try:
            socket.create_connection(master).send(b"x")
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
"""
    )
    done = lab("run", "-t", "quad", "--on", "local", script)
    assert done.stdout == "[0 node0] all came\n"


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("raise ValueError('boom\\nmore')", 1, "ValueError: boom (script.py:4)"),
        ("os._exit(7)", 7, "exited with code 7 "),
        ("import sys; sys.exit('no data')", 1, "exited with code 1 (script.py:4) "),
        ("os.kill(os.getpid(), 9)", 137, "SIGKILL (killed, perhaps out of memory)"),
        ("os.kill(os.getpid(), 11)", 139, "SIGSEGV"),
    ],
)
def test_the_first_failure_ends_the_run(lab: Lab, end: str, code: int, words: str) -> None:
    script = lab.script(
        f"import os, sys, time\nprint('working', flush=True)\n"
        f"if os.environ['RANK'] == '2':\n    {end}\ntime.sleep(1000)\n"
    )
    done = lab("run", "-t", "quad", "--on", "local", script, timeout=60)
    assert done.returncode == code
    last = done.stderr.splitlines()[-1]
    assert last.startswith("lab: rank 2 on node2: ")
    assert words in last
    assert f"(exit code {code})" in last
    told = verdict(lab)
    assert told["exit_code"] == code
    assert told["first"]["rank"] == 2
    assert told["ended"] == [0, 1, 3]
    assert living(lab) == []


def test_the_traceback_of_the_guilty_rank_comes_last(lab: Lab) -> None:
    script = lab.script(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise KeyError('spam')\ntime.sleep(99)"
    )
    done = lab("run", "-t", "pair", "--on", "local", script)
    tail = done.stderr.splitlines()[-5:]
    assert tail[0] == "  Traceback (most recent call last):"
    assert tail[3] == "  KeyError: 'spam'"
    assert re.match(r"lab: rank 1 on node1: KeyError: 'spam' \(script.py:3\)", tail[4])


def test_a_victim_that_falls_first_is_not_blamed(lab: Lab) -> None:
    script = lab.script(
        """
import os, time
if os.environ["RANK"] == "0":
    raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1234")
time.sleep(0.3)
os._exit(9)
"""
    )
    done = lab("run", "-t", "pair", "--on", "local", script)
    assert done.returncode == 9
    told = verdict(lab)
    assert (told["first"]["rank"], told["victims"]) == (1, [0])
    assert "rank 0 failed as a consequence" in done.stderr


def test_an_exception_counts_even_when_the_process_does_not_end(lab: Lab) -> None:
    script = lab.script(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "raise ValueError('stuck')"
    )
    done = lab("run", "-t", "pair", "--on", "local", script, timeout=60)
    assert done.returncode == 1
    assert verdict(lab)["first"]["message"] == "stuck"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_every_rank_in_order(lab: Lab, number: signal.Signals) -> None:
    script = lab.script(
        """
import os, signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready" + os.environ["RANK"], flush=True)
time.sleep(1000)
"""
    )
    running = lab.start("run", "-t", "quad", "--on", "local", script)
    for rank in range(4):
        wait_for_output(lab, f"ready{rank}")
    running.send_signal(number)
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    assert out.count("saved") == 4
    assert verdict(lab)["kind"] == "interrupted"
    assert living(lab) == []


def test_the_second_interrupt_ends_at_once(lab: Lab) -> None:
    script = lab.script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(1000)"
    )
    running = lab.start("run", "-t", "solo", "--on", "local", "--grace", "1000", script)
    wait_for_output(lab, "ready")
    running.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    assert living(lab) == []


def test_an_interrupt_at_any_moment_leaves_nothing(lab: Lab) -> None:
    script = lab.script("import time; time.sleep(1000)")
    for wait in (0.05, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0):
        running = lab.start("run", "-t", "quad", "--on", "local", "--grace", "3", script)
        time.sleep(wait)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
        if running.returncode == 130:
            assert "Traceback" not in err or "site.py" in err
        else:  # Python itself was still starting, and ends in its own ways
            assert running.returncode == -signal.SIGINT or "Could not import runpy" in err, err
        assert living(lab) == []


def test_a_killed_controller_takes_its_ranks_along(lab: Lab) -> None:
    script = lab.script("print('ready', flush=True)\nimport time; time.sleep(1000)")
    running = lab.start("run", "-t", "quad", "--on", "local", script)
    wait_for_output(lab, "ready")
    running.kill()
    running.wait()
    assert living(lab) == []
    shown = json.loads(lab("ps", "--json").stdout)["runs"]
    assert [run["state"] for run in shown] == ["died"]


def test_logs_of_a_run(lab: Lab) -> None:
    script = lab.script("import os, sys\nprint('out', os.environ['RANK'])\nsys.stderr.write('err')")
    lab("run", "-t", "pair", "--on", "local", script)
    done = lab("logs", "--rank", "1")
    assert (done.stdout, done.stderr) == ("[1 node1] out 1\n", "[1 node1] err\n")
    assert sorted(lab("logs").stdout.splitlines()) == ["[0 node0] out 0", "[1 node1] out 1"]
    told = [json.loads(line) for line in lab("logs", "--json", "--rank", "1").stdout.splitlines()]
    where = {"type": "log", "node": "node1", "rank": 1}
    assert told == [
        {**where, "stream": "out", "data": "out 1\n"},
        {**where, "stream": "err", "data": "err\n"},
    ]
    assert lab("logs", "--rank", "2").returncode == 2
    nothing = lab("logs", "nosuch")
    assert nothing.returncode == 2
    assert "there is no run nosuch" in nothing.stderr


def test_following_a_run_shows_all_of_it_and_ends_with_it(lab: Lab) -> None:
    script = lab.script("import time\nfor i in range(20):\n    print(i)\n    time.sleep(0.1)")
    running = lab.start("run", "-t", "solo", "--on", "local", script)
    wait_for_output(lab, "3")
    done = lab("logs", "-f")
    assert done.stdout.splitlines() == [f"[0 node0] {i}" for i in range(20)]
    running.communicate(timeout=30)


def test_json_is_json(lab: Lab) -> None:
    script = lab.script("print('hello')\nraise SystemExit(3)")
    done = lab("run", "-t", "solo", "--on", "local", "--json", script)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "hello"
    assert kinds[-1] == "verdict"
    assert {"run", "started", "log", "exit", "bye"} < set(kinds)
    assert events[-1]["exit_code"] == done.returncode == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "nosuch.py"], "there is no script nosuch.py"),
        (["run", "."], "is a folder"),
        (["run", "-t", "nosuch", "script.py"], "nosuch"),
        (["run", "--on", "mars", "script.py"], "mars"),
        (["logs"], "there are no runs"),
        (
            ["run", "--on", "slurm", "--timeout", "9s", "script.py"],
            "slurm.time in place of a timeout",
        ),
        (["exec", "--on", "local", "node9", "true"], "has no node node9"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(lab: Lab, argv: list[str], words: str) -> None:
    lab.script("")
    done = lab(*argv)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert lab.runs() == []


def test_what_ranks_of_different_kinds_of_start_see(lab: Lab) -> None:
    """`__main__`, pickling and spawned children are as under plain Python."""
    script = lab.script(
        """
import multiprocessing, pickle, sys, neighbour
class Thing: ...
def square(x): return x * x
if __name__ == "__main__":
    assert __spec__ is None and sys.argv == ["sub/script.py"], (__spec__, sys.argv)
    assert pickle.loads(pickle.dumps(Thing())).__class__ is Thing
    for kind in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            assert pool.map(square, [1, 2]) == [1, 4]
    print(neighbour.NAME)
""",
        "sub/script.py",
    )
    lab.script("NAME = 'beside the script'", "sub/neighbour.py")
    lab.script("raise RuntimeError('a lab of the user\\'s own')", "lab/__init__.py")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.stdout == "[0 node0] beside the script\n", done.stderr


def test_a_lab_package_of_the_users_own_is_found_by_the_script(lab: Lab) -> None:
    lab.script("NAME = 'mine'", "lab/__init__.py")
    script = lab.script("import lab; print(lab.NAME)")
    assert lab("run", "-t", "solo", "--on", "local", script).stdout == "[0 node0] mine\n"


def test_a_huge_line_that_is_no_text_is_kept_and_not_held_in_memory(lab: Lab) -> None:
    script = lab.script(
        "import sys\nline = bytes(range(256)).replace(b'\\n', b'') * 80_000\n"
        "sys.stdout.buffer.write(line + b'\\n')"
    )
    done = lab("run", "-t", "pair", "--on", "local", "--quiet", script)
    assert done.returncode == 0
    line = bytes(range(256)).replace(b"\n", b"") * 80_000  # 20 MB
    for rank in range(2):
        assert (lab.runs()[0] / f"node{rank}" / f"rank{rank}.out").read_bytes() == line + b"\n"
    rss = verdict(lab)["max_rss_kib"]
    assert set(rss) == {"node0", "node1", "controller"}
    assert max(rss["node0"], rss["node1"]) < 40_000
    assert rss["controller"] < 60_000


def test_ranks_that_fail_by_themselves_are_not_called_victims(lab: Lab) -> None:
    script = lab.script("import time\ntime.sleep(0.2)\nraise ValueError('each of us')")
    done = lab("run", "-t", "pair", "--on", "local", script)
    told = verdict(lab)
    assert told["victims"] == []
    assert len(told["others"]) + len(told["ended"]) == 1
    assert "as a consequence" not in done.stderr


def test_what_others_have_failed_with_is_told_where_it_is_something_else(lab: Lab) -> None:
    script = lab.script("""
import atexit, os, time
rank, ready = int(os.environ["RANK"]), f"ready{os.environ['RANK']}"
open(ready, "w").close()
while not all(os.path.exists(f"ready{n}") for n in range(4)):
    time.sleep(0.01)
if rank == 0:
    time.sleep(1000)
atexit.register(time.sleep, 0.6)  # the others may still tell
time.sleep(0.05 * rank)
if rank == 3:
    {}["x"]
raise ValueError(f"sample {rank}")
""")
    done = lab("run", "-t", "quad", "--on", "local", script)
    told = verdict(lab)
    assert (told["first"]["rank"], told["others"], told["ended"]) == (1, [2, 3], [0])
    other = "rank 3 on node3: KeyError: 'x' (script.py:12)"
    assert told["other_reasons"] == [other]
    assert f"lab: for another reason failed {other}\n" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("lab: rank 1 on node1: ValueError: sample 1")


def test_the_first_interrupt_says_what_the_second_would_do(lab: Lab) -> None:
    script = lab.script(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(1000)"
    )
    running = lab.start("run", "-t", "solo", "--on", "local", "--grace", "2", script)
    wait_for_output(lab, "ready")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert "ending the ranks, which have 2 s; Ctrl-C ends them at once" in err
    assert err.splitlines()[-1] == "lab: interrupted; all ranks have ended"


def test_json_logs_are_whole_lines(lab: Lab) -> None:
    script = lab.script(
        "import sys\nfor word in ('one', ' two', '\\n', 'rest'):\n"
        "    sys.stdout.write(word)\n    sys.stdout.flush()"
    )
    done = lab("run", "-t", "solo", "--on", "local", "--json", script)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["data"] for e in events if e["type"] == "log"] == ["one two\n", "rest"]


def test_a_local_node_is_the_callers_own_terminal(lab: Lab) -> None:
    done = lab("exec", "--on", "local", "node1", "--", "sh", "-c", "echo $LAB_NODE; exit 5")
    assert (done.stdout, done.returncode) == ("node1\n", 5)
    missing = lab("exec", "--on", "local", "node1", "no-such-command")
    assert missing.returncode == 2
    assert "no-such-command cannot be run" in missing.stderr


def test_a_piped_table_cuts_nothing(lab: Lab) -> None:
    script = lab.script("print('x')", "a-script-with-a-long-name-that-needs-a-lot-of-room.py")
    lab("run", "-t", "solo", "--on", "local", script, "an", "argument" * 20)
    shown = lab("ps", env={"COLUMNS": "40"}).stdout
    assert lab.runs()[0].name in shown
    assert f"{script} an {'argument' * 20}" in shown


def test_a_script_ends_well_though_its_process_group_outlives_it(lab: Lab) -> None:
    """A thread that still holds on to torch must not abort an interpreter that has ended."""
    script = lab.script(
        """
import atexit, sys, threading, time
import torch.distributed
class Held:
    def __del__(self): print("taken apart")
held = Held()
atexit.register(print, "atexit ran")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread ended"))).start()
sys.exit(6)
"""
    )
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 6
    assert [line.split("] ")[1] for line in done.stdout.splitlines()] == [
        "thread ended",
        "atexit ran",
    ]
