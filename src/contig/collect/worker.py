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
from typing import Any

import numpy as np

from ..errors import ClosedError
from ..process.channel import Channel, Message
from ..process.heartbeat import HeartbeatPage, Stage
from ..process.spawn import enter, receive_job
from ..process.trace import tell_failure
from ..weights.board import WeightsBoard
from ..weights.policy import set_weights
from .batcher import Batcher
from .places import quiet
from .relay import batch_parts
from .sink import open_sink
from .vector import as_env
from .worker_spec import WorkerSpec

__all__ = ["Worker", "main"]


_NONE = -(1 << 62)  # older than any version
_HOLD_S = 0.005
_BEAT_S = 0.2


class Worker:
    """The collecting half of a worker process."""

    def __init__(self, job: WorkerSpec, channel: Channel, page: HeartbeatPage) -> None:
        self._job, self._channel, self._page = job, channel, page
        self._commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._stopping = False
        self._version = _NONE if job.board >= 0 else 0
        self._board = WeightsBoard.inherit(job.board) if job.board >= 0 else None

    # -- threads that listen and beat ----------------------------------------------------------

    def listen(self) -> None:
        """Takes commands in; the end of the socket is the end of the process."""
        while (message := self._channel.receive()) is not None:
            if message.content["op"] == "stop":
                self._stopping = True
            self._commands.put(message)
        os._exit(0)

    def beat(self) -> None:
        """Shows that the process runs, also while there is nothing to do; in a thread."""
        while True:
            self._page.beat()
            time.sleep(_BEAT_S)

    # -- the thread that works ----------------------------------------------------------------

    def run(self) -> None:
        job = self._job
        if job.number or job.layout is not None:
            quiet()  # one process says it
        self._page.enter(Stage.MAKING)
        env = as_env(job.env)
        if env.num_envs != job.lanes:
            raise ValueError(
                f"worker {job.number} has {env.num_envs} environments, worker 0 has {job.lanes}: "
                "all need the same number"
            )
        batcher = Batcher(env, job.rows, job.collection)
        batcher.lanes.poll, batcher.lanes.enter = self._poll, self._page.enter
        sink = None if job.address is None else open_sink(job.address, job.layout)
        self._report({"op": "ready"})
        while True:
            content = self._commands.get().content
            self._page.enter(Stage.IDLE)
            if content["op"] == "stop":
                break
            try:
                if content["op"] == "collect":
                    self._collect(batcher, sink, int(content["frames"]))
                else:
                    self._finish(batcher, sink)
            except ClosedError:
                if not self._stopping:
                    raise
        if sink is not None:
            sink.close()
        env.close()

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
            self._channel.send({"op": "batch", **content}, raw)
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
        self._channel.send(content)


def main() -> None:
    channel, (page,) = enter()
    try:
        worker = Worker(receive_job(channel), channel, HeartbeatPage.attach(page))
        threading.Thread(target=worker.beat, name="contig-heartbeat", daemon=True).start()
        threading.Thread(target=worker.listen, name="contig-commands", daemon=True).start()
        worker.run()
    except BaseException:
        tell_failure(channel)
        os._exit(1)
    os._exit(0)  # other threads must not keep it


if __name__ == "__main__":
    main()
