"""Data-parallel training from scratch, in PyTorch alone. Usable without the rest of lab."""

from lab.parallel.ddp import DDP, DistributedDataParallel
from lab.parallel.fsdp import FSDP, FullyShardedDataParallel
from lab.parallel.fsdp_options import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from lab.parallel.fsdp_state import join_shards
from lab.parallel.hierarchical import HierarchicalAllReduce
from lab.parallel.minimal import (
    MinimalDDP,
    all_reduce_grads_,
    fsdp_round_trip_sketch,
    manual_all_reduce_matches_single_process,
)
from lab.parallel.ordered import all_reduce_ordered
from lab.parallel.sync_batchnorm import SyncBatchNorm
from lab.parallel.zero import ZeroRedundancyOptimizer

__all__ = [
    "DDP",
    "FSDP",
    "BackwardPrefetch",
    "CPUOffload",
    "DistributedDataParallel",
    "FullStateDictConfig",
    "FullyShardedDataParallel",
    "HierarchicalAllReduce",
    "MinimalDDP",
    "MixedPrecision",
    "ShardingStrategy",
    "StateDictType",
    "SyncBatchNorm",
    "ZeroRedundancyOptimizer",
    "all_reduce_grads_",
    "all_reduce_ordered",
    "fsdp_round_trip_sketch",
    "join_shards",
    "manual_all_reduce_matches_single_process",
]
