"""Many connections, little memory, slow peers."""

from __future__ import annotations

import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from contig import Layout, Server, TcpClient, TcpTransport, _native, wire
from contig._native import Received
from contig.client.connecting import Connected, ServerAddress, connect
from tests.processes import rss
from tests.server import items
from tests.waiting import WAIT_S, Threads, until

CONNECTIONS = 1000
IDLE = 500


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for the descriptors of both ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Raw:
    """A client that is a socket: the handshake, then whatever bytes the test likes."""

    def __init__(self, server: Server, producer: int, width: int = items.WIDTH) -> None:
        self.layout = Layout(items.example(width))
        self.width = width
        opening = {
            "producer": producer,
            "layout": self.layout.to_json(),
            "ack": "committed",
            "next": 0,
            "heartbeat": False,  # nobody here says a word unless the test wants it
        }
        address = ServerAddress("127.0.0.1", server.port, "default", None, None)
        self.connected: Connected = connect(address, opening, WAIT_S)
        self.sock = self.connected.sock
        self.sock.settimeout(WAIT_S)
        self.acked = 0

    def frame(self, who: int, first: int, count: int) -> bytes:
        """An ITEMS frame, sealed by hand."""
        packed = b"".join(
            self.layout.pack_one(items.item(who, n, self.width)).tobytes()
            for n in range(first, first + count)
        )
        return items_frame(first, count, packed)

    def await_ack(self, count: int) -> None:
        receiver = self.connected.receiver
        while self.acked < count:
            while receiver.next() != Received.READY:
                got = self.sock.recv_into(receiver.room())
                assert got, "the server closed the connection"
                receiver.received(got)
            assert receiver.type == wire.Type.ACK, receiver.type
            self.acked = receiver.number
            receiver.pop()

    def close(self) -> None:
        self.sock.close()


def items_frame(first: int, count: int, packed: bytes) -> bytes:
    body = _native.crc32c(packed)
    head = struct.pack("<IBBHQIIQI", 0x6D724663, 4, 0, 0, first, 0, count, len(packed), body)
    return head + struct.pack("<I", _native.crc32c(head)) + packed


def test_a_thousand_connections(many_files: None) -> None:
    """500 idle ones for the whole test; the others send, some at a time, all arrive."""
    busy, batch = CONNECTIONS - IDLE, 50
    with Server(items.example(), batch, TcpTransport()) as server:
        raws = [Raw(server, 1 + i) for i in range(CONNECTIONS)]
        assert server.stats().connections == CONNECTIONS
        seen: list[tuple[int, int]] = []

        def consume() -> None:
            while len(seen) < 4 * busy:
                sample = server.sample(timeout=30)
                assert sample is not None
                assert sample.info.active_connections == CONNECTIONS
                seen.extend(items.read(sample.batch))

        consumer = Threads(consume)
        for first in (0, 3):  # three items each, then one more each
            for who in range(busy):
                raws[who].sock.sendall(raws[who].frame(who, first, 3 if first == 0 else 1))
        for who in range(busy):
            raws[who].await_ack(4)
        consumer.join(30)
        items.check_all(seen, {who: 4 for who in range(busy)})
        # The idle ones are as good as new.
        extra = raws[busy:][:batch]
        for i, raw in enumerate(extra):
            raw.sock.sendall(raw.frame(busy + i, 0, 1))
        for raw in extra:
            raw.await_ack(1)
        stats = server.stats()
        assert stats.connections == CONNECTIONS == stats.connections_total
        assert stats.rejected == {}
        for raw in raws:
            raw.close()
        until(lambda: server.stats().connections == 0, "all disconnects")
        until(lambda: server.stats().bytes_held == 0, "their memory")


# -- memory ----------------------------------------------------------------------------------------


def _watch_memory(server: Server, bound: int, stop: threading.Event, worst: list[int]) -> None:
    while not stop.is_set():
        held = server.stats().bytes_held
        worst[0] = max(worst[0], held)
        assert held <= bound, f"{held} bytes held, more than {bound}"
        time.sleep(0.01)


