"""Real ranks for tests: processes that join a gloo group and run a function of the test module.

Importing torch takes seconds for each process, so one pool of processes serves a whole session;
each call makes a process group of its own among the first `world_size` of them.
"""

import itertools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

Function = Callable[..., Any]


class RankError(AssertionError):
    """A rank raised, died or did not answer; the message holds its traceback."""


class RankPool:
    """Runs functions as the ranks of a group, with the processes kept from call to call."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[SpawnProcess, connection.Connection]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="lab-test-ranks-")
        self._rendezvous = (Path(self._folder.name) / str(n) for n in itertools.count())

    def run(self, world_size: int, function: Function, *args: Any, timeout: float = 120) -> Any:
        """Call `function(*args)` on ranks 0 to world_size - 1 and give their results in order.

        `function` must be importable: a plain function at the top of a module. RANK, WORLD_SIZE
        and their like are set for it, and the default process group is there.

        Raises:
            RankError: any rank raised. All processes are ended and the next call starts new ones.
        """
        if not all(process.is_alive() for process, _ in self._workers):
            self.close()  # one died after it had answered
        started = []
        while len(self._workers) < world_size:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
            started.append(ours)
        for pipe in started:  # else the first would wait for the last to have imported torch
            pipe.recv()
        rendezvous = next(self._rendezvous)
        ranks = self._workers[:world_size]
        for rank, (_, pipe) in enumerate(ranks):
            pipe.send((rank, world_size, str(rendezvous), function, args))
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
        results: dict[int, Any] = {}
        problems: dict[int, str] = {}
        while waiting:
            # After a first failure the others may wait for that rank in vain: not much longer.
            ready = connection.wait(waiting, timeout=1 if problems else timeout)
            if not ready and not problems:
                problems = dict.fromkeys(waiting.values(), f"no answer in {timeout} s")
            if not ready:
                break
            for answered in ready:
                assert isinstance(answered, connection.Connection)
                rank = waiting.pop(answered)
                try:
                    good, results[rank] = answered.recv()
                except EOFError:
                    ranks[rank][0].join(5)
                    good, results[rank] = False, f"exit code {ranks[rank][0].exitcode}"
                if not good:
                    problems[rank] = results[rank]
        if problems:
            self.close()
            raise RankError("\n".join(f"rank {rank}: {problems[rank]}" for rank in problems))
        return [results[rank] for rank in range(world_size)]

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._workers:
            process.kill()
            process.join()
            pipe.close()
        self._workers.clear()


def _work(pipe: connection.Connection) -> None:
    """Serve calls until the test process closes its end or ends."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        try:
            rank, world_size, rendezvous, function, args = pipe.recv()
        except EOFError:
            return
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        os.environ.update(zip(names, map(str, (rank, rank, world_size, world_size)), strict=True))
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{rendezvous}",
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=20),
            )
            answer = (True, function(*args))
            dist.destroy_process_group()
        except BaseException:  # noqa: BLE001 - whatever it is, the test process reports it
            answer = (False, traceback.format_exc())
        pipe.send(answer)
