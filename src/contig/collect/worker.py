"""A worker process: ``python -m contig.collect.worker CHANNEL TRACE PAGE``.

It gets its job over the channel, collects stretches of rows when told to, and ends when the channel
does. Descriptors: the channel, a file for the traceback of a worker that hangs, and the page that
shows what it does.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..errors import ClosedError
from ..process.channel import Channel, Message
from ..process.heartbeat import HeartbeatPage, Stage
from ..process.spawn import enter, receive_job
from ..process.trace import tell_failure
from ..weights.board import Weights, WeightsBoard
from ..weights.policy import set_weights
from .batcher import Batcher
from .exploration import seed_torch
from .places import quiet
from .relay import batch_parts
from .sink import open_sink
from .vector import as_env
from .worker_spec import WorkerSpec

__all__ = ["Worker", "main"]


_NONE = -(1 << 62)  # older than any version
_HOLD_S = 0.005
_BEAT_S = 0.2


class Reports(Protocol):
    """Where a worker says what it has done: see `Channel`."""

    def send(self, content: dict[str, Any], raw: Any = b"") -> None: ...


class Board(Protocol):
    """Where a worker finds weights: see `WeightsBoard`."""

    @property
    def newest(self) -> int | None: ...
    def read(self, newer_than: int = -1) -> Weights | None: ...


class Worker:
    """Collects stretches of rows, and says so. For one thread, but `stop`.

    Args:
        job: its work.
        reports: where it says what it has done, and sends batches that it does not write.
        page: where it shows what it does.
        board: where the policy's weights are; None: it has none.
    """

    def __init__(
        self, job: WorkerSpec, reports: Reports, page: HeartbeatPage, board: Board | None
    ) -> None:
        self._job, self._reports, self._page, self._board = job, reports, page, board
        self._stopping = False
        self._version = job.version if board is None else _NONE

    def stop(self) -> None:
        """Makes it stop at its next step. From any thread."""
        self._stopping = True

    def prepare(self) -> None:
        """Makes its environment and its way to where rows go, and says so."""
        job = self._job
        if job.number or job.layout is not None:
            quiet()  # one process says it
        self._page.enter(Stage.MAKING)
        seed_torch(job.collection.seed)
        env = as_env(job.env)
        if env.num_envs != job.lanes:
            raise ValueError(
                f"worker {job.number} has {env.num_envs} environments, worker 0 has {job.lanes}: "
                "all need the same number"
            )
        self._env = env
        self._batcher = batcher = Batcher(env, job.rows, job.collection)
        batcher.lanes.poll, batcher.lanes.enter = self._poll, self._page.enter
        self._sink = None if job.address is None else open_sink(job.address, job.layout)
        self._report({"op": "ready"})

    def obey(self, content: dict[str, Any]) -> None:
        """Does what it is told: to collect a stretch, or to finish."""
        self._page.enter(Stage.IDLE)
        try:
            if content["op"] == "collect":
                self._collect(self._batcher, self._sink, int(content["frames"]))
            else:
                self._finish(self._batcher, self._sink)
        except ClosedError:
            if not self._stopping:
                raise

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._env.close()

    def _poll(self) -> int:
        """The newest weights are in the policy; returns their version."""
        if self._stopping:
            raise ClosedError("the collector was shut down")
        board = self._board
        if board is not None and board.newest != self._version:
            weights = board.read(self._version)
            if weights is not None:
                set_weights(self._job.collection.policy, weights.tree)
                self._version = weights.version
        return self._version

    def _collect(self, batcher: Batcher, sink: Any, frames: int) -> None:
        batcher.advance(frames)
        if self._job.collection.trajs_per_batch is None:
            for block in batcher.blocks(frames):
                self._give(block, sink)
        else:
            while (batch := batcher.trajectories()) is not None:
                self._give(batch, sink)
        self._page.finished += 1
        self._report({"op": "done"})

    def _give(self, batch: Any, sink: Any) -> None:
        spec, page = self._job.collection, self._page
        if sink is None:
            content, raw = batch_parts(batch)
            self._reports.send({"op": "batch", **content}, raw)
            return
        data = batch
        if spec.postproc is not None:
            page.enter(Stage.PROCESSING)
            data = spec.postproc(batch)
        page.enter(Stage.WAITING)
        frames = int(np.prod(batch.shape, dtype=np.int64))  # whatever postproc made of them

        def tell(going: bool) -> None:
            page.given += frames if going else -frames

        rows = int(sink.write(data, self._hold_still, tell))
        page.wrote(rows, frames, sink.writer, sink.newest)
        if spec.post_collect_hook is not None:
            page.enter(Stage.PROCESSING)
            spec.post_collect_hook(data)
        page.enter(Stage.IDLE)

    def _hold_still(self) -> None:
        """Called while a write waits for room: stands still while the collector is paused."""
        if self._page.held:
            self._page.enter(Stage.HELD)
            while self._page.held and not self._stopping:
                time.sleep(_HOLD_S)
            self._page.enter(Stage.WAITING)
        if self._stopping:
            raise ClosedError("the collector was shut down")

    def _finish(self, batcher: Batcher, sink: Any) -> None:
        """All frames are there: writes what is complete, says what is not."""
        if batcher.lanes.blocks is not None and sink is not None:
            last = batcher.trajectories(fewer=True)
            if last is not None:
                self._give(last, sink)
        self._report({"op": "finished", "dropped": batcher.unfinished})

    def _report(self, content: dict[str, Any]) -> None:
        """Says that it did what it was told; it shows that it waits before anybody can know."""
        self._page.enter(Stage.READY)
        self._reports.send(content)


def _listen(channel: Channel, worker: Worker, commands: queue.SimpleQueue[Message]) -> None:
    """Takes commands in; the end of the socket is the end of the process."""
    while (message := channel.receive()) is not None:
        if message.content["op"] == "stop":
            worker.stop()
        commands.put(message)
    os._exit(0)


def _beat(page: HeartbeatPage) -> None:
    """Shows that the process runs, also while there is nothing to do; in a thread."""
    while True:
        page.beat()
        time.sleep(_BEAT_S)


def _run(worker: Worker, commands: queue.SimpleQueue[Message]) -> None:
    worker.prepare()
    while (content := commands.get().content)["op"] != "stop":
        worker.obey(content)
    worker.close()


def main() -> None:
    channel, (fd,) = enter()
    try:
        job: WorkerSpec = receive_job(channel)
        page, commands = HeartbeatPage.attach(fd), queue.SimpleQueue[Message]()
        board = None if job.board < 0 else WeightsBoard.inherit(job.board)
        worker = Worker(job, channel, page, board)
        for name, work in (
            ("contig-heartbeat", partial(_beat, page)),
            ("contig-commands", partial(_listen, channel, worker, commands)),
        ):
            threading.Thread(target=work, name=name, daemon=True).start()
        _run(worker, commands)
    except BaseException:
        tell_failure(channel)
        os._exit(1)
    os._exit(0)  # other threads must not keep it


if __name__ == "__main__":
    main()
