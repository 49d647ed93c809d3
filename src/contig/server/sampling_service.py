"""The sampling service: answers remote requests where the buffer is, in the learner's process.

    client --SAMPLE--> ingest process --> service --> ReplayBuffer.draw
                                                        |
    client <--BATCH--  ingest process <-- raw block <---+

Threads of its own; the buffers take turns with the learner's own calls.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from .. import _native, wire
from ..batch import Batch
from ..errors import EmptyBufferError, LayoutError
from ..layout import Layout
from ..replay import Lent, ReplayBuffer
from ..wire import Type, log
from .answers import ANSWER, REQUEST
from .batch_frame import batch_frame
from .looks import Looks
from .orders import Order, Orders
from .publications import Publications
from .receipts import Verdict

__all__ = ["SamplingService", "answer_request"]

_WORKERS = 2  # for each table's samples, which may wait; others go past them
_SLICE_S = 0.1
Send = Callable[
    [int, list[Any]], bool
]  # rows that can be given back, parts; False: nobody is there

_END_S = 2.0  # for what is being answered while the server is closed


def answer_request(
    buffer: ReplayBuffer[Any],
    kind: int,
    number: int,
    payload: bytes,
    max_frame: int,
    alive: Callable[[], bool] = lambda: True,
    order: Order | None = None,
) -> list[Any]:
    """The parts of the frame that answers a request; `alive`: whether it is worth waiting. What was
    drawn for an `order`, and can be given back, is noted there."""
    try:
        if kind == Type.SAMPLE:
            batch, lent = _draw(buffer, payload, max_frame, alive)
            return _lent_frame(buffer, batch, lent, number, max_frame, order)
        if kind == Type.PRIORITY:
            _priorities(buffer, payload)
            return [wire.json_frame(Type.REPLY, {}, number)]
        if kind == Type.SET_FIELDS:
            there = _set_fields(buffer, payload)
            return [wire.json_frame(Type.REPLY, {"there": there}, number)]
        return [wire.json_frame(Type.REPLY, buffer.stats()._asdict(), number)]
    except Exception as error:
        return [_failure(error, number)]


def _failure(error: Exception, number: int) -> bytes:
    """Whatever it is, it is for the one who asked."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else str(error)
    content = {"error": type(error).__name__, "message": str(text) or type(error).__name__}
    return wire.json_frame(Type.REPLY, content, number)


def _layout_of(buffer: ReplayBuffer[Any], alive: Callable[[], bool]) -> Layout:
    """What rows of a buffer look like; waits for the first ones, as a sample does."""
    deadline = time.monotonic() + buffer.sample_timeout_s
    tape = buffer.storage.tape
    while (layout := buffer.storage.layout) is None:
        if time.monotonic() > deadline or not alive():
            raise EmptyBufferError(
                f"no rows have come within {buffer.sample_timeout_s} s: the table is empty"
            )
        tape.wait(tape.wake_word, _SLICE_S)
    return layout


def _draw(
    buffer: ReplayBuffer[Any], payload: bytes, max_frame: int, alive: Callable[[], bool]
) -> tuple[Batch, Lent]:
    if len(payload) != 8:
        raise ValueError("SAMPLE: expected 8 bytes")
    (size,) = struct.unpack("<Q", payload)
    rows = int(size) or buffer.batch_size or 0  # of none, `draw` says so
    # Before anything is made for it; there may be no rows yet, and no layout.
    record_size = _layout_of(buffer, alive).decoded.record_size
    if rows * record_size > max_frame or rows > max_frame:
        raise ValueError(
            f"{rows} rows of {record_size} bytes are more than a frame may have: "
            f"max_frame is {max_frame}"
        )
    before = _native.limit_gather(max_frame)  # before there is memory for leaves of any size
    try:
        return buffer.lend(int(size) or None, alive)
    finally:
        _native.limit_gather(before)


def _lent_frame(
    buffer: ReplayBuffer, batch: Batch, lent: Lent, number: int, most: int, order: Order | None
) -> list[Any]:
    try:
        frame = batch_frame(batch, number, most)
    except BaseException:
        buffer.take_back(lent)
        raise
    if order is not None and lent.taken:
        order.lent = lent
    return frame


def _priorities(buffer: ReplayBuffer[Any], payload: bytes) -> None:
    n = struct.unpack_from("<Q", payload)[0] if len(payload) >= 8 else 0
    if len(payload) != 8 + 16 * n:
        raise ValueError("PRIORITY: expected as many indices and priorities as it says")
    seqs = np.frombuffer(payload, np.int64, n, 8)
    buffer.update_priority(seqs, np.frombuffer(payload, np.float64, n, 8 + 8 * n))


def _set_fields(buffer: ReplayBuffer[Any], payload: bytes) -> int:
    fields = buffer.storage.fields
    if fields is None:
        raise LayoutError("this table has no fields of trajectories: make its storage with fields=")
    ids, said = wire.parse_set_fields(payload, fields)
    return buffer.set_fields(ids, said)


