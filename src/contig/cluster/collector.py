"""RayCollector: the workers of a MultiCollector as Ray actors.

node A   actor 0, 1, 2 ──append──> shard of A           a RayReplayBuffer, a remote table
node B   actor 3, 4, 5 ──append──> shard of B

actor i ──object store──> collector ──> batch, or this process's buffer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, Unpack

from ..batch import Batch
from ..collect.collection import CollectionSpec
from ..collect.episode_fields import episode_fields
from ..collect.exploration import exploration_name
from ..collect.workers import Supervision
from ..collect.workers_collector import WorkersCollector
from .actor_handle import Actors
from .actor_options import ActorOptions
from .engine import need_cluster

__all__ = ["DistributedCollector", "DistributedSyncCollector", "RayCollector"]


class CollectionOptions(TypedDict, total=False):
    """What is collected: see `Collector`, and `CollectionSpec`, whose fields these are."""

    total_frames: int
    trajs_per_batch: int | None
    set_truncated: bool
    init_random_frames: int
    max_frames_per_traj: int | None
    reset_at_each_iter: bool
    postproc: Callable[[Batch], Any] | None
    post_collect_hook: Callable[[Any], Any] | None
    device: Any
    split_trajs: bool
    auto_register_policy_transforms: bool
    seed: int | None
    fields: Any
    exploration_type: Any


class RayCollector(WorkersCollector):
    """Steps environments in Ray actors, one or more in each, anywhere in a cluster.

    It collects as a MultiCollector does, which it takes the place of without another change: the
    same rows, versions of weights and errors. With a buffer that only this process can write to,
    batches come back through Ray's object store, and this process writes them; `postproc` and
    `post_collect_hook` run here then, and in the actors otherwise.

    An actor that died, or whose node did, is made again by Ray. Rows that its buffer has acked are
    there once; the trajectory it was in is dropped. If the actor wrote by itself, the stretch it
    was asked for counts as collected, for nobody knows how much of it was written.

    Args:
        envs: for each actor an environment, or a function that makes it.
        policy: as in Collector; each actor has its own.
        frames_per_batch: as in MultiCollector.
        policy_factory: makes the policy, in each actor and once here; instead of `policy`.
        replay_buffer: a RayReplayBuffer or RemoteReplayBuffer, which actors write to; or a
            ReplayBuffer, an ensemble or a Server of this process.
        num_cpus, num_gpus, resources: what each actor needs.
        placement: None: where Ray likes; "spread": over all nodes; "local": on
            this one; a PlacementGroup: actor i in
            bundle i; a list of node ids, over which actors go round; or a scheduling strategy.
        sync, cat_results, max_restarts, step_timeout_s, start_timeout_s: as in MultiCollector. An
            actor that Ray has not placed within `start_timeout_s` is an error too.
        collection: `total_frames`, `trajs_per_batch`, ..., `exploration_type`, as in Collector.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        policy: Any = None,
        *,
        frames_per_batch: int,
        policy_factory: Callable[[], Any] | None = None,
        replay_buffer: Any = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        placement: Any = None,
        sync: bool = True,
        cat_results: str | int = "stack",
        max_restarts: int = 0,
        step_timeout_s: float = 4.0,
        start_timeout_s: float = 120.0,
        **collection: Unpack[CollectionOptions],
    ) -> None:
        if not isinstance(envs, Sequence) or isinstance(envs, str) or not envs:
            raise ValueError("envs: expected a list with one environment or factory per actor")
        if policy is not None and policy_factory is not None:
            raise ValueError("give either policy or policy_factory, which makes one")
        supervision = Supervision(step_timeout_s, start_timeout_s)
        options = ActorOptions(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources or {},
            placement=placement,
            max_restarts=max_restarts,
        )
        options.check()
        own = policy if policy_factory is None else policy_factory()
        spec = _spec_of(own, frames_per_batch, collection)
        spec.check(replay_buffer is not None)
        need_cluster()
        given = policy if policy_factory is None else policy_factory
        limits_s = (step_timeout_s, start_timeout_s)
        super().__init__(
            envs,
            spec,
            Actors(options, given, policy_factory is not None, limits_s),
            replay_buffer=replay_buffer,
            sync=sync,
            cat_results=cat_results,
            max_restarts=max_restarts,
            supervision=supervision,
        )

    @property
    def nodes(self) -> list[str]:
        """The id of the node that each actor is on."""
        return [str(getattr(h, "node", "")) for h in self._workers.handles]


DistributedCollector = RayCollector


class DistributedSyncCollector(RayCollector):
    """A RayCollector that waits for all of its actors: each batch has rows of every one.

    Args:
        envs, policy: as in RayCollector.
        sync: True; a collector that takes batches as they come is a RayCollector.
        options: the other arguments of RayCollector.
    """

    def __init__(
        self, envs: Sequence[Any], policy: Any = None, *, sync: bool = True, **options: Any
    ) -> None:
        if not sync:
            raise ValueError(
                "sync: expected True, for this collector waits for all of its actors; use "
                "RayCollector(..., sync=False)"
            )
        super().__init__(envs, policy, **options)


def _spec_of(policy: Any, frames: int, options: CollectionOptions) -> CollectionSpec:
    given: dict[str, Any] = dict(options)
    given["register_primers"] = given.pop("auto_register_policy_transforms", False)
    given["fields"] = episode_fields(given.get("fields"))
    given["exploration_type"] = exploration_name(given.get("exploration_type"))
    unknown = sorted(set(given) - {f.name for f in fields(CollectionSpec)})
    if unknown:
        known = ", ".join(CollectionOptions.__annotations__)
        raise TypeError(f"RayCollector has no argument {unknown[0]!r}; what is collected: {known}")
    return CollectionSpec(policy=policy, frames_per_batch=frames, **given)
