"""Which node a shard goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from .engine import ray
from .place import Placement

__all__ = ["actor_options", "check_placement", "choose_node"]


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
    if before is not None:
        return before
    if not isinstance(placement, str):
        return str(placement[slot])
    return home if placement == "local" else _emptiest(others)


def actor_options(placement: Placement, slot: int, node: str | None) -> dict[str, Any]:
    """Options of a shard's actor."""
    if node is None:
        assert not isinstance(placement, str)
        return {"resources": dict(placement[slot])}
    return {"scheduling_strategy": _affinity(node)}


def _affinity(node: str) -> Any:
    """Soft: if the node is gone, somewhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=True)


def _emptiest(taken: Iterable[str | None]) -> str:
    """The node with the fewest shards."""
    shards = Counter(taken)
    alive = sorted(n["NodeID"] for n in ray.nodes() if n["Alive"])
    return min(alive, key=lambda node: shards[node])
