"""Sessions of protocol 4 over a tape that stores observations once, without input or output: frames
leave out slots of the frame before, or say so. What is stored, and what is refused and why, must be
what a naive reading says."""

from __future__ import annotations

import json
import random
import struct
import threading
from collections import Counter
from typing import Any

import numpy as np

from contig import LazyTensorStorage
from contig.replay import Ingress
from contig.server.budget import Limits
from contig.server.connection import Connection
from contig.server.core import ServerCore
from contig.server.tables import TapeTable
from tests.wire.arena import Loop, Transport
from tests.wire.carried import CARRIED, Keeper, fields_of, spoiled
from tests.wire.compact import Form
from tests.wire.naive import READY, NaiveReceiver, Run, frame, runs_of
from tests.wire.test_compact import expanded

LIMITS = Limits(max_frame=8192, max_bytes=1 << 20)
CAPACITY = 100
OBS = np.zeros((3, 20), np.uint8)


class CarryingArena:
    """A core over one tape, and everything that should have happened to it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        flag = {"done": np.bool_(0), "terminated": np.bool_(0), "truncated": np.bool_(0)}
        row = {"obs": OBS, "next": {"obs": OBS, **flag}}
        self.storage = LazyTensorStorage(CAPACITY, example=row, share_next=True, stack={"obs": 3})
        assert self.storage.schema is not None
        self.form = Form(self.storage.schema)
        self.loop = Loop()
        tables = {"default": TapeTable(Ingress(self.storage))}
        self.core = ServerCore(self.loop, tables, None, LIMITS, lambda *a: None)  # type: ignore[arg-type]
        self.ends: Counter[str] = Counter()
        self.records: list[bytes] = []
        self.parked: list[Connection] = []
        self.seen: dict[int, int] = {}

    def session(self) -> None:
        rng = self.rng
        connection, transport = Connection(self.core), Transport()
        connection.connection_made(transport)
        version = rng.choice([3, 4, 4, 4])
        self._give(connection, struct.pack("<8sII", b"contig/1", 1, version) + bytes(32))
        producer = rng.choice([*list(self.seen)[-5:], rng.randrange(1, 2**62)])
        layout = self.form.layout.to_json()
        said = {
            "table": "default",
            "producer": producer,
            "proof": "",
            "next": 0,
            "ack": "committed",
        }
        self._give(connection, frame(1, 0, json.dumps({**said, "layout": layout}).encode()))
        reader = NaiveReceiver(1 << 24, 1 << 24)
        reader.feed(bytes(transport.written[64:]))
        assert reader.next() == READY and reader.fields.type == 2
        accepted = json.loads(reader.payload)
        carry = accepted["schema"]["shared"].get("carry", 0)
        assert not carry or version == 4
        self.ends["carry" if carry else f"none of version {version}"] += 1
        keeper = Keeper(self.form, carry, LIMITS.max_frame)
        self._frames(connection, transport, keeper, producer, accepted["seen"])
        if rng.random() < 0.5 and not transport.closing:
            self.parked.append(connection)
        else:
            self._lose(connection)
        if len(self.parked) > 2 or (self.parked and rng.random() < 0.5):
            self._lose(self.parked.pop(rng.randrange(len(self.parked))))
        self.check()

    def _frames(
        self, connection: Connection, transport: Transport, keeper: Keeper, producer: int, seen: int
    ) -> None:
        rng, records = self.rng, [self._record()]
        for _ in range(rng.choice([1, 5, 12])):
            runs = [Run(rng.randint(1, 3), 0, 5, -1, 0) for _ in range(rng.randint(1, 2))]
            n = sum(run.rows for run in runs)
            if rng.random() < 0.4:
                records = [self._record() for _ in range(n)]
            records = [rng.choice(records) for _ in range(n)]
            again = seen - (seen > 0 and rng.random() < 0.2)  # is in already, in part or whole
            sent = spoiled(rng, self.form, runs, records, keeper.slots, again)
            self.ends["carried"] += bool(fields_of(sent).flags & CARRIED)
            wrong, whole = keeper.take(sent)
            self._give(connection, sent)
            assert transport.closing == (wrong != "none"), wrong
            if wrong != "none":
                self.ends[wrong] += 1
                assert self.core.stats.rejected[wrong] == self.ends[wrong]
                return
            fields = fields_of(whole)
            dropped = runs_of(whole[40:], fields.runs)[: seen - again]
            if fields.flags & 1:
                self.records += expanded(self.form, whole)[sum(run.rows for run in dropped) :]
            seen = self.seen[producer] = max(seen, again + fields.runs)

    def _record(self) -> bytes:
        record = bytearray(self.rng.randbytes(self.form.record_size))
        for leaf in self.form.layout.leaves:
            if leaf.dtype == bool:
                record[leaf.offset] &= 1
        used = {i for x in self.form.layout.leaves for i in range(x.offset, x.offset + x.nbytes)}
        return bytes(b if i in used else 0 for i, b in enumerate(record))

    def _give(self, connection: Connection, data: bytes) -> None:
        at, transport = 0, connection.transport
        while at < len(data) and not transport.closing:
            assert not transport.paused
            room: Any = connection.get_buffer(-1)
            assert len(room) > 0
            piece = data[at : at + min(self.rng.choice([1, 40, 500, 65536]), len(room))]
            room[: len(piece)] = piece
            del room
            at += len(piece)
            connection.buffer_updated(len(piece))
            while self.loop.soon:
                call, args = self.loop.soon.pop(0)
                call(*args)
            assert self.core.memory.bytes_held <= LIMITS.max_bytes

    def _lose(self, connection: Connection) -> None:
        connection.transport.closing = True
        connection.connection_lost(None)
        self.core._retry(threading.Event())

    def check(self) -> None:
        head, tail, *_ = self.storage.tape.snapshot()
        assert head == len(self.records)
        batch, lost = self.storage.gather(np.arange(tail, head, dtype=np.int64))
        assert not lost
        for leaf in self.form.layout.leaves:
            end = leaf.offset + leaf.nbytes
            stored = np.ascontiguousarray(batch[leaf.path]).tobytes()
            assert stored == b"".join(r[leaf.offset : end] for r in self.records[tail:])

    def finish(self) -> None:
        while self.parked:
            self._lose(self.parked.pop())
        assert self.core.memory.bytes_held == self.core.memory._carried == 0
        self.storage.close()
