"""What actors need of a cluster, and where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .engine import own_node

__all__ = ["ActorOptions"]


@dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """Of each actor; see `RayCollector`.

    Attributes:
        max_restarts: how often Ray makes one again.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    placement: Any = None
    max_restarts: int = 0

    def check(self) -> None:
        """Raises ValueError or TypeError for what Ray would say less clearly, or later."""
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise ValueError(f"{name}: a number of at least 0 for each actor, got {value!r}")
        if not isinstance(self.resources, Mapping):
            raise TypeError(
                'resources: a dict such as {"simulator": 1}, for each actor, '
                f"got {type(self.resources).__name__}"
            )
        self.strategy(0)

    def strategy(self, number: int) -> Any:
        """Where actor i goes, as Ray says it."""
        from ray.util.placement_group import PlacementGroup
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        where = self.placement
        if where is None:
            return "DEFAULT"
        if where == "spread":
            return "SPREAD"
        if where == "local":
            return NodeAffinitySchedulingStrategy(own_node(), soft=False)
        if isinstance(where, PlacementGroup):
            return PlacementGroupSchedulingStrategy(
                where, placement_group_bundle_index=number % where.bundle_count
            )
        if type(where).__name__.endswith("SchedulingStrategy"):
            return where
        if isinstance(where, Sequence) and not isinstance(where, str) and where:
            # Soft: what is made again goes to another node if its own is gone.
            soft = self.max_restarts > 0
            return NodeAffinitySchedulingStrategy(where[number % len(where)], soft=soft)
        raise ValueError(
            'placement: None, "spread", "local", a PlacementGroup, a list of node ids or a '
            f"scheduling strategy of Ray, got {where!r}"
        )

    def of(self, number: int) -> dict[str, Any]:
        """For `ray.remote(...).options`."""
        return {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": dict(self.resources),
            "scheduling_strategy": self.strategy(number),
            "max_restarts": self.max_restarts,
            # Calls wait for an actor that is made again; but none is made twice, see the actor.
            "max_task_retries": -1 if self.max_restarts else 0,
        }
