"""Buffers for stable-baselines3, in the place of its own.

    SAC(..., replay_buffer_class=contig.adapters.sb3.ReplayBuffer)

They are subclasses of SB3's classes with SB3's arguments. Rows are on a tape (`buffer.storage`), as
trajectories, so that the rest of contig can read them, too.
"""

from ...lazy import requires_extra

with requires_extra("contig.adapters.sb3", "sb3"):
    from .dqn import PrioritizedDQN
    from .hindsight import HerReplayBuffer
    from .nstep import NStepReplayBuffer
    from .prioritized import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
    from .replay import DictReplayBuffer, ReplayBuffer
    from .rollout import DictRolloutBuffer, RolloutBuffer

__all__ = [
    "DictReplayBuffer",
    "DictRolloutBuffer",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "PrioritizedDQN",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "ReplayBuffer",
    "RolloutBuffer",
]
