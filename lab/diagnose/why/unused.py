"""Parameters that got no gradient on one rank alone: the others wait in DDP's all-reduce."""

from lab.diagnose.why.evidence import Evidence, Rank

UNUSED_CURE = (
    "use every parameter in every forward pass on every rank, take out those that are not needed, "
    "or pass find_unused_parameters=True to DDP"
)


def unused_by(rank: Rank, evidence: Evidence) -> tuple[str, ...]:
    """Those without a gradient on this rank that have one elsewhere; frozen ones have none."""
    others = [one for one in evidence.ranks.values() if one.frames and one.unused != rank.unused]
    return tuple(name for name in rank.unused if any(name not in one.unused for one in others))
