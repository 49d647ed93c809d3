"""The same code on a Ray cluster: ``pip install contig[ray]``.

Names load when they are first used, and Ray with them.

collector      RayCollector: the workers of a collector as actors
worker_actor   the actor: the loop of a worker process, and who watches it
actor_handle   an actor as its collector sees it; the carrier of all of them
weights        a policy's weights as one object per version
channel        RayChannel: items from many actors to many, with back-pressure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "collector": ("DistributedCollector", "RayCollector"),
    "channel": ("RayChannel",),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

if TYPE_CHECKING:
    from .channel import RayChannel as RayChannel
    from .collector import DistributedCollector as DistributedCollector
    from .collector import RayCollector as RayCollector
