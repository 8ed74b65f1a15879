"""The verdict on a rendezvous that is never complete: who is missing, and where instead."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import Activity, Doing, activity_of
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.master import claims, misplaced, size_of, wrong_master
from lab.diagnose.why.telling import at, does
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import who
from lab.diagnose.words import ranks_in_words

MOST_CLAIMS = 4
"""How many numbers are told of that several ranks claim."""
WORLD_SIZE = "take the world size from the environment (WORLD_SIZE), which the launcher sets"
SHARED_FILE = (
    "give all ranks the same file, on a disk that all nodes share, and one that no earlier run has "
    "left; or meet at the master instead (env://)"
)


def judge_claims(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name ranks that join under another's number, or a world that is not there."""
    joining = _joining(evidence)
    found = (
        _too_large(evidence, joining) or _too_small(evidence, joining) or _twice(evidence, joining)
    )
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
    found = (
        _missing(evidence, absent)
        or _other_file(evidence, joining)
        or wrong_master(evidence, joining)
    )
    if found is None and failed:
        return None
    if found is None:
        found = Finding(
            "unknown",
            "error",
            f"{who(joining, evidence)} wait in init_process_group, and nothing tells for whom",
            evidence=claims(joining),
            cure=SHARED_FILE if _files(joining) else None,
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


def _other_file(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
    """Ranks that wait for each other in different files: the fewest of them are named."""
    files = _files(joining)
    count = Counter(files.values()).most_common()
    if len(count) < 2:
        return None
    is_known = count[0][1] > count[1][1]
    ranks = tuple(sorted(n for n, file in files.items() if not is_known or file != count[0][0]))
    look = [
        f"{ranks_in_words(sorted(n for n, one in files.items() if one == file))} at {file}"
        for file, _ in count
    ]
    return misplaced(
        evidence,
        joining,
        ranks,
        f"ranks look for each other in different files: {', '.join(look)}",
        SHARED_FILE,
    )


def _files(joining: Mapping[int, Activity]) -> dict[int, str]:
    """Where ranks meet in a file, by rank."""
    places = {n: str(one.arguments.get("init_method")) for n, one in joining.items()}
    return {n: place for n, place in places.items() if place.startswith("file://")}


def _too_large(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
    sizes = [size for one in joining.values() if isinstance(size := size_of(one), int)]
    if not sizes or max(sizes) <= evidence.world_size:
        return None
    size = max(sizes)
    asking = tuple(sorted(n for n, one in joining.items() if size_of(one) == size))
    missing = range(evidence.world_size, size)
    all_ask = len(asking) == len(joining)
    finding = misplaced(
        evidence,
        joining,
        asking,
        f"{who(asking, evidence)} ask for a world of {size}, and {evidence.world_size} ranks "
        f"were started: {ranks_in_words(missing)} can never come",
        WORLD_SIZE,
    )
    return replace(finding, ranks=()) if all_ask else finding


def _too_small(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
    """Ranks that join a world which has no place for them."""
    claims_of = {n: (one.arguments.get("rank"), size_of(one)) for n, one in joining.items()}
    beyond = {
        n: (claim, size)
        for n, (claim, size) in claims_of.items()
        if isinstance(claim, int) and isinstance(size, int) and claim >= size > 0
    }
    if not beyond:
        return None
    ranks = tuple(sorted(beyond))
    claim, size = beyond[ranks[0]]
    return misplaced(
        evidence,
        joining,
        ranks,
        f"{who(ranks, evidence)} join{'s' * (len(ranks) == 1)} a world of {size}, which has no "
        f"rank {claim}; {evidence.world_size} ranks were started",
        WORLD_SIZE,
    )


def _twice(evidence: Evidence, joining: Mapping[int, Activity]) -> Finding | None:
    """Ranks that join under the number of another."""
    claimed = {
        n: claim
        for n, one in joining.items()
        if isinstance(claim := one.arguments.get("rank"), int)
    }
    count = Counter(claimed.values())
    wrong = tuple(sorted(n for n, claim in claimed.items() if claim != n and count[claim] > 1))
    if not wrong:
        return None
    told = []
    for number in sorted({claimed[n] for n in wrong}):
        ranks = [n for n in wrong if claimed[n] == number]
        itself = f", as rank {number} itself does" if claimed.get(number) == number else ""
        told.append(
            f"{who(ranks, evidence)} join{'s' * (len(ranks) == 1)} as rank {number}{itself}"
        )
    more = f"; and so on, {len(told)} numbers in all" if len(told) > MOST_CLAIMS else ""
    return misplaced(
        evidence,
        joining,
        wrong,
        f"{'; '.join(told[:MOST_CLAIMS])}{more}: "
        f"the world of {size_of(joining[wrong[0]])} is never complete",
        "take the rank from what is set for each process (RANK; SLURM_PROCID inside srun)",
    )
