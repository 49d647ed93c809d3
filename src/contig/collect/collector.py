"""Collector: an environment and a policy in this process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

from ..arguments import whole
from ..batch import Batch
from ..client import RemoteReplayBuffer
from ..errors import ClosedError, WorkerError
from ..weights.policy import copy_weights, set_weights
from .base import END, BaseCollector
from .batcher import Batcher
from .column_blocks import pad_trajectories
from .frame_budget import FrameBudget
from .policy import PolicyRunner, register_primers
from .roller import Roller
from .vector import as_env
from .weight_publisher import WeightPublisher

__all__ = ["Collector", "check_arguments", "warn_split"]


def warn_split() -> None:
    warnings.warn(
        "split_trajs pads every trajectory to the longest; a buffer with a SliceSampler draws "
        "contiguous ones without padding",
        stacklevel=3,
    )


class Collector(BaseCollector):
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
    ) -> None:
        super().__init__(replay_buffer)
        check_arguments(trajs_per_batch, init_random_frames, max_frames_per_traj, max_restarts)
        if split_trajs:
            if replay_buffer is not None or trajs_per_batch is not None:
                raise ValueError("split_trajs pads what is yielded: not with a buffer or trajs")
            warn_split()
        self.env = as_env(env)
        self.policy = policy
        whole = replay_buffer is None and trajs_per_batch is None
        self._pace = FrameBudget(frames_per_batch, total_frames, self.env.num_envs, whole=whole)
        if auto_register_policy_transforms and policy is not None:
            register_primers(self.env, policy)
        runner = PolicyRunner(policy, self.env.action_space, device, seed)
        self._roller = Roller(
            self.env,
            runner,
            frames_per_batch // self.env.num_envs,
            random_frames=init_random_frames,
            max_frames_per_traj=max_frames_per_traj,
            seed=seed,
            keep_trajectories=trajs_per_batch is not None,
            drop_ahead=reset_at_each_iter,
        )
        self._gatherer = Batcher(self._roller, trajs_per_batch, set_truncated, reset_at_each_iter)
        self._trajs = trajs_per_batch
        self._postproc, self._hook, self._split = postproc, post_collect_hook, split_trajs
        self._written = 0
        self.dropped_trajectories = self.dropped_frames = 0
        self._taking = threading.Lock()  # guards the next
        self._pending: tuple[int, Any] | None = None  # weights that the policy has to take yet
        self._weights = WeightPublisher(policy, replay_buffer, self._put_weights)
        self._acting_on = self._roller.version = self._weights.version
        if isinstance(replay_buffer, RemoteReplayBuffer):
            self._roller.poll = self._poll
            self._weights.begin()

    @property
    def policy_version(self) -> int:
        """How often the weights were updated; or the version of a learner elsewhere."""
        return self._weights.version

    @property
    def frames(self) -> int:
        """Frames collected so far."""
        return self._pace.given

    def update_policy_weights_(self, policy_or_state: Any = None) -> None:
        """Counts a new version of the policy, and takes weights over if some are given.

        Args:
            policy_or_state: a policy like this one, or its weights; None: the policy was changed
                in place.
        """
        self.check()
        if not self._weights.has_weights:
            return
        self._check_open()
        in_place = policy_or_state is None or policy_or_state is self.policy
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
            self._acting_on = self._roller.version = version
        return self._acting_on

    def start(self) -> None:
        self._roller.poll = self._poll
        super().start()

    def _collect(self) -> Any:
        self._peek()
        while True:
            frames = self._pace.take()
            if not frames:
                return self._finish()
            self._gatherer.advance(frames)
            if self._trajs is None:
                for block in self._gatherer.blocks(frames):
                    data = self._deliver(block)
                return data
            while (batch := self._gatherer.trajectories()) is not None:
                data = self._deliver(batch)
                if self.replay_buffer is None:
                    return data  # those that are left are found by the next call
            if self.replay_buffer is not None and self._written:
                return None
            if self._stop:
                return END

    def _finish(self) -> Any:
        """All frames are there: what is complete is given out, the rest is counted."""
        if self._trajs is None or self._roller.blocks is None:
            return END
        last = self._gatherer.trajectories(fewer=self.replay_buffer is not None)
        if last is not None:
            return self._deliver(last)
        self.dropped_trajectories, self.dropped_frames = self._gatherer.unfinished
        return END

    def _deliver(self, batch: Batch) -> Any:
        data: Any = batch if self._postproc is None else self._postproc(batch)
        if self._split:
            data = pad_trajectories(data)
        if self.replay_buffer is None:
            if self._hook is not None:
                self._hook(data)
            return data
        self._write(data)
        self._written += 1
        if self._hook is not None:
            self._hook(data)
        return None

    def _peek(self) -> None:
        if self._weights.failure is not None:
            raise WorkerError(f"no weights from the server: {self._weights.failure}")

    _watch = _peek

    def _close(self) -> None:
        self._weights.close()
        if self._thread is None or not self._thread.is_alive():
            self.env.close()


def check_arguments(
    trajs_per_batch: int | None,
    init_random_frames: int,
    max_frames_per_traj: int | None,
    max_restarts: int,
) -> None:
    """Raises ValueError for numbers that mean nothing."""
    if trajs_per_batch is not None:
        whole("trajs_per_batch", trajs_per_batch, 1)
    if max_frames_per_traj is not None:
        whole("max_frames_per_traj", max_frames_per_traj, 1)
    whole("init_random_frames", init_random_frames, 0)
    whole("max_restarts", max_restarts, 0)
