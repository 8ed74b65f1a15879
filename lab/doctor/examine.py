"""An examination from the first word to the last: who is asked what, and how long to wait."""

import time
from collections.abc import Callable, Iterator, Sequence

from lab.doctor.checks.links import bandwidth, latency
from lab.doctor.conversation import GONE, Conversation, Message
from lab.doctor.examined import Examined
from lab.node.roll_call import WORK_WITHIN

LOOK_WITHIN = 45.0
"""Seconds for a node to tell what it is, from when it is spoken to; it waits for name servers."""
TORCH_WITHIN = 300.0
"""Seconds for torch to be imported: from a file system that is far away it takes that long."""
CONNECT_WITHIN = 15.0
MEASURE_FOR = 1.2
"""Seconds for all bandwidths together, in which every link has the same share of time."""
SHORTEST, LONGEST = 0.03, 0.2
"""Seconds for one link: less measures buffers, more is not needed."""
MEASURE_WITHIN = 10.0
ROUNDS = 15
"""Each node measures its links to at most so many others."""
TRIES = 2
"""How often a link that stands out is measured again: something else may have had the time."""
AGAIN = 6
"""Links that are measured again."""
OPEN_WITHIN = 2.0
"""Seconds for the master to open the store of the roll-call."""
ROLL_CALL_WAIT = 5.0
"""Seconds that those who come to the roll-call wait for the others."""

Tell = Callable[[str], None]


class Examination:
    """Leads a conversation with all nodes, and notes what they say."""

    def __init__(self, exam: Examined, conversation: Conversation, tell: Tell) -> None:
        """`exam` gets what is found; `tell` hears what is done next, and may look at `exam`."""
        self._exam = exam
        self._conversation = conversation
        self._tell = tell
        self._gone: set[int] = set()
        self._heard: set[tuple[str, int]] = set()

    def run(self) -> None:
        """All of it."""
        everybody = range(len(self._exam.patients))
        self._tell("looking around on each node")
        self._wait("look", everybody, LOOK_WITHIN)
        for rank in everybody:
            self._note_absence(rank, "it does not answer")
        self._connect()
        self._tell("importing torch")
        self._wait("torch", self._present(), TORCH_WITHIN)
        for rank in self._present():
            name, late = self._exam.names[rank], f"not done in {TORCH_WITHIN:g} s"
            ended = "its program has ended" if rank in self._gone else late
            self._exam.torch.setdefault(name, {"error": ended})
        self._measure()
        self._call_roll()

    # What is heard

    def _wait(self, kind: str, ranks: Sequence[int], seconds: float) -> None:
        """Until all these have said so, or have gone, or it takes too long."""
        give_up = time.monotonic() + seconds
        while any((kind, rank) not in self._heard and rank not in self._gone for rank in ranks):
            message = self._conversation.hear(give_up - time.monotonic())
            if message is not None:
                self._take(message)
            elif time.monotonic() >= give_up:
                return

    def _take(self, message: Message) -> None:
        kind, rank = message["type"], message["node"]
        name = self._exam.names[rank]
        facts = {key: value for key, value in message.items() if key not in ("type", "node")}
        self._heard.add((kind, rank))
        if kind == GONE:
            self._gone.add(rank)
            self._note_absence(rank, facts["problem"])
        elif kind == "look":
            self._exam.looks[name] = facts
            self._exam.place(rank, facts["address"])
        elif kind == "torch":
            self._exam.torch[name] = facts
        elif kind == "connected":
            self._exam.connected[name] = facts["peers"]
        elif kind == "measured":
            self._note_link(name, self._exam.names[facts.pop("peer")], facts)
        elif kind == "roll-call":
            self._exam.roll_call[name] = facts

    def _note_absence(self, rank: int, problem: str) -> None:
        """Note why a node tells nothing, where it has told nothing."""
        name = self._exam.names[rank]
        if name not in self._exam.looks:
            self._exam.problems.setdefault(name, problem)

    def _note_link(self, one: str, other: str, facts: dict[str, float]) -> None:
        """The best of several: what disturbs a measurement makes it worse, never better."""
        known = self._exam.measured.get((one, other), {})
        if "error" in facts:
            self._exam.measured.setdefault((one, other), facts)
            return
        self._exam.measured[one, other] = {
            "latency": min(facts["latency"], known.get("latency", facts["latency"])),
            "bandwidth": max(facts["bandwidth"], known.get("bandwidth", 0.0)),
        }

    def _present(self) -> list[int]:
        return [rank for rank, name in enumerate(self._exam.names) if name in self._exam.looks]

    # What is asked

    def _connect(self) -> None:
        present = self._present()
        self._tell("connecting every node to every other")
        looks = [self._exam.looks.get(name) for name in self._exam.names]
        ports = [
            None if look is None else {**look["ports"], "advertises": look["advertises"]}
            for look in looks
        ]
        self._conversation.tell({"type": "connect", "ports": ports})
        self._wait("connected", present, CONNECT_WITHIN)

    def _measure(self) -> None:
        """Every link that can be connected, each node with one other at a time."""
        rounds = list(_rounds(self._present()))[:ROUNDS]
        seconds = min(LONGEST, max(SHORTEST, MEASURE_FOR / max(1, 2 * len(rounds))))
        self._tell("measuring the links")
        for pairs in rounds:
            self._measure_at_once(pairs, seconds)
            self._measure_at_once([(other, one) for one, other in pairs], seconds)
        ranks = {name: rank for rank, name in enumerate(self._exam.names)}
        for _ in range(TRIES):
            found = [*latency(self._exam), *bandwidth(self._exam)]
            odd = dict.fromkeys(check.nodes for check in found if check.status == "warn")
            for one, other in list(odd)[:AGAIN]:
                self._measure_at_once([(ranks[one], ranks[other])], LONGEST)

    def _measure_at_once(self, pairs: Sequence[tuple[int, int]], seconds: float) -> None:
        names = self._exam.names
        asked = []
        for one, other in pairs:
            greeted = self._exam.connected.get(names[one], {}).get(names[other], {}).get("gloo", {})
            if greeted.get("who") == names[other]:
                asked.append((one, other, self._exam.looks[names[other]]["ports"]["gloo"]))
                self._heard.discard(("measured", one))
        self._conversation.tell({"type": "measure", "pairs": asked, "seconds": seconds})
        self._wait("measured", [one for one, _, _ in asked], seconds + MEASURE_WITHIN)

    def _call_roll(self) -> None:
        exam = self._exam
        able = [
            rank for rank in self._present() if "version" in exam.torch.get(exam.names[rank], {})
        ]
        if 0 in able:
            self._tell("calling the roll")
            ports = exam.looks[exam.master.name]["ports"]
            store = {
                "addr": exam.master.address,
                "port": ports.get("master", ports["gloo"]),
                "wait": ROLL_CALL_WAIT,
            }
            self._conversation.tell({"type": "open", **store})
            self._wait("open", [0], OPEN_WITHIN)
            whose = {"names": exam.names, "backend": exam.backend}
            self._conversation.tell({"type": "roll-call", **store, **whose})
            limit = 2 * ROLL_CALL_WAIT + 2 * WORK_WITHIN[exam.backend]
            self._wait("roll-call", able, limit)
        exam.is_called = True


def _rounds(ranks: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """All pairs, in rounds in which nobody is twice (the circle method of tournaments)."""
    ring: list[int | None] = list(ranks) if len(ranks) % 2 == 0 else [*ranks, None]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(one, other) for one, other in pairs if one is not None and other is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]
