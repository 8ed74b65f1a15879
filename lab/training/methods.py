"""How ranks share the work, and whose code does it: the words of the options. No torch here."""

from typing import Literal, get_args

Parallel = Literal["none", "ddp", "fsdp", "zero1", "zero2"]
Impl = Literal["ours", "torch", "minimal"]
"""lab.parallel's, PyTorch's, or the one-page MinimalDDP (ddp only)."""
PARALLEL: tuple[Parallel, ...] = get_args(Parallel)
IMPLS: tuple[Impl, ...] = get_args(Impl)
