"""A connection that has several reasons to wait at once: for room, for memory, for its peer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from contig.tape import BatchQueue
from contig.transport.connection import Connection
from contig.transport.hub import Hub, Limits
from contig.transport.tables import QueueTable
from tests.wire.naive import Fields, frame, seal
from tests.wire.test_fuzz import ITEM, Loop, Transport

HELLO = b"contig/1" + (1).to_bytes(4, "little") + bytes(36)
SIZE = ITEM.record_size


class Peer:
    """One end of a connection, with the server's side in the same thread."""

    def __init__(self, hub: Hub, producer: int = 1) -> None:
        self.connection, self.transport = Connection(hub), Transport()
        self.connection.connection_made(self.transport)
        opening = {"table": "default", "producer": producer, "proof": "", "next": 0}
        opening |= {"layout": ITEM.to_json(), "ack": "committed"}
        self.give(HELLO + frame(1, 0, json.dumps(opening).encode()))
        assert self.connection.table is not None

    def give(self, data: bytes) -> bytes:
        """What is left when the connection reads no more."""
        while data and not self.transport.paused and not self.transport.closing:
            room = self.connection.get_buffer(-1)
            assert len(room) > 0, "asyncio ends a connection that has no buffer"
            piece = data[: len(room)]
            room[: len(piece)] = piece
            data = data[len(piece) :]
            self.connection.buffer_updated(len(piece))
        return data

    def items(self, first: int, count: int) -> bytes:
        return self.give(frame(4, first, bytes([first]) * (SIZE * count), rows=count))

    def lose(self) -> None:
        self.transport.closing = True
        self.connection.connection_lost(None)


class Setting:
    def __init__(self, limits: Limits) -> None:
        self.queue = BatchQueue.create(ITEM, 4, 2)
        self.loop = Loop()
        tables: Any = {"default": QueueTable(self.queue)}
        self.hub = Hub(self.loop, tables, None, limits)  # type: ignore[arg-type]

    def drain(self) -> int:
        """The learner takes what is there, and the hub notices; how many items that were."""
        found = 0
        while (batch := self.queue.take(copy=True)) is not None:
            found += len(batch)
        self.hub._retry(threading.Event())
        self.run()
        return found

    def run(self) -> None:
        while self.loop.soon:
            call, args = self.loop.soon.pop(0)
            call(*args)


@pytest.fixture
def setting() -> Iterator[Setting]:
    made = Setting(Limits(max_frame=8192, max_bytes=1 << 20))
    yield made
    made.queue.close()


def test_what_was_received_goes_in_though_nobody_read_the_answers(setting: Setting) -> None:
    """Full, not reading, and then gone: its whole frames are taken in when there is room."""
    peer = Peer(setting.hub)
    peer.items(0, 8)
    peer.items(8, 4)  # no room for these
    assert peer.connection.waiting
    peer.connection.pause_writing()
    peer.lose()
    assert setting.drain() == 8
    assert setting.drain() == 4
    assert setting.hub.bytes_held == 0
    # And who comes back does not wait for it for ever.
    again = Peer(setting.hub)
    again.items(12, 4)
    assert setting.drain() == 4


def test_blocked_and_choked_in_any_order(setting: Setting) -> None:
    """Only when the last reason to wait has gone is the socket read again."""
    peer = Peer(setting.hub)
    peer.items(0, 8)
    peer.items(8, 4)
    assert peer.transport.paused
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    assert peer.transport.paused, "there is still no room"
    peer.connection.pause_writing()
    setting.drain()
    assert peer.transport.paused, "the peer still does not read"
    peer.connection.resume_writing()
    setting.drain()
    assert not peer.transport.paused
    assert peer.items(12, 4) == b""
    peer.lose()
    assert setting.hub.bytes_held == 0


def test_who_waits_for_memory_is_not_read_from() -> None:
    setting = Setting(Limits(max_frame=8192, max_bytes=10_000))
    big = Peer(setting.hub, 1)
    assert big.give(seal(Fields(4, rows=300, length=7200), b"")) == b""  # holds the memory
    peer = Peer(setting.hub, 2)
    rest = peer.items(0, 300)
    assert peer.transport.paused and rest
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    assert peer.transport.paused, "there is still no memory"
    peer.connection.pause_writing()
    big.lose()
    setting.run()
    assert peer.transport.paused, "the peer still does not read"
    peer.connection.resume_writing()
    setting.run()
    assert not peer.transport.paused
    taken = 0
    while rest:
        rest = peer.give(rest)
        taken += setting.drain()
    for _ in range(100):
        taken += setting.drain()
    assert taken == 300
    peer.lose()
    assert setting.hub.bytes_held == 0
    setting.queue.close()


def test_nothing_is_done_for_a_peer_that_does_not_read(setting: Setting) -> None:
    peer = Peer(setting.hub)
    peer.connection.pause_writing()
    before = len(peer.transport.written)
    peer.transport.paused = False  # what was on its way already
    peer.items(0, 4)
    assert len(peer.transport.written) == before
    peer.connection.resume_writing()
    assert len(peer.transport.written) == before + 40  # the ack
    assert setting.drain() == 4
    peer.lose()
