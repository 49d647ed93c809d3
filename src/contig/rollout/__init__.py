"""On-policy storages for vectorised simulators, on any torch device."""

from __future__ import annotations

from .queue import ActionLabelRollout, QueueRolloutStorage
from .sarsa import SarsaRolloutStorage
from .state_buffer import StateReplayBuffer
from .storage import RolloutStorage
from .transition import DistillationBatch, MiniBatch, Statistics, Transition

ReplayBuffer = StateReplayBuffer

__all__ = [
    "ActionLabelRollout",
    "DistillationBatch",
    "MiniBatch",
    "QueueRolloutStorage",
    "ReplayBuffer",
    "RolloutStorage",
    "SarsaRolloutStorage",
    "StateReplayBuffer",
    "Statistics",
    "Transition",
]
