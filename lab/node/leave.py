"""Ends all that lab keeps running on a host. Standard library and its neighbours here only.

Carried to a host over stdin (`lab.deploy.program`), with the modules that it imports. The question
is a line of JSON: `agents`, the folder of lab's code there, which goes. Deployed code, packages and
what runs left stay. The answer is the number of processes that were ended.
"""

import json
import shutil
import signal
import sys
from pathlib import Path

from lab.node import leftovers, processes, warm


def main() -> None:
    """Leave no process."""
    question = json.loads(sys.stdin.buffer.readline())
    workdir = Path.home() / Path(question["workdir"]).expanduser()
    resident = warm.running()
    agents = [] if resident is None else processes.children(resident)
    for pid in agents:  # each ends its ranks
        processes.signal_group(pid, signal.SIGTERM)
    own = [one for one in leftovers.labelled() if Path(one.run_dir).is_relative_to(workdir)]
    leftovers.end(own)
    ended = len(agents) + len(own)
    if resident is not None:
        processes.signal_group(resident, signal.SIGTERM)
        ended += 1
    shutil.rmtree(workdir / "agents", ignore_errors=True)
    print(json.dumps({"ended": ended}))
