"""`python -P -m lab.node.task SCRIPT|-m MODULE [ARGS]`: one rank of a job that a scheduler started.

Where no agent looks after a node, since srun or torchrun starts each rank, this stands between them
and the rank. It keeps in the run directory, which all nodes share, what an agent would tell its
controller, and ends as the rank ends:

    <run>/<node>/rank3.out, rank3.err      what the rank wrote; it goes to stdout and stderr as well
    <run>/<node>/rank3.events.jsonl        messages of `lab.node.protocol`, with the time as `at`
                                           and `restart`: how often Slurm has begun the job again
    <run>/why/<number>/rank3.json          its `state`, when it was asked for (`lab.node.questions`)

An event `why` says that no rank makes progress (`because`, `stalled_s`, `finding`; `rank`: whose
task had them asked), `progress` that they go on after all, `stop` that they are ended for it,
`asked` (`number`) that the others were asked since the rank has failed.

Its own place comes from the rank's variables; LAB_RUN_DIR names the run directory, and `nodes.json`
there the nodes' names and slots.
"""

import contextlib
import os
import platform
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.node import memory, processes
from lab.node.environment import launch_environment
from lab.node.farewell import hear_others
from lab.node.lookout import Lookout, beginning
from lab.node.meeting import read, write_whole
from lab.node.pipes import STREAMS, Pipes
from lab.node.placeholders import fill
from lab.node.places import PlaceError, events_of, place_of, places
from lab.node.probing import Probing
from lab.node.protocol import encode
from lab.node.questions import asked, rank_answer
from lab.node.spawn import RankStart, spawn_cold
from lab.node.victims import consequence

NODES = "nodes.json"
"""In the run directory: `{"topology": NAME, "names": [...], "slots": [...], "elastic": BOOL}`.

Where ranks that wait are to be noticed also `stall`: `after` (seconds), `stop` (whether they are
ended then) and `judge` (what Python runs then; the run directory and `after` come behind it)."""
SHARE = "the folder that a job is submitted from must be on a file system that all hosts share"
LOOK_EVERY = 1.0
"""Seconds between two looks for a question; the file system serves everybody."""
TICK = 0.5
"""Seconds between two looks at what is due here."""
STALL_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for a rank that waits in vain."""
CANCEL_PATIENCE = 10.0
"""Seconds for scancel, while which nothing else is looked after."""
OWN = 0
"""The number of questions that are the task's own: those of others are times."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends the rank, too. SIGUSR2, the warning, reaches each process of the job by itself."""


