"""What a measurement makes of the end of its run."""

from typing import Any

import pytest

from lab.bench.ended import ended
from lab.interrupts import Terminated
from lab.runs.verdict import Verdict


class Run:
    """It has come to that end."""

    def __init__(self, kind: Any, code: int) -> None:
        self.verdict = Verdict(kind, code, "words")

    def run(self) -> Verdict:
        return self.verdict


def test_who_interrupts_it_wants_no_more() -> None:
    ctrl_c: Any = Run("interrupted", 130)
    with pytest.raises(KeyboardInterrupt):
        ended(ctrl_c)
    term: Any = Run("interrupted", 143)
    with pytest.raises(Terminated) as caught:
        ended(term)
    assert (caught.value.code, caught.value.is_told) == (143, True)
    hup: Any = Run("interrupted", 129)
    with pytest.raises(Terminated) as caught:
        ended(hup)
    assert (caught.value.code, caught.value.is_told) == (129, False), "the terminal was closed"


def test_other_ends_are_for_who_measures() -> None:
    for kind, code in (("ok", 0), ("exception", 1)):
        run: Any = Run(kind, code)
        assert ended(run).exit_code == code
