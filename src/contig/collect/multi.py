"""Collectors with worker processes.

    worker 0 --append--> +---------+
    worker 1 --append--> |  tape   | --sample--> learner         with a replay_buffer
    worker 2 --append--> +---------+

    worker i --batch's bytes--> collector --> joined batch       without

Weights go the other way, through one block of shared memory that all workers read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..batch import Batch
from .collection import CollectionSpec
from .episode_fields import episode_fields
from .exploration import exploration_name
from .processes import Processes
from .workers import Supervision
from .workers_collector import WorkersCollector

__all__ = ["MultiAsyncCollector", "MultiCollector", "MultiSyncCollector"]


class MultiCollector(WorkersCollector):
    """Steps environments in worker processes, one or more in each.

    With `sync`, an iteration waits for all workers, and `frames_per_batch` is shared by them;
    without, it takes whichever is first, and each worker collects `frames_per_batch`. After
    `start()` workers never wait for each other.

    Args:
        envs: for each worker an environment, or a function that makes it; the same object may be
            given several times.
        policy, frames_per_batch, total_frames, replay_buffer, trajs_per_batch, set_truncated,
            init_random_frames, max_frames_per_traj, reset_at_each_iter, device, split_trajs,
            auto_register_policy_transforms, fields, exploration_type: as in Collector.
        postproc, post_collect_hook: as in Collector; with a buffer they run in the workers.
        seed: worker w with B environments is seeded from ``seed + w * B``.
        sync: as above.
        cat_results: how batches of workers are joined: "stack" (``[W, ...]``), or 0 or -1, the
            batch dim along which they are concatenated.
        max_restarts: how often, in all, a worker that failed is replaced, by one with other seeds:
            those of the n-th replacement start ``n * W * B`` later.
        step_timeout_s: a worker that is longer in one `env.step` or one call of the policy hangs,
            and is killed.
        start_timeout_s: the same for what may take longer: `make_env`, `env.reset`, the first
            `env.step` and the first call of the policy, which may compile, `postproc` and
            `post_collect_hook`.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        sync: bool = True,
        cat_results: str | int = "stack",
        replay_buffer: Any = None,
        trajs_per_batch: int | None = None,
        set_truncated: bool = False,
        init_random_frames: int = 0,
        max_frames_per_traj: int | None = None,
        reset_at_each_iter: bool = False,
        postproc: Callable[[Batch], Any] | None = None,
        post_collect_hook: Callable[[Any], Any] | None = None,
        device: Any = None,
        split_trajs: bool = False,
        auto_register_policy_transforms: bool = False,
        max_restarts: int = 0,
        seed: int | None = None,
        fields: Any = None,
        exploration_type: Any = "random",
        step_timeout_s: float = 4.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        if not isinstance(envs, Sequence) or isinstance(envs, str) or not envs:
            raise ValueError("envs: expected a list with one environment or factory per worker")
        spec = CollectionSpec(
            policy=policy,
            frames_per_batch=frames_per_batch,
            total_frames=total_frames,
            trajs_per_batch=trajs_per_batch,
            set_truncated=set_truncated,
            init_random_frames=init_random_frames,
            max_frames_per_traj=max_frames_per_traj,
            reset_at_each_iter=reset_at_each_iter,
            postproc=postproc,
            post_collect_hook=post_collect_hook,
            device=device,
            split_trajs=split_trajs,
            register_primers=auto_register_policy_transforms,
            seed=seed,
            fields=episode_fields(fields),
            exploration_type=exploration_name(exploration_type),
        )
        spec.check(replay_buffer is not None)
        super().__init__(
            envs,
            spec,
            Processes(),
            replay_buffer=replay_buffer,
            sync=sync,
            cat_results=cat_results,
            max_restarts=max_restarts,
            supervision=Supervision(step_timeout_s, start_timeout_s),
        )


class MultiSyncCollector(MultiCollector):
    """A MultiCollector whose iterations wait for all workers.

    Args:
        envs, policy, options: as in MultiCollector, without `sync`.
    """

    def __init__(self, envs: Sequence[Any], policy: Any = None, **options: Any) -> None:
        super().__init__(envs, policy, **{**options, "sync": True})


class MultiAsyncCollector(MultiCollector):
    """A MultiCollector whose iterations take the worker that is first.

    Args:
        envs, policy, options: as in MultiCollector, without `sync`.
    """

    def __init__(self, envs: Sequence[Any], policy: Any = None, **options: Any) -> None:
        super().__init__(envs, policy, **{**options, "sync": False})
