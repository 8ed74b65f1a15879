"""The verdict on ranks that look for each other at different places, or where nobody can be."""

from collections.abc import Mapping
from ipaddress import ip_address

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import Activity
from lab.diagnose.why.evidence import Evidence
from lab.diagnose.why.telling import at
from lab.diagnose.why.wording import site_in_words, who
from lab.node.peers import UNSURE

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""`True` where torchrun itself holds the rendezvous, and rank 0 opens none (torch/distributed/
rendezvous.py, `_create_c10d_store`)."""


def wrong_master(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
    """Nodes from which the master cannot be reached, or which take themselves for it."""
    looking = {n: one for n, one in joining.items() if _looks_for_master(evidence, n, one)}
    # What was read from outside knows no arguments: then a rank counts as who it was started as.
    hosts = {
        evidence.ranks[n].node for n, one in looking.items() if one.arguments.get("rank", n) == 0
    }
    one_machine = _host(evidence.master or "") in LOCAL_NAMES  # they share its loopback
    nodes = {evidence.ranks[n].node for n in looking}
    masters = {name: node.master or {} for name, node in evidence.nodes.items() if name in nodes}
    found = {
        name: how
        for name, master in masters.items()
        if name not in hosts and (how := _trouble(master, one_machine))
    }
    ranks = tuple(sorted(n for n in looking if evidence.ranks[n].node in found))
    first = evidence.ranks[min(ranks or joining)]
    address = _address(evidence, first.node)
    itself = " (itself)" if _host(address) in LOCAL_NAMES and not one_machine else ""
    at_home = [name for name in hosts if masters.get(name, {}).get("reach") == "refused"]
    if at_home and not (ranks and itself):
        address = _address(evidence, at_home[0])
        return _nobody_listens(evidence, joining, tuple(sorted(looking)), address)
    if not ranks:
        return None
    return at(
        Finding(
            "rendezvous",
            "error",
            f"{who(ranks, evidence)} cannot reach the master {address}{itself}: "
            f"{found[first.node]}",
            ranks=ranks,
            nodes=evidence.nodes_of(ranks),
            evidence=tuple(f"from {name}: {how}" for name, how in found.items()),
            cure="give all ranks the name or address of rank 0's node as the others reach it, "
            "never localhost; see whether a firewall is between them (lab doctor)",
        ),
        joining[ranks[0]].site,
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _address(evidence: Evidence, node: str) -> str:
    """Where the ranks of a node look for the master."""
    master = evidence.nodes[node].master or {}
    return str(master.get("address") or evidence.master)


def _looks_for_master(evidence: Evidence, number: int, one: Activity) -> bool:
    """Whether it waits for the one that its node has tried; a store of files has none, for one."""
    rank = evidence.ranks[number]
    if rank.source != "probe":
        return True
    address = f"{one.arguments.get('hostname')}:{one.arguments.get('port')}"
    return address == _address(evidence, rank.node)


def _nobody_listens(
    evidence: Evidence, joining: Mapping[int, Activity], ranks: tuple[int, ...], address: str
) -> Finding | None:
    """Rank 0 does not listen at all where torchrun does; else not yet, which is no news."""
    if any(evidence.ranks[n].env.get(AGENT_STORE) != "True" for n in joining):
        return None
    look = f"look{'s' * (len(ranks) == 1)}"
    return misplaced(
        evidence,
        joining,
        ranks,
        f"{who(ranks, evidence)} {look} for the master at {address}, where nobody listens: "
        "under torchrun rank 0 does not either, for torchrun itself does, "
        f"at {evidence.master}",
        "leave MASTER_ADDR and MASTER_PORT as torchrun has set them",
    )


def _trouble(master: Mapping[str, object], one_machine: bool) -> str | None:
    reach, address = master.get("reach"), master.get("resolves")
    if reach in (None, "ok") or str(reach).startswith(UNSURE):
        return None
    itself = "" if one_machine else _loopback(str(address))
    return f"{reach}" + (f", at {address}{itself}" if address else "")


def _loopback(address: str) -> str:
    try:
        return ", which is this node itself" if ip_address(address).is_loopback else ""
    except ValueError:
        return ""


def size_of(one: Activity) -> object:
    """The world that a rank asks for."""
    return one.arguments.get("world_size")


def claims(joining: Mapping[int, Activity]) -> tuple[str, ...]:
    """Which rank of how many each one says it is."""
    told = []
    for number, one in joining.items():
        claim, size = one.arguments.get("rank"), size_of(one)
        asked = f" as rank {claim} of {size}" if size is not None else ""
        told.append(f"rank {number} is in init_process_group{asked}{site_in_words(one.site)}")
    return tuple(told)


def misplaced(
    evidence: Evidence,
    joining: Mapping[int, Activity],
    ranks: tuple[int, ...],
    summary: str,
    cure: str,
) -> Finding:
    """The finding on ranks that join at a wrong place, or as who they are not."""
    finding = Finding(
        "rendezvous",
        "error",
        summary,
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        evidence=claims(joining),
        cure=cure,
    )
    return at(finding, joining[ranks[0]].site)
