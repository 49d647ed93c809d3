"""A worker process: ``python -m contig.collect.worker SOCKET PAGE TRACE``.

It gets its job over the socket, collects stretches of rows when told to, and ends when the socket
does. Descriptors: the socket, the progress page, and a file for the traceback of a worker that
hangs.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np

from ..errors import ClosedError
from ..process.channel import Channel, Message, batch_parts
from ..process.heartbeat import Heartbeat, Stage
from ..process.trace import Trace
from ..weights.policy import attach_board, set_weights
from .batcher import Batcher
from .places import quiet
from .policy import PolicyRunner, register_primers
from .roller import Roller
from .sink import open_sink
from .vector import as_env
from .worker_spec import WorkerSpec

__all__ = ["Worker", "main"]


_NONE = -(1 << 62)  # older than any version
_HOLD_S = 0.005
_BEAT_S = 0.2


class Worker:
    """The collecting half of a worker process."""

    def __init__(self, job: WorkerSpec, channel: Channel, page: Heartbeat) -> None:
        self._job, self._channel, self._page = job, channel, page
        self._commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._stopping = False
        self._version = _NONE if job.board >= 0 else 0
        self._board = attach_board(job.board) if job.board >= 0 else None

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
        if job.register_primers and job.policy is not None:
            register_primers(env, job.policy)
        runner = PolicyRunner(job.policy, env.action_space, job.device, job.seed)
        roller = Roller(
            env,
            runner,
            job.rows,
            random_frames=job.random_frames,
            max_frames_per_traj=job.max_frames_per_traj,
            seed=job.seed,
            keep_trajectories=job.trajs_per_batch is not None,
            drop_ahead=job.reset_at_each_iter,
        )
        roller.poll, roller.enter = self._poll, self._page.enter
        # Without a buffer, single trajectories go back: the collector counts them out.
        direct = job.address is not None
        count = job.trajs_per_batch if direct or job.trajs_per_batch is None else 1
        gatherer = Batcher(roller, count, job.set_truncated, job.reset_at_each_iter)
        sink = None if job.address is None else open_sink(job.address, job.layout)
        self._report({"op": "ready"})
        while True:
            content = self._commands.get().content
            self._page.enter(Stage.IDLE)
            if content["op"] == "stop":
                break
            try:
                if content["op"] == "collect":
                    self._collect(gatherer, sink, int(content["frames"]))
                else:
                    self._finish(gatherer, sink)
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
                set_weights(self._job.policy, weights.tree)
                self._version = weights.version
        return self._version

    def _collect(self, gatherer: Batcher, sink: Any, frames: int) -> None:
        gatherer.advance(frames)
        if self._job.trajs_per_batch is None:
            for block in gatherer.blocks(frames):
                self._give(block, sink)
        else:
            while (batch := gatherer.trajectories()) is not None:
                self._give(batch, sink)
        self._page.finish()
        self._report({"op": "done"})

    def _give(self, batch: Any, sink: Any) -> None:
        job, page = self._job, self._page
        if sink is None:
            content, raw = batch_parts(batch)
            self._channel.send({"op": "batch", **content}, raw)
            return
        data = batch
        if job.postproc is not None:
            page.enter(Stage.PROCESSING)
            data = job.postproc(batch)
        page.enter(Stage.WAITING)
        frames = int(np.prod(batch.shape, dtype=np.int64))  # whatever postproc made of them

        def tell(going: bool) -> None:
            page.give(frames if going else -frames)

        rows = int(sink.write(data, self._hold_still, tell))
        page.wrote(rows, frames, sink.writer, sink.newest)
        if job.hook is not None:
            page.enter(Stage.PROCESSING)
            job.hook(data)
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

    def _finish(self, gatherer: Batcher, sink: Any) -> None:
        """All frames are there: writes what is complete, says what is not."""
        if gatherer.roller.blocks is not None and sink is not None:
            last = gatherer.trajectories(fewer=True)
            if last is not None:
                self._give(last, sink)
        self._report({"op": "finished", "dropped": gatherer.unfinished})

    def _report(self, content: dict[str, Any]) -> None:
        """Says that it did what it was told; it shows that it waits before anybody can know."""
        self._page.enter(Stage.READY)
        self._channel.send(content)


def main() -> None:
    line, page, trace = (int(x) for x in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the collector
    Trace.answer(trace)
    channel = Channel(socket.socket(fileno=line))
    try:
        first = channel.receive()
        if first is None:
            return
        sys.path[:] = first.content["path"]
        import cloudpickle

        worker = Worker(cloudpickle.loads(first.raw), channel, Heartbeat(page))
        threading.Thread(target=worker.beat, name="contig-heartbeat", daemon=True).start()
        threading.Thread(target=worker.listen, name="contig-commands", daemon=True).start()
        worker.run()
    except BaseException:
        try:
            channel.send({"op": "failed", "error": traceback.format_exc()})
        except OSError:
            pass
        os._exit(1)
    os._exit(0)  # other threads must not keep it


if __name__ == "__main__":
    main()
