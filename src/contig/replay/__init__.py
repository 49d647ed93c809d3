"""Buffers: a storage and a sampler together, alone or as an ensemble; and the one way in.

Names load when they are first used: a process that only writes needs little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "buffer": ("BufferStats", "ReplayBuffer"),
    "ensemble": ("ReplayBufferEnsemble",),
    "ingress": ("Ingress",),
    "lending": ("Lent",),
    "tensordict_buffer": ("TensorDictReplayBuffer",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .buffer import BufferStats as BufferStats
    from .buffer import ReplayBuffer as ReplayBuffer
    from .ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
    from .ingress import Ingress as Ingress
    from .lending import Lent as Lent
    from .tensordict_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
