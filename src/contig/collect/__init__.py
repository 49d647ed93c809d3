"""From environments to the tape: environments, policies, collectors, weights.

Names load when they are first used: a process that steps one environment needs little of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Collector": "collector",
    "GymEnv": "gym_env",
    "InitTracker": "wrappers",
    "MultiAsyncCollector": "multi",
    "MultiCollector": "multi",
    "MultiSyncCollector": "multi",
    "ParallelEnv": "parallel",
    "RandomPolicy": "random_policy",
    "SerialEnv": "serial",
    "StepCounter": "wrappers",
    "TensorDictPrimer": "wrappers",
    "VectorEnv": "vector",
}
__all__ = list(_WHERE)

if TYPE_CHECKING:
    from .collector import Collector as Collector
    from .gym_env import GymEnv as GymEnv
    from .multi import MultiAsyncCollector as MultiAsyncCollector
    from .multi import MultiCollector as MultiCollector
    from .multi import MultiSyncCollector as MultiSyncCollector
    from .parallel import ParallelEnv as ParallelEnv
    from .random_policy import RandomPolicy as RandomPolicy
    from .serial import SerialEnv as SerialEnv
    from .vector import VectorEnv as VectorEnv
    from .wrappers import InitTracker as InitTracker
    from .wrappers import StepCounter as StepCounter
    from .wrappers import TensorDictPrimer as TensorDictPrimer


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
