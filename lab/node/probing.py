"""Asks the ranks of a node what they do, and waits for none of them.

First the probe in the rank itself; where that is silent for a second, its stacks are read from
outside. What the system says of the process comes with either.
"""

import contextlib
import errno
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lab.node import stacks
from lab.node.activity import GONE, activity
from lab.node.peers import Door, Visits
from lab.node.pipes import CHUNK
from lab.node.protocol import Message
from lab.node.stack_reader import StackReader
from lab.node.warm import peer
from lab.rank.probe import address

PROBE_PATIENCE = 1.0
"""Seconds for a rank's own answer."""
STACKS_PATIENCE = 10.0
"""Seconds for py-spy, of which many may run at once on few cores."""
CHILDREN_PATIENCE = 3.0
"""The same for all processes that a rank has started, one after another."""
CHILDREN = 8
"""How many of them are looked at."""
LONGEST_ANSWER = 1 << 24
"""Bytes: a probe's own are far shorter."""
PULSE, FAMILY = "pulse", "family"
"""What may be asked, beside the state: see `probe` of `lab.node.protocol`."""
MASTER = ""
"""The rendezvous, among the nodes that are tried: no node has this name."""
STOPPED = ("T", "t")
ENDED = (GONE, "Z", "X", "x")
"""States in which a process cannot answer any more. How it has ended is about to be told."""

Report = Callable[..., None]


@dataclass(eq=False)
class _Question:
    """To one rank, until it is answered."""

    rank: int
    pid: int
    give_up_at: float
    process: Mapping[str, Any]
    why_silent: str = ""
    received: bytearray = field(default_factory=bytearray)
    connection: socket.socket | None = None
    reader: StackReader | None = None


@dataclass(eq=False)
class _Round:
    """One `probe` message of the controller, until all ranks have answered."""

    number: int
    what: str
    questions: dict[int, _Question] = field(default_factory=dict)
    visits: Visits | None = None
    master: tuple[str, int] | None = None
    """Where the ranks meet, as the launcher has it and then as they say; None: it is not tried."""
    launchers: tuple[str, int] | None = None
    is_master_tried: bool = False
    ptrace: str | None = None


