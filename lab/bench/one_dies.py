"""A rank that is killed when all are at work, and its peers, which go on. Run by `death`.

    python -m lab.bench.one_dies FOLDER alone|collective

In FOLDER, which all ranks share, each says that it is at work. The last rank then prints
`dies at SECONDS` (since the epoch) and kills itself. `alone`: its peers have nothing to do with it
just then, as while they load data or compute; `collective`: they wait for it in an all-reduce. For
each, a child that outlives it prints `ends at SECONDS`.
"""

import os
import signal
import sys
import time
from pathlib import Path

LIMIT = 10.0
"""Seconds after which the others end by themselves, where nobody ends them."""


def _watch_own_end() -> None:
    """However it comes, by a signal or in C++."""
    rank = os.getpid()
    if os.fork() > 0:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.getppid() == rank:
        time.sleep(0.005)
    print(f"ends at {time.time():.6f}", flush=True)
    os._exit(0)


def main() -> None:
    """Meet, and die or wait."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _watch_own_end()
    if kind == "collective":
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
    (folder / f"at-work-{rank}").touch()
    while sum(1 for _ in folder.glob("at-work-*")) < size:
        time.sleep(0.05)
    if rank == size - 1:
        time.sleep(0.5)  # the others are in their wait by now
        print(f"dies at {time.time():.6f}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "collective":
        dist.all_reduce(torch.ones(1))
    time.sleep(LIMIT)


if __name__ == "__main__":
    main()