def test_memory_is_bounded_while_nobody_samples() -> None:
    """Clients push far more than the bound into a server whose consumer does nothing."""
    width, bound = 5000, 4 << 20
    transport = TcpTransport(max_frame=1 << 20, max_bytes=bound)
    with Server(items.example(width), 8, transport, num_buffers=2) as server:
        assert server.pid is not None
        address = ("127.0.0.1", server.port)
        clients = [TcpClient(*address, items.example(width), 32, reconnect_s=20) for _ in range(12)]
        before = rss(server.pid)
        stop, worst = threading.Event(), [0]
        each = 200  # 12 x 200 x 20 kB = 48 MB

        def produce(who: int) -> None:
            for n in range(0, each, 20):  # large frames: what waits, waits in the server's memory
                clients[who].send_many(items.many(who, range(n, n + 20), width))
            clients[who].wait(60)

        watcher = Threads(lambda: _watch_memory(server, bound, stop, worst))
        producers = Threads(*(lambda w=w: produce(w) for w in range(12)))
        until(lambda: server.stats().bytes_held > bound // 2, "memory in use")
        time.sleep(0.5)
        assert server.info().samples_inserted_total == 16
        grown = rss(server.pid) - before
        assert grown < bound + (12 << 20), f"{grown >> 20} MB more, the bound is {bound >> 20} MB"
        seen: list[tuple[int, int]] = []
        while len(seen) < 12 * each:  # and when it wakes up, everything arrives
            sample = server.sample(timeout=30)
            assert sample is not None
            seen += items.read(sample.batch)
        producers.join(60)
        stop.set()
        watcher.join(20)
        items.check_all(seen, {who: each for who in range(12)})
        assert worst[0] > bound // 2
        assert rss(server.pid) - before < bound + (12 << 20)
        for client in clients:
            client.close()


def test_connections_count_as_memory() -> None:
    """Their first buffers are within the bound too; one too many is refused, the others work."""
    bound = 256 << 10
    transport = TcpTransport(max_frame=64 << 10, max_bytes=bound, in_process=True)
    with Server(items.example(), 400, transport, num_buffers=8) as server:
        raws = []
        for i in range(100):
            try:
                raws.append(Raw(server, 1 + i))
            except (ConnectionError, ValueError):
                break
            assert server.stats().bytes_held <= bound
        assert 10 < len(raws) < 100
        for raw in raws:
            raw.sock.settimeout(5)
        # However many are connected, there is room for a frame of the largest size.
        record = raws[0].layout.record_size
        most = ((64 << 10) - wire.HEADER_BYTES) // record
        for who, count in ((0, 1), (1, 200), (2, most)):
            raws[who].sock.sendall(raws[who].frame(who, 0, count))
            try:
                raws[who].await_ack(count)
            except TimeoutError:
                raise AssertionError(f"no memory for a frame of {count} items") from None
        assert server.stats().bytes_held <= bound
        for raw in raws:
            raw.close()
        until(lambda: server.stats().bytes_held == 0, "all memory given back")


def test_who_waits_for_memory_gets_it() -> None:
    """Half-received frames hold all of it; once they are whole, the one that waited goes on."""
    width = 25_000  # 100 kB an item
    transport = TcpTransport(max_frame=256 << 10, max_bytes=1 << 20, in_process=True)
    with Server(items.example(width), 20, transport, num_buffers=2) as server:
        raws = [Raw(server, 1 + i, width) for i in range(12)]
        frames = [raw.frame(who, 0, 1) for who, raw in enumerate(raws)]
        for raw, frame in zip(raws, frames):
            raw.sock.sendall(frame[:4000])
        until(lambda: server.stats().bytes_held > 900_000, "all memory in use")
        time.sleep(0.1)
        held = server.stats().bytes_held
        assert held <= 1 << 20
        # Those that got memory finish and stay connected, idle. Those that did not must get theirs.
        for raw, frame in zip(raws, frames):
            raw.sock.sendall(frame[4000:])
        for who, raw in enumerate(raws):
            try:
                raw.await_ack(1)
            except TimeoutError:
                raise AssertionError(f"connection {who} never got its memory") from None
        assert server.info().samples_inserted_total == 12
        assert server.stats().bytes_held <= 1 << 20
        for raw in raws:
            raw.close()


# -- slow ones -------------------------------------------------------------------------------------


def test_a_slow_client_does_not_slow_the_others() -> None:
    """One byte every 10 ms, for the whole test, in the middle of a frame."""
    batch, count = 50, 5000
    with Server(items.example(), batch, TcpTransport()) as server:
        slow = Raw(server, 77)
        frame = slow.frame(9, 0, 1)
        stop = threading.Event()
        dripped = [0]

        def drip() -> None:
            for i in range(len(frame) - 1):
                slow.sock.sendall(frame[i : i + 1])
                dripped[0] = i + 1
                if stop.wait(0.01):
                    return

        dripping = Threads(drip)
        seen: list[tuple[int, int]] = []
        with TcpClient("127.0.0.1", server.port, items.example()) as client:

            def produce() -> None:
                for n in range(count):
                    client.send(items.item(0, n))

            producer = Threads(produce)
            while len(seen) < count:
                sample = server.sample(timeout=20)
                assert sample is not None
                seen += items.read(sample.batch)
            producer.join(20)
        stop.set()
        dripping.join(20)
        items.check_all(seen, {0: count})
        # Its frame was never whole; now it is.
        assert dripped[0] < len(frame)
        slow.sock.sendall(frame[dripped[0] :])
        slow.await_ack(1)
        slow.close()


def test_a_client_that_does_not_read_its_acks() -> None:
    """Its acks pile up in its own buffers, not in the server's memory, and hold up nobody."""
    with Server(items.example(), 100, TcpTransport(in_process=True)) as server:
        deaf = Raw(server, 5)
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sock.settimeout(0.05)
        stop = threading.Event()
        seen: list[tuple[int, int]] = []

        def consume() -> None:
            while not stop.is_set():
                try:
                    sample = server.sample(timeout=0.1)
                except TimeoutError:
                    continue
                assert sample is not None
                seen.extend(items.read(sample.batch))

        consumer = Threads(consume)
        frames = [deaf.frame(5, n, 1) for n in range(3000)]
        for frame in frames:
            deaf.sock.sendall(frame)
        with TcpClient("127.0.0.1", server.port, items.example()) as client:
            for n in range(500):
                client.send(items.item(0, n))
            client.wait(20)
        deaf.sock.settimeout(WAIT_S)
        deaf.await_ack(3000)
        stop.set()
        consumer.join(20)
        assert [n for who, n in seen if who == 0] == list(range(500))
        assert server.info().samples_inserted_total == 3500
        deaf.close()


def test_a_batch_is_contiguous_for_wide_items() -> None:
    """Items larger than a socket's buffer arrive whole."""
    width = 1 << 20
    with Server(items.example(width), 2, TcpTransport(), num_buffers=2) as server:
        with TcpClient("127.0.0.1", server.port, items.example(width), 2) as client:

            def produce() -> None:
                for n in range(6):
                    client.send(items.item(0, n, width))

            producer = Threads(produce)
            seen = []
            for _ in range(3):
                sample = server.sample(timeout=30)
                assert sample is not None
                assert np.asarray(sample.batch["data"]).flags.c_contiguous
                seen += items.read(sample.batch)
                del sample
            producer.join(20)
        assert seen == [(0, n) for n in range(6)]


def test_stats_of_many(many_files: None) -> None:
    """Asking is cheap enough to do often, and adds up."""
    with Server(items.example(), 10, TcpTransport(in_process=True), num_buffers=40) as server:
        raws = [Raw(server, 1 + i) for i in range(30)]
        for who, raw in enumerate(raws):
            raw.sock.sendall(raw.frame(who, 0, 10))
            raw.await_ack(10)
        stats = server.stats()
        clients: list[Any] = stats.clients
        assert stats.items_in == stats.rows_in == sum(c["items"] for c in clients) == 300
        assert {c["producer"] for c in clients} == set(range(1, 31))
        assert stats.tables["default"]["depth"] == 300
        for raw in raws:
            raw.close()
