"""Steps without the gradients that FSDP2 was told not to reduce."""

from collections.abc import Mapping

from lab.diagnose.audit.by_line import ByLine
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words


class HeldBack(ByLine):
    """Takes where the exchange was left out before a step that would have needed it."""

    checks = frozenset({"held-back"})

    def _say(self, ranks: Mapping[int, Record]) -> Finding:
        guilty = tuple(sorted(ranks))
        record = ranks[guilty[0]]
        return Finding(
            "no-sync-at-step",
            "error",
            f"{ranks_in_words(guilty)} step{'s' * (len(guilty) == 1)} without gradients that "
            "FSDP has not reduced: set_requires_gradient_sync(False) was on in the last backward "
            "before the step",
            ranks=guilty,
            step=record["count"],
            **line_of(record),
            cure="switch it on again (True) before the backward of the last microbatch of each "
            "step, which then reduces what all of them have added up",
        )
