"""What the reducer says when gradients do not come as they should."""

from collections.abc import Sequence


def no_gradient(rank: int, names: Sequence[str], frozen: Sequence[str], changed: bool) -> str:
    """At the end of a backward.

    Args:
        rank: this one.
        names: of the parameters that got none.
        frozen: those among them that do not require one any more.
        changed: the graph is static, and in the first step they got one.
    """
    listed = ", ".join(names[:10])
    if len(names) > 10:
        listed += f" and {len(names) - 10} more"
    if frozen:
        cure = f"{frozen[0]} was frozen after the model had been wrapped: wrap it afterwards"
    elif changed:
        cure = "the graph is not that of the first step: leave static_graph=True out"
    else:
        cure = (
            "forward did not use it, or its output not for the loss, in one backward: if that "
            "is meant, pass find_unused_parameters=True"
        )
    return (
        f"rank {rank}: no gradient for {listed}, so the other ranks would wait for it in vain; "
        f"{cure}"
    )


def one_too_many(rank: int, name: str, static_graph: bool) -> str:
    """During backward: a parameter got a gradient after its bucket had been sent."""
    cure = (
        "the graph is not the same in every step: leave static_graph=True out"
        if static_graph
        else "a parameter used in two reentrant checkpoints gets two: checkpoint with "
        "use_reentrant=False, or pass static_graph=True if the graph is the same in every "
        "step. A parameter that the loss uses apart from forward's outputs gets one too many "
        "for find_unused_parameters=True"
    )
    return f"rank {rank}: {name} got a gradient when none was awaited any more; {cure}"
