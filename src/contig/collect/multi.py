"""Collectors with worker processes.

    worker 0 --append--> +---------+
    worker 1 --append--> |  tape   | --sample--> learner         with a replay_buffer
    worker 2 --append--> +---------+

    worker i --batch's bytes--> collector --> joined batch       without

Weights go the other way, through one block of shared memory that all workers read.
"""

from __future__ import annotations

import json
import queue
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arguments import seconds
from ..batch import Batch, stack_batches
from ..errors import ClosedError, WorkerError
from ..layout import Layout
from ..process.channel import batch_of
from ..process.heartbeat import Stage
from ..weights.board import WeightsBoard
from ..weights.policy import get_weights, make_board, set_weights
from .base import END, BaseCollector
from .collector import check_arguments, warn_split
from .column_blocks import join_batches, pad_trajectories
from .frame_budget import FrameBudget
from .probe import probe_layout
from .sink import has_after, sink_of
from .vector import as_env
from .weight_publisher import WeightPublisher
from .worker_handle import Event, WorkerHandle
from .worker_spec import WorkerSpec, specs_for

__all__ = ["MultiAsyncCollector", "MultiCollector", "MultiSyncCollector"]

_SLICE_S = 0.05


class MultiCollector(BaseCollector):
    """Steps environments in worker processes, one or more in each.

    With `sync`, an iteration waits for all workers, and `frames_per_batch` is shared by them;
    without, it takes whichever is first, and each worker collects `frames_per_batch`. After
    `start()` workers never wait for each other.

    Args:
        envs: for each worker an environment, or a function that makes it; the same object may be
            given several times.
        policy, frames_per_batch, ..., seed: as in Collector. With a buffer, `postproc` and
            `post_collect_hook` run in the workers. Worker w with B environments is seeded from
            ``seed + w * B``.
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
        step_timeout_s: float = 4.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        super().__init__(replay_buffer)
        check_arguments(trajs_per_batch, init_random_frames, max_frames_per_traj, max_restarts)
        if not isinstance(envs, Sequence) or isinstance(envs, str) or not envs:
            raise ValueError("envs: expected a list with one environment or factory per worker")
        if cat_results not in ("stack", 0, -1):
            raise ValueError(f'cat_results: expected "stack", 0 or -1, got {cat_results!r}')
        if split_trajs:
            if replay_buffer is not None or trajs_per_batch is not None:
                raise ValueError("split_trajs pads what is yielded: not with a buffer or trajs")
            warn_split()
        self.policy = policy
        self.num_workers = len(envs)
        self.sync, self._cat = sync, cat_results
        self._trajs, self._split = trajs_per_batch, split_trajs
        self._postproc, self._hook = postproc, post_collect_hook
        self._max_restarts = max_restarts
        self._limits_s = (
            seconds("step_timeout_s", step_timeout_s),
            seconds("start_timeout_s", start_timeout_s),
        )
        self.restarts = 0
        self.dropped_trajectories = self.dropped_frames = 0
        self._handles: list[WorkerHandle] = []
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._done: deque[int] = deque()  # workers whose stretch is there, and not delivered yet
        self._batches: dict[int, list[Batch]] = {}
        self._whole: deque[Batch] = deque()  # complete trajectories that came back
        self._wrote = self._wrote_before = 0  # by all workers; by those that were replaced
        self._finishing = False
        self._looked = self._peeked = 0.0
        self._board: WeightsBoard | None = None
        self._weights = WeightPublisher(policy, replay_buffer, self._put_weights)
        board_fd = self._make_board()
        first = as_env(envs[0])
        self._lanes = first.num_envs
        self._pace = FrameBudget(
            frames_per_batch,
            total_frames,
            self._lanes * (self.num_workers if sync else 1),
            whole=replay_buffer is None and trajs_per_batch is None,
        )
        layout = self._fix(
            probe_layout(
                first,
                envs[0],
                policy,
                register=auto_register_policy_transforms,
                seed=seed,
                wanted=replay_buffer is not None and postproc is None,
            )
        )
        self._jobs = specs_for(
            envs,
            WorkerSpec(
                number=0,
                env=None,
                policy=policy,
                device=device,
                seed=seed,
                random_frames=init_random_frames,
                max_frames_per_traj=max_frames_per_traj,
                set_truncated=set_truncated,
                reset_at_each_iter=reset_at_each_iter,
                trajs_per_batch=trajs_per_batch,
                register_primers=auto_register_policy_transforms,
                rows=self._stretch // self._lanes,
                lanes=self._lanes,
                address=None,
                postproc=postproc,
                hook=post_collect_hook,
                layout=layout,
                board=board_fd,
            ),
            replay_buffer,
        )
        self._relays = any(job.address is None for job in self._jobs)
        self._killer = weakref.finalize(self, _kill, self._handles)
        try:
            for job in self._jobs:
                self._handles.append(WorkerHandle(job, self._events))
            while not all(h.ready for h in self._handles):
                self._take_event()
            self._weights.begin()
        except BaseException:
            self._told = True
            self.async_shutdown()
            raise

    # -- before workers start -----------------------------------------------------------------

    @property
    def _stretch(self) -> int:
        """Frames that one worker collects for one batch."""
        return self._pace.batch // (self.num_workers if self.sync else 1)

    def _make_board(self) -> int:
        """Makes the block of weights; its descriptor, or -1 if there are none."""
        if not self._weights.has_weights:
            return -1
        tree = get_weights(self.policy)
        self._board, fd = make_board(tree)
        self._board.publish(self._weights.version, tree)
        return fd

    def _fix(self, layout: Layout | None) -> str | None:
        """Says to the buffer what rows will be; the layout as JSON."""
        if layout is None:
            return None  # the first worker to write decides
        for number in range(self.num_workers):
            sink_of(self.replay_buffer, number).fix(layout)
        return json.dumps(layout.to_json())

    # -- weights ------------------------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        """The newest version that was published."""
        return self._weights.version

    def update_policy_weights_(self, policy_or_state: Any = None) -> None:
        """Publishes weights to all workers, with one copy; they act on them at their next step.

        Args:
            policy_or_state: a policy like the collector's, or its weights; None: its policy's own.
        """
        self.check()
        if not self._weights.has_weights:
            return
        self._check_open()
        tree = self._weights.update(self.policy if policy_or_state is None else policy_or_state)
        if policy_or_state is not None and policy_or_state is not self.policy:
            set_weights(self.policy, tree)

    def _put_weights(self, version: int, tree: Any) -> None:
        assert self._board is not None
        self._board.publish(version, tree)

    # -- collecting ---------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Frames that workers were told to collect so far."""
        return self._pace.given

    @property
    def pids(self) -> list[int]:
        """Of the worker processes."""
        return [h.pid for h in self._handles]

    def _collect(self) -> Any:
        free = not self.sync or self._thread is not None
        before = self._wrote
        while True:
            data = self._any_done() if free else self._all_done()
            if data is END:
                return self._finish(before)
            if data is not None or (self.replay_buffer is not None and self._wrote):
                return data
            if self._pausing:
                return None

    @property
    def _pausing(self) -> bool:
        """Whether the thread should not wait for workers: they may be waiting for room."""
        return self._paused and self._thread is not None

    def _dispatch(self, handle: WorkerHandle) -> None:
        """Gives a worker that has nothing to do its next stretch, if there is one."""
        if handle.asked is not None:
            return
        frames = handle.owed or self._pace.take(self._stretch)
        if frames:
            handle.collect(frames)

    def _any_done(self) -> Any:
        """Waits for one worker; the others go on."""
        while not self._done:
            if self._pausing:
                return None
            for handle in self._handles:
                self._dispatch(handle)
            if all(h.asked is None for h in self._handles):
                return END
            self._take_event()
        number = self._done.popleft()
        data = self._deliver([self._batches.pop(number, [])])
        if not self._pausing:
            self._dispatch(self._handles[number])
        return data

    def _all_done(self) -> Any:
        if self._whole and self._trajs is not None and len(self._whole) >= self._trajs:
            return self._deliver([])
        frames = self._pace.take()
        if not frames:
            return END
        steps, rest = divmod(frames, self._lanes * self.num_workers)
        for number, handle in enumerate(self._handles):
            more = min(max(rest - number * self._lanes, 0), self._lanes)
            if steps * self._lanes + more:
                handle.collect(steps * self._lanes + more)
        while any(h.asked is not None for h in self._handles):
            self._take_event()
        self._done.clear()
        return self._deliver([self._batches.pop(h.number, []) for h in self._handles])

    def _deliver(self, groups: list[list[Batch]]) -> Any:
        """What iteration gives for batches that came back, grouped by worker."""
        if not self._relays:
            return None
        if self._trajs is not None:
            for group in groups:
                self._whole.extend(group)
            if len(self._whole) < self._trajs:
                return None
            data: Any = stack_batches([self._whole.popleft() for _ in range(self._trajs)])
        else:
            batches = [b for group in groups for b in group]
            if not batches:
                return None
            if self.replay_buffer is not None:
                for batch in batches:
                    self._give(batch)
                return None
            data = join_batches(batches, self._cat) if self.sync else batches[0]
        return self._give(data)

    def _give(self, data: Any) -> Any:
        if self._postproc is not None:
            data = self._postproc(data)
        if self._split:
            data = pad_trajectories(data)
        if self.replay_buffer is not None:  # one that only this process can write to
            self._wrote += self._write(data)
            data, given = None, data
        else:
            given = data
        if self._hook is not None:
            self._hook(given)
        return data

    def _finish(self, before: int) -> Any:
        """All frames are there: complete trajectories are written, others counted."""
        if self._finishing or self._trajs is None:
            return END
        if len(self._whole) >= self._trajs:
            return self._deliver([])
        self._finishing = True
        for handle in self._handles:
            handle.finish()
        while any(h.asked is not None for h in self._handles):
            if self._pausing:
                self._settle()
                self._hold_still()
            self._take_event()
        if self._relays and self._whole:
            if self.replay_buffer is not None:
                self._give(stack_batches(list(self._whole)))
            else:
                self.dropped_trajectories += len(self._whole)
                self.dropped_frames += sum(len(b) for b in self._whole)
            self._whole.clear()
        return None if self._wrote > before and self.replay_buffer is not None else END

    # -- events -------------------------------------------------------------------------------

    def _take_event(self) -> WorkerHandle | None:
        """Waits a moment for something to happen, and looks after workers.

        Raises:
            WorkerError: a worker failed, and may not be replaced.
        """
        if self._stop:
            raise ClosedError("this collector was shut down")
        self._look_after()
        try:
            handle, message = self._events.get(timeout=_SLICE_S)
        except queue.Empty:
            return None
        if handle.dead:
            return None  # of one that was replaced
        if message is None:
            return self._replace(handle, handle.describe_end())
        content = message.content
        op = content["op"]
        if op == "ready":
            handle.ready = True
        elif op == "failed":
            handle.said = content["error"]
        elif op == "batch":
            batch = batch_of(content, message.raw)
            handle.received += int(np.prod(batch.shape, dtype=np.int64))
            self._batches.setdefault(handle.number, []).append(batch)
        else:
            handle.done()
            if op == "done":
                handle.stretches += 1
                self._done.append(handle.number)
            self._count_rows()
            count, rows = content.get("dropped", (0, 0))
            self.dropped_trajectories += count
            self.dropped_frames += rows
        return handle

    def _count_rows(self) -> None:
        if not self._relays:
            self._wrote = self._wrote_before + sum(h.page.rows for h in self._handles)

    def _look_after(self) -> None:
        """Replaces workers that hang; looks at them ten times a second."""
        now = time.monotonic()
        if now - self._looked < 2 * _SLICE_S:
            return
        self._looked = now
        for handle in list(self._handles):
            idle = handle.asked is None and handle.ready
            what = None if idle else handle.hangs(*self._limits_s)
            if what := what or handle.silent():
                self._replace(handle, f"{what}:\n{handle.traceback()}")

    def _replace(self, handle: WorkerHandle, why: str) -> WorkerHandle:
        """A worker failed: starts another in its place, or raises."""
        pid, number = handle.pid, handle.number
        handle.end()
        if handle.asked is not None and handle.page.finished > handle.stretches:
            handle.done()  # it only could not say so
            self._done.append(number)
        asked, rows = handle.asked, handle.page.rows
        given = self._given(handle)
        handle.stop()
        if self.restarts >= self._max_restarts:
            raise WorkerError(f"worker {number} (pid {pid}) {why}")
        self.restarts += 1
        if asked is not None and self._relays and self._trajs is None:
            self._batches.pop(number, None)  # of a stretch that is collected again
        # What it gave of a stretch is not collected again; of trajectories, the rest is lost.
        owed = handle.owed if asked is None else asked
        owed = max(owed - max(given - handle.collected, 0), 0)
        lost = max(handle.collected - given, 0)
        self.dropped_frames += lost
        self.dropped_trajectories += lost > 0
        self._wrote_before += 0 if self._relays else rows
        job = self._jobs[number] = self._jobs[number].after(max(handle.collected, given))
        if job.seed is not None:
            later = self.restarts * self.num_workers * self._lanes
            job = job._replace(seed=job.seed + later)
        fresh = WorkerHandle(job, self._events)
        self._handles[number] = fresh
        fresh.owed = owed
        if asked is not None and not self._paused:
            if self._finishing:
                fresh.finish()
            elif owed:
                fresh.collect(owed)
            else:
                self._done.append(number)
        return fresh

    def _given(self, handle: WorkerHandle) -> int:
        """Frames of a worker that ended which are where they belong."""
        given = handle.given(relayed=self._relays, whole=self._trajs is not None)
        if not self._relays and self._buffers and handle.page.doubtful:
            buffer = self._buffers[handle.number % len(self._buffers)]
            if not has_after(buffer.storage, *handle.page.place):
                given -= handle.page.doubtful
        return given

    def _settle(self) -> None:
        for handle in self._handles:
            handle.page.hold(True)
        while any(h.asked is not None and h.page.stage != Stage.HELD for h in self._handles):
            self._take_event()

    def _release(self) -> None:
        for handle in self._handles:
            if not handle.dead:
                handle.page.hold(False)

    def _watch(self) -> None:
        self._take_event()

    def _peek(self) -> None:
        if self._weights.failure is not None:
            raise WorkerError(f"no weights from the server: {self._weights.failure}")
        if self.restarts < self._max_restarts:
            return  # the next call that collects replaces them
        now = time.monotonic()
        look = now - self._peeked > 2 * _SLICE_S  # every sample asks
        self._peeked = now if look else self._peeked
        for handle in self._handles:
            if handle.dead or not (handle.ended or look):
                continue
            why = handle.describe_end() if handle.ended else handle.silent()
            if why is not None:
                raise WorkerError(f"worker {handle.number} (pid {handle.pid}) {why}")

    # -- end ----------------------------------------------------------------------------------

    def _close(self) -> None:
        self._weights.close()
        for handle in self._handles:
            handle.ask_to_stop()
        for handle in self._handles:
            handle.stop()
        if self._board is not None:
            self._board.close()


class MultiSyncCollector(MultiCollector):
    """A MultiCollector whose iterations wait for all workers."""

    def __init__(self, envs: Sequence[Any], policy: Any = None, **options: Any) -> None:
        super().__init__(envs, policy, **{**options, "sync": True})


class MultiAsyncCollector(MultiCollector):
    """A MultiCollector whose iterations take the worker that is first."""

    def __init__(self, envs: Sequence[Any], policy: Any = None, **options: Any) -> None:
        super().__init__(envs, policy, **{**options, "sync": False})


def _kill(handles: list[WorkerHandle]) -> None:
    for handle in handles:
        if handle.process.poll() is None:
            handle.process.kill()
    for handle in handles:
        handle.process.wait()
