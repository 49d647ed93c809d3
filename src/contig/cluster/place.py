"""What is said of shards between processes: what they are made of, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..tape import SharedStorage, Storage

__all__ = ["Place", "Placement", "ShardSpec", "make_storage"]

Placement = str | Sequence[Any]


class ShardSpec(NamedTuple):
    """What shards are made of.

    Attributes:
        shards: how many.
        storage: makes one's storage from its slot, in its own process; or rows of shared memory.
        keys: `traj_key` and `end_key` of the sampler.
        placement: "spread", "local", or a node id or resources for each slot.
        token: what producers must know.
        num_cpus: that each takes of its node.
        home: the node of the process that made the buffer.
    """

    shards: int
    storage: int | Callable[[int], Storage]
    keys: tuple[Any, Any]
    placement: Placement
    token: str
    num_cpus: float
    home: str


class Place(NamedTuple):
    """A shard that runs.

    Attributes:
        slot: which of the shards, from 0.
        number: of what it holds: no two memories ever have the same. A shard on disk that comes
            back has the number it had, one in memory is another.
        life: counts how often the slot was filled.
        actor: its Ray actor.
        node: the id of its node.
        server, host, port: its name on that node, and its address for others.
        kind: "shared" or "disk".
        where: the name of its memory, or its directory.
    """

    slot: int
    number: int
    life: int
    actor: Any
    node: str
    server: str
    host: str
    port: int
    kind: str
    where: str


def make_storage(storage: int | Callable[[int], Storage], slot: int) -> Storage:
    """A shard's storage."""
    return SharedStorage(storage) if isinstance(storage, int) else storage(slot)
