"""WorkersCollector: collects through workers, whoever carries them.

worker i --append--> tape or table --sample--> learner     it can reach the replay_buffer
worker i --batch's bytes--> collector --> joined batch     it cannot, or there is none
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..arguments import whole
from ..batch import Batch, stack_batches
from ..errors import ClosedError
from ..weights.policy import get_weights, set_weights
from ..weights.publisher import WeightPublisher
from .adapters import is_env
from .base import END, BaseCollector
from .carrier import Carrier
from .collection import CollectionSpec, FrameBudget
from .column_blocks import pad_trajectories
from .env import EnvBase
from .relay import Relay
from .roller import first_rows
from .schedule import Schedule
from .sink import sink_of
from .vector import as_env
from .worker_spec import WorkerSpec, specs_for
from .workers import Supervision, Workers

__all__ = ["WorkersCollector"]


class WorkersCollector(BaseCollector[Batch]):
    """Steps environments in workers, one or more in each. Base of those that have workers.

    Args:
        envs: for each worker an environment, or what makes it.
        spec: what is collected; checked by whoever made it.
        carrier: runs the workers, and brings them weights. It is closed with this.
        replay_buffer: as in BaseCollector.
        sync: whether an iteration waits for all workers.
        cat_results: how batches of workers are joined: "stack", 0 or -1.
        max_restarts: how often, in all, a worker that failed is replaced.
        supervision: looks after workers.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        spec: CollectionSpec,
        carrier: Carrier,
        *,
        replay_buffer: Any,
        sync: bool,
        cat_results: str | int,
        max_restarts: int,
        supervision: Supervision,
    ) -> None:
        super().__init__(replay_buffer)
        if cat_results not in ("stack", 0, -1):
            raise ValueError(f'cat_results: expected "stack", 0 or -1, got {cat_results!r}')
        whole("max_restarts", max_restarts, 0)
        self._spec, self._carrier = spec, carrier
        self.policy, self.num_workers, self.sync = spec.policy, len(envs), sync
        self._weights = WeightPublisher(self.policy, replay_buffer, carrier.publish, gives=True)
        self._start(envs, cat_results, supervision, max_restarts)

    # -- before workers start -----------------------------------------------------------------

    def _prepare(self, envs: Sequence[Any]) -> list[WorkerSpec]:
        """What each worker is told; the budget, which depends on the environments, too."""
        first, spec, buffer = as_env(envs[0]), self._spec, self.replay_buffer
        lanes, workers = first.num_envs, self.num_workers if self.sync else 1
        self._budget = FrameBudget(spec, lanes * workers, buffer is not None)
        if self._weights.has_weights:
            self._carrier.publish(self._weights.version, get_weights(self.policy))
        rows = _probe_rows(first, envs[0], spec, buffer is not None and spec.postproc is None)
        fields = spec.fields
        if rows is not None and self._buffers:  # else the first worker to write decides
            for number in range(self.num_workers):
                sink_of(buffer, number).fix(rows, None if fields is None else fields.layout)
        like = WorkerSpec(
            number=0,
            env=None,
            collection=spec,
            rows=spec.frames_per_batch // workers // lanes,
            lanes=lanes,
            address=None,
            layout=None if rows is None else json.dumps(rows.layout.to_json()),
            version=self._weights.version,
        )
        find = None if buffer is None else lambda number: self._carrier.address(buffer, number)
        return specs_for(envs, like, find)

    def _start(
        self, envs: Sequence[Any], join: str | int, supervision: Supervision, max_restarts: int
    ) -> None:
        """Starts the workers, and waits until all of them have made their environments."""
        jobs = self._prepare(envs)
        self._relay: Relay | None = None
        if any(job.address is None for job in jobs):
            joined = self.sync and self.replay_buffer is None
            self._relay = Relay(self._spec.trajs_per_batch, join if joined else None)
        workers = Workers(
            jobs, self._carrier, self._relay, self._buffers, supervision, max_restarts
        )
        self._workers, lanes = workers, jobs[0].lanes
        self.lanes_per_worker = lanes
        self._schedule = Schedule(self._budget, workers.handles, lanes, jobs[0].rows * lanes)
        try:
            self._workers.start()
            while not self._workers.ready:
                self._take_event()
            self._weights.begin()
        except BaseException:
            self._told = True
            self.async_shutdown()
            raise

    # -- weights ------------------------------------------------------------------------------

    def _about(self) -> str:
        count, what = self.num_workers, "worker"
        many = f"{count} {what}{'' if count == 1 else 's'}"
        return f"{many}, batches of {self._spec.frames_per_batch} frames"

    @property
    def policy_version(self) -> int:
        """The newest version that was published."""
        return self._weights.version

    def update_policy_weights_(self, policy_or_state: Any = None) -> None:
        """Publishes weights to all workers, with one copy; they act on them at their next step.

        Args:
            policy_or_state: a policy like the collector's, or its weights; None: its policy's own,
                if it has any.

        Raises:
            TypeError: weights for a policy that has no way to take them.
        """
        self.check()
        own = policy_or_state is None or policy_or_state is self.policy
        if own and not self._weights.has_weights:
            return  # there is nothing that workers could be given
        self._check_open()
        tree = self._weights.update(self.policy if own else policy_or_state)
        if not own:
            set_weights(self.policy, tree)

    # -- what is known of them ----------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Frames that workers were told to collect so far."""
        return self._budget.given

    @property
    def pids(self) -> list[int]:
        """Of the workers' processes."""
        return [h.pid for h in self._workers.handles]

    @property
    def restarts(self) -> int:
        """How many workers were replaced."""
        return self._workers.restarts

    @property
    def dropped_trajectories(self) -> int:
        """Trajectories that were not complete at the end, or lost with a worker."""
        return self._workers.dropped_trajectories

    @property
    def dropped_frames(self) -> int:
        """Their frames."""
        return self._workers.dropped_frames

    # -- collecting ---------------------------------------------------------------------------

    def _collect(self) -> Any:
        first_come = not self.sync or self._thread is not None
        before = self._workers.rows
        while True:
            data = self._any_done() if first_come else self._all_done()
            if data is END:
                return self._finish(before)
            if data is not None or (self.replay_buffer is not None and self._workers.rows):
                return data
            if self._pausing:
                return None

    @property
    def _pausing(self) -> bool:
        """Whether the thread should not wait for workers: they may be waiting for room."""
        return self._paused and self._thread is not None

    def _any_done(self) -> Any:
        """Waits for one worker; the others go on."""
        workers = self._workers
        if self._relay is not None and self._relay.has_trajectories:
            return self._deliver([])  # a stretch may have more than one batch
        while not workers.done:
            if self._pausing:
                return None
            if not self._schedule.first_come():
                return END
            self._take_event()
        number = workers.done.popleft()
        data = self._deliver([number])
        if not self._pausing:
            self._schedule.next_stretch(workers.handles[number])
        return data

    def _all_done(self) -> Any:
        if self._relay is not None and self._relay.has_trajectories:
            return self._deliver([])
        if not self._schedule.together():
            return END
        while self._schedule.busy:
            self._take_event()
        self._workers.done.clear()
        return self._deliver(list(range(self.num_workers)))

    def _deliver(self, workers: list[int]) -> Any:
        """What iteration gives for the stretches of some workers."""
        data = None
        for batch in [] if self._relay is None else self._relay.take(workers):
            data = self._give(batch)
        return data

    def _give(self, data: Any) -> Any:
        spec = self._spec
        if spec.postproc is not None:
            data = spec.postproc(data)
        if spec.split_trajs:
            data = pad_trajectories(data)
        if self.replay_buffer is not None:  # one that only this process can write to
            self._workers.rows += self._write(data)
        if spec.post_collect_hook is not None:
            spec.post_collect_hook(data)
        return data if self.replay_buffer is None else None

    def _finish(self, before: int) -> Any:
        """All frames are there: complete trajectories are written, others counted."""
        if self._workers.finishing or self._spec.trajs_per_batch is None:
            return END
        relay, workers = self._relay, self._workers
        if relay is not None and relay.has_trajectories:
            return self._deliver([])
        workers.finish()
        while self._schedule.busy:
            if self._pausing:
                self._settle()
                self._hold_still()
            self._take_event()
        rest = [] if relay is None else relay.take_rest()
        if rest and self.replay_buffer is not None:
            self._give(stack_batches(rest))
        else:
            workers.dropped_trajectories += len(rest)
            workers.dropped_frames += sum(len(b) for b in rest)
        return None if workers.rows > before and self.replay_buffer is not None else END

    # -- looking after workers ----------------------------------------------------------------

    def _take_event(self) -> None:
        if self._stop:
            raise ClosedError("this collector was shut down")
        self._workers.take_event(self._paused)

    _watch = _take_event

    def _settle(self) -> None:
        self._workers.hold(True)
        while not self._workers.held:
            self._take_event()

    def _release(self) -> None:
        self._workers.hold(False)

    def _peek(self) -> None:
        self._weights.check()
        self._workers.check()

    def _close(self) -> None:
        self._weights.close()
        self._workers.close()
        self._carrier.close()


def _probe_rows(first: EnvBase, given: Any, spec: CollectionSpec, wanted: bool) -> Batch | None:
    """What rows will be before any are collected, so that workers never race to define it.

    Args:
        first: the environment that was made of what was given.
        given: an environment, or a function that makes one.
        wanted: if not, only what was made is closed.

    Returns:
        None if it is not wanted, or if the environment given cannot be copied.
    """
    made = first is not given and not is_env(given) and not isinstance(given, str)
    probe = first if not wanted or (made and not first.batch_shape) else first.probe()
    try:
        return None if not wanted or probe is given else first_rows(probe, spec)
    finally:
        if made:
            first.close()
        if probe is not first:
            probe.close()
