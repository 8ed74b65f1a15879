"""Where a job of Slurm is: its state, with Slurm's own words and ours."""

from dataclasses import dataclass

OVER = frozenset(
    (
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "REVOKED"),
        *("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "UNKNOWN"),
    )
)
"""States in which a job is over (squeue(1), JOB STATE CODES); those that others wait in grow."""

STATES = {
    "PENDING": "waits",
    "CONFIGURING": "its nodes boot",
    "RUNNING": "runs",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "COMPLETING": "ends",
    "REQUEUED": "goes back into the queue",
    "REQUEUE_HOLD": "is back in the queue, held",
    "COMPLETED": "ended well",
    "FAILED": "failed",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its deadline",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "had a node that does not boot",
    "OUT_OF_MEMORY": "was killed for its memory",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
    "SIGNALING": "is sent a signal",
    "RESIZING": "changes its size",
    "STAGE_OUT": "has its files fetched",
    "SPECIAL_EXIT": "is back in the queue, held",
    "RESV_DEL_HOLD": "is held, since its reservation is gone",
    "UNKNOWN": "is one that Slurm does not know any more",
}
REASONS = {
    "Priority": "others come first",
    "Resources": "not enough nodes are free",
    "Dependency": "it depends on another job",
    "DependencyNeverSatisfied": "the job that it depends on did not end as it should",
    "BeginTime": "it begins at a later time (after a requeue: in about two minutes)",
    "JobHeldUser": "somebody holds it: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionNodeLimit": "it asks for more nodes than the partition has or allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "NodeDown": "nodes that it needs are down",
    "Nodes required for job are DOWN": "nodes that it needs are down, drained or reserved",
    "InvalidAccount": "there is no such account, or it is not yours",
    "InvalidQOS": "there is no such quality of service, or it is not yours",
    "JobArrayTaskLimit": "as many of its array run as may at once",
    "BadConstraints": "no nodes have what it asks for",
    "Reservation": "its reservation has not begun",
    "Licenses": "a licence is not free",
    "AssociationJobLimit": "the account has as many jobs as it may have",
    "QOSJobLimit": "the quality of service has as many jobs as it may have",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as you may have",
    "launch failed requeued held": "it could not be started and is held: scontrol release",
}

LIMITS = {
    "QOS": "a limit of its quality of service is reached",
    "Assoc": "a limit of its account is reached",
    "Max": "a limit of its account is reached",
}
"""How the names of reasons begin of which there is one for each resource: `AssocGrpGRES`."""


@dataclass(frozen=True)
class JobState:
    """Where a job is."""

    state: str
    """Slurm's word, such as RUNNING; UNKNOWN: nobody knows the job any more."""
    reason: str = ""
    """Slurm's word for why it waits or ended so; empty: none."""
    hosts: str = ""
    """As Slurm writes a list of hosts."""

    @property
    def active(self) -> bool:
        """Whether it is not over."""
        return self.state not in OVER

    def __str__(self) -> str:
        """In words, with Slurm's own behind them."""
        told = STATES.get(self.state, "is in a state that lab does not know")
        words = self.reason if self.reason not in ("", "None") else ""
        # Some have more behind them: `ReqNodeNotAvail, UnavailableNodes:node3`.
        why = REASONS.get(words.partition(",")[0])
        if why is None:
            why = next((told for name, told in LIMITS.items() if words.startswith(name)), None)
        if self.state == "PENDING" and why is not None:
            told = f"{told}: {why}"
        return f"{told} ({' '.join(filter(None, (self.state, words)))})"
