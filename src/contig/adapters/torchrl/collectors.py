"""Collectors with TorchRL's arguments, over contig's: TensorDicts come out.

create_env_fn (TorchRL's environments, Gymnasium's, contig's) -> contig's collector
    policy: gets a TensorDict of the environment's batch shape, with exploration on
    yields: a TensorDict, or None if it went to the replay_buffer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tensordict import TensorDict
from torchrl import collectors as theirs

from ...collect import Collector as OwnCollector
from ...collect import MultiCollector as OwnMultiCollector
from ...collect.adapters import is_env
from ...collect.vector import as_env
from .arguments import refused, without_effect
from .deliveries import Deliveries, OnTensorDict
from .policies import Explored, weights_of

__all__ = [
    "AsyncCollector",
    "Collector",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "SyncDataCollector",
    "aSyncDataCollector",
]

# They say how TorchRL does it, and change nothing of what comes out.
_WITHOUT_EFFECT = (
    "compile_policy",
    "cudagraph_policy",
    "env_device",
    "extend_buffer",
    "interruptor",
    "no_cuda_sync",
    "num_sub_threads",
    "num_threads",
    "preemptive_threshold",
    "reset_when_done",
    "return_same_td",
    "track_policy_version",
    "track_traj_ids",
    "trust_policy",
    "use_buffers",
    "worker_idx",
)


class _AsTorchRL:
    """What collectors of both kinds have of TorchRL's, beside what contig's have."""

    _deliver_as: Deliveries
    replay_buffer: Any

    def __iter__(self) -> Iterator[TensorDict]:
        for data in super().__iter__():  # type: ignore[misc]
            yield data if data is None else self._deliver_as(data)
            self._between()

    def _between(self) -> None:
        """Called between batches."""

    def iterator(self) -> Iterator[Any]:
        """The batches."""
        return iter(self)

    def next(self) -> Any:
        """The next batch of an iteration that goes on from call to call; None at its end."""
        if getattr(self, "_iterator", None) is None:
            self._iterator = iter(self)
        return next(self._iterator, None)

    def update_policy_weights_(
        self, policy_or_state: Any = None, *, worker_ids: Any = None, **options: Any
    ) -> None:
        """Makes weights current.

        Args:
            policy_or_state: a policy like the collector's, its state dict, or a TensorDict of its
                weights; None: the collector's policy was changed.
            worker_ids: without effect: all workers read the same weights.
            options: the first under TorchRL's names: `policy_or_weights`, `policy_weights`,
                `policy`.
        """
        without_effect(worker_ids)
        for name in ("policy_or_weights", "policy_weights", "policy"):
            policy_or_state = options.pop(name, policy_or_state)
        if options:
            raise TypeError(f"update_policy_weights_: unknown arguments {sorted(options)}")
        own = getattr(self.policy, "policy", None)  # type: ignore[attr-defined]
        given = None if policy_or_state is own else weights_of(policy_or_state)
        super().update_policy_weights_(given)  # type: ignore[misc]

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seeds the environments, before the first frame; returns a seed for the next ones.

        Raises:
            RuntimeError: frames were collected already.
        """
        if self.frames:  # type: ignore[attr-defined]
            raise RuntimeError(
                f"set_seed: {self.frames} frames were collected already; "  # type: ignore[attr-defined]
                "seed before the first one, or give seed= to the collector"
            )
        lanes = self._reseed(seed)
        return seed if static_seed else seed + lanes

    def _reseed(self, seed: int) -> int:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The policy's weights, and how many frames were collected."""
        acting: Any = self.policy  # type: ignore[attr-defined]
        weights = {} if acting is None else acting.state_dict()
        return {"policy_state_dict": weights, "frames": self.frames}  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes in what `state_dict` returned: the collection goes on with its next frame."""
        if state_dict["policy_state_dict"]:
            self.update_policy_weights_(state_dict["policy_state_dict"])
        self._budget.given = int(state_dict["frames"])  # type: ignore[attr-defined]

    def getattr_rb(self, attr: str) -> Any:
        """An attribute of the buffer."""
        return getattr(self.replay_buffer, attr)

    @property
    def frames_per_batch(self) -> int:
        """Frames of one iteration."""
        return self._spec.frames_per_batch  # type: ignore[attr-defined, no-any-return]

    requested_frames_per_batch = frames_per_batch

    @property
    def total_frames(self) -> int:
        """Frames in all; -1: no end."""
        return self._spec.total_frames  # type: ignore[attr-defined, no-any-return]


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of both kinds of collectors in contig's terms.

    Raises:
        TypeError: one whose meaning would be lost.
    """
    out = {k: v for k, v in given.items() if k not in _WITHOUT_EFFECT}
    hint = "weights are published by update_policy_weights_()"
    for name in ("weight_updater", "weight_sync_schemes", "weight_recv_schemes"):
        refused(**{name: (out.pop(name, None), hint)})
    refused(
        compact_obs=(out.pop("compact_obs", None), "contig's storages keep observations once"),
        pre_collect_hook=(out.pop("pre_collect_hook", None), "call it between batches"),
        trajs_per_write=(out.pop("trajs_per_write", None), "use trajs_per_batch"),
    )
    most, random = out.get("max_frames_per_traj"), out.get("init_random_frames")
    out["max_frames_per_traj"] = None if most in (None, 0, -1) else most
    out["init_random_frames"] = 0 if random in (None, -1) else random
    out["total_frames"] = -1 if out.get("total_frames") is None else out["total_frames"]
    for name in ("postproc", "post_collect_hook"):
        out[name] = OnTensorDict.of(out.get(name))
    register = "auto_register_policy_transforms"
    out[register] = bool(out.get(register))
    policy_device = out.pop("policy_device", None)
    if policy_device is not None:
        out["device"] = policy_device
    return out


