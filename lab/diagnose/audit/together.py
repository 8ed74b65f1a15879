"""Whether the ranks train one model, or each one of its own: an ensemble, a search."""

from lab.diagnose.audit.columns import Columns
from lab.diagnose.audit.records import Record


class Together:
    """Takes the records of `batches`: what the ranks' weights are, and whether they exchange."""

    def __init__(self, world_size: int) -> None:
        self._steps: Columns[int] = Columns(world_size)
        self._seen = self._alike = 0

    def feed(self, rank: int, record: Record) -> None:
        """Take the first microbatch of a step: before the others of it nothing is exchanged."""
        if record["microbatch"]:
            return
        what = {name: record[name] for name in ("weights", "exchanged")}
        ranks = self._steps.add(record["step"], rank, what)
        if ranks is not None:
            self._seen += 1
            one_model = len({one["weights"] for one in ranks.values()}) == 1
            self._alike += one_model and any(one["exchanged"] for one in ranks.values())

    @property
    def apart(self) -> bool:
        """Whether most steps show models of the ranks' own; not, where nothing was seen."""
        return self._alike * 2 < self._seen
