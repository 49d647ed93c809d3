"""A connection that has several reasons to wait at once: for room, for memory, for its peer."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from contig import LazyTensorStorage, wire
from contig.replay import Ingress
from contig.server import budget as budget_module
from contig.server.budget import Limits
from contig.server.connection import Connection
from contig.server.core import ServerCore
from contig.server.tables import QueueTable, TapeTable
from contig.tape import BatchQueue
from tests.wire.arena import ITEM, Loop, Transport
from tests.wire.naive import Fields, frame, seal

HELLO = b"contig/1" + (1).to_bytes(4, "little") + bytes(36)
SIZE = ITEM.record_size


class Peer:
    """One end of a connection, with the server's side in the same thread."""

    def __init__(self, core: ServerCore, producer: int = 1, ack: str = "committed") -> None:
        self.connection, self.transport = Connection(core), Transport()
        self.connection.connection_made(self.transport)
        opening = {"table": "default", "producer": producer, "proof": "", "next": 0}
        opening |= {"layout": ITEM.to_json(), "ack": ack}
        self.give(HELLO + frame(1, 0, json.dumps(opening).encode()))
        assert self.connection.stream is not None

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

    @property
    def refusal(self) -> Any:
        """The reason in a REFUSE that it got, or None."""
        _, found, text = bytes(self.transport.written).partition(b'{"reason"')
        return json.loads(found + text)["reason"] if found else None

    def lose(self) -> None:
        self.transport.closing = True
        self.connection.connection_lost(None)


class Setting:
    def __init__(self, limits: Limits) -> None:
        self.queue = BatchQueue.create(ITEM, 4, 2)
        self.loop = Loop()
        tables: Any = {"default": QueueTable(self.queue)}
        self.core = ServerCore(self.loop, tables, None, limits)  # type: ignore[arg-type]

    def drain(self) -> int:
        """The learner takes what is there, and the core notices; how many items that were."""
        found = 0
        while (batch := self.queue.take(copy=True)) is not None:
            found += len(batch)
        self.core._retry(threading.Event())
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
    """Full, not reading, and then gone: what was acked as received is taken in when it fits."""
    peer = Peer(setting.core, ack="received")
    peer.items(0, 8)
    peer.items(8, 4)  # no room for these
    assert peer.connection.waiting
    peer.connection.pause_writing()
    peer.lose()
    assert setting.drain() == 8
    assert setting.drain() == 4
    assert setting.core.memory.bytes_held == 0
    # And who comes back does not wait for it for ever.
    again = Peer(setting.core, ack="received")
    again.items(12, 4)
    assert setting.drain() == 4


def test_what_was_not_acked_is_forgotten_with_its_connection(setting: Setting) -> None:
    """Acked when they are in the table: what waits for room comes again from the client."""
    peer = Peer(setting.core)
    peer.items(0, 8)
    peer.items(8, 4)  # no room for these
    peer.lose()
    assert setting.core.memory.bytes_held == 0
    assert setting.drain() == 8
    assert setting.drain() == 0
    again = Peer(setting.core)
    again.items(8, 4)
    assert setting.drain() == 4
    again.lose()


def test_blocked_and_choked_in_any_order(setting: Setting) -> None:
    """Only when the last reason to wait has gone is the socket read again."""
    peer = Peer(setting.core)
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
    assert setting.core.memory.bytes_held == 0


def test_who_waits_for_memory_is_not_read_from() -> None:
    setting = Setting(Limits(max_frame=8192, max_bytes=20_000))
    big, peer = Peer(setting.core, 1), Peer(setting.core, 2)
    assert big.give(seal(Fields(4, rows=300, length=7200), b"")) == b""  # holds the memory
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
    assert setting.core.memory.bytes_held == 0
    setting.queue.close()


def test_who_is_gone_waits_for_no_memory() -> None:
    """Not for the rest of a frame either, behind one that was acked as received and had no room."""
    setting = Setting(Limits(max_frame=8192, max_bytes=20_000))
    peer, big = Peer(setting.core, 1, "received"), Peer(setting.core, 2)
    peer.items(0, 8)
    rest = seal(Fields(4, rows=300, length=7200, number=12), b"")
    peer.give(frame(4, 8, bytes(SIZE * 4), rows=4) + rest)
    peer.lose()
    assert big.give(rest) == b""  # holds the memory
    assert [setting.drain(), setting.drain()] == [8, 4]
    big.lose()
    setting.run()
    assert setting.core.memory.bytes_held == 0
    setting.queue.close()


