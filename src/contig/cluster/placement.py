"""What shards are made of, and which node one goes to."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..arguments import number, whole
from ..sample import Sampler
from .engine import own_node, ray
from .place import Placement, ShardSpec

__all__ = ["actor_options", "check_placement", "checked_spec", "choose_node"]


def check_placement(placement: Any, shards: int) -> Placement:
    """A placement that can be had.

    Raises:
        ValueError, TypeError: it cannot, with what there is.
    """
    if isinstance(placement, str):
        if placement not in ("spread", "local"):
            raise ValueError(
                f'placement: expected "spread", "local", or a list with a node id or resources '
                f"for each shard, got {placement!r}"
            )
        return placement
    if not isinstance(placement, Sequence):
        raise TypeError(
            f'placement: expected "spread", "local" or a list, got {type(placement).__name__}'
        )
    if len(placement) != shards:
        raise ValueError(f"placement: {len(placement)} places for {shards} shards")
    known = {n["NodeID"]: n for n in ray.nodes() if n["Alive"]}
    for slot, want in enumerate(placement):
        if isinstance(want, str):
            if want not in known:
                raise ValueError(
                    f"placement[{slot}]: no node {want!r} is alive; there are {', '.join(known)}"
                )
        elif isinstance(want, dict):
            if not any(_has(node["Resources"], want) for node in known.values()):
                raise ValueError(f"placement[{slot}]: no node has the resources {want}")
        else:
            raise TypeError(
                f"placement[{slot}]: expected a node id or resources such as {{'gpu_node': 1}}, "
                f"got {want!r}"
            )
    return list(placement)


def _has(there: dict[str, float], wanted: dict[str, float]) -> bool:
    return all(there.get(name, 0.0) >= amount for name, amount in wanted.items())


def choose_node(
    placement: Placement, slot: int, home: str, others: Iterable[str | None], before: str | None
) -> str | None:
    """The node that a shard should be on, or None if resources decide.

    Args:
        placement: as given by the user.
        slot: which shard.
        home: the node of "local".
        others: nodes of the other shards.
        before: the node it was on, if what it left is there.
    """
    if not isinstance(placement, str) and isinstance(placement[slot], dict):
        return None
    alive: list[str] = sorted(n["NodeID"] for n in ray.nodes() if n["Alive"])
    wanted: Any = before
    if wanted is None and not isinstance(placement, str):
        wanted = placement[slot]
    elif wanted is None and placement == "local":
        wanted = home
    if wanted in alive:
        return str(wanted)
    shards = Counter(others)
    return min(alive, key=lambda node: shards[node])  # the node with the fewest


def actor_options(placement: Placement, slot: int, node: str | None) -> dict[str, Any]:
    """Options of a shard's actor."""
    if node is None:
        return {"resources": placement[slot]}
    return {"scheduling_strategy": _affinity(node)}


def _affinity(node: str) -> Any:
    """Hard: a node that has just come may not be known to all others, which would place it
    elsewhere; of one that has just gone, the directory hears and chooses again."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def checked_spec(
    shards: Any, storage: Any, sampler: Sampler, placement: Any, num_cpus: Any
) -> ShardSpec:
    """What a buffer's arguments make of its shards. Raises ValueError, TypeError."""
    shards = whole("shards", shards, 1, "a number of shards")
    if not callable(storage):
        storage = whole("storage", storage, 1, "rows of each shard, or a function that makes one")
    return ShardSpec(
        shards=shards,
        storage=storage,
        keys=(sampler.traj_key, sampler.end_key),
        placement=check_placement(placement, shards),
        token=secrets.token_hex(16),
        num_cpus=number("num_cpus", num_cpus, 0),
        home=own_node(),
    )
