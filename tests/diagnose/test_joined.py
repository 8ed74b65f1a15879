"""A collective of one's own inside torch's `Join`."""

import pytest

from lab.diagnose.why.judge import diagnose
from tests.diagnose.seen import call, evidence, rank


@pytest.mark.parametrize("joined", [(1,), (0, 1)])
def test_what_ranks_that_have_joined_do_not_repeat_has_no_partner(joined: tuple[int, ...]) -> None:
    before = [call(1, line=12, via="backward"), call(2, line=13)]
    own = [*before, call(3, line=12, via="backward"), call(4, line=13, shape=())]
    out = [
        *before,
        call(3, line=12, via="backward"),
        call(4, line=10, shape=(1,), via="Join.__exit__"),
    ]
    lists = [out if n in joined else own for n in range(3)]
    found = diagnose(evidence([rank(calls, waits=True) for calls in lists]))
    others = tuple({0, 1, 2} - {*joined})
    assert (found.kind, found.ranks, found.line) == ("mismatched-collective", others, 13)
    assert "which has no partner on rank" in found.summary
    assert "Joinable" in (found.cure or "")