class Task:
    """One rank, from its start to its end."""

    def __init__(
        self,
        node: str,
        env: Mapping[str, str],
        command: Sequence[str],
        nodes: Mapping[str, Any],
    ) -> None:
        """`env` is all that the rank finds; `nodes`: see `NODES`."""
        self._node = node
        self._env = env
        self._command = fill(command, env)
        self._rank = int(env["RANK"])
        self._restart = int(env.get("SLURM_RESTART_COUNT", 0))
        self._meets = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        self._run = Path(env["LAB_RUN_DIR"])
        folder = self._run / node
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: folder / f"rank{self._rank}.{name}" for name in ("out", "err")}
        self._logs = {name: path.open("ab", buffering=0) for name, path in files.items()}
        self._events = events_of(self._run, node, self._rank).open("ab", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._pipes = Pipes(self._selector, self._report, str(Path.cwd()))
        self._probing = Probing(self._selector, self._report, str(Path.cwd()))
        self._seen = {found["number"]: 0.0 for found in asked(self._run)}
        """Questions of others, and when they were seen: those of before are not answered."""
        self._look_at = 0.0  # for another question
        self._states: dict[int, dict[str, Any]] = {}
        """By question what is to be answered, once other nodes have been tried."""
        self._lookout: Lookout | None = None
        if nodes.get("stall") is not None:
            self._lookout = Lookout(self._run, env, nodes["stall"], self._report)
        size = int(env["WORLD_SIZE"])
        self._places = {rank: name for rank, name in places(nodes).items() if rank < size}
        self._is_ended = False  # by others, or for others
        self._is_victim = False
        self._kill_at: float | None = None
        self._code: int | None = None
        """As the system says it: -n for signal n."""

    def run(self) -> int:
        """Start the rank and follow it to its end; its exit code, as a shell says it."""
        processes.become_subreaper()
        wakeup = processes.wake_on(signal.SIGCHLD, *FORWARDED)
        oom_kills = memory.oom_kills()
        reads, writes = zip(*(os.pipe() for _ in STREAMS), strict=True)
        pid = spawn_cold(
            RankStart(
                command=self._command,
                cwd=str(Path.cwd()),
                env=self._env,
                stdin=0,
                stdout=writes[STREAMS.index("out")],
                stderr=writes[STREAMS.index("err")],
                events=writes[STREAMS.index("events")],
            )
        )
        for fd in writes:
            os.close(fd)
        self._report(
            "started",
            rank=self._rank,
            pid=pid,
            host=socket.gethostname(),
            python=platform.python_version(),
            world={"master": self._meets, "ranks": int(self._env["WORLD_SIZE"])},
        )
        self._pipes.add(self._rank, dict(zip(STREAMS, reads, strict=True)))
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._on_signals(wakeup, pid))
        while self._code is None:
            for key, _ in self._selector.select(TICK):
                key.data()
            self._look_for_question(pid)
            self._look_out(pid)
        if self._lookout is not None:
            self._lookout.close()
        processes.kill_descendants(os.getpid())
        self._pipes.end(self._rank)
        number = -self._code if self._code < 0 else None
        starved = number == signal.SIGKILL and memory.oom_kills() > oom_kills
        code = processes.as_shell(self._code)
        if self._kill_at is not None and not code:  # srun and torchrun end the others for a failure
            code = 128 + signal.SIGTERM
        limit = memory.memory_limit() if starved else None
        self._report("exit", rank=self._rank, code=code, signal=number, oom_limit=limit)
        if code and not self._is_ended and number != signal.SIGTERM:
            hear_others(
                self._run,
                self._rank,
                self._places,
                beginning(self._env),
                self._report,
                is_victim=self._is_victim,
            )
        return code

    def _on_signals(self, wakeup: int, pid: int) -> None:
        for number in set(os.read(wakeup, 4096)) - {signal.SIGCHLD}:
            processes.signal_group(pid, number)
            self._is_ended = True
        ended = processes.reap()
        self._code = ended.get(pid, self._code)
        if self._lookout is not None and self._code is None:
            self._lookout.on_ended(ended)

    def _look_for_question(self, pid: int) -> None:
        self._probing.look()
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY
        for found in asked(self._run):
            if found["number"] in self._seen:
                continue
            self._seen[found["number"]] = time.time()
            message = {"id": found["number"], "what": found.get("what", "state")}
            if self._rank in found.get("by", ()):
                peers = found["peers"]
                message["peers"] = {name: peers[name] for name in peers if name != self._node}
                if found["master"]:
                    master = self._env["MASTER_ADDR"], int(self._env["MASTER_PORT"])
                    message["master"] = master
            self._probing.ask(message, {self._rank: pid})

    def _look_out(self, pid: int) -> None:
        """Whether the rank goes on."""
        if self._lookout is None:
            return
        if self._lookout.is_due():
            self._probing.ask({"id": OWN, "what": "pulse"}, {self._rank: pid})
        self._lookout.step()
        if self._lookout.wants_end:
            now = time.monotonic()
            if self._kill_at is None:
                self._kill_at = now + STALL_GRACE
                self._is_ended = True
                grace = {"grace": STALL_GRACE, "ranks": [self._rank]}
                self._report("stop", rank=self._rank, because="stall", **grace)
                processes.signal_group(pid, signal.SIGTERM)
                if self._lookout.is_deaf:
                    self._cancel_job()
            elif now >= self._kill_at:
                processes.signal_group(pid, signal.SIGKILL)

    def _cancel_job(self) -> None:
        """End the job, for srun would wait for hosts that do not answer.

        Slurm itself gives them up later, and then would have the job begin again.
        """
        job = self._env.get("SLURM_JOB_ID")
        if job is not None:
            scancel = ["scancel", job]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    scancel, stdin=subprocess.DEVNULL, timeout=CANCEL_PATIENCE, check=False
                )

    def _on_state(self, state: dict[str, Any]) -> None:
        if state["id"] == OWN:
            if self._lookout is not None:
                self._lookout.on_pulse(state)
        else:
            self._states[state["id"]] = state

    def _answer(self, probed: Mapping[str, Any]) -> None:
        """To a question of others, once all is known."""
        state = self._states.pop(probed["id"], None)
        if state is None:  # one of our own
            return
        path = rank_answer(self._run, state["id"], self._rank)
        known = {} if self._lookout is None else self._lookout.to_json()
        tried = {name: probed[name] for name in ("port", "ptrace", "peers", "master")}
        told = {"at": self._seen[state["id"]], "node": self._node, "meets": self._meets}
        # A full disk is not the rank's affair; without the folder, nobody waits for it any more.
        with contextlib.suppress(OSError):
            write_whole(path, {**told, **known, **state, "tried": tried})

    def _report(self, type: str, **fields: Any) -> None:  # noqa: A002 - the field's name
        if type == "log":
            data = fields["data"].encode("utf-8", "surrogateescape")
            self._logs[fields["stream"]].write(data)
            os.write(1 if fields["stream"] == "out" else 2, data)
            if self._lookout is not None:
                self._lookout.on_output(fields["data"])
        elif type == "probed":
            self._answer(fields)
        elif type == "state" and "id" in fields:
            self._on_state(fields)
        else:
            if type == "exception":
                self._is_victim = consequence(fields["chain"]) > 0
            where = {"node": self._node, "restart": self._restart}
            self._events.write(encode({"at": time.time(), "type": type, **where, **fields}))


def main() -> int:
    """Be the rank that the environment says; the exit code is the rank's."""
    command = sys.argv[1:]
    run_dir = os.environ["LAB_RUN_DIR"]
    nodes = read(Path(run_dir) / NODES)
    if nodes is None:
        return _refuse(f"{run_dir} cannot be read on {socket.gethostname()}: {SHARE}")
    try:
        node, contract = place_of(os.environ, nodes)
    except PlaceError as error:
        return _refuse(str(error))
    slots = int(os.environ["LOCAL_WORLD_SIZE"])
    env = {**launch_environment(os.environ, {}, slots), **contract}
    try:
        task = Task(node, env, command, nodes)
    except OSError as error:
        where = f"{error.filename} cannot be written on {socket.gethostname()}"
        return _refuse(f"{where}: {error.strerror}")
    return task.run()


def _refuse(reason: str) -> int:
    print(f"lab: error: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
