"""Whole sessions over real tables, without input or output: what the connection's state machine
appends, what it refuses and why must be what a naive reading of the same bytes says.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import random
import struct
import threading
from collections import Counter
from typing import Any

import numpy as np

from contig import Layout, LazyTensorStorage
from contig.replay import Ingress
from contig.server.budget import Limits
from contig.server.connection import Connection
from contig.server.core import ServerCore
from contig.server.tables import QueueTable, TapeTable
from contig.tape import BatchQueue
from tests.wire import mutate
from tests.wire.naive import BAD, READY, NaiveReceiver, frame, items_fit, runs_of

TOKEN = "a token"
REASONS = {"magic", "version", "token", "table", "producer", "frame", "layout"}
REASONS |= {"gap", "shape", "value", "size", "type", "header_crc", "body_crc", "busy", "deadline"}


ITEM = Layout({"x": np.zeros(4, np.float32), "y": np.int64(0)})
STEP = Layout(
    {
        "next": {"done": np.bool_(0), "terminated": np.bool_(0), "truncated": np.bool_(0)},
        "x": np.int64(0),
    }
)
BATCH = 4
LIMITS = Limits(max_frame=8192, max_bytes=1 << 20)


class Timer:
    def __init__(self, call: Any, args: Any) -> None:
        self.call, self.args, self.cancelled = call, args, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop on which nothing happens by itself."""

    def __init__(self) -> None:
        self.soon: list[Any] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, delay: float, call: Any, *args: Any) -> Timer:
        return Timer(call, args)

    def call_soon(self, call: Any, *args: Any) -> None:
        self.soon.append((call, args))

    def call_soon_threadsafe(self, call: Any, *args: Any) -> None:
        raise RuntimeError("closed: the core's waker ends, and the test does its work")


class Transport:
    """What a connection has of its socket."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closing = self.paused = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else None

    def write(self, data: Any) -> None:
        assert not self.closing, "written to after the end"
        self.written += data

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def proof(token: str | None, text: bytes) -> str:
    return "" if token is None else hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def paths_of(structure: Any, path: tuple[Any, ...] = ()) -> list[Any]:
    """Paths of a layout's structure, from its JSON."""
    if structure == "leaf":
        return [list(path)]
    if structure == "none":
        return []
    keys, children = structure["keys"], structure["children"]
    known = {"dict": dict.fromkeys(keys), "list": range(len(keys)), "tuple": range(len(keys))}
    assert len(keys) == len(children) and list(known[structure["kind"]]) == keys
    return [p for k, c in zip(keys, children) for p in paths_of(c, (*path, k))]


def usual_name(dtype: str) -> str:
    """How a layout names a dtype that numpy knows by several names."""
    if dtype[0] in ">!":
        raise ValueError("records are little-endian")
    return np.dtype(dtype.removeprefix("torch.")).name


