"""Runs scripts as a user would, by `lab run`, each twin with the same options."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.channel import Progress
from lab.children import child
from lab.errors import LabError
from lab.runs.files import write_atomically
from lab.topology import Place, dump_topology, load_topology
from lab.transport.containers import lab_id
from lab.zoo import network
from lab.zoo.case import Case, Cut, Twin
from lab.zoo.workloads import Workload

LAB = (sys.executable, "-P", "-m", "lab")
OPTIONS = ("--audit", "--on-stall", "stop", "--json")
"""Of each run: all that lab can see of what is wrong."""
TIMEOUT = ("--timeout", "180s")
"""Of each run but those on Slurm, where the topology has the limit."""
STALL = {"fault": 4, "healthy": 30}
"""Seconds without progress after which a run is looked into. A healthy one is given more: on a
machine that is short of time its ranks may come to the start one after the other. So is a fault of
which lab says that it does not know, before that counts as missed."""
OWN = "own-{}.yaml"
"""The topology of containers that a case has for itself, since others would not do, or suffer."""
UNDER = "under-{}.yaml"
"""The topology of Slurm with another launcher."""
SCRIPT = "train.py"
"""What the copies are called: nothing of a script tells the judges what it is."""


@dataclass(frozen=True)
class Outcome:
    """What lab said of one run."""

    run: str | None
    """The run's id; None: it never began."""
    verdict: dict[str, Any]
    """What verdict.json holds; empty where lab itself failed."""
    said: str = ""
    """By lab on stderr, where there is no verdict."""
    again: bool = False
    """Whether this is the second, more patient run: the first had told nothing."""

    @property
    def is_unknown(self) -> bool:
        """Whether lab has seen a stall, and says that it does not know why."""
        return (self.verdict.get("why") or {}).get("kind") == "unknown"


class Zoo:
    """A folder of copies of the scripts, with its own nodes and its own `runs`."""

    def __init__(
        self, folder: Path, on: Place, nodes: int, at_once: int = 2, topology: str | None = None
    ) -> None:
        """`nodes`: how many the runs need at most; `topology`: of which hosts, on ssh and slurm."""
        self.on = on
        self._folder = folder
        self._topology = topology
        self._nodes = nodes
        self._at_once = at_once
        self._running: set[subprocess.Popen[str]] = set()
        self._on_term = signal.getsignal(signal.SIGTERM)

    def __enter__(self) -> "Zoo":
        # End the runs, too; also of a job in the background, which ignores SIGINT.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self._folder.mkdir(parents=True, exist_ok=True)
        if self.on == "docker":  # all of them: while runs are on some, others cannot be added
            self._lab("up", "--on", "docker", "--nodes", str(self._nodes))
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, and remove the nodes that the runs have left up."""
        self._interrupt()
        signal.signal(signal.SIGTERM, self._on_term)
        if self.on == "docker":
            self._lab("down", "--on", "docker")
            for file in self._folder.glob(OWN.format("*")):
                self._lab("down", "-t", file.name)

    def run_case(self, case: Case, twin: Twin) -> Outcome:
        """Run one script to its end."""
        outcome = self._run_script(case, twin, STALL[twin])
        if twin == "healthy" or case.cut or not outcome.is_unknown:
            return outcome
        return replace(self._run_script(case, twin, STALL["healthy"]), again=True)

    def _run_script(self, case: Case, twin: Twin, stall: int) -> Outcome:
        start = Path(case.name, twin)
        (self._folder / start).mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / start / SCRIPT, case.script(twin))
        words = ["--stall", str(stall), "--cwd", str(start), SCRIPT]
        cut = case.cut if twin == "fault" else None
        file = self._folder / OWN.format(case.name)
        if self.on == "slurm" and case.launcher is not None:
            assert self._topology is not None
            file = self._folder / UNDER.format(case.launcher)
            known = load_topology(self._topology)
            options = known.slurm.model_copy(update={"launcher": case.launcher})
            write_atomically(file, dump_topology(known.model_copy(update={"slurm": options})))
        elif self.on == "docker" and (case.shm or cut):
            own = f"docker: {{shm: {case.shm}}}" if case.shm else network.CAPABLE
            text = f"name: {case.name}\non: docker\nnodes: {case.nodes}\n{own}\n"
            write_atomically(file, text)
        else:
            return self._run([*self._where(case), *words])
        words = [*self._where(case, file.name), *words]
        return self._run_with(cut, file, words) if cut and self.on == "docker" else self._run(words)

    def _run_with(self, cut: Cut, file: Path, words: Sequence[str]) -> Outcome:
        """Run on nodes of its own, two of which lose each other."""
        self._lab("up", "-t", file.name)
        lab = lab_id(load_topology(str(file)), self._folder.resolve())
        if cut.after is None:
            network.cut(lab, *cut.between)
            return self._run(words)
        left, written = [cut], ""

        def hear(data: str) -> None:
            nonlocal written
            written += data
            if left and str(cut.after) in written:
                network.cut(lab, *left.pop().between)

        return self._run(words, hear)

    def run_workload(self, workload: Workload) -> Outcome:
        """Run a healthy training job of lab's own."""
        where = self._where(workload)
        return self._run([*where, "--stall", str(STALL["healthy"]), "-m", *workload.words])

    def each(self, jobs: Sequence[Callable[[], Outcome]], progress: Progress) -> list[Outcome]:
        """Do all of them, some at once, and give what came of them in order.

        Raises:
            KeyboardInterrupt: Ctrl-C; whatever ran has been ended.
        """
        outcomes: list[Outcome] = []
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                for outcome in pool.map(lambda job: job(), jobs):
                    outcomes.append(outcome)
                    progress(f"{len(outcomes)} of {len(jobs)} runs are done")
                return outcomes
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._interrupt()
                raise

    def _where(self, needs: Case | Workload, topology: str | None = None) -> list[str]:
        """Options of a run; `topology`: another one than that of all."""
        topology = topology or self._topology
        hosts = [] if topology is None else ["-t", topology]
        return [*hosts, "--on", self.on, "--nodes", str(needs.nodes), "--slots", str(needs.slots)]

    def _lab(self, *words: str) -> None:
        """A command of lab's in the folder of the zoo.

        Raises:
            LabError: it failed.
        """
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with child([*LAB, *words], cwd=self._folder, **quiet) as process:
            _, said = process.communicate()
        if process.returncode:
            raise LabError(said.strip())

    def _run(self, words: Sequence[str], hear: Callable[[str], None] | None = None) -> Outcome:
        """`hear` gets what ranks write, as it comes."""
        run, verdict = None, {}
        limit = TIMEOUT if self.on != "slurm" else ()
        with tempfile.TemporaryFile("w+") as err:
            with child(
                [*LAB, "run", *OPTIONS, *limit, *words],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
            ) as process:
                assert process.stdout is not None
                self._running.add(process)
                try:
                    for line in process.stdout:
                        event = json.loads(line)
                        if event["type"] == "run":
                            run = event["id"]
                        elif event["type"] == "verdict":
                            verdict = event
                        elif event["type"] == "log" and hear is not None:
                            hear(event["data"])
                    process.wait()
                finally:
                    self._running.discard(process)
            err.seek(0)
            return Outcome(run, verdict, said="" if verdict else err.read().strip())

    def _interrupt(self) -> None:
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in list(self._running):
            process.wait()
