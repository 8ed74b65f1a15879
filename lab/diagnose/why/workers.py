"""What is added to the verdict on a data loader: the states of the processes that load for it."""

from collections.abc import Sequence
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import name_of
from lab.diagnose.why.evidence import GONE, STOPPED, Evidence, Rank

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
    """The finding with what the workers do that its first rank waits for, as the system tells."""
    if finding.kind != "data-loader":
        return finding
    rank = evidence.ranks[finding.ranks[0]]
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


def _does(pids: Sequence[int], state: str) -> str:
    """`40, 42 sleep (state S)`."""
    named = ", ".join(map(str, pids[:MOST])) + ", ..." * (len(pids) > MOST)
    one, several = STATES.get(state, ("is", "are"))
    return f"{named} {one if len(pids) == 1 else several} (state {state})"