def size_of(leaves: list[Any]) -> int:
    """Bytes of a record of such leaves."""
    end, largest = 0, 1
    for _, shape, name in leaves:
        size = np.dtype(name).itemsize
        end, largest = -(-end // size) * size + math.prod(shape) * size, max(largest, size)
    return -(-end // largest) * largest


class Refusal(Exception):
    """What the naive reading of a session expects."""


class Judge:
    """What becomes of a session, read naively: one frame after another, no state but counters."""

    def __init__(self, table: str, seen: int) -> None:
        self.tape = table == "tape"
        self.received = seen
        self.layout = STEP if self.tape else ITEM
        self.records: list[bytes] = []
        self.gets = self.requests = 0
        self.left = False

    def take(self, reader: NaiveReceiver) -> None:
        """The frame at the front. Raises Refusal."""
        fields, payload = reader.fields, reader.payload
        if fields.type == 4:
            self._items(fields, payload)
        elif fields.type == 6:
            self.left = True
        elif fields.type == 7:
            if len(payload) != 8:
                raise Refusal("frame")
            if self.gets:
                raise Refusal("busy")
            self.gets += 1
        elif fields.type == 14:
            pass  # a sign of life
        elif fields.type in (9, 11, 12, 15, 17):
            self.requests += 1
            if self.requests > 64:
                raise Refusal("busy")
            if not self.tape and fields.type != 17:
                raise Refusal("type")
        else:
            raise Refusal("type")

    def _items(self, fields: Any, payload: bytes) -> None:
        size = self.layout.record_size
        if not items_fit(fields, payload, size, self.tape):
            raise Refusal("shape")
        records = payload[32 * fields.runs :]
        if self.tape and any(max(records[k::size]) > 1 for k in range(mutate.BOOLS)):
            raise Refusal("value")
        if fields.number > self.received:
            raise Refusal("gap")
        rows = [run.rows for run in runs_of(payload, fields.runs)] if self.tape else []
        items = rows or [1] * fields.rows
        again = min(self.received - fields.number, len(items))
        skip = 32 * fields.runs + sum(items[:again]) * size
        self.records += [payload[i : i + size] for i in range(skip, len(payload), size)]
        self.received = max(self.received, fields.number + len(items))


class Arena:
    """A core over a small queue and a tape, and everything that should have happened to it."""

    def __init__(self, rng: random.Random, token: str | None) -> None:
        self.rng, self.token = rng, token
        self.queue = BatchQueue.create(ITEM, BATCH, 3)
        self.storage = LazyTensorStorage(200)
        self.storage.publish(STEP)
        self.asked: list[Any] = []
        self.loop = Loop()
        tables = {"queue": QueueTable(self.queue), "tape": TapeTable(Ingress(self.storage))}
        self.core = ServerCore(self.loop, tables, token, LIMITS, lambda *a: self.asked.append(a))  # type: ignore[arg-type]
        self.seen: dict[tuple[str, int], int] = {}
        self.rejected: Counter[str] = Counter()
        self.expected: list[bytes] = []  # for the queue, in order
        self.delivered: list[bytes] = []
        self.rows = 0  # of the tape
        self.units = 0  # frames and handshakes
        self.parked: list[Connection] = []

    # -- one session --------------------------------------------------------------------------

    def session(self) -> None:
        rng = self.rng
        self.units += 1
        connection, transport = Connection(self.core), Transport()
        connection.connection_made(transport)
        try:
            self._hello(connection, transport)
            self._frames(connection, transport)
        except Refusal as refusal:
            self._refused(connection, transport, str(refusal))
        else:
            if rng.random() < 0.3:
                self._late(connection, transport)
        if rng.random() < 0.1 and not transport.closing:
            self.parked.append(connection)  # it goes silent, with what it has sent half
            if len(self.parked) > 20:
                self._lose(self.parked.pop(rng.randrange(20)))
        else:
            self._lose(connection)
        self._check()

    def _hello(self, connection: Connection, transport: Transport) -> None:
        rng = self.rng
        nonce = rng.randbytes(32)
        hello = struct.pack("<8sII", b"contig/1", 1, rng.choice([0, 7])) + nonce
        how = rng.random()
        if how < 0.1:
            hello = mutate.bad_bytes(rng, hello)
        elif how < 0.12:
            hello = rng.choice(
                [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + rng.randbytes(60), b"c"]
            )
        self.give(connection, transport, hello)
        if not b"contig/1".startswith(hello[:8]):
            raise Refusal("magic")
        self.half = len(hello) < 48
        if self.half:
            return
        self.rest = hello[48:]
        oldest, newest = struct.unpack_from("<II", hello, 8)
        spoken = min(max(oldest, newest), 4)
        greeting = bytes(transport.written[:64])
        said = struct.pack("<8sII", b"contig/1", max(spoken, 1), self.token is not None)
        assert greeting[:16] == said
        if not max(oldest, 1) <= spoken:
            raise Refusal("version")
        self.nonces = greeting[16:48], hello[16:48]

    def _frames(self, connection: Connection, transport: Transport) -> None:
        if self.half:
            return
        rng = self.rng
        reader = NaiveReceiver(4096, 256 << 10)
        if self.rest:  # the mutated hello was longer: its rest is read as a frame
            reader.feed(self.rest)
            if reader.next() == BAD:
                raise Refusal(reader.refusal)
        opening, table, producer = self._opening()
        how = rng.random()
        if how < 0.3:
            payload = mutate.bad_open(rng, opening)
        else:
            payload = json.dumps(opening).encode()
        first = frame(1, rng.choice([0, 0, 3]), payload)
        if how > 0.9:
            first = mutate.mutated(rng, 0, 8, True)
        if how > 0.97:
            first = mutate.bad_fields(rng, frame(1, 0, payload))
        self._feed(connection, transport, reader, first)
        if reader.next() != READY:
            return
        if reader.fields.type != 1:
            raise Refusal("frame")
        content = reader.payload
        reader.pop()
        table, producer, seen = self._judge_open(content)
        reader.max_frame = LIMITS.max_frame
        judge = Judge(table, seen)
        try:
            self._stream(connection, transport, reader, judge)
        finally:
            self._account(connection, judge, table, producer)

    def _opening(self) -> tuple[dict[str, Any], str, int]:
        rng = self.rng
        table = rng.choice(["queue", "tape"])
        known = [p for t, p in list(self.seen)[-30:] if t == table]
        producer = rng.choice(known) if known and rng.random() < 0.5 else rng.randrange(1, 2**63)
        server, client = self.nonces
        layout = STEP if table == "tape" else ITEM
        opening = {
            "table": table,
            "producer": producer,
            "proof": proof(self.token, b"contig client" + server + client),
            "next": rng.choice([0, 0, 0, 5, 2**62, 2**63 - 1]),
            "layout": layout.to_json() if rng.random() < 0.9 else None,
            "ack": rng.choice(["received", "committed"]),
        }
        return opening, table, producer

    def _judge_open(self, payload: bytes) -> tuple[str, int, int]:
        """(table, producer, seen) of an OPEN that is let in. Raises Refusal."""
        try:
            content = json.loads(payload)
        except (ValueError, RecursionError):
            raise Refusal("frame") from None
        if not isinstance(content, dict):
            raise Refusal("frame")
        server, client = self.nonces
        if content.get("proof") != proof(self.token, b"contig client" + server + client):
            raise Refusal("token")
        if content.get("table") not in ("queue", "tape"):
            raise Refusal("table")
        numbers = content.get("producer"), content.get("next")
        if not all(type(n) is int and 0 <= n < 2**63 for n in numbers) or numbers[0] == 0:
            raise Refusal("producer")
        if content.get("ack") not in ("received", "committed"):
            raise Refusal("frame")
        table, (producer, following) = content["table"], numbers
        if not self._layout_fits(content.get("layout"), table):
            raise Refusal("layout")
        seen = self.seen.get((table, producer), following)
        if content["ack"] == "received":  # acked once, so it does not come again: it is skipped
            if following - seen > LIMITS.max_bytes:
                raise Refusal("producer")
            seen = max(seen, following)
            if (table, producer) in self.seen:
                self.seen[table, producer] = seen
        return table, producer, seen

    def _layout_fits(self, layout: Any, table: str) -> bool:
        """Whether a layout is the table's own, apart from the kinds of its containers.

        Other names of the same dtypes may be known or not: there, what was decided is believed.
        """
        if layout is None:
            return True
        try:
            leaves = [[x["path"], x["shape"], usual_name(x["dtype"])] for x in layout["leaves"]]
            paths = paths_of(layout["structure"])
        except Exception:
            return False
        own = [
            [list(x.path), list(x.shape), x.dtype.name]
            for x in (STEP if table == "tape" else ITEM).leaves
        ]
        if any(x in leaves for x in own if x[0][0] == "next"):
            own = [x for x in own if x in leaves or x[0][0] != "next"]  # missing flags are added
        # As text, for which True and 1, or 4 and 4.0, are not the same.
        if json.dumps(own) != json.dumps(leaves) or paths != [x[0] for x in leaves]:
            return False
        if layout.get("record_size", size_of(leaves)) != size_of(leaves):
            return False
        if [x[2] for x in leaves] == [x["dtype"] for x in layout["leaves"]]:
            return True
        return self.core.stats.rejected["layout"] == self.rejected["layout"]

    def _stream(
        self, connection: Connection, transport: Transport, reader: NaiveReceiver, judge: Judge
    ) -> None:
        rng, size = self.rng, judge.layout.record_size
        for _ in range(rng.choice([1, 5, 12])):
            number = judge.received if rng.random() < 0.8 else max(judge.received - 3, 0)
            how = rng.random()
            if how < 0.35:
                data = mutate.good_items(rng, number % 2**64, size, judge.tape)
            elif how < 0.75:
                data = mutate.mutated(rng, number % 2**64, size, judge.tape)
            else:
                kind = rng.choice([6, 7, 7, 9, 11, 12, *range(1, 18)])
                data = frame(kind, rng.choice(mutate.NUMBERS), rng.randbytes(rng.choice([0, 8, 9])))
                if kind in (9, 12, 17):
                    data *= rng.choice([1, 1, 66])
            self._feed(connection, transport, reader, data)
            while not judge.left and reader.next() == READY:
                judge.take(reader)
                reader.pop()
            if judge.left:
                return
            if reader.next() == BAD:
                raise Refusal(reader.refusal)

    def _feed(
        self, connection: Connection, transport: Transport, reader: NaiveReceiver, data: bytes
    ) -> None:
        self.units += 1
        self.give(connection, transport, data)
        reader.feed(data)
        if reader.next() == BAD:
            raise Refusal(reader.refusal)

    # -- what a socket would do ---------------------------------------------------------------

    def give(self, connection: Connection, transport: Transport, data: bytes) -> None:
        """Bytes arrive, in pieces; a connection that stopped reading is waited for."""
        rng, at = self.rng, 0
        while at < len(data) and not transport.closing:
            while transport.paused and not transport.closing:
                self._make_room()
            if transport.closing:
                return
            room = connection.get_buffer(-1)
            assert len(room) > 0, "asyncio ends a connection that has no buffer"
            piece = data[at : at + min(rng.choice([1, 13, 40, 500, 65536]), len(room))]
            room[: len(piece)] = piece
            del room
            at += len(piece)
            connection.buffer_updated(len(piece))
            self._run_soon()
            assert self.core.memory.bytes_held <= LIMITS.max_bytes
        while transport.paused and not transport.closing:
            self._make_room()

    def _make_room(self) -> None:
        self._drain()
        self.core._retry(threading.Event())
        self._run_soon()

    def _run_soon(self) -> None:
        while self.loop.soon:
            call, args = self.loop.soon.pop(0)
            call(*args)

    def _drain(self) -> None:
        while (batch := self.queue.take(copy=True)) is not None:
            records = np.zeros((BATCH, ITEM.record_size), np.uint8)
            for leaf in ITEM.leaves:
                column = np.ascontiguousarray(batch[leaf.path]).view(np.uint8)
                records[:, leaf.offset : leaf.offset + leaf.nbytes] = column.reshape(BATCH, -1)
            self.delivered += [r.tobytes() for r in records]

    def _lose(self, connection: Connection) -> None:
        connection.transport.closing = True
        connection.connection_lost(None)
        self._make_room()

    def _late(self, connection: Connection, transport: Transport) -> None:
        timer = connection._deadline
        if timer is not None:
            timer.call(*timer.args)
            self._refused(connection, transport, "deadline")

    # -- what should have happened ------------------------------------------------------------

    def _refused(self, connection: Connection, transport: Transport, reason: str) -> None:
        assert reason in REASONS
        self.rejected[reason] += 1
        assert self.core.stats.rejected == self.rejected, reason
        assert transport.closing
        written = bytes(transport.written)
        start = written.rindex(b"cFrm")
        reader = NaiveReceiver(1 << 24, 1 << 24)
        reader.feed(written[start:])
        assert reader.next() == READY and reader.fields.type == 3
        answer = json.loads(reader.payload)
        assert answer["reason"] == reason and answer["message"]
        assert len(answer["message"]) < 100_000
        # What comes after a refusal is not read.
        room = connection.get_buffer(-1)
        if len(room):
            connection.buffer_updated(min(len(room), 100))
        assert self.core.stats.rejected == self.rejected

    def _account(self, connection: Connection, judge: Judge, table: str, producer: int) -> None:
        assert connection.stream is not None and connection.stream.table.kind == table
        if judge.records or (table, producer) in self.seen:  # it is known from its first item on
            self.seen.pop((table, producer), None)
            self.seen[table, producer] = judge.received  # the newest
        if table == "queue":
            self.expected += judge.records
        elif judge.records:
            self.rows += len(judge.records)
            last = judge.records[-min(len(judge.records), 50) :]
            seqs = np.arange(self.rows - len(last), self.rows)
            batch, lost = self.storage.gather(seqs)
            assert not lost
            for leaf in STEP.leaves:
                end = leaf.offset + leaf.nbytes
                assert batch[leaf.path].tobytes() == b"".join(r[leaf.offset : end] for r in last)

    def _check(self) -> None:
        self._drain()
        full = len(self.expected) // BATCH * BATCH
        assert self.delivered == self.expected[:full]
        del self.expected[:full], self.delivered[:]
        assert self.storage.tape.snapshot()[0] == self.rows
        assert self.core.stats.rejected == self.rejected
        assert len(self.core.connections) == len(self.parked)

    def finish(self) -> None:
        while self.parked:
            self._lose(self.parked.pop())
        self._check()
        core = self.core
        assert core.memory.bytes_held == 0
        for left in (
            core.connections,
            core.memory._hungry,
            core._blocked,
            core._orphans,
            core._current,
        ):
            assert not left
        assert not core.weights._wanting
        episodes = self.storage.episodes()
        assert episodes["steps"].sum() == min(self.rows, 200)
        self.storage.close()
        self.queue.close()
