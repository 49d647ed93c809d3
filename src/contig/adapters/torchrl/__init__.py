"""TorchRL's names with TorchRL's arguments and defaults, over contig's buffers and collectors.

    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer               # before
    from contig.adapters.torchrl import LazyTensorStorage, TensorDictReplayBuffer    # after

Losses, modules, transforms and environments stay TorchRL's own. `contig` itself has most of these
names too, with contig's arguments: numpy first, seqs for indices. Names load when they are used;
those of TorchRL's that are not here raise an ImportError that says what to use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...lazy import lazy_names, requires_extra

_WHERE = {
    "base_collector": ("BaseCollector",),
    "buffers": ("ReplayBuffer",),
    "collectors": (
        "AsyncCollector",
        "Collector",
        "MultiAsyncCollector",
        "MultiCollector",
        "MultiSyncCollector",
        "MultiSyncDataCollector",
        "MultiaSyncDataCollector",
        "SyncDataCollector",
        "aSyncDataCollector",
    ),
    "ensemble": ("ReplayBufferEnsemble",),
    "prioritized": ("PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"),
    "samplers": (
        "PrioritizedSampler",
        "PrioritizedSliceSampler",
        "RandomSampler",
        "SamplerWithoutReplacement",
        "SliceSampler",
        "SliceSamplerWithoutReplacement",
    ),
    "tensordict_buffer": ("TensorDictReplayBuffer",),
    "storages": ("LazyMemmapStorage", "LazyTensorStorage"),
    "writers": ("RoundRobinWriter", "TensorDictRoundRobinWriter"),
}
__all__, _load, __dir__ = lazy_names(__name__, _WHERE)


def __getattr__(name: str) -> Any:
    if name in __all__:
        with requires_extra(__name__, "torchrl"):
            return _load(name)
    from .instead import instead_of

    hint = instead_of(name)
    if hint is not None:  # an ImportError: `from ... import name` drops what an AttributeError says
        raise ImportError(f"{__name__} has no {name}: {hint}", name=__name__)
    return _load(name)


if TYPE_CHECKING:
    from .base_collector import BaseCollector as BaseCollector
    from .buffers import ReplayBuffer as ReplayBuffer
    from .collectors import AsyncCollector as AsyncCollector
    from .collectors import Collector as Collector
    from .collectors import MultiAsyncCollector as MultiAsyncCollector
    from .collectors import MultiaSyncDataCollector as MultiaSyncDataCollector
    from .collectors import MultiCollector as MultiCollector
    from .collectors import MultiSyncCollector as MultiSyncCollector
    from .collectors import MultiSyncDataCollector as MultiSyncDataCollector
    from .collectors import SyncDataCollector as SyncDataCollector
    from .collectors import aSyncDataCollector as aSyncDataCollector
    from .ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
    from .prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from .prioritized import TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer
    from .samplers import PrioritizedSampler as PrioritizedSampler
    from .samplers import PrioritizedSliceSampler as PrioritizedSliceSampler
    from .samplers import RandomSampler as RandomSampler
    from .samplers import SamplerWithoutReplacement as SamplerWithoutReplacement
    from .samplers import SliceSampler as SliceSampler
    from .samplers import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
    from .storages import LazyMemmapStorage as LazyMemmapStorage
    from .storages import LazyTensorStorage as LazyTensorStorage
    from .tensordict_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
    from .writers import RoundRobinWriter as RoundRobinWriter
    from .writers import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
