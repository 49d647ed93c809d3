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

from ..batch import Batch, stack_batches
from ..errors import ClosedError, WorkerError
from ..layout import Layout
from ..transport import Server
from ..transport.board import WeightsBoard
from .base import END, CollectorBase
from .collector import Pace, check_arguments, warn_split
from .handle import Event, Handle
from .job import Job
from .probe import probe_layout
from .protocol import batch_of
from .rows import join_batches, pad_trajectories
from .sink import RemoteSink, StorageSink, address_of, sink_of
from .vector import as_env
from .weights import get_weights, make_board, set_weights

__all__ = ["MultiAsyncCollector", "MultiCollector", "MultiSyncCollector"]

_SLICE_S = 0.05
_START_S = 120.0
_RESET_S = 60.0


class MultiCollector(CollectorBase):
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
        max_restarts: how often, in all, a worker that failed is replaced.
        step_timeout_s: a worker that is longer in one `env.step` hangs, and is killed.
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
        self._max_restarts, self._step_s = max_restarts, step_timeout_s
        self.restarts = 0
        self.dropped_trajectories = self.dropped_frames = 0
        self._handles: list[Handle] = []
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._batches: dict[int, list[Batch]] = {}
        self._whole: deque[Batch] = deque()  # complete trajectories that came back
        self._wrote = 0
        self._finishing = False
        self._looked = 0.0
        self._version = 0
        self._board: WeightsBoard | None = None
        board_fd = self._publish_first()
        first = as_env(envs[0])
        self._lanes = first.num_envs
        shared = self._lanes * (self.num_workers if sync else 1)
        self._pace = Pace(frames_per_batch, total_frames, shared)
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
        self._sinks: dict[int, StorageSink | RemoteSink] = {}
        self._jobs = []
        for number, env in enumerate(envs):
            address = None if replay_buffer is None else address_of(replay_buffer, number)
            here = address is not None
            lane = number * self._lanes
            self._jobs.append(
                Job(
                    number=number,
                    env=env,
                    policy=policy,
                    device=device,
                    seed=None if seed is None else seed + lane,
                    random_frames=-(-init_random_frames // self.num_workers),
                    max_frames_per_traj=max_frames_per_traj,
                    set_truncated=set_truncated,
                    reset_at_each_iter=reset_at_each_iter,
                    trajs_per_batch=trajs_per_batch,
                    register_primers=auto_register_policy_transforms,
                    rows=frames_per_batch // shared,
                    lanes=self._lanes,
                    address=address,
                    postproc=postproc if here else None,
                    hook=post_collect_hook if here else None,
                    layout=layout,
                    board=board_fd,
                )
            )
        self._relays = any(job.address is None for job in self._jobs)
        self._killer = weakref.finalize(self, _kill, self._handles)
        try:
            for job in self._jobs:
                self._handles.append(Handle(job, self._events))
            self._await_ready()
        except BaseException:
            self._told = True
            self.async_shutdown()
            raise

    # -- before workers start -----------------------------------------------------------------

    def _publish_first(self) -> int:
        tree = get_weights(self.policy)
        if tree is None:
            return -1
        self._board, fd = make_board(tree)
        self._board.publish(0, tree)
        return fd

    def _fix(self, layout: Layout | None) -> str | None:
        """Says to the buffer what rows will be; the layout as JSON."""
        if layout is None:
            return None  # the first worker to write decides
        for number in range(self.num_workers):
            sink_of(self.replay_buffer, number).fix(layout)
        return json.dumps(layout.to_json())

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while not all(h.ready for h in self._handles):
            self._take_event()
            if time.monotonic() > deadline:
                late = [h.number for h in self._handles if not h.ready]
                raise WorkerError(f"workers {late} did not start within {_START_S} s")

    # -- weights ------------------------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        """The newest version that was published."""
        return self._version

    def update_policy_weights_(self, policy_or_state: Any = None) -> None:
        """Publishes weights to all workers, with one copy; they act on them at their next step.

        Args:
            policy_or_state: a policy like the collector's, or its weights; None: its policy's own.
        """
        self.check()
        if self._board is None:
            return
        given = self.policy if policy_or_state is None else policy_or_state
        tree = get_weights(given)
        if tree is None:
            tree = given
        with self._lock:
            self._check_open()
            self._board.publish(self._version + 1, tree)
            self._version += 1
            if isinstance(self.replay_buffer, Server):
                self.replay_buffer.publish(self._version, tree)
        if policy_or_state is not None and policy_or_state is not self.policy:
            set_weights(self.policy, tree)

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

    def _rows(self, free: bool) -> int:
        """Rows of each lane for the next stretch of one worker (free) or of all."""
        if not free or not self.sync:
            return self._pace.next_rows()
        pace, rows = self._pace, self._pace.batch // self._pace.lanes
        if pace.total < 0:
            return rows
        return min(rows, (pace.total - pace.given) // self._lanes)

    def _dispatch(self, handle: Handle) -> bool:
        rows = self._rows(True)
        if not rows or not self._going.is_set():
            return False
        self._pace.given += rows * self._lanes
        handle.collect(rows)
        return True

    def _any_done(self) -> Any:
        """Waits for one worker; the others go on."""
        for handle in self._handles:
            if handle.asked is None:
                self._dispatch(handle)
        if all(h.asked is None for h in self._handles):
            return END
        done = self._take_done()
        while done is None:
            done = self._take_done()
        data = self._deliver([self._batches.pop(done.number, [])])
        self._dispatch(done)
        return data

    def _all_done(self) -> Any:
        rows = self._rows(False)
        if self._whole and self._trajs is not None and len(self._whole) >= self._trajs:
            return self._deliver([])
        if not rows:
            return END
        self._pace.count(rows)
        for handle in self._handles:
            handle.collect(rows)
        while any(h.asked is not None for h in self._handles):
            self._take_event()
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
            data = batches[0]
            if self.sync and self._thread is None:
                data = join_batches(batches, self._cat)
        return self._give(data)

    def _give(self, data: Any) -> Any:
        if self._postproc is not None:
            data = self._postproc(data)
        if self._split:
            data = pad_trajectories(data)
        if self.replay_buffer is not None:  # one that only this process can write to
            sink = self._sinks.get(0) or self._sinks.setdefault(0, sink_of(self.replay_buffer))
            self._wrote += sink.write(data)
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

    def _take_done(self) -> Handle | None:
        """The next worker that finished its stretch; None if something else happened."""
        handle = self._take_event()
        return handle if handle is not None and handle.asked is None else None

    def _take_event(self) -> Handle | None:
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
            self._batches.setdefault(handle.number, []).append(batch_of(content, message.raw))
        else:
            handle.asked = None
            handle.stretches += op == "done"
            self._wrote += 0 if self._relays else int(content["wrote"])
            count, rows = content.get("dropped", (0, 0))
            self.dropped_trajectories += count
            self.dropped_frames += rows
        return handle

    def _look_after(self) -> None:
        """Replaces workers that hang; looks at them ten times a second."""
        now = time.monotonic()
        if now - self._looked < 2 * _SLICE_S:
            return
        self._looked = now
        for handle in list(self._handles):
            if handle.asked is not None and (what := handle.hangs(self._step_s, _RESET_S)):
                self._replace(handle, f"{what}:\n{handle.traceback()}")

    def _replace(self, handle: Handle, why: str) -> Handle:
        """A worker failed: starts another in its place, or raises."""
        pid, finished = handle.pid, handle.page.finished
        asked, number = handle.asked, handle.number
        handle.kill()
        if self.restarts >= self._max_restarts:
            raise WorkerError(f"worker {number} (pid {pid}) {why}")
        self.restarts += 1
        fresh = Handle(self._jobs[number], self._events)
        self._handles[number] = fresh
        if asked is None or finished > handle.stretches:
            return fresh  # it had nothing to do, or all of it was done
        self._batches.pop(number, None)  # of a stretch that is collected again
        if self._finishing:
            fresh.finish()
        else:
            fresh.collect(asked)
        return fresh

    def _settle(self) -> None:
        while any(h.asked is not None for h in self._handles):
            handle = self._take_done()
            if handle is not None:
                self._deliver([self._batches.pop(handle.number, [])])

    def _watch(self) -> None:
        self._take_event()

    # -- end ----------------------------------------------------------------------------------

    def _close(self) -> None:
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


def _kill(handles: list[Handle]) -> None:
    for handle in handles:
        if handle.process.poll() is None:
            handle.process.kill()
    for handle in handles:
        handle.process.wait()
