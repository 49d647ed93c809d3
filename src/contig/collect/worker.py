"""A worker process: ``python -m contig.collect.worker SOCKET PAGE TRACE``.

It gets its job over the socket, collects stretches of rows when told to, and ends when the socket
does. Descriptors: the socket, the progress page, and a file for the traceback of a worker that
hangs.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from ..errors import ClosedError
from .collector import Gatherer
from .job import Job, Page
from .policy import PolicyRunner, register_primers
from .protocol import Channel, Message, batch_parts
from .roller import Roller
from .sink import RemoteSink, StorageSink, open_sink
from .vector import as_env
from .weights import attach_board, set_weights

__all__ = ["Worker", "main"]


class Worker:
    """The collecting half of a worker process."""

    def __init__(self, job: Job, channel: Channel, page: Page) -> None:
        self._job, self._channel, self._page = job, channel, page
        self._commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._stopping = False
        self._version = -1 if job.board >= 0 else 0
        self._board = attach_board(job.board) if job.board >= 0 else None

    # -- the thread that listens --------------------------------------------------------------

    def listen(self) -> None:
        """Takes commands in; the end of the socket is the end of the process."""
        while (message := self._channel.receive()) is not None:
            if message.content["op"] == "stop":
                self._stopping = True
            self._commands.put(message)
        os._exit(0)

    # -- the thread that works ----------------------------------------------------------------

    def run(self) -> None:
        job = self._job
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
        )
        roller.poll, roller.progress = self._poll, self._page.stage
        # Without a buffer, single trajectories go back: the collector counts them out.
        direct = job.address is not None
        count = job.trajs_per_batch if direct or job.trajs_per_batch is None else 1
        gatherer = Gatherer(roller, count, job.set_truncated, job.reset_at_each_iter)
        sink = None if job.address is None else open_sink(job.address, job.layout)
        if isinstance(sink, StorageSink):
            sink.go_on = self._poll
        self._channel.send({"op": "ready"})
        while True:
            content = self._commands.get().content
            if content["op"] == "stop":
                break
            try:
                if content["op"] == "collect":
                    self._collect(gatherer, sink, int(content["rows"]))
                else:
                    self._finish(gatherer, sink)
            except ClosedError:
                if not self._stopping:
                    raise
        if sink is not None:
            if isinstance(sink, RemoteSink):
                sink.flush()
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

    def _collect(self, gatherer: Gatherer, sink: Any, rows: int) -> None:
        gatherer.advance(rows)
        wrote = 0
        if self._job.trajs_per_batch is None:
            wrote += self._give(gatherer.block(rows), sink)
        else:
            while (batch := gatherer.trajectories()) is not None:
                wrote += self._give(batch, sink)
        self._page.finish()
        self._channel.send({"op": "done", "wrote": wrote})

    def _give(self, batch: Any, sink: Any) -> int:
        if sink is None:
            content, raw = batch_parts(batch)
            self._channel.send({"op": "batch", **content}, raw)
            return len(batch)
        data = batch if self._job.postproc is None else self._job.postproc(batch)
        wrote = int(sink.write(data))
        if isinstance(sink, RemoteSink):
            sink.flush()
        if self._job.hook is not None:
            self._job.hook(data)
        return wrote

    def _finish(self, gatherer: Gatherer, sink: Any) -> None:
        """All frames are there: writes what is complete, says what is not."""
        wrote = 0
        if gatherer.roller.blocks is not None and sink is not None:
            last = gatherer.trajectories(fewer=True)
            wrote = 0 if last is None else self._give(last, sink)
        count, rows = gatherer.unfinished
        self._channel.send({"op": "finished", "wrote": wrote, "dropped": [count, rows]})


def main() -> None:
    line, page, trace = (int(x) for x in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the collector
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=True)
    channel = Channel(socket.socket(fileno=line))
    try:
        first = channel.receive()
        if first is None:
            return
        sys.path[:] = first.content["path"]
        import cloudpickle

        worker = Worker(cloudpickle.loads(first.raw), channel, Page(page))
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
