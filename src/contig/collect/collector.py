"""Collector: an environment and a policy in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..batch import Batch
from ..errors import ClosedError
from ..tree import Path
from .base import END, CollectorBase
from .policy import PolicyRunner, register_primers
from .roller import Roller
from .rows import REWARD, check_nan, pad_trajectories
from .sink import RemoteSink, StorageSink, sink_of
from .vector import as_env
from .weights import get_weights, set_weights

__all__ = ["Collector", "Pace", "warn_split"]


class Pace:
    """How many frames were asked for, and how many are left.

    Args:
        frames_per_batch: per iteration.
        total_frames: -1: no end.
        lanes: environments that step together; frames come in multiples of them.
    """

    def __init__(self, frames_per_batch: int, total_frames: int, lanes: int) -> None:
        if frames_per_batch < 1:
            raise ValueError(f"frames_per_batch must be at least 1, got {frames_per_batch}")
        if frames_per_batch % lanes:
            raise ValueError(
                f"frames_per_batch={frames_per_batch} is not a multiple of the {lanes} environments"
                " that share it: every batch has equally many steps of each"
            )
        if total_frames < -1 or total_frames == 0:
            raise ValueError(
                f"total_frames: a number of frames, or -1 for no end, got {total_frames}"
            )
        self.batch, self.total, self.lanes = frames_per_batch, total_frames, lanes
        self.given = 0  # frames handed out so far

    def next_rows(self) -> int:
        """Rows of each lane in the next batch; 0: the end."""
        if self.total < 0:
            return self.batch // self.lanes
        return min(self.batch, self.total - self.given) // self.lanes

    def count(self, rows: int) -> None:
        self.given += rows * self.lanes


def warn_split() -> None:
    warnings.warn(
        "split_trajs pads every trajectory to the longest; a buffer with a SliceSampler draws "
        "contiguous ones without padding",
        stacklevel=3,
    )


class Gatherer:
    """Collects batches of one environment: blocks of frames, or complete trajectories.

    Args:
        roller: makes the rows.
        trajs_per_batch: trajectories per batch; None: blocks.
        set_truncated: cut trajectories at the end of each stretch.
        reset_at_each_iter: and reset.
    """

    def __init__(
        self,
        roller: Roller,
        trajs_per_batch: int | None,
        set_truncated: bool,
        reset_at_each_iter: bool,
    ) -> None:
        self.roller = roller
        self._count = trajs_per_batch
        self._cut, self._reset = set_truncated, reset_at_each_iter
        self._checked: list[Path] = []
        self._given = 0  # rows of trajectories

    def advance(self, rows: int) -> None:
        """Makes that many rows of every lane."""
        roller = self.roller
        roller.advance(rows)
        if self._reset:
            roller.restart()
        if self._cut:
            last = None if self._count is not None else roller.goal - 1
            for lane in range(roller.lanes):
                roller.cut(lane, last)

    def block(self, rows: int) -> Batch:
        """The rows of all lanes, ``[B, rows]``, or ``[rows]`` of a single environment."""
        batch = self.check(self.roller.take_block(rows))
        return batch if self.roller.env.batch_shape else batch.reshape(rows)

    def trajectories(self, fewer: bool = False) -> Batch | None:
        """`trajs_per_batch` complete trajectories, flat; None if there are not as many.

        Args:
            fewer: fewer will do, at the end.
        """
        assert self._count is not None
        # Rows of faster lanes beyond what was asked for are not there yet.
        within = sum(f.last <= self.roller.goal for f in self.roller.finished)
        self.roller.finished.sort(key=lambda f: f.last > self.roller.goal)
        if within < self._count and not (fewer and within):
            return None
        batch = self.check(self.roller.take_finished(min(within, self._count)))
        self._given += len(batch)
        return batch

    def check(self, batch: Batch) -> Batch:
        if not self._checked:
            assert self.roller.plan is not None
            self._checked = [*self.roller.plan.next_obs, REWARD, *self.roller.env.spec.paths]
        check_nan(batch, self._checked)
        return batch

    @property
    def unfinished(self) -> tuple[int, int]:
        """Trajectories begun and not given out, and their rows among those asked for."""
        roller = self.roller
        if roller.blocks is None:
            return 0, 0
        begun = roller.start < np.minimum(roller.blocks.position, roller.goal)
        left = sum(f.first < roller.goal for f in roller.finished)
        rows = roller.goal * roller.lanes - self._given
        return int(np.count_nonzero(begun)) + left, rows


class Collector(CollectorBase):
    """Steps an environment with a policy, here in this process.

    Batches are ``[T]`` of a single environment, ``[B, T]`` of a batched one; with
    `trajs_per_batch` they are flat. With a `replay_buffer` they go there, and iteration gives None.

    Args:
        env: an environment of any kind, or a function that makes one.
        policy: see `contig.collect.policy`; None: random actions.
        frames_per_batch: frames per iteration, of all lanes together.
        total_frames: frames in all, never more: the last batch may be shorter, by whole steps of
            all lanes; -1: no end.
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
        self._pace = Pace(frames_per_batch, total_frames, self.env.num_envs)
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
        )
        self._gatherer = Gatherer(self._roller, trajs_per_batch, set_truncated, reset_at_each_iter)
        self._trajs = trajs_per_batch
        self._postproc, self._hook, self._split = postproc, post_collect_hook, split_trajs
        self._sink: StorageSink | RemoteSink | None = None
        self._written = self._version = 0
        self.dropped_trajectories = self.dropped_frames = 0

    @property
    def policy_version(self) -> int:
        """How often the weights were updated."""
        return self._version

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
        if get_weights(self.policy) is None:
            return
        if policy_or_state is not None and policy_or_state is not self.policy:
            state = get_weights(policy_or_state)
            set_weights(self.policy, policy_or_state if state is None else state)
        self._version += 1
        self._roller.version = self._version

    def start(self) -> None:
        self._roller.poll = self._go_on
        super().start()

    def _go_on(self) -> int:
        if self._stop:
            raise ClosedError("this collector was shut down")
        return self._version

    def _collect(self) -> Any:
        if self.replay_buffer is not None and self._sink is None:
            self._sink = sink_of(self.replay_buffer)
        while True:
            rows = self._pace.next_rows()
            if not rows:
                return self._finish()
            self._gatherer.advance(rows)
            self._pace.count(rows)
            if self._trajs is None:
                return self._deliver(self._gatherer.block(rows))
            while (batch := self._gatherer.trajectories()) is not None:
                data = self._deliver(batch)
                if self._sink is None:
                    return data  # those that are left are found by the next call
            if self._sink is not None and self._written:
                return None
            if self._stop:
                return END

    def _finish(self) -> Any:
        """All frames are there: what is complete is given out, the rest is counted."""
        if self._trajs is None or self._roller.blocks is None:
            return END
        last = self._gatherer.trajectories(fewer=self._sink is not None)
        if last is not None:
            return self._deliver(last)
        self.dropped_trajectories, self.dropped_frames = self._gatherer.unfinished
        return END

    def _deliver(self, batch: Batch) -> Any:
        data: Any = batch if self._postproc is None else self._postproc(batch)
        if self._split:
            data = pad_trajectories(data)
        if self._sink is None:
            if self._hook is not None:
                self._hook(data)
            return data
        self._sink.write(data)
        self._written += 1
        if self._hook is not None:
            self._hook(data)
        return None

    def _close(self) -> None:
        if isinstance(self._sink, RemoteSink):
            self._sink.flush()
        if self._thread is None or not self._thread.is_alive():
            self.env.close()


def check_arguments(
    trajs_per_batch: int | None,
    init_random_frames: int,
    max_frames_per_traj: int | None,
    max_restarts: int,
) -> None:
    """Raises ValueError for numbers that mean nothing."""
    if trajs_per_batch is not None and trajs_per_batch < 1:
        raise ValueError(f"trajs_per_batch must be at least 1, got {trajs_per_batch}")
    if max_frames_per_traj is not None and max_frames_per_traj < 1:
        raise ValueError(f"max_frames_per_traj must be at least 1, got {max_frames_per_traj}")
    for name, value in (("init_random_frames", init_random_frames), ("max_restarts", max_restarts)):
        if value < 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
