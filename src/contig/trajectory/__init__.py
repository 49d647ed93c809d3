"""Trajectory replay: whole ``[T, B]`` trajectories on a tape, sampled step by step."""

from .buffer import TrajectoryReplayBuffer
from .cache import TrajectoryCache
from .trajectory import Trajectory

__all__ = ["Trajectory", "TrajectoryCache", "TrajectoryReplayBuffer"]
