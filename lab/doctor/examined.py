"""What an examination has found so far: plain data, from which the checks judge.

Facts are as `lab.node.doctor` tells them. A part that is not known yet is empty; a check says
nothing of what is not known.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Patient:
    """A node, as the topology has it."""

    name: str
    address: str
    """By which the others reach it."""
    slots: int = 1


@dataclass
class Examined:
    """All that is known, by node."""

    on: str
    backend: str
    """gloo or nccl."""
    patients: tuple[Patient, ...]
    """By node rank."""
    asked_port: int | None = None
    """To meet at, where the topology names one."""
    link: Mapping[str, str] = field(default_factory=dict)
    """`rate`, `delay` and `loss` that the topology asks the links to have."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why a node tells nothing."""
    looks: dict[str, Facts] = field(default_factory=dict)
    """What each node is, by itself."""
    torch: dict[str, Facts] = field(default_factory=dict)
    """What torch says there once imported, or `error`."""
    connected: dict[str, Mapping[str, Mapping[str, Facts]]] = field(default_factory=dict)
    """From -> to -> way (`gloo`, `master`, `advertised`) -> `who` answered, `clock_ahead` and
    `clock_unsure` (s); or `error`."""
    measured: dict[tuple[str, str], Facts] = field(default_factory=dict)
    """(from, to) -> `latency` (s) and `bandwidth` (bytes/s); or `error`."""
    roll_call: dict[str, Facts] = field(default_factory=dict)
    """What each said to the roll-call; empty: it was not called."""
    is_called: bool = False
    """Whether the roll-call is over."""

    @property
    def master(self) -> Patient:
        """Node 0, whose rank 0 hosts the store."""
        return self.patients[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all nodes, by node rank."""
        return tuple(patient.name for patient in self.patients)

    @property
    def seen(self) -> tuple[str, ...]:
        """Those that have told what they are."""
        return tuple(name for name in self.names if name in self.looks)

    def patient(self, name: str) -> Patient:
        """The node of that name."""
        return next(patient for patient in self.patients if patient.name == name)

    def place(self, rank: int, address: str) -> None:
        """Note by what a node is reached: Slurm names the hosts only once there is a job."""
        moved = list(self.patients)
        moved[rank] = replace(moved[rank], address=address)
        self.patients = tuple(moved)

    def values(self, *path: str) -> dict[str, Any]:
        """One fact of every node that has told: `values("cgroup", "memory")`."""
        found = {}
        for name in self.seen:
            value: Any = self.looks[name]
            for key in path:
                value = None if value is None else value.get(key)
            found[name] = value
        return found

    @property
    def is_rehearsal(self) -> bool:
        """Whether nodes share a machine, so that what they can do depends on who gets a core."""
        machines = list(self.values("machine").values())
        alike = len(machines) > 1 and len(set(machines)) == 1
        return self.on in ("local", "docker") or alike

    def share_a_network(self, one: str, other: str) -> bool:
        """Whether two nodes have one network stack, so that loopback leads from one to the other.

        Nodes that are processes of one machine do.
        """
        stacks = self.values("network")
        return one in stacks and other in stacks and stacks[one] == stacks[other]


def is_loopback(address: str) -> bool:
    """Whether an IP address is one of 127.0.0.0/8, or ::1."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def groups(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Each different value, as text, with the nodes that have it; what most have comes first."""
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(str(value), []).append(name)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return {value: tuple(names) for value, names in ordered}
