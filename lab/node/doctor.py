"""What the doctor has on each node: it looks around, speaks with its peers, calls the roll.

Carried to the node over stdin (`lab.deploy.program`), so it works where nothing of lab is. Both
directions are lines of JSON. What comes is the same for all nodes, since Slurm's srun sends its
stdin to every host: each takes its own part by its node rank. Every answer has `node`, its rank,
and travels as one or more lines ``piece`` (`pieces`), since srun mixes the lines of all hosts and
keeps only short ones whole.

To the nodes (``type`` and fields):

=========  ================================================================================
hello      the first line, without a type: see `Hello`; answered with ``look`` (see `_look`),
           and once torch has been imported with ``torch``
connect    ``ports``: of each node's `ports`, or null: greet all; answered with ``connected``
measure    ``pairs`` of node ranks, ``seconds``: the first of a pair measures the link to the
           second, and answers with ``measured``
open       ``addr``, ``port``, ``wait``: the ports are not ours any more, and the master opens the
           store of the roll-call there; it answers with ``open``
roll-call  ``addr``, ``port``, ``names``, ``backend``, ``wait``: take part in an all-reduce;
           answered with ``roll-call``
=========  ================================================================================

The end of stdin ends it.
"""

import base64
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TextIO, TypedDict

from lab.node import facts, links, roll_call, services, software
from lab.node.environment import launch_environment
from lab.node.host import interface_towards
from lab.node.limits import bounds
from lab.node.network import look_around
from lab.node.ports import Reservation

PIECE = 600
"""Bytes of an answer in one line: with base64 and what is around it less than the 1024 of
SLURM_IO_MAX_MSG_LEN, up to which slurmstepd sends whole lines."""
GREET_WITHIN = 8.0
"""Seconds for all greetings; a name may stand for several addresses, which are tried in turn."""


class Hello(TypedDict):
    """The first line: what there is to know of the topology."""

    node: int | None
    """Which node this is; null: SLURM_NODEID says."""
    token: str
    """By which nodes know each other's connections."""
    names: list[str]
    addresses: list[str]
    """By which the nodes reach each other, by node rank; and so below."""
    env: list[dict[str, str]]
    """What ranks have on top of the node's variables."""
    slots: list[int]
    folders: list[str]
    """Whose disk counts."""
    code: list[str]
    """Where ranks start."""
    port: int
    """To meet at, on node 0; 0: any free one."""
    slurm: bool
    """Whether the nodes are hosts of a job of Slurm, which says what they are called."""
    by_route: bool
    """Whether ranks are told to talk over the interface that leads to their peers."""


