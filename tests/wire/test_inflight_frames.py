"""What a client has on its way, against the naive list of what was added.

The other side is a server of this test's own: it reads the bytes that were sent, in the order in
which they were, and acks, loses the connection and comes back as servers do. Whatever happens, it
gets each item once and in order.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contig import Layout, _native
from tests.wire import naive

ITEMS, ACK, GET = 4, 5, 7
LAYOUT = Layout({"n": np.int64(0), "more": np.zeros(3, np.uint8)})
SIZE = LAYOUT.record_size


def tree(n: int) -> dict[str, Any]:
    return {"n": np.int64(n), "more": np.full(3, n % 251, np.uint8)}


def record(n: int) -> bytes:
    return LAYOUT.pack_one(tree(n)).tobytes()


class ToyServer:
    """Reads a stream of frames; knows the items that it has seen, whatever the connection."""

    def __init__(self, first: int) -> None:
        self.first = self.seen = first
        self.items: list[bytes] = []
        self.asked: list[int] = []
        self.connect()

    def connect(self) -> None:
        self.receiver = _native.Receiver(1 << 16, 1 << 16)

    def hear(self, data: bytes) -> None:
        while data:
            piece, data = data[:1000], data[1000:]
            self.receiver.feed(piece)
            while (state := self.receiver.next()) == naive.READY:
                self.frame()
                self.receiver.pop()
            assert state == naive.MORE, self.receiver.refusal

    def frame(self) -> None:
        receiver = self.receiver
        if receiver.type == GET:
            self.asked.append(receiver.number)
            return
        assert receiver.type == ITEMS and receiver.check_items(SIZE, False)
        assert receiver.number <= self.seen, "items are missing"
        payload = receiver.payload()
        new = payload[(self.seen - receiver.number) * SIZE :]
        self.items += [new[i : i + SIZE] for i in range(0, len(new), SIZE)]
        self.seen = max(self.seen, receiver.number + receiver.rows)


class FlightMachine(RuleBasedStateMachine):
    @initialize(
        first=st.sampled_from([0, 1, 5000]),
        frame_items=st.integers(1, 6),
        max_frames=st.integers(1, 5),
        max_items=st.integers(1, 40),
        near=st.booleans(),
    )
    def begin(
        self, first: int, frame_items: int, max_frames: int, max_items: int, near: bool
    ) -> None:
        self.max_frames, self.max_bytes = max_frames, max_items * SIZE
        self.inflight = _native.Inflight(
            SIZE, LAYOUT.padded, first, frame_items * SIZE + 32, max_frames
        )
        self.inflight.limit(self.max_bytes, near)
        self.first, self.added, self.requests = first, 0, 0
        self.server = ToyServer(first)
        self.wire = b""  # sent, and not read by the server

    @rule(many=st.integers(1, 8))
    def add(self, many: int) -> None:
        for _ in range(many):
            room = self.inflight.room()
            state = self.inflight.send(LAYOUT.plan, tree(self.added))
            assert (state == 0) == (room == 0) and state != 2
            if state:
                frames, nbytes = self.inflight.frames, self.inflight.bytes
                assert frames >= self.max_frames or nbytes >= self.max_bytes
                return
            self.added += 1

    @rule()
    def add_what_does_not_fit(self) -> None:
        before = self.inflight.builder.next
        assert self.inflight.send(LAYOUT.plan, {"n": np.int64(0)}) in (1, 2)
        assert self.inflight.builder.next == before

    @rule()
    def ask(self) -> None:
        self.requests += 1
        self.inflight.ask(_native.make_frame(GET, self.requests, b"12345678"))

    @rule(closing=st.booleans())
    def send(self, closing: bool) -> None:
        if closing:
            self.inflight.close()  # what is open need not wait for more
        flying = self.inflight.sent_bytes
        parts = [bytes(p) for p in self.inflight.next_parts()]
        self.wire += b"".join(parts)
        # No more than allowed, but one frame always.
        frames = sum(p[:5] == b"cFrm\x04" for p in parts)
        if flying or frames > 1:
            assert self.inflight.sent_bytes <= max(self.max_bytes, flying)

    @rule(share=st.floats(0, 1))
    def arrive(self, share: float) -> None:
        n = round(share * len(self.wire))
        self.server.hear(self.wire[:n])
        self.wire = self.wire[n:]

    @rule(back=st.integers(0, 3))
    def ack(self, back: int) -> None:
        """Also an old ack, that came late."""
        number = max(self.server.seen - back, 0)
        before = self.inflight.acked
        assert self.inflight.ack(number) == (number > before)
        assert self.inflight.acked == max(before, number)

    @rule(lost=st.booleans())
    def cut(self, lost: bool) -> None:
        """The rest on the wire is lost; requests that were not answered are asked again."""
        self.wire = b""
        self.server.connect()
        self.server.asked.clear()
        requests = [_native.make_frame(GET, n + 1, b"12345678") for n in range(self.requests)]
        frames = self.inflight.frames
        assert self.inflight.resume(self.server.seen, requests) <= frames
        assert self.inflight.sent_bytes == 0

    @precondition(lambda self: hasattr(self, "inflight"))
    @invariant()
    def nothing_is_lost(self) -> None:
        inflight = self.inflight
        assert inflight.builder.next == self.first + self.added
        assert self.server.seen <= inflight.builder.next
        assert self.server.items == [record(n) for n in range(len(self.server.items))]

    def teardown(self) -> None:
        if not hasattr(self, "inflight"):
            return
        self.inflight.close()
        for _ in range(2000):
            self.send(True)
            self.arrive(1.0)
            self.inflight.ack(self.server.seen)
            if self.inflight.acked == self.inflight.builder.next:
                break
        assert len(self.server.items) == self.added
        assert self.inflight.frames == 0 and self.inflight.bytes == 0 and self.inflight.room() == 0
        assert set(range(1, self.requests + 1)) >= set(self.server.asked)


FlightMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFlight = FlightMachine.TestCase


def serve(sock: socket.socket, server: ToyServer, upto: int) -> None:
    """Acks what has come, in small pieces and late, until there are so many items."""
    while server.seen < upto:
        data = sock.recv(7000)
        assert data
        before = server.seen
        server.hear(data)
        if server.seen > before:
            sock.sendall(_native.make_frame(ACK, server.seen, b""))


@pytest.mark.skipif(not _native.Inflight.can_run(), reason="no native thread on this platform")
def test_run_over_a_socket() -> None:
    """A caller adds, a native thread sends; what is no ack ends the call, and it goes on."""
    count = 20_000
    inflight = _native.Inflight(SIZE, LAYOUT.padded, 0, 4096, 8)
    inflight.limit(1 << 16, True)
    ours, theirs = socket.socketpair()
    wake_in, wake_out = socket.socketpair()
    for sock in (ours, wake_out):
        sock.setblocking(False)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 13)
    server = ToyServer(0)
    serving = threading.Thread(target=serve, args=(theirs, server, count))
    receiver = _native.Receiver(64, 1 << 20)
    events: list[Any] = []

    def run() -> None:
        while (event := inflight.run(ours.fileno(), wake_out.fileno(), receiver)) == 1:
            events.append((receiver.type, receiver.number, receiver.payload()))
            receiver.pop()
        events.append(event)

    running = threading.Thread(target=run)
    serving.start()
    running.start()
    for n in range(count):
        while inflight.send(LAYOUT.plan, tree(n)):
            inflight.wait(inflight.changes, 2**63, 0.01)
        if inflight.rouse():
            wake_in.send(b"\0")
    while inflight.acked < count:
        if inflight.rouse():
            wake_in.send(b"\0")
        inflight.wait(inflight.changes, count, 0.01)
    serving.join()
    assert server.items == [record(n) for n in range(count)]
    theirs.sendall(_native.make_frame(8, 3, bytes(500)) + _native.make_frame(6, 0, b""))
    theirs.close()
    running.join(30)
    assert events == [(8, 3, bytes(500)), (6, 0, b""), 3]  # two frames, then it was closed
    for sock in (ours, wake_in, wake_out):
        sock.close()


@pytest.mark.skipif(not _native.Inflight.can_run(), reason="no native thread on this platform")
def test_run_ends_when_stopped() -> None:
    inflight = _native.Inflight(SIZE, LAYOUT.padded, 0, 4096, 8)
    ours, theirs = socket.socketpair()
    wake_in, wake_out = socket.socketpair()
    wake_out.setblocking(False)
    receiver = _native.Receiver(64, 1 << 20)
    ended: list[int] = []
    descriptors = ours.fileno(), wake_out.fileno()
    running = threading.Thread(target=lambda: ended.append(inflight.run(*descriptors, receiver)))
    running.start()
    inflight.stop()
    wake_in.send(b"\0")
    running.join(30)
    assert ended == [0]
    for sock in (ours, theirs, wake_in, wake_out):
        sock.close()
