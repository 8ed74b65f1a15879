"""What the system says of real processes."""

import subprocess
import sys

from lab.node.activity import activity

BURN = "import time\nwhile time.process_time() < 0.5: pass\n"


def test_what_children_have_used_counts_after_their_end_too() -> None:
    script = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURN!r}])
print("ended", flush=True)
child = subprocess.Popen([sys.executable, "-c", {BURN!r} + "print('burnt', flush=True); input()"],
                         stdin=subprocess.PIPE)
input()
"""
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"
        ended = activity(process.pid)["cpu_s"]
        assert process.stdout.readline() == "burnt\n"
        both = activity(process.pid)["cpu_s"]
        process.communicate("\n")
    assert ended >= 0.4
    assert both >= 0.9
    assert activity(process.pid)["state"] == "gone"


def test_a_process_that_sleeps_wants_no_processor() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        while activity(process.pid)["state"] != "S":
            pass
        found = activity(process.pid)
        process.kill()
    assert (found["state"], found["threads"], found["busy"]) == ("S", 1, False)


def test_the_processes_that_one_has_started_are_told_with_their_states() -> None:
    script = """
import subprocess, time
one, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
subprocess.Popen("true")
one.send_signal(19)
print(one.pid, other.pid, flush=True)
input()
one.kill(), other.kill()
"""
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        one, other = map(int, process.stdout.readline().split())
        found: dict[int, str] = {}
        while sorted(found.values()) != ["S", "T", "Z"]:
            found = {child["pid"]: child["state"] for child in activity(process.pid)["children"]}
        process.communicate("\n")
    assert (found[one], found[other]) == ("T", "S")
