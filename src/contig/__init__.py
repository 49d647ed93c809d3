"""contig: the trajectory data plane for reinforcement learning.

Names load when they are first used, and nothing here imports torch, jax or gymnasium.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if _path := os.environ.get("CONTIG_NATIVE_PATH"):
    # A native module built elsewhere, for the sanitizer builds of the test suite.
    import importlib.machinery
    import importlib.util

    _found = importlib.machinery.PathFinder.find_spec("_native", [_path])
    if _found is None or _found.loader is None:
        raise ImportError(f"CONTIG_NATIVE_PATH={_path}: no _native module there")
    _found.name = "contig._native"
    _found.loader.name = "contig._native"  # type: ignore[attr-defined]
    _module = importlib.util.module_from_spec(_found)
    sys.modules["contig._native"] = _module
    _found.loader.exec_module(_module)

__version__ = "0.1.0"

_WHERE = {
    "contig.batch": ("Batch",),
    "contig.codecs": ("Codec",),
    "contig.layout": ("Layout", "ShapeDtype"),
    "contig.ragged": ("Blob", "Ragged"),
    "contig.errors": (
        "ContigError",
        "EmptyBufferError",
        "NothingEligibleError",
        "LayoutError",
        "CodecError",
        "ClosedError",
        "DamagedError",
        "RateLimitError",
        "OverloadError",
        "ServerError",
        "WorkerError",
        "ConnectionClosedError",
        "StateError",
        "TapeBusy",
        "StorageFull",
    ),
    "contig.accumulate": ("TrajectoryAccumulator",),
    "contig.tape": ("DeviceStorage", "LazyTensorStorage", "SharedStorage", "Storage", "Writer"),
    "contig.tape.disk": ("DiskStorage", "LazyMemmapStorage"),
    "contig.sample": (
        "ChunkSampler",
        "FifoSampler",
        "HindsightRelabel",
        "LifoSampler",
        "NStepSampler",
        "Predicate",
        "PrioritizedSampler",
        "PrioritizedSliceSampler",
        "RandomSampler",
        "RateLimiter",
        "Sampler",
        "SamplerWithoutReplacement",
        "SliceSampler",
        "SliceSamplerWithoutReplacement",
        "TrajectorySampler",
        "WindowSampler",
    ),
    "contig.replay": (
        "ReplayBuffer",
        "ReplayBufferEnsemble",
        "TensorDictReplayBuffer",
    ),
    "contig.trajectory": ("Trajectory", "TrajectoryCache", "TrajectoryReplayBuffer"),
    "contig.learn": (
        "DiscountedReturn",
        "GAE",
        "GRUModule",
        "LSTMModule",
        "NStep",
        "TD0",
        "TDLambda",
        "VTrace",
        "pad_slices",
        "per_trajectory",
        "recurrent_mode_state",
        "set_recurrent_mode",
        "split_trajectories",
        "unpad_slices",
    ),
    "contig.dataset": ("RolloutDataset", "RolloutFileBase", "RolloutWriter"),
    "contig.rollout": (
        "ActionLabelRollout",
        "MiniBatch",
        "QueueRolloutStorage",
        "RolloutStorage",
        "SarsaRolloutStorage",
        "StateReplayBuffer",
        "Transition",
    ),
    "contig.weights": ("Weights",),
    "contig.client": ("RemoteReplayBuffer", "SharedClient", "TcpClient"),
    "contig.server": ("Sample", "SampleInfo", "Server", "TcpTransport"),
    "contig.collect": (
        "BaseCollector",
        "Collector",
        "EnvBase",
        "GymEnv",
        "InitTracker",
        "MultiAsyncCollector",
        "MultiCollector",
        "MultiSyncCollector",
        "ParallelEnv",
        "RandomPolicy",
        "SerialEnv",
        "StepCounter",
        "TensorDictPrimer",
        "VectorEnv",
    ),
    "contig.cluster": (
        "DistributedCollector",
        "DistributedSyncCollector",
        "RayChannel",
        "RayCollector",
        "RayReplayBuffer",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
# Names whose modules import a library that may be missing: the module, or the name.
_NEEDS = {
    "torch": ("contig.rollout", "GRUModule", "LSTMModule", "RolloutDataset", "RolloutFileBase"),
    "ray": ("contig.cluster",),
}

if TYPE_CHECKING:
    from .accumulate import TrajectoryAccumulator as TrajectoryAccumulator
    from .batch import Batch as Batch
    from .client import RemoteReplayBuffer as RemoteReplayBuffer
    from .client import SharedClient as SharedClient
    from .client import TcpClient as TcpClient
    from .cluster import DistributedCollector as DistributedCollector
    from .cluster import DistributedSyncCollector as DistributedSyncCollector
    from .cluster import RayChannel as RayChannel
    from .cluster import RayCollector as RayCollector
    from .cluster import RayReplayBuffer as RayReplayBuffer
    from .codecs import Codec as Codec
    from .collect import BaseCollector as BaseCollector
    from .collect import Collector as Collector
    from .collect import EnvBase as EnvBase
    from .collect import GymEnv as GymEnv
    from .collect import InitTracker as InitTracker
    from .collect import MultiAsyncCollector as MultiAsyncCollector
    from .collect import MultiCollector as MultiCollector
    from .collect import MultiSyncCollector as MultiSyncCollector
    from .collect import ParallelEnv as ParallelEnv
    from .collect import RandomPolicy as RandomPolicy
    from .collect import SerialEnv as SerialEnv
    from .collect import StepCounter as StepCounter
    from .collect import TensorDictPrimer as TensorDictPrimer
    from .collect import VectorEnv as VectorEnv
    from .dataset import RolloutDataset as RolloutDataset
    from .dataset import RolloutFileBase as RolloutFileBase
    from .dataset import RolloutWriter as RolloutWriter
    from .errors import ClosedError as ClosedError
    from .errors import CodecError as CodecError
    from .errors import ConnectionClosedError as ConnectionClosedError
    from .errors import ContigError as ContigError
    from .errors import DamagedError as DamagedError
    from .errors import EmptyBufferError as EmptyBufferError
    from .errors import LayoutError as LayoutError
    from .errors import NothingEligibleError as NothingEligibleError
    from .errors import OverloadError as OverloadError
    from .errors import RateLimitError as RateLimitError
    from .errors import ServerError as ServerError
    from .errors import StateError as StateError
    from .errors import StorageFull as StorageFull
    from .errors import TapeBusy as TapeBusy
    from .errors import WorkerError as WorkerError
    from .layout import Layout as Layout
    from .layout import ShapeDtype as ShapeDtype
    from .learn import GAE as GAE
    from .learn import TD0 as TD0
    from .learn import DiscountedReturn as DiscountedReturn
    from .learn import GRUModule as GRUModule
    from .learn import LSTMModule as LSTMModule
    from .learn import NStep as NStep
    from .learn import TDLambda as TDLambda
    from .learn import VTrace as VTrace
    from .learn import pad_slices as pad_slices
    from .learn import per_trajectory as per_trajectory
    from .learn import recurrent_mode_state as recurrent_mode_state
    from .learn import set_recurrent_mode as set_recurrent_mode
    from .learn import split_trajectories as split_trajectories
    from .learn import unpad_slices as unpad_slices
    from .ragged import Blob as Blob
    from .ragged import Ragged as Ragged
    from .replay import ReplayBuffer as ReplayBuffer
    from .replay import ReplayBufferEnsemble as ReplayBufferEnsemble
    from .replay import TensorDictReplayBuffer as TensorDictReplayBuffer
    from .rollout import ActionLabelRollout as ActionLabelRollout
    from .rollout import MiniBatch as MiniBatch
    from .rollout import QueueRolloutStorage as QueueRolloutStorage
    from .rollout import RolloutStorage as RolloutStorage
    from .rollout import SarsaRolloutStorage as SarsaRolloutStorage
    from .rollout import StateReplayBuffer as StateReplayBuffer
    from .rollout import Transition as Transition
    from .sample import ChunkSampler as ChunkSampler
    from .sample import FifoSampler as FifoSampler
    from .sample import HindsightRelabel as HindsightRelabel
    from .sample import LifoSampler as LifoSampler
    from .sample import NStepSampler as NStepSampler
    from .sample import Predicate as Predicate
    from .sample import PrioritizedSampler as PrioritizedSampler
    from .sample import PrioritizedSliceSampler as PrioritizedSliceSampler
    from .sample import RandomSampler as RandomSampler
    from .sample import RateLimiter as RateLimiter
    from .sample import Sampler as Sampler
    from .sample import SamplerWithoutReplacement as SamplerWithoutReplacement
    from .sample import SliceSampler as SliceSampler
    from .sample import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
    from .sample import TrajectorySampler as TrajectorySampler
    from .sample import WindowSampler as WindowSampler
    from .server import Sample as Sample
    from .server import SampleInfo as SampleInfo
    from .server import Server as Server
    from .server import TcpTransport as TcpTransport
    from .tape import DeviceStorage as DeviceStorage
    from .tape import LazyTensorStorage as LazyTensorStorage
    from .tape import SharedStorage as SharedStorage
    from .tape import Storage as Storage
    from .tape import Writer as Writer
    from .tape.disk import DiskStorage as DiskStorage
    from .tape.disk import LazyMemmapStorage as LazyMemmapStorage
    from .trajectory import Trajectory as Trajectory
    from .trajectory import TrajectoryCache as TrajectoryCache
    from .trajectory import TrajectoryReplayBuffer as TrajectoryReplayBuffer
    from .weights import Weights as Weights


# Made for every sample or row: nothing is put around their constructors.
_VALUES = ("contig.batch", "contig.ragged", "contig.layout", "contig.errors")


def _needed(name: str) -> str | None:
    """The library that a name needs beside numpy and optree, if any."""
    asked = (name, _MODULE_OF[name])
    return next((library for library, names in _NEEDS.items() if {*asked} & {*names}), None)


def _installed(library: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(library) is not None
    except ImportError:
        return False


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        try:
            found = getattr(importlib.import_module(_MODULE_OF[name]), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name != _needed(name):
                raise
            from .lazy import install_hint

            hint = f"contig.{name} needs {error.name}: {install_hint(error.name)}"
            raise ImportError(hint, name=error.name) from error
        if isinstance(found, type) and _MODULE_OF[name] not in _VALUES:
            from .unknown_arguments import explains_unknown

            explains_unknown(found)
        return found
    if name == "__all__":  # what `from contig import *` can give, with the libraries that are there
        there = {library: _installed(library) for library in _NEEDS}
        return [n for n in _MODULE_OF if there.get(_needed(n) or "", True)]
    if name == "learn":  # so that contig.learn.gae needs no other import
        return importlib.import_module("contig.learn")
    hint = importlib.import_module("contig.adapters.torchrl.instead").only_theirs(name)
    if hint is not None:  # an ImportError: `from ... import name` drops what an AttributeError says
        raise ImportError(f"contig has no {name}: {hint}", name="contig")
    raise AttributeError(f"module 'contig' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(_MODULE_OF)
