"""From environments to the tape: environments, policies, collectors, weights.

Names load when they are first used: a process that steps one environment needs little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "base": ("BaseCollector",),
    "collector": ("Collector",),
    "env": ("EnvBase",),
    "stepping": ("Step",),
    "gym_env": ("GymEnv",),
    "wrappers": (
        "InitTracker",
        "StepCounter",
        "TensorDictPrimer",
    ),
    "multi": (
        "MultiAsyncCollector",
        "MultiCollector",
        "MultiSyncCollector",
    ),
    "parallel": ("ParallelEnv",),
    "random_policy": ("RandomPolicy",),
    "serial": ("SerialEnv",),
    "vector": ("VectorEnv",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .base import BaseCollector as BaseCollector
    from .collector import Collector as Collector
    from .env import EnvBase as EnvBase
    from .gym_env import GymEnv as GymEnv
    from .multi import MultiAsyncCollector as MultiAsyncCollector
    from .multi import MultiCollector as MultiCollector
    from .multi import MultiSyncCollector as MultiSyncCollector
    from .parallel import ParallelEnv as ParallelEnv
    from .random_policy import RandomPolicy as RandomPolicy
    from .serial import SerialEnv as SerialEnv
    from .stepping import Step as Step
    from .vector import VectorEnv as VectorEnv
    from .wrappers import InitTracker as InitTracker
    from .wrappers import StepCounter as StepCounter
    from .wrappers import TensorDictPrimer as TensorDictPrimer
