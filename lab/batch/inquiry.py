"""What the ranks of a job of Slurm do: asked through the run directory, and judged.

Nobody drives such a job: each rank's `lab.node.task` looks for a question there and answers beside
it. `lab why` asks so, and so does `python -P -m lab.batch.inquiry RUN SECONDS` in the job itself:
the task of a rank that has waited for too long starts it (`lab.node.lookout`). It ends once the
ranks have made no progress for so many seconds and why.json says why; it needs nothing but Python's
own library.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from lab.batch.files import JobFiles
from lab.errors import LabError
from lab.node.meeting import read, write_whole
from lab.node.protocol import Message
from lab.node.questions import ANSWER, RankQuestion
from lab.node.stall import has_moved
from lab.node.task import NODES
from lab.runs.evidence import RankRecord, Record, judged

PATIENCE = 20.0
"""Seconds for the ranks' answers: they look once a second, on a file system that may lag, and
stacks that have to be read from outside take some more (`lab.node.probing`)."""
POLL = 0.1
LEAST = 1.0
"""Seconds between two questions whether there has been progress, and two looks for their end."""
SLURMD_PORT = 6818
"""Where each host listens, unless its administrator has said otherwise: the port that is tried of a
host whose ranks have not told theirs. One that refuses is there, too."""


class JobInquiry:
    """Of one job."""

    def __init__(self, run: Path, files: JobFiles) -> None:
        """`files`: what its ranks have written so far."""
        self._run = run
        self._files = files
        self._record = Record(files.places, files.nodes)
        self._ports: dict[str, int] = {}
        self._mute: dict[int, RankRecord] = {}
        """Who did not answer the last question: nobody waits for them a second time."""
        self.name = run.name

    def ask(self) -> dict[str, Any]:
        """What why.json holds: asked of all ranks that run now, and written down.

        Raises:
            LabError: none has begun, or none answers.
        """
        return settled(self._run, self._evidence("asked"))

    def wait_for_stall(self, limit: float) -> dict[str, Any]:
        """The same, as soon as no rank has made progress for so many seconds.

        Raises:
            LabError: as above.
        """
        while True:
            answers, _ = self._round("pulse")
            still = min((one.get("still_s", 0.0) for one in answers.values()), default=limit)
            if still >= limit - POLL:
                evidence = self._evidence("stall")
                # What moved while it was asked is no stall.
                if not any(map(_has_moved, self._record.ranks.values())):
                    return settled(self._run, evidence)
            time.sleep(max(LEAST, limit - still))

    def _evidence(self, because: str) -> dict[str, Any]:
        if not self._ports:  # the first round tells where the hosts can be tried
            self._round("pulse")
        answers, awaited = self._round("family", **self._visits())
        if not answers:
            raise LabError(
                f"no rank of run {self.name} answers in {PATIENCE:g} s: its hosts may be paused or "
                "cut off from the run directory; lab ps says where the job is"
                if awaited
                else f"the ranks of run {self.name} have ended or begun anew meanwhile: "
                f"lab show {self.name}"
            )
        for state in answers.values():
            self._record.on_node(state["node"], state["tried"])
            self._record.master = state["meets"]
        for name, node in self._record.nodes.items():
            own = {rank for rank, known in self._record.ranks.items() if known.node == name}
            node.answered = not own & awaited or bool(own & answers.keys())
        still = min(one.get("still_s", 0.0) for one in answers.values())
        return self._record.evidence(because, None if because == "asked" else still, None)

    def _round(self, what: str, **more: Any) -> tuple[dict[int, Message], set[int]]:
        """Ask all ranks that run now; what those say that answer, and who was waited for."""
        awaited = self._living()
        if not awaited:
            raise LabError(f"no rank of run {self.name} runs now; lab ps says where the job is")
        question, asked = RankQuestion(self._run, what, **more), time.time()
        try:
            answers, awaited = self._hear(question, awaited)
        finally:
            question.close()
        for known in self._record.ranks.values():
            known.state = None
        for rank, state in answers.items():
            known = self._record.ranks[rank]
            known.take(state, asked)
            self._ports[known.node] = state["tried"]["port"] or SLURMD_PORT
        self._mute = {n: self._record.ranks[n] for n in awaited - answers.keys()}
        return answers, awaited

    def _hear(
        self, question: RankQuestion, awaited: set[int]
    ) -> tuple[dict[int, Message], set[int]]:
        """The answers, until all have come or it takes too long; who was waited for at the end."""
        asked = dict(self._record.ranks)
        answers: dict[int, Message] = {}
        look_at = time.monotonic()  # for ranks that have ended meanwhile
        give_up = look_at + PATIENCE
        mute = {n for n, known in self._mute.items() if known is asked.get(n)}
        is_over = False
        while not awaited - mute <= answers.keys() and not is_over:
            time.sleep(POLL)
            # To look at all files once may take long, too: so they are, once more, when time is up.
            now = time.monotonic()
            is_over = now >= give_up
            question.keep()
            answers |= question.answers(awaited - answers.keys())
            if is_over or now >= look_at:
                look_at = now + LEAST
                living = self._living()
                # Who has begun anew meanwhile (torchrun) was not asked.
                same = {n for n, known in self._record.ranks.items() if known is asked.get(n)}
                awaited = awaited & living & same
                answers = {n: state for n, state in answers.items() if n in same}
        return answers, awaited

    def _living(self) -> set[int]:
        self._files.read(None, self._record.on_message)
        if self._files.is_elastic:  # some nodes may not have been there
            for rank in self._record.ranks.keys() - self._files.started:
                del self._record.ranks[rank]
        return set(self._files.silent)

    def _visits(self) -> dict[str, Any]:
        """Who is to try to reach whom: of each node one rank all others, and the rendezvous."""
        hosts = {m["node"]: m["host"] for m in self._files.events if m["type"] == "started"}
        by: dict[str, int] = {}
        for rank, node in sorted(self._files.silent.items(), reverse=True):
            by[node] = rank
        peers = {name: [host, self._ports.get(name, SLURMD_PORT)] for name, host in hosts.items()}
        return {"peers": peers, "master": not self._record.has_met, "by": list(by.values())}


def _has_moved(rank: RankRecord) -> bool:
    """Whether it has made progress since its task last looked."""
    state = rank.state
    if state is None or state["source"] != "probe" or not state.get("pulses"):
        return False
    before = state["pulses"][-1]["probe"]
    return before is not None and has_moved(before, state["probe"])


def settled(run: Path, evidence: dict[str, Any]) -> dict[str, Any]:
    """Judged, and written down."""
    _, answer = judged(evidence)
    write_down(run, answer)
    return answer


def write_down(run: Path, answer: dict[str, Any]) -> None:
    """For `lab why`, and for whoever wants to see the evidence."""
    with contextlib.suppress(OSError):  # the disk is full: it is told otherwise, too
        write_whole(run / ANSWER, answer)


def main() -> int:
    """In the job: see above."""
    run, limit = Path(sys.argv[1]), float(sys.argv[2])
    try:
        inquiry = JobInquiry(run, JobFiles(run, read(run / NODES)))
        inquiry.wait_for_stall(limit)
    except (LabError, OSError) as error:
        print(f"lab: the ranks wait, and it is not known for whom: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
