"""Collector: an environment and a policy in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..arguments import whole
from ..batch import Batch
from ..errors import ClosedError
from ..weights.policy import copy_weights, set_weights
from ..weights.publisher import WeightPublisher
from .base import END, BaseCollector
from .batcher import Batcher
from .collection import CollectionSpec, FrameBudget
from .column_blocks import pad_trajectories
from .episode_fields import episode_fields
from .exploration import exploration_name
from .vector import as_env

__all__ = ["Collector"]


class Collector(BaseCollector[Batch]):
    """Steps an environment with a policy, here in this process.

    Batches are ``[T]`` of a single environment, ``[B, T]`` of a batched one; with
    `trajs_per_batch` they are flat. With a `replay_buffer` they go there, and iteration gives None.

    Args:
        env: an environment of any kind, or a function that makes one.
        policy: see `contig.collect.policy`; None: random actions.
        frames_per_batch: frames per iteration, of all lanes together.
        total_frames: frames in all, never more; -1: no end. The last batch may be shorter. A batch
            that is yielded is a rectangle: frames that make no whole step of all lanes are left
            out; into a buffer, and with `trajs_per_batch`, they are collected too.
        replay_buffer: a ReplayBuffer, an ensemble, a Server or a RemoteReplayBuffer.
        trajs_per_batch: write or yield complete trajectories only, this many at a time.
        set_truncated: mark the last row of every batch truncated, so that no trajectory crosses it.
        init_random_frames: frames with random actions at first; the policy still runs.
        max_frames_per_traj: cut longer trajectories, with a reset.
        reset_at_each_iter: reset before every batch.
        postproc: gets each batch and returns what is written or yielded instead.
        post_collect_hook: called with each batch after it was written, or before it is yielded.
        device: where a torch policy gets its inputs.
        split_trajs: yield padded ``[N, T_max]`` with `mask`.
        auto_register_policy_transforms: give the environment the hidden states that recurrent
            modules in the policy need.
        max_restarts: of worker processes; there are none here.
        seed: of the first lane; lane i has ``seed + i``.
        fields: of trajectories, from the info of an episode's last step: an example of them, whose
            names are keys of the info, or a function of the info that returns them (called with an
            empty one at first). Yielded batches have them below `fields`, in each episode's last
            row; a buffer's trajectories get them. Episodes that the collector cuts have zeros.
        exploration_type: how a policy of TorchRL's chooses its actions, a name ("random", "mode",
            "mean", "median", "deterministic") or TorchRL's `ExplorationType`; None: "random".
    """

    def __init__(
        self,
        env: Any,
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
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
    ) -> None:
        super().__init__(replay_buffer)
        whole("max_restarts", max_restarts, 0)
        self._spec = CollectionSpec(
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
        self._spec.check(replay_buffer is not None)
        self.env, self.policy = as_env(env), policy
        lanes = self.env.num_envs
        self._budget = FrameBudget(self._spec, lanes, replay_buffer is not None)
        self._batcher = self._new_batcher()
        self._written = 0
        self.dropped_trajectories = self.dropped_frames = 0
        self._taking = threading.Lock()  # guards the next
        self._pending: tuple[int, Any] | None = None  # weights that the policy has to take yet
        self._weights = WeightPublisher(policy, replay_buffer, self._put_weights)
        self._acting_on = self._batcher.lanes.version = self._weights.version
        if self._weights.from_elsewhere:
            self._batcher.lanes.poll = self._poll
            try:
                self._weights.begin()
                self._poll()  # those that are there already must fit
            except BaseException:
                self._told = True
                self.async_shutdown()
                raise

    def _new_batcher(self) -> Batcher:
        rows = self._spec.frames_per_batch // self.env.num_envs
        return Batcher(self.env, rows, self._spec)

    def _begin_with(self, seed: int) -> None:
        """Before the first frame: another seed."""
        version, poll = self._batcher.lanes.version, self._batcher.lanes.poll
        self._spec = replace(self._spec, seed=seed)
        self._batcher = self._new_batcher()
        self._batcher.lanes.version, self._batcher.lanes.poll = version, poll

    def _about(self) -> str:
        count, what = self.env.num_envs, "env"
        many = f"{count} {what}{'' if count == 1 else 's'}"
        return f"{many}, batches of {self._spec.frames_per_batch} frames"

    @property
    def policy_version(self) -> int:
        """How often the weights were updated; or the version of a learner elsewhere."""
        return self._weights.version

    @property
    def frames(self) -> int:
        """Frames collected so far."""
        return self._budget.given

    def update_policy_weights_(self, policy_or_state: Any = None) -> None:
        """Counts a new version of the policy, and takes weights over if some are given.

        Args:
            policy_or_state: a policy like this one, or its weights; None: the policy was changed
                in place.

        Raises:
            TypeError: weights for a policy that has no way to take them.
        """
        self.check()
        in_place = policy_or_state is None or policy_or_state is self.policy
        if in_place and self.policy is None:
            return  # random actions have no versions
        self._check_open()
        self._weights.update(self.policy if in_place else policy_or_state, in_place)
        if self._thread is None:
            self._poll()

    def _put_weights(self, version: int, tree: Any) -> None:
        own = None if tree is None else copy_weights(tree)
        with self._taking:
            if own is None and self._pending is not None:
                own = self._pending[1]
            self._pending = (version, own)

    def _poll(self) -> int:
        """The newest weights are in the policy; returns their version."""
        if self._stop:
            raise ClosedError("this collector was shut down")
        if self._pending is not None:
            with self._taking:
                version, tree = self._pending
                self._pending = None
            if tree is not None:
                set_weights(self.policy, tree)
            self._acting_on = self._batcher.lanes.version = version
        return self._acting_on

    def start(self) -> None:
        self._batcher.lanes.poll = self._poll
        super().start()

    def _collect(self) -> Any:
        self._peek()
        while True:
            frames = self._budget.take()
            if not frames:
                return self._finish()
            self._batcher.advance(frames)
            if self._spec.trajs_per_batch is None:
                for block in self._batcher.blocks(frames):
                    data = self._deliver(block)
                return data
            while (batch := self._batcher.trajectories()) is not None:
                data = self._deliver(batch)
                if self.replay_buffer is None:
                    return data  # those that are left are found by the next call
            if self.replay_buffer is not None and self._written:
                return None
            if self._stop:
                return END

    def _finish(self) -> Any:
        """All frames are there: what is complete is given out, the rest is counted."""
        if self._spec.trajs_per_batch is None or self._batcher.lanes.blocks is None:
            return END
        last = self._batcher.trajectories(fewer=self.replay_buffer is not None)
        if last is not None:
            return self._deliver(last)
        self.dropped_trajectories, self.dropped_frames = self._batcher.unfinished
        return END

    def _deliver(self, batch: Batch) -> Any:
        spec = self._spec
        data: Any = batch if spec.postproc is None else spec.postproc(batch)
        if spec.split_trajs:
            data = pad_trajectories(data)
        if self.replay_buffer is not None:
            self._write(data)
            self._written += 1
        if spec.post_collect_hook is not None:
            spec.post_collect_hook(data)
        return data if self.replay_buffer is None else None

    def _peek(self) -> None:
        self._weights.check()

    _watch = _peek

    def _close(self) -> None:
        self._weights.close()
        if self._thread is None or not self._thread.is_alive():
            self.env.close()
