"""Trajectory replay: whole ``[T, B]`` trajectories on a tape, sampled step by step."""

from .buffer import TrajectoryReplayBuffer
from .cache import TrajectoryCache
from .embodied import from_chunk_steps, from_rollout_result
from .entry import TrajectoryEntry
from .rlinf import export_rlinf, read_rlinf
from .trajectory import Trajectory, flatten_trajectory

__all__ = [
    "TrajectoryEntry",
    "Trajectory",
    "TrajectoryCache",
    "TrajectoryReplayBuffer",
    "export_rlinf",
    "flatten_trajectory",
    "from_chunk_steps",
    "from_rollout_result",
    "read_rlinf",
]
