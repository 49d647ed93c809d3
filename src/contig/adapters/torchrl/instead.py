"""Names of TorchRL's that the adapter has not: what to use in their place."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["instead_of", "only_theirs"]

_FILE = "a buffer's dumps and loads, which write and read a contig checkpoint"
_ENSEMBLE = "ReplayBufferEnsemble, of buffers that have a storage and a sampler each"
_RAY = "contig.RayCollector"
_RAY_SYNC = "contig.DistributedSyncCollector"
_RING = (
    "no writer: rows are kept in the order of writing, and the oldest give way; filter what is "
    "written, or draw by PrioritizedSampler"
)
_ROWS = "LazyTensorStorage, with rows of one layout; leaves of any size are contig.Ragged and Blob"
_WEIGHTS = "update_policy_weights_ of the collectors here"

_INSTEAD = {
    "AsyncBatchedCollector": "MultiAsyncCollector",
    "CompressedListStorage": 'LazyTensorStorage(max_size, codecs={"pixels": "zstd"})',
    "ConsumingSampler": "contig.RandomSampler(max_times_sampled=1)",
    "DistributedCollector": _RAY,
    "DistributedDataCollector": _RAY,
    "DistributedSyncCollector": _RAY_SYNC,
    "DistributedSyncDataCollector": _RAY_SYNC,
    "HERReplayBuffer": "a buffer with contig.HindsightRelabel as its sampler",
    "HindsightStrategy": 'contig.HindsightRelabel(strategy="future")',
    "ImmutableDatasetWriter": _RING,
    "LazyStackStorage": _ROWS,
    "ListStorage": _ROWS,
    "OfflineToOnlineReplayBuffer": "ReplayBufferEnsemble(offline, online, p=[0.5, 0.5])",
    "PromptGroupSampler": "contig.TrajectorySampler(group=, group_size=)",
    "RayCollector": _RAY,
    "RayReplayBuffer": "contig.RayReplayBuffer",
    "RemoteTensorDictReplayBuffer": "contig.RemoteReplayBuffer, of a contig.Server's table",
    "RPCCollector": _RAY,
    "RPCDataCollector": _RAY,
    "SampleUnit": "SliceSampler",
    "Sampler": "contig.Sampler",
    "SamplerEnsemble": _ENSEMBLE,
    "StalenessAwareSampler": "contig.WindowSampler(max_staleness=)",
    "Storage": "contig.Storage",
    "StorageEnsemble": _ENSEMBLE,
    "StoreStorage": "contig.RemoteReplayBuffer, of a contig.Server's table",
    "StreamingSliceSampler": "contig.FifoSampler, or SliceSampler",
    "TensorDictMaxValueWriter": _RING,
    "TensorStorage": "LazyTensorStorage, and extend it with what it should hold",
    "Writer": _RING,
    "WriterEnsemble": _ENSEMBLE,
}
_THEIRS = ("torchrl.data", "torchrl.data.replay_buffers", "torchrl.collectors", "torchrl.envs")


def only_theirs(name: str) -> str | None:
    """What to use in the place of a class that only TorchRL has; None of others."""
    if name in _INSTEAD:
        return f"use {_INSTEAD[name]}"
    if name.removesuffix("Base").endswith("Checkpointer"):
        return f"use {_FILE}"
    if name.removesuffix("Base").endswith("WeightUpdater"):
        return f"use {_WEIGHTS}"
    return None


def instead_of(name: str) -> str | None:
    """What to use in the place of a name of TorchRL's; None if TorchRL has none of this name."""
    if name.startswith("_"):
        return None
    hint = only_theirs(name)
    if hint is not None:
        return hint
    for module in _THEIRS:
        found = getattr(importlib.import_module(module), name, None)
        if found is not None and not isinstance(found, ModuleType):
            return f"TorchRL's own goes with what is here: from {module} import {name}"
    return None
