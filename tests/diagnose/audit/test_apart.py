"""Causes and cures of gradients and weights that are not equal."""

from collections.abc import Mapping
from typing import Any

from lab.diagnose.audit.apart import say_apart, say_differing, say_unreduced
from lab.diagnose.audit.layouts import Layouts
from lab.diagnose.audit.seen import Seen
from tests.diagnose.audit.records import layout, replica


def _seen(sent: Mapping[str, int] | None = None, skips: int = 0, **fields: Any) -> Seen:
    """Two ranks with weights and gradients of their own; rank 1 skips so many steps."""
    layouts = Layouts()
    layouts.feed(0, layout(**fields))
    own = layouts.of(0, 0)
    assert own is not None
    records = {
        rank: replica(5 - skips * rank, (1 + rank, 2), (3 + rank, 4), exchanged=sent or {})
        for rank in (0, 1)
    }
    return Seen(own, records)


def _cure(seen: Seen, *places: int) -> tuple[str, str]:
    finding = say_unreduced(seen, set(places), 1, set(), None)
    return " ".join(finding.evidence), finding.cure or ""


def test_gradients_that_a_wrapper_reduces_may_have_been_changed_afterwards() -> None:
    evidence, cure = _cure(_seen(managed=[True, True]), 0)
    assert "was not called or does not know them, or they were changed after it" in evidence
    assert "what changes gradients afterwards" in cure


def test_gradients_that_ranks_may_put_together_themselves_may_have_been_changed_as_well() -> None:
    assert "If that is done: what changes gradients afterwards" in _cure(_seen({"small": 1}), 0)[1]
    assert "afterwards" not in _cure(_seen(), 0)[1]


def test_a_reduce_gives_the_sum_to_one_rank_alone() -> None:
    evidence, cure = _cure(_seen({"reduce": 2}), 0, 1)
    assert "to one rank alone" in evidence
    assert cure.startswith("put the gradients together by all_reduce")


def test_what_is_outside_of_all_that_is_sharded_is_to_be_sharded_as_well() -> None:
    assert "fully_shard(model)" in _cure(_seen(parts=[False, True]), 0)[1]


def test_weights_that_differ_under_ddp_were_changed_after_it_was_made() -> None:
    finding = say_apart(_seen(managed=[True, True]), {0}, {0: None, 1: None})
    assert "before the model is wrapped" in (finding.cure or "")
    finding = say_apart(_seen(), {0}, {0: None, 1: None})
    assert "as DistributedDataParallel does" in (finding.cure or "")


def test_a_rank_that_has_made_fewer_steps_is_said_to() -> None:
    finding = say_differing(_seen(skips=1), {0}, 4, [])
    assert "steps that the optimizer has made: 4 on rank 0, 3 on rank 1" in finding.evidence
    assert "the same number of steps" in (finding.cure or "")
    assert len(say_differing(_seen(), {0}, 4, []).evidence) == 2