class _Workers:
    """Threads that make calls, in the order in which they are given.

    An executor's would keep the interpreter from ending while a sample waits for its first rows.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name=name) for _ in range(count)]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        if not self._closed:
            self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._closed:
                continue  # nobody waits for it any more
            try:
                call()
            except Exception:
                log.exception("a request was not answered")

    def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)

    def join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))


class SamplingService:
    """Answers what an ingest process forwards.

    Args:
        buffers: by table name.
        max_frame: bytes of the largest answer.
        publications: takes weights in; None: nobody may publish any.
        looks: answers those who watch; None: nobody may.
    """

    def __init__(
        self,
        buffers: dict[str, ReplayBuffer[Any]],
        max_frame: int,
        publications: Publications | None = None,
        looks: Looks | None = None,
    ) -> None:
        self._buffers = buffers
        self._publications, self._looks = publications, looks
        self._max_frame = max_frame
        self._samples = {n: _Workers(_WORKERS, "contig-sample") for n in buffers}
        self._others = _Workers(1, "contig-request")
        self._watchers = _Workers(1, "contig-watch")
        self._writing = threading.Lock()
        self._orders = Orders()
        self._closed = False
        self._socket: socket.socket | None = None
        self._reader: threading.Thread | None = None

    def attach(self) -> socket.socket:
        """A new line to an ingest process: its end of it."""
        mine, theirs = socket.socketpair()
        self._socket = mine
        self._reader = threading.Thread(target=self._read, args=(mine,), name="contig-service")
        self._reader.daemon = True
        self._reader.start()
        return theirs

    def _read(self, line: socket.socket) -> None:
        try:
            self._read_requests(line)
        except OSError:
            pass  # the ingest process is gone
        self._orders.broken(line)

    @property
    def unconfirmed_rows(self) -> int:
        """Rows that an ingest process which died had been given: some may not have been sent."""
        return self._orders.unconfirmed_rows

    def _read_requests(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as source:
            while head := source.read(REQUEST.size):
                if len(head) < REQUEST.size:
                    return
                token, name_bytes, kind, request, size = REQUEST.unpack(head)
                table = source.read(name_bytes).decode(errors="replace")
                payload = source.read(size)
                known = table in self._samples or kind in (Type.PUBLISH, Type.WATCH)
                if not known or len(payload) < size:
                    return  # it died in the middle of a request
                send = partial(self._send, line, token)
                self.handle(line, token, table, kind, request, payload, send)

    def _send(self, line: socket.socket, token: int, rows: int, parts: list[Any]) -> bool:
        size = sum(memoryview(p).nbytes for p in parts)
        try:
            with self._writing:
                line.sendall(ANSWER.pack(token, size, rows))
                for part in parts:
                    line.sendall(part)
        except OSError:
            return False  # the ingest process is gone; its client asks again
        return True

    def handle(
        self,
        line: Hashable,
        token: int,
        table: str,
        kind: int,
        request: int,
        payload: bytes,
        send: Send,
    ) -> None:
        """Has a request answered, or hears what became of an answer."""
        if kind == Verdict.UNWANTED:
            self._orders.unwanted(line, token)
        elif kind in (Verdict.TAKEN, Verdict.BACK):
            order = self._orders.close(line, token)
            if order is not None and kind == Verdict.BACK:
                order.give_back()  # here: before who asks next, and at the server's end too
        else:
            order = None
            if kind == Type.SAMPLE:
                order = self._orders.new(line, token, self._buffers[table])
            work = partial(self._answer, line, token, table, kind, request, payload, send, order)
            self.submit(table, kind, work)

    def _answer(
        self,
        line: Hashable,
        token: int,
        table: str,
        kind: int,
        request: int,
        payload: bytes,
        send: Send,
        order: Order | None,
    ) -> None:
        parts = self.answer(table, kind, request, payload, order)
        rows = 0 if order is None else order.rows
        if order is not None and not rows:
            self._orders.close(line, token)
        if not send(rows, parts) and order is not None:
            self._orders.close(line, token)
            order.give_back()

    def answer(
        self, table: str, kind: int, request: int, payload: bytes, order: Order | None = None
    ) -> list[Any]:
        """The parts of the frame that answers a request."""
        if kind == Type.PUBLISH:
            return [self._publish(request, payload)]
        if kind == Type.WATCH:
            return self._look(request, payload)

        def alive() -> bool:
            return not self._closed and (order is None or order.wanted)

        buffer, most = self._buffers[table], self._max_frame
        return answer_request(buffer, kind, request, payload, most, alive, order)

    def _publish(self, number: int, payload: bytes) -> bytes:
        try:
            if self._publications is None:
                raise ValueError("this server takes no weights: TcpTransport(takes_weights=True)")
            version = self._publications.take(payload)
        except Exception as error:
            return _failure(error, number)
        return wire.json_frame(Type.REPLY, {"version": version}, number)

    def _look(self, number: int, payload: bytes) -> list[Any]:
        try:
            if self._looks is None:
                raise ValueError("this server is not watched")
            return self._looks.answer(number, payload, self._max_frame)
        except Exception as error:
            return [_failure(error, number)]

    def submit(self, table: str, kind: int, call: Callable[[], None]) -> None:
        """Runs something in the threads for such requests."""
        if kind == Type.SAMPLE:
            self._samples[table].submit(call)
        else:
            (self._watchers if kind == Type.WATCH else self._others).submit(call)

    def close(self) -> None:
        """Ends the threads. A draw that waits for a rate limiter is not waited for."""
        self._closed = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        deadline = time.monotonic() + _END_S
        if self._looks is not None:
            self._looks.close()
        every = (*self._samples.values(), self._others, self._watchers)
        for workers in every:
            workers.close()
        for workers in every:
            workers.join(deadline)
        if self._reader is not None:
            self._reader.join(max(deadline - time.monotonic(), 0.0))
