"""Memory of connections whose frames leave out slots: a frame that has come waits for no more."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from contig import LazyTensorStorage
from contig.replay import Ingress
from contig.server.budget import Limits
from contig.server.connection import Connection
from contig.server.core import ServerCore
from contig.server.tables import TapeTable
from tests.wire.arena import Loop, Transport
from tests.wire.carried import sealed
from tests.wire.compact import Form
from tests.wire.naive import READY, Fields, NaiveReceiver, Run, frame, seal

LIMITS = Limits(max_frame=1 << 20, max_bytes=2 << 20)
OBS_BYTES, OTHER_BYTES = 20_000, 250_000


class Table:
    """Of which each step has one more observation, and much else that is not one."""

    def __init__(self) -> None:
        obs = np.zeros(OBS_BYTES, np.uint8)
        done = {key: np.bool_(False) for key in ("done", "terminated", "truncated")}
        row = {"obs": obs, "other": np.zeros(OTHER_BYTES, np.uint8), "next": {"obs": obs, **done}}
        self.storage = LazyTensorStorage(100, example=row, share_next=True)
        assert self.storage.schema is not None
        self.form = Form(self.storage.schema)
        tables = {"default": TapeTable(Ingress(self.storage))}
        self.core = ServerCore(Loop(), tables, None, LIMITS, lambda *a: None)  # type: ignore[arg-type]

    def step(self, number: int, left_out: bool) -> bytes:
        """A frame of one step; its observation is what the step before led to."""
        record = bytearray(self.form.record_size)
        for at, value in ((("obs",), number), (("next", "obs"), number + 1)):
            offset = self.form.layout.by_path[at].offset
            record[offset : offset + OBS_BYTES] = bytes([value]) * OBS_BYTES
        rows, slots = self.form.packed([bytes(record)])
        table = [(0, 0)] if left_out else None
        return sealed([Run(1, 0, 5, -1, 0)], rows, slots, table, kept=True, first=number)

    def stored(self, path: tuple[str, ...]) -> list[int]:
        head, tail, *_ = self.storage.tape.snapshot()
        batch, lost = self.storage.gather(np.arange(tail, head, dtype=np.int64))
        assert not lost
        return [int(one[0]) for one in np.asarray(batch[path])]


class Peer:
    """A connection, whose client knows how many bytes of slots are kept of it."""

    def __init__(self, table: Table, producer: int) -> None:
        self.connection, self.transport = Connection(table.core), Transport()
        self.connection.connection_made(self.transport)
        said = {"table": "default", "producer": producer, "proof": "", "next": 0}
        said |= {"layout": table.form.layout.to_json(), "ack": "committed"}
        self.give(struct.pack("<8sII32x", b"contig/1", 1, 4))
        self.give(frame(1, 0, json.dumps(said).encode()))
        reader = NaiveReceiver(1 << 20, 1 << 20)
        reader.feed(bytes(self.transport.written[64:]))
        assert reader.next() == READY and reader.fields.type == 2
        self.carry = json.loads(reader.payload)["schema"]["shared"].get("carry", 0)

    def give(self, data: bytes) -> None:
        while data:
            assert not self.transport.paused and not self.transport.closing
            room: Any = self.connection.get_buffer(-1)
            piece = data[: len(room)]
            room[: len(piece)] = piece
            del room
            data = data[len(piece) :]
            self.connection.buffer_updated(len(piece))


def test_frames_that_came_are_completed_without_more_memory() -> None:
    """Those who have received all of a frame would wait for each other, and for ever."""
    table = Table()
    memory = table.core.memory
    peers = [Peer(table, producer) for producer in (1, 2, 3)]
    other = Peer(table, 4)
    assert all(peer.carry >= 2 * OBS_BYTES for peer in peers)
    for peer in peers:
        peer.give(table.step(0, False))
        memory._shrink_idle()
    following = table.step(1, True)
    for peer in peers:
        peer.give(following[:-1])
    # What is left is somebody else's, who says no more for a while.
    left = LIMITS.max_bytes - memory.bytes_held + other.connection.receiver.size
    assert OBS_BYTES < left < LIMITS.max_frame
    other.give(seal(Fields(4, 0, 0, 0, 1, 1, left - 40), b""))
    assert memory.bytes_held == LIMITS.max_bytes
    for peer in peers:
        peer.give(following[-1:])
    assert table.stored(("obs",)) == [0, 0, 0, 1, 1, 1]
    assert table.stored(("next", "obs")) == [1, 1, 1, 2, 2, 2]
    for peer in peers:  # and what comes behind goes on
        peer.give(table.step(2, True))
    assert table.stored(("next", "obs"))[6:] == [3, 3, 3]
    assert memory.bytes_held == LIMITS.max_bytes
    for peer in (*peers, other):
        peer.transport.closing = True
        peer.connection.connection_lost(None)
    assert memory.bytes_held == memory._carried == 0
    table.storage.close()