def pieces(rank: int, answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines that bring an answer: ``data`` in base64, and whether that was the ``last``."""
    data = json.dumps(answer).encode()
    for start in range(0, len(data), PIECE):
        part = base64.b64encode(data[start : start + PIECE]).decode()
        last = start + PIECE >= len(data)
        yield json.dumps({"type": "piece", "node": rank, "data": part, "last": last})


class Doctor:
    """One node's part of an examination."""

    def __init__(self, hello: Hello, out: TextIO) -> None:
        """`out` is where answers go."""
        self._hello = hello
        self._out = out
        self._lock = threading.Lock()
        self.rank = int(os.environ["SLURM_NODEID"]) if hello["node"] is None else hello["node"]
        if hello["slurm"]:
            hosts = services.slurm_hosts()
            hello["addresses"] = hosts if len(hosts) == len(hello["names"]) else hello["names"]
        self._env = self._environment()
        self._listeners: dict[str, links.Listener] = {}
        self._reservation: Reservation | None = None
        # First of all: a process with threads is not to be forked.
        self._child, self._orders, self._answers = roll_call.fork(self._env)

    def say(self, type: str, **fields: Any) -> None:  # noqa: A002 - the field's name
        """Answer; any thread may."""
        with self._lock:
            for line in pieces(self.rank, {"type": type, "node": self.rank, **fields}):
                self._out.write(line + "\n")
            self._out.flush()

    def serve(self, orders: BinaryIO) -> None:
        """Look around, then obey until there is nothing more to come."""
        may_read = bounds()  # forks as well
        threading.Thread(target=self._pass_on, daemon=True).start()
        self.say("look", **self._look(may_read))
        for line in iter(orders.readline, b""):
            order = json.loads(line)
            if order["type"] == "connect":
                self.say("connected", peers=self._connect(order["ports"]))
            elif order["type"] == "measure":
                self._measure(order["pairs"], order["seconds"])
            elif order["type"] == "open":
                self._open(order)
            elif order["type"] == "roll-call":
                self._have(order, "addr", "port", "names", "backend", "wait", rank=self.rank)

    def close(self) -> None:
        """End the process that was to take part in the roll-call."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)

    def _environment(self) -> dict[str, str]:
        """What a rank would find here, as `lab.transport` and the templates of Slurm see to it."""
        given, slots = self._hello["env"][self.rank], self._hello["slots"][self.rank]
        env = launch_environment(os.environ, given, slots)
        addresses = self._hello["addresses"]
        if self._hello["by_route"] and len(addresses) > 1:
            with contextlib.suppress(OSError):  # the checks say so
                route = interface_towards(addresses[1 if self.rank == 0 else 0])
                for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if route else ():
                    if name not in given and not (self._hello["slurm"] and name in os.environ):
                        env[name] = str(route)
        cores = os.environ.get("SLURM_CPUS_ON_NODE") if self._hello["slurm"] else None
        if cores is not None:
            env.setdefault("OMP_NUM_THREADS", str(max(1, int(cores) // slots)))
        return env

    def _pass_on(self) -> None:
        """What the process for the roll-call says."""
        for line in self._answers:
            answer = json.loads(line)
            self.say(answer.pop("type"), **answer)

    def _look(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """All that can be known without the others, as flat fields."""
        hello = self._hello
        peers = dict(zip(hello["names"], hello["addresses"], strict=True))
        return {
            **facts.collect(hello["folders"][self.rank]),
            **found,
            **look_around(peers, self._env),
            "variables": software.variables(self._env),
            "code": software.code_of(hello["code"][self.rank]),
            "gpu_links": services.gpu_links(),
            "address": hello["addresses"][self.rank],
            "slurm": services.slurm() if hello["slurm"] else None,
            **self._listen(),
        }

    def _listen(self) -> dict[str, Any]:
        """Open the ports: `ports` (`gloo`; on the master `master`), `port_problem` or None."""
        name, token = self._hello["names"][self.rank], self._hello["token"]
        problem = None
        self._listeners["gloo"] = links.Listener(name, token)
        if self.rank == 0:
            try:
                self._reservation = Reservation(self._hello["port"])
                master = links.Listener(name, token, self._reservation.port)
                self._listeners["master"] = master
            except OSError as error:
                problem = str(error)
        ports = {name: listener.port for name, listener in self._listeners.items()}
        return {"ports": ports, "port_problem": problem}

    def _connect(self, ports: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        """Greet every node that listens: name -> port's name -> who is there, or why not."""
        token = self._hello["token"]
        found: dict[str, dict[str, Any]] = {}

        def greet(name: str, what: str, address: str, port: int) -> None:
            found[name][what] = links.greet(address, port, token)

        threads = []
        for rank, open_ones in enumerate(ports):
            if rank == self.rank or open_ones is None:
                continue
            name = self._hello["names"][rank]
            ways = [
                (what, self._hello["addresses"][rank], open_ones[what])
                for what in ("gloo", "master")
                if what in open_ones
            ]
            if open_ones["advertises"] is not None:
                ways.append(("advertised", open_ones["advertises"], open_ones["gloo"]))
            found[name] = {what: {"error": "timed out"} for what, _, _ in ways}
            threads += [threading.Thread(target=greet, args=(name, *way)) for way in ways]
        for thread in threads:
            thread.daemon = True
            thread.start()
        over_at = time.monotonic() + GREET_WITHIN
        for thread in threads:
            thread.join(max(0.0, over_at - time.monotonic()))
        return found

    def _measure(self, pairs: Sequence[Sequence[Any]], seconds: float) -> None:
        for one, other, port in pairs:
            if one == self.rank:
                way = self._hello["addresses"][other], port, self._hello["token"]
                try:
                    self.say(
                        "measured", peer=other, **links.ping(*way), **links.push(*way, seconds)
                    )
                except (OSError, ValueError) as error:
                    self.say("measured", peer=other, error=str(error))

    def _open(self, order: Mapping[str, Any]) -> None:
        for listener in self._listeners.values():
            listener.close()
        if self.rank == 0:
            self._have(order, "addr", "port", "wait")

    def _have(self, order: Mapping[str, Any], *names: str, **own: Any) -> None:
        """Have the child follow an order, of which it needs these fields."""
        asked = {name: order[name] for name in ("type", *names)}
        with contextlib.suppress(OSError):  # it has ended, and said why
            self._orders.write(json.dumps({**asked, **own}) + "\n")
            self._orders.flush()


def main() -> None:
    """Serve one examination on stdin and stdout."""
    orders = sys.stdin.buffer
    doctor = Doctor(json.loads(orders.readline()), sys.stdout)
    try:
        doctor.serve(orders)
    finally:
        doctor.close()
