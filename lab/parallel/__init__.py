"""Data-parallel training from scratch, in PyTorch alone. Usable without the rest of lab."""

from lab.parallel.minimal import (
    MinimalDDP,
    all_reduce_grads_,
    manual_all_reduce_matches_single_process,
)

__all__ = ["MinimalDDP", "all_reduce_grads_", "manual_all_reduce_matches_single_process"]
