"""Text that every machine has: the source of Python's own standard library, byte by byte.

Nothing is downloaded. The text is that of this Python version, so nodes with different versions
have different texts: `require_same_text` compares them.
"""

import hashlib
import platform
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset

from lab.errors import UsageError

BYTES = 256
"""How many different tokens there are: a token is a byte."""


def library_source() -> bytes:
    """The modules of the standard library, in the order of their names: 4.7 MB in Python 3.11.

    Packages (folders) are left out: distributions deliver some of them separately.

    Raises:
        UsageError: this Python comes without its source.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    names = sorted(sys.stdlib_module_names)  # not what else is there: it is each machine's own
    files = [file for name in names if (file := folder / f"{name}.py").is_file()]
    if not files:
        raise UsageError(f"no source of the standard library in {folder}: use --text FILE")
    return b"".join(file.read_bytes() for file in files)


def require_same_text(text: bytes) -> None:
    """Compare the text over all ranks. A collective, where there is a process group.

    Raises:
        UsageError: the ranks have different texts; raised on every rank.
    """
    if not dist.is_initialized():
        return
    mine = (hashlib.sha256(text).hexdigest(), platform.python_version(), len(text))
    texts = [mine] * dist.get_world_size()
    dist.all_gather_object(texts, mine)
    for rank, theirs in enumerate(texts):
        if theirs[0] != texts[0][0]:
            raise UsageError(
                f"the ranks have different texts: rank 0 with Python {texts[0][1]} has "
                f"{texts[0][2]} bytes, rank {rank} with Python {theirs[1]} has {theirs[2]}; "
                "use one Python on all nodes, or give all of them one file with --text FILE"
            )


class Windows(Dataset[tuple[Tensor, ...]]):
    """A text cut into windows, one behind the other.

    A sample: the tokens [context] int64, and for each of them the one that follows it.
    """

    def __init__(self, text: bytes, context: int, at_most: int | None = None) -> None:
        """Cut; what is left at the end is not used.

        Args:
            text: longer than one window.
            context: tokens of a window.
            at_most: as many windows, spread evenly; None: all there are.

        Raises:
            UsageError: the text is shorter than one window.
        """
        if len(text) <= context:
            raise UsageError(
                f"a text of {len(text)} bytes is too short for a window of {context}: "
                "use a longer text or a smaller --context"
            )
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context
        windows = (len(self._tokens) - 1) // context
        self._every = 1 if at_most is None else -(-windows // at_most)
        self._count = -(-windows // self._every)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        start = index * self._every * self._context
        window = self._tokens[start : start + self._context + 1].long()
        return window[:-1], window[1:]