class Probing:
    """The rounds that are going on."""

    def __init__(self, selector: selectors.BaseSelector, report: Report, start_folder: str) -> None:
        """`report` sends a message; files below `start_folder` are told of without it."""
        self._selector = selector
        self._report = report
        self._start_folder = start_folder
        self._door: Door | None = None
        self._rounds: list[_Round] = []

    def ask(self, message: Message, ranks: Mapping[int, int]) -> None:
        """Begin a round: `probe` of `lab.node.protocol`; `ranks`: their pids."""
        one = _Round(message["id"], message["what"])
        if self._door is None:
            with contextlib.suppress(OSError):  # then nobody can visit
                self._door = Door(self._selector)
        doors = {node: (place[0], place[1]) for node, place in message.get("peers", {}).items()}
        if message.get("master"):
            one.launchers = one.master = (message["master"][0], message["master"][1])
        if doors or one.master is not None:
            own = None if self._door is None else self._door.port
            one.visits = Visits(self._selector, doors, partial(self._look_for_end, one), own)
        for rank, pid in ranks.items():
            give_up_at = time.monotonic() + PROBE_PATIENCE
            process = activity(pid, locks=one.what != PULSE)  # pulses are asked for all the time
            one.questions[rank] = _Question(rank, pid, give_up_at, process)
        self._rounds.append(one)
        for question in list(one.questions.values()):
            self._ask_probe(one, question)
        self._look_for_end(one)

    @property
    def over_at(self) -> float | None:
        """When to give somebody up next (monotonic clock)."""
        times = [asked.give_up_at for one in self._rounds for asked in one.questions.values()]
        visits = [one.visits for one in self._rounds if one.visits is not None]
        times += [visit.over_at for visit in visits if not visit.is_over]
        return min(times, default=None)

    def look(self) -> None:
        """Give up those that have been silent for too long."""
        now = time.monotonic()
        for one in list(self._rounds):
            for question in list(one.questions.values()):
                if now >= question.give_up_at:
                    self._on_silence(one, question)
            if one.visits is not None and now >= one.visits.over_at:
                one.visits.give_up()

    def on_exit(self, rank: int) -> None:
        """A rank has ended: nobody waits for it."""
        for one in list(self._rounds):
            question = one.questions.get(rank)
            if question is not None:
                self._answer(one, question, error="it has ended")

    # The probe

    def _ask_probe(self, one: _Round, question: _Question) -> None:
        state = question.process["state"]
        question.why_silent = f"its process is in state {state}"
        if state in ENDED:
            return  # until `on_exit`, so that its end is known before this is
        if state in STOPPED:
            self._read_stacks(one, question, question.why_silent)
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(address(question.pid))
            if not _is_probe(connection, question.pid):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "another process has its name")
            connection.send(b"pulse\n" if one.what == PULSE else b"state\n")
        except OSError as error:
            connection.close()
            nobody = error.errno in (errno.ECONNREFUSED, errno.ENOENT)
            self._read_stacks(one, question, "it has no probe" if nobody else str(error))
            return
        question.connection = connection
        self._selector.register(
            connection, selectors.EVENT_READ, partial(self._on_probe, one, question)
        )

    def _on_probe(self, one: _Round, question: _Question) -> None:
        if question.connection is None:
            return  # given up since select
        try:
            data = question.connection.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        question.received += data
        if data and len(question.received) <= LONGEST_ANSWER:
            return
        self._hang_up(question)
        try:
            told = json.loads(question.received)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            children = question.process["children"] or ()
            living = [child["pid"] for child in children if child["state"] not in ENDED]
            is_asked = one.what == FAMILY and not _communicates(told)
            question.give_up_at = time.monotonic() + CHILDREN_PATIENCE
            self._look_at_children(one, question, told, living[:CHILDREN] if is_asked else [])
        else:
            self._read_stacks(one, question, "its probe broke off")

    def _on_silence(self, one: _Round, question: _Question) -> None:
        if question.connection is not None:
            self._hang_up(question)
            silence = f"its probe has not answered in {PROBE_PATIENCE:g} s"
            self._read_stacks(one, question, silence)
        elif question.reader is not None:
            question.reader.kill()
        else:
            self._answer(one, question, error=question.why_silent)

    def _hang_up(self, question: _Question) -> None:
        assert question.connection is not None
        self._selector.unregister(question.connection)
        question.connection.close()
        question.connection = None

    # Stacks from outside

    def _read_stacks(self, one: _Round, question: _Question, why: str) -> None:
        """Have the rank's own read, where they are asked for and there are any."""
        question.why_silent = why
        if one.what == PULSE or question.process["state"] in ENDED:
            self._answer(one, question, error=why)
            return
        question.give_up_at = time.monotonic() + STACKS_PATIENCE
        try:
            question.reader = StackReader(
                self._selector, question.pid, partial(self._on_stacks, one, question)
            )
        except RuntimeError as error:
            self._answer(one, question, error=f"{why}; {error}")

    def _on_stacks(self, one: _Round, question: _Question, output: bytes) -> None:
        question.reader = None
        try:
            found = stacks.parsed(output, self._start_folder)
        except (ValueError, KeyError, TypeError):
            error = stacks.why_not(output)
            one.ptrace = "denied" if stacks.is_denied(error) else one.ptrace
            self._answer(one, question, error=f"{question.why_silent}; {error}")
        else:
            one.ptrace = one.ptrace or "ok"
            self._answer(
                one, question, source="py-spy", error=question.why_silent, probe={"threads": found}
            )

    def _look_at_children(
        self, one: _Round, question: _Question, told: dict[str, Any], unread: list[int]
    ) -> None:
        """Have the stacks of these processes read, one after another; then answer for the rank."""
        for n, child in enumerate(unread):
            rest = unread[n + 1 :]
            with contextlib.suppress(RuntimeError):
                question.reader = StackReader(
                    self._selector,
                    child,
                    partial(self._on_child, one, question, told, child, rest),
                )
                return
        self._answer(one, question, source="probe", probe=told)

    def _on_child(
        self,
        one: _Round,
        question: _Question,
        told: dict[str, Any],
        child: int,
        rest: list[int],
        output: bytes,
    ) -> None:
        question.reader = None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            threads = stacks.parsed(output, self._start_folder)
            told.setdefault("children", []).append({"pid": child, "threads": threads})
        in_time = time.monotonic() < question.give_up_at
        self._look_at_children(one, question, told, rest if in_time else [])

    # Answers

    def _answer(
        self,
        one: _Round,
        question: _Question,
        *,
        source: str | None = None,
        error: str | None = None,
        probe: Mapping[str, Any] | None = None,
    ) -> None:
        if question.connection is not None:
            self._hang_up(question)
        if question.reader is not None:
            question.reader.close()
        del one.questions[question.rank]
        if one.master is not None:
            place = _meeting_place(probe or {})
            if place not in (None, one.launchers):  # of several that of a rank that looks elsewhere
                one.master = place
        self._report(
            "state",
            rank=question.rank,
            id=one.number,
            pid=question.pid,
            process=question.process,
            source=source,
            error=error,
            probe=probe,
        )
        self._look_for_end(one)

    def _look_for_end(self, one: _Round) -> None:
        if one.questions or one not in self._rounds:
            return
        if one.master is not None and not one.is_master_tried:
            assert one.visits is not None
            one.is_master_tried = True
            one.visits.add(MASTER, *one.master)  # which may be over at once, and be told of
        if one in self._rounds and (one.visits is None or one.visits.is_over):
            self._rounds.remove(one)
            found = {} if one.visits is None else one.visits.found
            addresses = {} if one.visits is None else one.visits.addresses
            reach = found.pop(MASTER, None)
            master = None
            if one.master is not None:
                address = "{}:{}".format(*one.master)
                resolves = addresses.get(MASTER)
                master = {"address": address, "resolves": resolves, "reach": reach}
            self._report(
                "probed",
                id=one.number,
                port=None if self._door is None else self._door.port,
                ptrace=one.ptrace,
                peers=found,
                master=master,
            )


def _meeting_place(probe: Mapping[str, Any]) -> tuple[str, int] | None:
    """Where a rank looks for the others: a script may have it from elsewhere than the launcher."""
    for thread in probe.get("threads", ()):
        for frame in thread["frames"]:
            told = frame.get("arguments") or {}
            name, port = told.get("hostname"), told.get("port")
            if thread.get("main") and isinstance(name, str) and isinstance(port, int):
                return name, port
    return None


def _communicates(probe: Mapping[str, Any]) -> bool:
    """Whether its main thread waits for other ranks, and so for no process of its own."""
    return any(
        "/torch/distributed/" in frame["file"]
        for thread in probe.get("threads", ())
        for frame in thread["frames"]
        if thread.get("main")
    )


def _is_probe(connection: socket.socket, pid: int) -> bool:
    """Whether the process itself listens there: a name on Linux can be anybody's."""
    if sys.platform != "linux":
        return True
    listener, uid = peer(connection)
    return listener == pid and uid in (os.getuid(), 0)
