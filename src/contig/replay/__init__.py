"""Buffers: a storage and a sampler together, alone or as an ensemble."""

from .buffer import BufferStats, ReplayBuffer, TensorDictReplayBuffer
from .ensemble import ReplayBufferEnsemble

__all__ = ["BufferStats", "ReplayBuffer", "ReplayBufferEnsemble", "TensorDictReplayBuffer"]
