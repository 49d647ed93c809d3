"""Beyond one machine: buffers and collectors on a Ray cluster (extra ``ray``).

Names load when they are first used: only then is ray imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "channel": ("RayChannel",),
    "client": ("ShardClient", "ShardProducer"),
    "collector": ("DistributedCollector", "DistributedSyncCollector", "RayCollector"),
    "replay": ("RayReplayBuffer",),
    "statistics": ("RayBufferStats",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .channel import RayChannel as RayChannel
    from .client import ShardClient as ShardClient
    from .client import ShardProducer as ShardProducer
    from .collector import DistributedCollector as DistributedCollector
    from .collector import DistributedSyncCollector as DistributedSyncCollector
    from .collector import RayCollector as RayCollector
    from .replay import RayReplayBuffer as RayReplayBuffer
    from .statistics import RayBufferStats as RayBufferStats
