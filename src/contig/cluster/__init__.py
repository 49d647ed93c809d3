"""Beyond one machine: buffers and collectors on a Ray cluster (``pip install contig[ray]``).

Names load when they are first used: only then is ray imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "client": ("ShardClient", "ShardProducer"),
    "replay": ("RayBufferStats", "RayReplayBuffer"),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .client import ShardClient as ShardClient
    from .client import ShardProducer as ShardProducer
    from .replay import RayBufferStats as RayBufferStats
    from .replay import RayReplayBuffer as RayReplayBuffer
