"""Starting a rank as a fork of the agent."""

import subprocess
import sys

PROGRAM = """
import os, signal, time
from lab.node import processes, spawn

setsid = os.setsid
def slow() -> None:
    time.sleep(0.3)
    setsid()
    time.sleep(0.3)
os.setsid = slow
processes.wake_on(*processes.AGENT_SIGNALS)
null = os.open(os.devnull, os.O_RDWR)
start = spawn.RankStart(
    command=["x"], cwd="/", env={}, stdin=null, stdout=null, stderr=null, events=null
)
try:
    pid = spawn.spawn_fork(start)
except spawn.BecomeRank:
    time.sleep(5)
    os._exit(0)
processes.signal_group(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_that_has_hardly_begun_can_be_ended() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("-15\n", "")
