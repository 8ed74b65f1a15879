"""Which samples the loaders of a rank deliver in each epoch, in which order."""

import base64
import functools
import itertools
import time
import weakref
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Subset, dataloader

from .forwards import samples_of
from .hooks import Hooks
from .rows import row_digests

LARGEST = 1 << 21
"""Samples of a dataset; what its epochs are is not noted where it has more."""
PROBED = 2
"""Epochs in which that is done."""
OPTIONS = ("num_replicas", "rank", "shuffle", "seed", "epoch", "drop_last", "replacement")
"""Of samplers: what a judge wants to know, where they have it."""
PROBES = 64
"""Samples of which the contents are noted: whether the ranks' datasets are the same."""


@dataclass
class Epoch:
    """One time through a loader."""

    number: int
    """From 1, of those that begin on the same line."""
    began: int
    """The optimizer steps there had been."""
    site: dict[str, Any]
    dataset: Any
    sampler: Any
    waiting: deque[Any] = field(default_factory=deque)
    """Indices that were drawn, by batch, for batches that are still to come."""
    batches: list[list[int]] = field(default_factory=list)
    """Indices of those that came, in the whole dataset."""
    probes: dict[int, int] = field(default_factory=dict)
    """Digests of some samples, by index."""
    known: bool = True
    """Whether the sampler draws indices, and not something of its own."""


class Loaders:
    """Listens to the iterators of `torch.utils.data.DataLoader`."""

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._epochs: weakref.WeakKeyDictionary[Any, Epoch] = weakref.WeakKeyDictionary()
        self._open: dict[object, Epoch] = {}
        """By line: those that have not been recorded. The script may have broken them off."""
        self._numbers: dict[object, int] = {}
        self.last_site: dict[str, Any] | None = None
        """Where the script took its newest batch from a loader, if it did since the last step."""
        self.last_share: tuple[int, int] | None = None
        """How many shares its sampler deals out, and the one that this rank takes; None: none."""
        self.waited = 0.0
        """Seconds that the script has waited for loaders."""
        hooks.after_step.append(self._on_step)
        hooks.recorder.before_close.append(self._on_close)
        self._listen(hooks)

    def _listen(self, hooks: Hooks) -> None:
        iterator: Any = dataloader._BaseDataLoaderIter
        draw, deliver = iterator._next_index, iterator.__next__

        @functools.wraps(draw)
        def drawn(loader: Any) -> Any:
            indices = draw(loader)
            hooks.tell([self._on_draw], loader, indices)
            return indices

        @functools.wraps(deliver)
        def delivered(loader: Any) -> Any:
            began = time.perf_counter()
            try:
                batch = deliver(loader)
            except StopIteration:
                hooks.tell([self._on_end], loader)
                raise
            finally:
                self.waited += time.perf_counter() - began
            hooks.tell([self._on_batch], loader, batch)
            return batch

        iterator._next_index, iterator.__next__ = drawn, delivered
        # Workers that persist go on with the same iterator.
        hooks.wrap(iterator, "_reset", before=self._on_reset)

    def _on_reset(self, loader: Any, *_: Any, **__: Any) -> None:
        self._epochs.pop(loader, None)

    def _on_draw(self, loader: Any, indices: Any) -> None:
        if loader._dataset_kind == dataloader._DatasetKind.Map:
            self._epoch(loader).waiting.append(indices)

    def _on_batch(self, loader: Any, batch: Any) -> None:
        epoch = self._epoch(loader)
        self.last_site = epoch.site
        shares = getattr(epoch.sampler, "num_replicas", None)
        rank = getattr(epoch.sampler, "rank", None)
        self.last_share = (shares, rank) if type(shares) is type(rank) is int else None
        indices = epoch.waiting.popleft() if epoch.waiting else None
        if isinstance(indices, int):
            indices = [indices]
        if not isinstance(indices, list) or not all(type(index) is int for index in indices):
            epoch.known = False
            return
        indices = _resolved(epoch.dataset, indices)
        epoch.batches.append(indices)
        if epoch.number > PROBED or len(epoch.probes) >= PROBES:
            return
        size = len(_root(epoch.dataset))
        wanted = {place: i for place, i in enumerate(indices) if _is_probe(i, size)}
        tensors = samples_of(batch)
        if wanted and tensors and tensors[0].shape[0] == len(indices):
            rows = row_digests([one[list(wanted)] for one in tensors])
            epoch.probes.update(zip(wanted.values(), rows, strict=True))

    def _on_end(self, loader: Any) -> None:
        epoch = self._epochs.pop(loader, None)
        if epoch is not None:
            self._record(epoch, whole=True)

    def _record(self, epoch: Epoch, whole: bool) -> None:
        """Tell of an epoch that is over, if something was trained in it."""
        self._open.pop((epoch.site["file"], epoch.site["line"]), None)
        trained = self._recorder.step > epoch.began
        size = len(_root(epoch.dataset)) if epoch.known and epoch.batches and trained else 0
        if not 0 < size <= LARGEST:
            return
        order = [index for batch in epoch.batches for index in batch]
        within = None
        if isinstance(epoch.dataset, Subset):
            within = _bits(_resolved(epoch.dataset, range(len(epoch.dataset))), size)
        sampler = epoch.sampler
        options = {name: getattr(sampler, name, None) for name in OPTIONS}
        self._recorder.record(
            "loaders",
            epoch=epoch.number,
            whole=whole,
            dataset=type(_root(epoch.dataset)).__name__,
            size=size,
            within=within,
            drawn=len(order),
            samples=_bits(order, size),
            body=_bits(order[: -len(epoch.batches[-1])], size),
            batch=max(map(len, epoch.batches)),
            order=zlib.crc32(repr(order).encode()),
            descents=sum(b < a for a, b in itertools.pairwise(order)),
            probes=list(epoch.probes.items()),
            sampler=type(sampler).__name__,
            options={name: one for name, one in options.items() if isinstance(one, int)},
            **epoch.site,
        )

    def _on_step(self, *_: Any) -> None:
        self.last_site = self.last_share = None

    def _on_close(self) -> None:
        for epoch in list(self._open.values()):
            self._record(epoch, whole=False)

    def _epoch(self, loader: Any) -> Epoch:
        epoch = self._epochs.get(loader)
        if epoch is None:
            site = self._recorder.site()
            line = site["file"], site["line"]
            if line in self._open:
                self._record(self._open[line], whole=False)
            number = self._numbers[line] = self._numbers.get(line, 0) + 1
            sampler = loader._index_sampler  # of batches, most often
            sampler = getattr(sampler, "sampler", sampler)
            epoch = Epoch(number, self._recorder.step, site, loader._dataset, sampler)
            self._epochs[loader] = self._open[line] = epoch
        return epoch


def _root(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _resolved(dataset: Any, indices: Iterable[int]) -> list[int]:
    """Indices of a part of a dataset as those of the whole."""
    while isinstance(dataset, Subset):
        whole = dataset.indices
        indices = [int(whole[index]) for index in indices]
        dataset = dataset.dataset
    return list(indices)


def _is_probe(index: int, size: int) -> bool:
    """A few of a dataset, the same on every rank, and not at regular distances."""
    return index * 2654435761 % (1 << 32) * size < PROBES << 32


def _bits(indices: Iterable[int], size: int) -> str:
    """A set of numbers below `size`, as text."""
    bits = bytearray(-(-size // 8))
    for index in indices:
        bits[index >> 3] |= 1 << (index & 7)
    return base64.b64encode(zlib.compress(bytes(bits))).decode()
