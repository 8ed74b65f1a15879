"""What is added to a verdict: what the processes do that the rank has started, as a data loader."""

from collections.abc import Sequence
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import name_of
from lab.diagnose.why.evidence import GONE, STOPPED, Evidence, Frame, Rank
from lab.diagnose.why.wording import site_in_words

WAITING = "_try_get_data"
"""Where torch's DataLoader waits for a worker (torch/utils/data/dataloader.py)."""
STATES = {
    "S": ("sleeps", "sleep"),
    "R": ("computes", "compute"),
    "D": ("waits for the system, as for a disk", "wait for the system, as for a disk"),
    STOPPED: ("is stopped", "are stopped"),
    "Z": ("has ended", "have ended"),
}
"""What one process does in a state (proc(5)), and several."""
MOST = 16
"""Processes to name."""


def with_workers(finding: Finding, evidence: Evidence) -> Finding:
    """The finding with what the processes do that its first rank has started.

    Of all that have a stack, where they are in the user's own code; of a data loader's also what
    the system tells.
    """
    if not finding.ranks or finding.ranks[0] not in evidence.ranks:
        return finding
    rank = evidence.ranks[finding.ranks[0]]
    sites = _sites(rank)
    if sites:
        places = ", ".join(f"{_named(pids)}{site_in_words(site)}" for site, pids in sites.items())
        told = f"child process{'es' * (sum(map(len, sites.values())) > 1)} of rank {rank.number}: "
        finding = replace(finding, evidence=(*finding.evidence, told + places))
    if finding.kind != "data-loader":
        return finding
    if sites:
        site, pids = next(iter(sites.items()))
        workers = f"worker process{'es' * (len(pids) > 1)} {_named(pids)} of rank {rank.number}"
        verb = "is" if len(pids) == 1 else "are"
        summary = f"{finding.summary}; {workers} {verb}{site_in_words(site)}"
        finding = replace(finding, summary=summary)
    by_state = _children(rank)
    if not by_state:
        return finding
    what = ", ".join(_does(pids, state) for state, pids in by_state.items())
    told = f"child process{'es' * (len(rank.children) > 1)} of rank {rank.number}: {what}"
    finding = replace(finding, evidence=(*finding.evidence, told))
    for state in (STOPPED, *GONE):
        if state in by_state:
            pids = by_state[state]
            named = f"child process{'es' * (len(pids) > 1)} {_does(pids, state)}"
            summary = f"{finding.summary}; of rank {rank.number} {named}"
            finding = replace(finding, summary=summary)
    stopped = by_state.get(STOPPED)
    if stopped:
        they = "it" if len(stopped) == 1 else "them"
        named = " ".join(map(str, stopped))
        cure = f"let {they} go on (kill -CONT {named} on {rank.node}), or end the run"
        finding = replace(finding, cure=cure)
    return finding


def _children(rank: Rank) -> dict[str, list[int]]:
    """Their pids by state, where the rank waits for workers and has any."""
    found: dict[str, list[int]] = {}
    if any(name_of(frame) == WAITING for frame in rank.frames):
        for pid, state in rank.children.items():
            found.setdefault(state, []).append(pid)
    return found


def _sites(rank: Rank) -> dict[Frame, list[int]]:
    """Where those are that do something of the user's: the innermost line of it, and their pids."""
    found: dict[Frame, list[int]] = {}
    for pid, frames in rank.stacks_of_children.items():
        site = next((frame for frame in frames if frame.user), None)
        if site is not None:
            found.setdefault(site, []).append(pid)
    return found


def _does(pids: Sequence[int], state: str) -> str:
    """`40, 42 sleep (state S)`."""
    one, several = STATES.get(state, ("is", "are"))
    return f"{_named(pids)} {one if len(pids) == 1 else several} (state {state})"


def _named(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids[:MOST])) + ", ..." * (len(pids) > MOST)