def _deliveries(options: dict[str, Any]) -> Deliveries:
    """How batches are given out; takes from the options what says so."""
    form = options.pop("traj_format", None)
    if form not in (None, "padded", "cat"):
        raise ValueError(f'traj_format: expected "padded" or "cat", got {form!r}')
    padded = bool(options.pop("split_trajs", None))
    padded = padded or (options.get("trajs_per_batch") is not None and form != "cat")
    return Deliveries(options.pop("storing_device", None), padded)


def _explored(policy: Any, factory: Any, env: Any) -> Any:
    if policy is not None and factory is not None:
        raise TypeError("policy and policy_factory are two ways to say one thing: give one")
    policy = factory() if factory is not None else policy
    if policy is None:
        return None
    shape = getattr(env, "batch_dims", env.batch_shape)
    names = [str(path[0]) for path in env.spec.paths]
    return Explored(policy, shape, dict.fromkeys(names))


class Collector(_AsTorchRL, OwnCollector):
    """Steps an environment with a policy, in this process; gives out TensorDicts.

    Args:
        create_env_fn: an environment of TorchRL's, Gymnasium's or contig's, or what makes one.
        create_env_kwargs: that it is called with.
        policy: as in TorchRL; None: random actions.
        policy_factory: makes it, in place of `policy`.
        frames_per_batch, total_frames, ..., replay_buffer: as in contig.Collector; never more than
            `total_frames`.
        storing_device: where batches go.
        split_trajs: batches are ``[N, T_max]`` with a mask.
        trajs_per_batch: complete trajectories; padded as well, unless `traj_format` is "cat".
        options: other arguments of TorchRL's and contig's, `exploration_type` among them.
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        policy_factory: Any = None,
        frames_per_batch: int,
        create_env_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        env = as_env(_factory(create_env_fn, create_env_kwargs))
        options = _options(options)
        self._deliver_as = _deliveries(options)
        acting = _explored(policy, policy_factory, env)
        self._deliver_as.marks_init = env.marks_init or options["auto_register_policy_transforms"]
        self.init_random_frames = options["init_random_frames"]
        super().__init__(env, acting, frames_per_batch=frames_per_batch, **options)

    def _reseed(self, seed: int) -> int:
        self._begin_with(seed)
        return self.env.num_envs


class MultiCollector(_AsTorchRL, OwnMultiCollector):
    """Steps environments in worker processes; gives out TensorDicts.

    Args:
        create_env_fn: for each worker an environment or what makes one; or one for all.
        num_workers: how many, with one for all.
        policy, policy_factory, frames_per_batch, ..., replay_buffer: as in `Collector`.
        create_env_kwargs: for all, or one for each.
        sync, cat_results: as in contig.MultiCollector.
        update_at_each_batch: publish the policy's weights before every batch.
        options: other arguments of TorchRL's and contig's.
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        num_workers: int | None = None,
        policy_factory: Any = None,
        frames_per_batch: int,
        create_env_kwargs: Any = None,
        cat_results: str | int | None = None,
        update_at_each_batch: bool = False,
        **options: Any,
    ) -> None:
        envs = _factories(create_env_fn, create_env_kwargs, num_workers)
        options = _options(options)
        self._deliver_as, self._update_each = _deliveries(options), update_at_each_batch
        first = as_env(envs[0])
        acting = _explored(policy, policy_factory, first)
        self._deliver_as.marks_init = first.marks_init or options["auto_register_policy_transforms"]
        if not is_env(envs[0]):  # it was made here
            first.close()
        self.init_random_frames = options["init_random_frames"]
        options.update(cat_results="stack" if cat_results is None else cat_results)
        self._made_of = (envs, acting, {**options, "frames_per_batch": frames_per_batch})
        super().__init__(envs, acting, frames_per_batch=frames_per_batch, **options)

    def _reseed(self, seed: int) -> int:
        # Workers have their seeds from the start: others take their places.
        self.async_shutdown()
        envs, acting, options = self._made_of
        OwnMultiCollector.__init__(self, envs, acting, **{**options, "seed": seed})
        return len(envs) * self.lanes_per_worker

    def _between(self) -> None:
        if self._update_each:
            self.update_policy_weights_()