def test_nothing_is_done_for_a_peer_that_does_not_read(setting: Setting) -> None:
    peer = Peer(setting.core)
    peer.connection.pause_writing()
    before = len(peer.transport.written)
    peer.transport.paused = False  # what was on its way already
    peer.items(0, 4)
    assert len(peer.transport.written) == before
    peer.connection.resume_writing()
    assert len(peer.transport.written) == before + 40  # the ack
    assert setting.drain() == 4
    peer.lose()


# -- the end of a server --------------------------------------------------------------------------


def test_closing_takes_in_what_fits_and_counts_the_rest(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of connections that are gone. What was not acked is its client's to send again."""
    gone, first, second = (Peer(setting.core, n, "received") for n in (1, 2, 3))
    safe = Peer(setting.core, 4)
    gone.items(0, 8)
    gone.items(8, 4)  # no room for these, and the following
    gone.lose()
    first.items(0, 3)
    second.items(0, 2)
    safe.items(0, 4)
    taken = setting.queue.take(copy=True)  # and nobody has noticed yet that there is room
    assert taken is not None and len(taken) == 4
    ticks = itertools.count()
    setting.loop.time = lambda: float(next(ticks))  # type: ignore[method-assign]
    asyncio.run(setting.core.close())
    assert setting.queue.native.counters()["head"] == 12
    assert setting.core.stats.items_in == 12
    assert setting.core.stats.lost_items == 5
    assert "5 items" in caplog.text


# -- who has not shown yet that it may ------------------------------------------------------------


class Stranger(Peer):
    """It connects, and says so much of its first frame."""

    def __init__(self, core: ServerCore) -> None:
        self.connection, self.transport = Connection(core), Transport()
        self.connection.connection_made(self.transport)


def test_the_oldest_stranger_makes_room(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    monkeypatch.setattr(budget_module, "_UNPROVEN_BYTES", 5 * 4096)
    known = Peer(setting.core)
    strangers = [Stranger(setting.core) for _ in range(5)]
    assert not any(s.transport.closing for s in strangers)
    strangers.append(Stranger(setting.core))
    assert [s.refusal for s in strangers] == ["busy", *[None] * 5]
    strangers[3].give(HELLO + seal(Fields(1, length=8000), b""))  # a large one counts as such
    assert [s.refusal for s in strangers] == ["busy", "busy", None, None, None, None]
    assert strangers[3].connection.receiver.size == 8040
    # Neither who was let in counts, nor who left.
    assert not known.transport.closing
    assert Peer(setting.core, 2).refusal is None
    for stranger in strangers:
        stranger.lose()
    assert setting.core.memory._unproven_bytes == 0
    many = [Stranger(setting.core) for _ in range(5)]
    assert not any(s.transport.closing for s in many)


def test_an_opening_has_a_largest_size(setting: Setting) -> None:
    stranger = Stranger(setting.core)
    length = wire.HANDSHAKE_BYTES - wire.HEADER_BYTES
    stranger.give(HELLO + seal(Fields(1, length=length), b""))
    assert stranger.refusal is None
    assert stranger.connection.receiver.size == wire.HANDSHAKE_BYTES
    other = Stranger(setting.core)
    other.give(HELLO + seal(Fields(1, length=length + 1), b""))
    assert other.refusal == "size"
    assert other.connection.receiver.size == 4096


# -- requests -------------------------------------------------------------------------------------


def test_requests_are_bounded_in_bytes() -> None:
    """One may be of any size; of several, the sum counts until they are answered."""
    storage = LazyTensorStorage(100)
    storage.publish(ITEM)
    asked: list[Any] = []
    tables: Any = {"default": TapeTable(Ingress(storage))}
    core = ServerCore(Loop(), tables, None, Limits(), lambda *a: asked.append(a))  # type: ignore[arg-type]
    peer, half = Peer(core), bytes(wire.MAX_REQUEST_BYTES // 2)

    def answer() -> None:
        token, _, _, request, _ = asked.pop(0)
        core.answers.answer(token, 0, frame(13, request, b"{}"))

    peer.give(frame(11, 1, 4 * half))
    assert len(asked) == 1 and peer.refusal is None
    answer()
    for request in range(10):
        peer.give(frame(11, request, half))
        peer.give(frame(11, request, half))
        assert len(asked) == 2 and peer.refusal is None
        answer()
        answer()
    for request in range(3):
        peer.give(frame(11, request, half))
    assert len(asked) == 2 and peer.refusal == "busy"
    answer()  # for somebody who is not there any more
    peer.lose()
    assert core.memory.bytes_held == 0
    storage.close()
