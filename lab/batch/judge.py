"""How a job ended, from what its ranks and Slurm have told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from signal import Signals

from lab.batch.files import running
from lab.batch.job_state import JobState
from lab.batch.why import ENDING, why_stalled
from lab.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_STALLED, EXIT_TIMEOUT
from lab.node.protocol import Message
from lab.node.task import SHARE
from lab.runs.failures import Failures
from lab.runs.verdict import Failure, Kind, Verdict
from lab.topology import Topology
from lab.topology.nodeset import expand_names

TIME_IS_UP = ("TIMEOUT", "DEADLINE")
CALLED_OFF = ("CANCELLED", "PREEMPTED")
NODE_LOST = ("NODE_FAIL", "BOOT_FAIL")


@dataclass(frozen=True)
class Told:
    """All that is known of a job that is over."""

    topology: Topology
    events: Sequence[Message]
    """Of the ranks since they last began, in the order of their happening."""
    job: JobState
    code: int | None
    """Of the job script; None: it was ended, too."""
    words: str
    """The last line of the job's own output."""


def judge(told: Told) -> Verdict:
    """The verdict: the first real failure, as on any other place."""
    if told.code is None and told.job.state == "COMPLETED":  # its word for a job that ended with 0
        told = replace(told, code=0)
    if told.topology.is_elastic and told.code == 0:
        told = replace(told, events=_of_the_last_world(told.events))
    failures, ended = Failures(), set[int]()
    at: dict[int, float] = {}  # by rank: its last event
    # When Slurm ends the job, or srun the others because one has failed, it is nobody's failure.
    is_ending = told.job.state in (*TIME_IS_UP, *CALLED_OFF, *NODE_LOST)
    is_stalled = False
    for message in told.events:
        rank, node = message["rank"], message["node"]
        at[rank] = message["at"]
        if message["type"] == "stop":  # from here on ranks end because they are to
            is_stalled = True
        elif is_stalled:
            ended |= {rank} if message["type"] == "exit" and message["code"] != 0 else set()
        elif message["type"] == "exception":
            failures.on_exception(node, message)
        elif message["type"] == "context":
            failures.on_context(node, message)
        elif message["type"] == "exit" and message["code"] != 0:
            if is_ending and message["signal"] in ENDING:
                ended.add(rank)
            else:
                failures.on_exit(node, message)
            is_ending = True
    seconds = round(max(at.values()) - min(m["at"] for m in told.events), 3) if at else 0.0
    silent = running(told.events)
    first = failures.first if is_stalled else _first(told, failures, silent)
    if first is not None:
        return Verdict(
            first.kind,
            first.exit_code,
            str(first),
            first,
            victims=failures.victims,
            others=failures.others,
            other_reasons=failures.other_reasons,
            ended=tuple(sorted((ended | silent.keys()) - {first.rank})),
            seconds=seconds,
        )
    why = why_stalled(told.events)
    kind: Kind
    if is_stalled and why is not None:
        kind, code, summary = "stalled", EXIT_STALLED, f"no rank made progress: {why.summary}"
    else:
        kind, code, summary = _without_failure(told)
    return Verdict(
        kind,
        code,
        summary,
        ended=tuple(sorted(ended | silent.keys())),
        why=None if kind == "ok" else why,
        seconds=seconds,
    )


def _of_the_last_world(events: Sequence[Message]) -> list[Message]:
    """Of a job that went on without what it lost: the ranks that ended well, and nothing else."""
    good = {m["rank"] for m in events if m["type"] == "exit" and m["code"] == 0}
    kept = [m for m in events if m["rank"] in good]
    return [m for m in kept if m["type"] == "started" or m.get("code") == 0]


def _first(told: Told, failures: Failures, silent: Mapping[int, str]) -> Failure | None:
    """The first real failure; a rank without a last word where nobody else has failed by itself."""
    first = failures.first
    if first is not None and not first.looks_like_victim:
        return first
    if told.job.state in (*TIME_IS_UP, *CALLED_OFF) or not silent:
        return first
    hosts = {m["rank"]: m.get("host") for m in told.events if m["type"] == "started"}
    names = {name.partition(".")[0] for name in _names(told.job.hosts)}
    own = [one for one in silent.items() if (hosts[one[0]] or "").partition(".")[0] in names]
    # Where nobody says which host it was, it is that of srun, which would have: the first.
    rank, node = min(own, default=min(silent.items()))
    if told.job.state == "OUT_OF_MEMORY":
        return Failure(rank, node, "signal", 128 + Signals.SIGKILL, message=str(told.job))
    return Failure(rank, node, "node-lost", EXIT_FAILURE, message=f"the node is gone: {told.job}")


def _names(hosts: str) -> Sequence[str]:
    try:
        return expand_names(hosts)
    except ValueError:
        return ()


def _without_failure(told: Told) -> tuple[Kind, int, str]:
    """Kind, exit code and one line where no rank has failed."""
    if told.job.state in TIME_IS_UP:
        return "timeout", EXIT_TIMEOUT, f"the job {told.job}"
    if told.job.state in CALLED_OFF:
        return "interrupted", EXIT_INTERRUPTED, f"the job {told.job}"
    ranks = {message["rank"] for message in told.events if message["type"] == "exit"}
    unheard = _unheard(told)
    if told.code == 0 and unheard:
        return "lab-error", EXIT_FAILURE, unheard
    if told.code == 0 and ranks:
        return "ok", 0, f"{len(ranks)} rank{'s' * (len(ranks) > 1)} ended well"
    why = told.words or str(told.job)
    if told.code == 0 or not ranks:
        return "not-started", told.code or EXIT_FAILURE, f"no rank has begun: {why}"
    return "lab-error", told.code or EXIT_FAILURE, f"all ranks ended well, and the job not: {why}"


def _unheard(told: Told) -> str:
    """Whose files have not arrived, though all ended well; empty: all did.

    Each rank writes into the run directory. Where that is another folder of the same name on some
    host, nobody there notices.
    """
    began = {m["rank"] for m in told.events if m["type"] == "started"}
    if told.topology.is_elastic and began:
        return ""  # some nodes may not have been there
    nodes = {rank.node.name for rank in told.topology.ranks() if rank.rank not in began}
    names = ", ".join(sorted(nodes))
    return f"nothing that {names} wrote has arrived here: {SHARE}" if nodes else ""
