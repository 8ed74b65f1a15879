"""The run controller: one run from its directory to its verdict, the same on every transport."""

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from lab import interrupts
from lab.channel import Progress
from lab.errors import EXIT_FAILURE, EXIT_INTERRUPTED, LabError
from lab.node.protocol import Message
from lab.runs.attempt import Attempt, Interrupts
from lab.runs.audit import Auditing
from lab.runs.claim import Claim
from lab.runs.deadline import Deadline
from lab.runs.directory import RunDirectory, RunFiles, explained
from lab.runs.elastic import ElasticAttempt, TorchrunAttempt
from lab.runs.hints import hint_for
from lab.runs.inquiry import AttemptInquiry
from lab.runs.job import Job
from lab.runs.last_lines import LastLines
from lab.runs.listener import Listener
from lab.runs.nodes import node_jobs
from lab.runs.questions import Desk
from lab.runs.stall import Stall
from lab.runs.stdin import Stdin
from lab.runs.verdict import Failure, Kind, Verdict
from lab.topology import Topology
from lab.transport.base import Transport

PORT_TRIES = 3
"""How often another port is picked where rank 0 finds the picked one taken after all."""


class RunController:
    """Runs a job on a topology's nodes. One instance, one run.

    A run is one attempt, and another one after each failure while `max_restarts` allows it: all
    ranks begin again, on the same nodes and with the same numbers.
    """

    def __init__(
        self,
        topology: Topology,
        job: Job,
        transport: Transport,
        listeners: Sequence[Listener] = (),
        grace: float | None = None,
        timeout: float | None = None,
        max_restarts: int | None = None,
        stdin: Stdin | None = None,
        stall: Stall | None = None,
    ) -> None:
        """A run of a topology.

        Args:
            topology: its nodes.
            job: what their ranks run.
            transport: where the nodes are.
            listeners: who is told what happens.
            grace: seconds between SIGTERM and SIGKILL for the ranks that lab ends; None: 30 after
                Ctrl-C or `timeout`, 1 after another rank's failure.
            timeout: seconds that the ranks may take, restarts included; None: as long as they like.
            max_restarts: how often to begin again after a failure; None: as often as the job's
                `min_nodes` lets nodes be lost, since torchrun counts that as well.
            stdin: what rank 0 may read; None: nothing.
            stall: how long no rank may make progress, and what then; None: the default.
        """
        self.topology = topology
        self.job = job
        self.transport = transport
        self.grace = grace
        self._deadline = Deadline(timeout)
        self.max_restarts = job.spare_nodes(topology) if max_restarts is None else max_restarts
        self._stdin = stdin
        self._stall = stall or Stall()
        self._listeners = listeners
        self._interrupts = Interrupts()
        self._last_lines = LastLines()
        self._auditing = Auditing(topology, self.event)
        self._began = False  # ranks have been told to start
        try:
            with interrupts.deferred():  # a run that has a directory has an end
                self.directory = RunDirectory.create(topology, job)
                self._files = RunFiles(self.directory)
                self._claim = Claim.of_run(self.directory.path) if topology.on == "docker" else None
        except (KeyboardInterrupt, SystemExit) as end:
            self._give_up(end)
            raise

    def up(self, progress: Progress, prepare: Callable[[Path], None] | None = None) -> None:
        """Bring the nodes up, if need be; `prepare` gets the run directory before.

        Raises:
            LabError: they do not come up. The run directory says so too.
        """
        try:
            interrupts.check()
            if prepare is not None:
                with explained(self.directory.path):
                    prepare(self.directory.path)
            self.transport.up(progress, self.directory.id)
            interrupts.check()
        except LabError as error:
            self._finish(Verdict("not-started", error.exit_code, str(error)))
            raise
        except (KeyboardInterrupt, SystemExit) as end:
            self._give_up(end)
            raise
        except BaseException as error:
            self._finish(_fault(error))
            raise

    def _give_up(self, end: KeyboardInterrupt | SystemExit) -> None:
        """A signal (see `lab.__main__`) has come before there were ranks."""
        code = getattr(end, "code", EXIT_INTERRUPTED)
        self._finish(Verdict("interrupted", code, "interrupted"))
        self.transport.release()

    def run(self) -> Verdict:
        """Run the ranks to their end.

        Raises:
            LabError: they could not be started. The run directory says so too.
        """
        restore = self._catch_signals()
        try:
            verdict = self._attempts()
            self._bring_back(verdict)
            if verdict.first is not None:
                hint = hint_for(verdict.first, self.job) or verdict.hint
                first = replace(verdict.first, last_lines=self._last_lines.of(verdict.first.rank))
                verdict = replace(verdict, first=first, hint=hint)
            verdict = self._auditing.close(verdict)
            self._finish(verdict)
            if verdict.kind == "interrupted":
                self.transport.release()
        except LabError as error:
            kind: Kind = "lab-error" if self._began else "not-started"
            try:
                self._finish(Verdict(kind, error.exit_code, str(error)))
            finally:  # also where the disk is full
                self.transport.release()
            raise
        except BaseException as error:
            self._finish(_fault(error))
            raise
        finally:
            restore()
        return verdict

    def _bring_back(self, verdict: Verdict) -> None:
        """Have here what is left of the run on nodes; a failure before stays the verdict."""
        try:
            self.transport.bring_back(self.directory.path, self.job.start_folder, self.job.collect)
        except LabError:
            if verdict.kind == "ok":
                raise

    def _attempts(self) -> Verdict:
        restarts = 0
        ports_taken = 0
        desk = Desk(self.directory.path)
        while True:
            attempt = self._kind_of_attempt()(
                self.topology,
                self.transport,
                self,
                self._interrupts,
                self.grace,
                self._deadline,
                self._stdin,
                AttemptInquiry(
                    self.topology, self.transport, self, desk, self._stall, self._last_lines
                ),
            )
            run_id, run_dir = self.directory.id, self.directory.path
            jobs = [
                replace(job.restarted(restarts, self.max_restarts), stdin=self._stdin is not None)
                for job in node_jobs(self.topology, self.job, self.transport, run_id, run_dir)
            ]
            verdict = attempt.run(jobs)
            if self._interrupts.count or verdict.first is None or self._deadline.has_passed:
                return verdict
            if self._picked_taken_port(attempt, verdict.first):
                ports_taken += 1
                if ports_taken >= PORT_TRIES:
                    return verdict
            elif restarts < self._own_restarts and verdict.kind != "agent-error":
                restarts += 1
            else:
                return verdict
            self.event({"type": "restart", "count": restarts, "because": verdict.summary})

    def _picked_taken_port(self, attempt: Attempt, failure: Failure) -> bool:
        """Whether it was our choice of a port that failed, and so nothing has happened yet."""
        if self.topology.master.port is not None or attempt.port is None:
            return False
        return failure.found_port_taken(attempt.port)

    def _kind_of_attempt(self) -> type[Attempt]:
        if self.job.min_nodes is not None:
            return ElasticAttempt
        return TorchrunAttempt if self.job.engine == "torchrun" else Attempt

    @property
    def _own_restarts(self) -> int:
        """How often to begin again with new agents; with `min_nodes` torchrun does so itself."""
        return self.max_restarts if self.job.min_nodes is None else 0

    def _finish(self, verdict: Verdict) -> None:
        if self._claim is not None:
            self._claim.settle()
        self.directory.finish(verdict)
        self._files.close()

    # What the attempts tell goes to the run directory and to our listeners.

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `Listener`."""
        self._files.log(node, rank, stream, text)
        self._last_lines.log(rank, stream, text)
        for listener in self._listeners:
            listener.log(node, rank, stream, text)

    def event(self, message: Message) -> None:
        """See `Listener`."""
        self._began = self._began or message["type"] == "run"
        self._auditing.event(message)
        if message["type"] == "audit":
            return  # many, and of interest to the judges only
        self._files.event(message)
        if message["type"] == "restart":
            self._last_lines.clear()
        for listener in self._listeners:
            listener.event(message)

    def _catch_signals(self) -> Callable[[], None]:
        """Have the first Ctrl-C (or TERM, or HUP) end the run in order, the next one at once.

        But for a HUP after another: a terminal that closes sends two, to the leader of its session
        and to its foreground processes.
        """
        if threading.current_thread() is not threading.main_thread():
            return lambda: None

        def interrupt(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGHUP == self._interrupts.signal:
                return
            self._interrupts.count += 1
            self._interrupts.signal = interrupts.cause(number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heard = [number for number in numbers if not interrupts.is_unwanted(number)]
        before = {number: signal.signal(number, interrupt) for number in heard}
        self._interrupts.count += interrupts.count()  # one whose exception was lost until now

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore


def _fault(error: BaseException) -> Verdict:
    """One of ours: the run must not stay `running`."""
    return Verdict("lab-error", EXIT_FAILURE, f"{type(error).__name__}: {error}")
