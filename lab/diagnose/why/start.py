"""The verdict on a rendezvous that is never complete: who is missing, and where instead."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import Activity, Doing, activity_of
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.telling import at, does
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import site_in_words, who
from lab.diagnose.words import ranks_in_words
from lab.node.peers import UNSURE

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""`True` where torchrun itself holds the rendezvous, and rank 0 opens none (torch/distributed/
rendezvous.py, `_create_c10d_store`)."""


def judge_claims(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name ranks that join under another's number, or a world that is not there."""
    joining = _joining(evidence)
    found = _too_large(evidence, joining) or _twice(evidence, joining)
    return None if found is None else replace(found, innocent=innocents(waits, found.ranks))


def judge_imports(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Say that ranks are late since they still import what they need."""
    if evidence.failure is not None or evidence.because == "failure":
        return None
    late = tuple(
        n
        for n, rank in evidence.ranks.items()
        if rank.ended is None and activity_of(rank).doing is Doing.IMPORTING
    )
    if not late:
        return None
    told = [f"rank {n} {does(evidence.ranks[n], activity_of(evidence.ranks[n]))}" for n in late]
    finding = Finding(
        "slow",
        "warning",
        f"no hang: {who(late, evidence)} come{'s' * (len(late) == 1)} later: {told[0]}",
        ranks=late,
        nodes=evidence.nodes_of(late),
        innocent=innocents(waits, late),
        evidence=tuple(told),
        cure="packages on a disk of the node's own are read faster than on one that many share",
    )
    return at(finding, activity_of(evidence.ranks[late[0]]).site)


def judge_start(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks that have not come to init_process_group; None where nobody waits there."""
    joining = _joining(evidence)
    if not joining:
        return None
    failed = evidence.failure is not None
    absent = {
        n: rank
        for n, rank in evidence.ranks.items()
        # Of those that have failed as well nobody may have heard yet.
        if n not in joining and not rank.may_have_joined and (rank.is_in_script or not failed)
    }
    found = _missing(evidence, absent) or _wrong_master(evidence, joining)
    if found is None and failed:
        return None
    if found is None:
        found = Finding(
            "unknown",
            "error",
            f"{who(joining, evidence)} wait in init_process_group, and nothing tells for whom",
            evidence=_claims(joining),
        )
    return replace(found, innocent=innocents(waits, found.ranks))


def _joining(evidence: Evidence) -> dict[int, Activity]:
    """The ranks that are in init_process_group, or were when they failed."""
    activities = {n: activity_of(rank) for n, rank in evidence.ranks.items()}
    return {n: one for n, one in activities.items() if one.doing is Doing.RENDEZVOUS}


def _missing(evidence: Evidence, absent: Mapping[int, Rank]) -> Finding | None:
    if not absent:
        return None
    ranks = tuple(sorted(absent))
    told = [f"rank {n} {does(absent[n], activity_of(absent[n]))}" for n in ranks]
    have = "has" if len(ranks) == 1 else "have"
    finding = Finding(
        "rendezvous",
        "error",
        f"{who(ranks, evidence)} {have} not come to init_process_group, where all others wait: "
        f"{told[0]}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        evidence=tuple(told),
        cure="let all ranks join first, and do what takes long, or what only some do, afterwards",
    )
    activities = [activity_of(absent[n]) for n in ranks]
    known = next((one for one in activities if one.site is not None), None)
    return finding if known is None else at(finding, known.site)


def _too_large(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
    sizes = [size for one in joining.values() if isinstance(size := _size(one), int)]
    if not sizes or max(sizes) <= evidence.world_size:
        return None
    size = max(sizes)
    asking = tuple(sorted(n for n, one in joining.items() if _size(one) == size))
    missing = range(evidence.world_size, size)
    all_ask = len(asking) == len(joining)
    return at(
        Finding(
            "rendezvous",
            "error",
            f"{who(asking, evidence)} ask for a world of {size}, and {evidence.world_size} ranks "
            f"were started: {ranks_in_words(missing)} can never come",
            ranks=() if all_ask else asking,
            nodes=evidence.nodes_of(asking),
            evidence=_claims(joining),
            cure="take the world size from the environment (WORLD_SIZE), which the launcher sets",
        ),
        joining[asking[0]].site,
    )


def _twice(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
    """Ranks that join under the number of another."""
    claimed = {n: one.arguments.get("rank") for n, one in joining.items()}
    count = Counter(claimed.values())
    wrong = tuple(
        sorted(n for n, claim in claimed.items() if claim not in (None, n) and count[claim] > 1)
    )
    if not wrong:
        return None
    number = claimed[wrong[0]]
    same = sorted(n for n, claim in claimed.items() if claim == number)
    return at(
        Finding(
            "rendezvous",
            "error",
            f"{ranks_in_words(same)} all join as rank {number}, so that "
            f"{ranks_in_words(wrong)} of the world never come{'s' * (len(wrong) == 1)}",
            ranks=wrong,
            nodes=evidence.nodes_of(wrong),
            evidence=_claims(joining),
            cure="take the rank from what is set for each process (RANK; SLURM_PROCID inside srun)",
        ),
        joining[wrong[0]].site,
    )


def _wrong_master(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
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
    return at(
        Finding(
            "rendezvous",
            "error",
            f"{who(ranks, evidence)} {look} for the master at {address}, where nobody listens: "
            "under torchrun rank 0 does not either, for torchrun itself does, "
            f"at {evidence.master}",
            ranks=ranks,
            nodes=evidence.nodes_of(ranks),
            evidence=_claims(joining),
            cure="leave MASTER_ADDR and MASTER_PORT as torchrun has set them",
        ),
        joining[ranks[0]].site,
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


def _size(one: Activity) -> object:
    return one.arguments.get("world_size")


def _claims(joining: Mapping[int, Activity]) -> tuple[str, ...]:
    """Which rank of how many each one says it is."""
    told = []
    for number, one in joining.items():
        claim, size = one.arguments.get("rank"), _size(one)
        asked = f" as rank {claim} of {size}" if size is not None else ""
        told.append(f"rank {number} is in init_process_group{asked}{site_in_words(one.site)}")
    return tuple(told)