class MultiSyncCollector(MultiCollector):
    """A MultiCollector whose iterations wait for all workers.

    Args:
        create_env_fn, policy, options: as in MultiCollector, without `sync`.
    """

    def __init__(self, create_env_fn: Any, policy: Any = None, **options: Any) -> None:
        super().__init__(create_env_fn, policy, **{**options, "sync": True})


class MultiAsyncCollector(MultiCollector):
    """A MultiCollector whose iterations take the worker that is first.

    Args:
        create_env_fn, policy, options: as in MultiCollector, without `sync`.
    """

    def __init__(self, create_env_fn: Any, policy: Any = None, **options: Any) -> None:
        super().__init__(create_env_fn, policy, **{**options, "sync": False})


class AsyncCollector(MultiAsyncCollector):
    """A MultiCollector of one worker, which collects while the learner learns.

    Args:
        create_env_fn: makes the environment, or is one.
        policy, options: as in MultiCollector.
    """

    def __init__(self, create_env_fn: Any, policy: Any = None, **options: Any) -> None:
        super().__init__([create_env_fn], policy, **options)


# Their names before TorchRL 0.11.
SyncDataCollector = Collector
aSyncDataCollector = AsyncCollector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector


def _factory(create: Any, kwargs: Any) -> Any:
    return partial(create, **kwargs) if kwargs else create


def _factories(create: Any, kwargs: Any, workers: int | None) -> list[Any]:
    """For each worker what makes its environment.

    Raises:
        ValueError: numbers that do not agree.
    """
    if not isinstance(create, Sequence):
        create = [create] * (1 if workers is None else workers)
    if workers is not None and len(create) != workers:
        raise ValueError(f"num_workers={workers}, but {len(create)} environments are given")
    each = list(kwargs) if isinstance(kwargs, Sequence) else [kwargs] * len(create)
    if len(each) != len(create):
        raise ValueError(f"create_env_kwargs: {len(each)} for {len(create)} environments")
    return [_factory(c, k) for c, k in zip(create, each)]


for _kind in (Collector, MultiCollector):
    theirs.BaseCollector.register(_kind)
