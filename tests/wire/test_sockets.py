"""Hostile connections over real sockets, while a good client goes on as if nothing was."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

from contig import Layout, LazyTensorStorage, ReplayBuffer
from contig.client import RemoteReplayBuffer, TcpClient
from contig.errors import ConnectionClosedError
from contig.server import Server, TcpTransport
from tests.processes import rss
from tests.waiting import WAIT_S, until
from tests.wire import mutate
from tests.wire.independent_client import (
    ACCEPT,
    BATCH,
    GET,
    ITEMS,
    REPLY,
    SAMPLE,
    STATS,
    Client,
    make_frame,
)
from tests.wire.naive import Fields, frame, seal
from tests.wire.sniffer import Sniffer

ITEM = {"x": np.zeros(4, np.float32), "number": np.int64(0)}
LAYOUT = Layout(ITEM).to_json()
RECORD = Layout(ITEM).record_size


def read_all(sock: socket.socket) -> bytes:
    """What comes until the other side closes."""
    got = b""
    try:
        while more := sock.recv(1 << 16):
            got += more
    except ConnectionResetError:
        pass  # it closed before it had read everything
    return got


def refusal(got: bytes) -> str | None:
    """The reason of a REFUSE at the end of what a server said."""
    start = got.rfind(b"cFrm\x03")
    return None if start < 0 else json.loads(got[start + 40 :])["reason"]


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


HELLO = struct.pack("<8sII32s", b"contig/1", 1, 0, bytes(32))


def opening(**other: Any) -> bytes:
    content = {"table": "default", "producer": random.randrange(1, 2**63), "proof": "", "next": 0}
    content |= {"layout": LAYOUT, "ack": "committed"} | other
    return json.dumps(content).encode()


# -- 2,000 of them --------------------------------------------------------------------------------


def _hostile(rng: random.Random) -> tuple[bytes, str | None]:
    """What a connection sends, and the reason for which it is refused; None: it just goes."""
    items = frame(4, 0, rng.randbytes(3 * RECORD), rows=3)
    other = Layout({"x": np.zeros(4, np.int32), "number": np.int64(0)}).to_json()
    fields = Fields(4, 0, 0, 0, 0, 3, 3 * RECORD)
    length = rng.choice([n for n in mutate.LENGTHS if n > 64 << 20])
    opened = HELLO + frame(1, 0, opening())
    return rng.choice(
        [
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "magic"),
            (b"\x16\x03\x01" + rng.randbytes(200), "magic"),
            (b"X" + rng.randbytes(rng.choice([0, 10, 5000])), "magic"),
            (HELLO[:8] + struct.pack("<I", 5) + HELLO[12:], "version"),
            (HELLO + b"\0" * 40, "magic"),
            (HELLO + seal(Fields(1, length=length), b""), "size"),
            (HELLO + seal(Fields(1, length=2 << 20), b""), "size"),
            (HELLO + items, "frame"),
            (HELLO + frame(1, 0, opening(layout=other)), "layout"),
            (HELLO + frame(1, 0, opening(layout={"leaves": 5})), "layout"),
            (HELLO + frame(1, 0, opening(table="no such")), "table"),
            (HELLO + frame(1, 0, opening(producer=2**63)), "producer"),
            (HELLO + frame(1, 0, opening(proof="0" * 64)), "token"),
            (HELLO + frame(1, 0, b"[" * 5000), "frame"),
            (opened + seal(fields._replace(length=length), b""), "size"),
            (opened + seal(fields._replace(runs=9), b""), "shape"),
            (opened + seal(fields._replace(rows=4), items[40:]), "shape"),
            (opened + seal(fields._replace(number=5), items[40:]), "gap"),
            (opened + items[:-1] + b"\x55", "body_crc"),
            (opened + items[:20] + b"\x55" + items[21:], "header_crc"),
            (opened + frame(rng.choice([1, 2, 3, 5, 8, 10, 13]), 0, b""), "type"),
            (opened + frame(99, 0, b""), "type"),
            (opened + frame(9, 0, bytes(8)), "type"),
            (opened + rng.randbytes(100), "magic"),
            # Gone in the middle of something.
            (HELLO[: rng.randrange(48)], None),
            (opened[: rng.randrange(48, len(opened))], None),
            (opened + items[: rng.randrange(len(items))], None),
            (opened + seal(fields._replace(length=60 << 20, rows=1), b"x"), None),
        ]
    )


class Good:
    """A client that sends numbered items, and the learner that reads them."""

    def __init__(self, server: Server, client: TcpClient) -> None:
        self.server, self.client = server, client
        self.sent = self.got = 0
        self.wrong: list[Any] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=t) for t in (self._send, self._read)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._stop.is_set() or self.sent % 8:
            self.client.send({"x": np.full(4, self.sent, np.float32), "number": self.sent})
            self.sent += 1
            if self.sent % 40 == 0:
                time.sleep(0.005)
        self.client.wait(WAIT_S)

    def _read(self) -> None:
        while not self._stop.is_set() or self.got < self.sent or self._threads[0].is_alive():
            try:
                sample = self.server.sample(timeout=0.5)
            except TimeoutError:
                continue
            assert sample is not None
            expected = np.arange(self.got, self.got + 8)
            if not (
                np.array_equal(sample.batch["number"], expected)
                and np.array_equal(sample.batch["x"][:, 2], expected)
            ):
                self.wrong.append((self.got, sample.batch["number"].tolist()))
            self.got += 8

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_two_thousand_hostile_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contig.server.server.HANDSHAKE_S", 2.0)
    rng = random.Random(0)
    with Server(ITEM, 8, TcpTransport(), num_buffers=8) as server:
        pid = server.pid
        with TcpClient("127.0.0.1", server.port, ITEM) as client:
            good = Good(server, client)
            expected: Counter[str] = Counter()
            began = 0.0
            for n in range(2000):
                if n == 200:
                    began = rss(pid)
                data, reason = _hostile(rng)
                with connected(server.port) as sock:
                    sock.sendall(data)
                    if reason is not None:
                        expected[reason] += 1
                        got = refusal(read_all(sock))
                        # A reset may overtake the REFUSE if we sent more than it read.
                        assert got in (reason, None), (got, reason)
            # Those that say little, or slowly, are dropped at the deadline.
            silent = [connected(server.port) for _ in range(50)]
            for number, sock in enumerate(silent):
                sock.sendall((HELLO + frame(1, 0, opening()))[: number * 3])
            drip = connected(server.port)
            for byte in (HELLO + frame(1, 0, opening()))[:60]:
                drip.sendall(bytes([byte]))
                time.sleep(0.01)
            for sock in [*silent, drip]:
                assert refusal(read_all(sock)) == "deadline"
                sock.close()
            expected["deadline"] += 51
            assert good.client.resends == 0
            until(lambda: server.stats().connections == 1, "only the good client is left")
            good.stop()
            assert not good.wrong and good.got == good.sent > 100
            stats = server.stats()
            assert stats.rejected == expected
            assert stats.connections_total == 2052
            assert stats.items_in == good.sent and stats.duplicates_dropped == 0
            assert stats.bytes_held < 4 << 20
        assert server.pid == pid and rss(pid) < began + (48 << 20)


# -- memory and patience --------------------------------------------------------------------------


def test_frames_that_never_end_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stops in the middle of a large frame keeps no room from the others."""
    monkeypatch.setattr("contig.server.server.HANDSHAKE_S", 1.0)
    big = {"x": np.zeros(100_000, np.uint8)}
    layout = Layout(big).to_json()
    transport = TcpTransport(max_frame=1 << 20, max_bytes=4 << 20)
    with Server(big, 2, transport, num_buffers=4) as server, ExitStack() as stack:
        stalled = [stack.enter_context(connected(server.port)) for _ in range(8)]
        for sock in stalled:
            sock.sendall(HELLO + frame(1, 0, opening(layout=layout)))
        until(lambda: len(server.stats().clients) == 8, "they are let in")
        for sock in stalled:
            sock.sendall(seal(Fields(4, rows=10, length=1_000_000), b"x"))
        with TcpClient("127.0.0.1", server.port, big, reconnect_s=WAIT_S) as client:
            for n in range(6):
                client.send({"x": np.full(100_000, n, np.uint8)})
            client.wait(WAIT_S)
        for n in range(0, 6, 2):
            sample = server.sample(timeout=WAIT_S)
            assert sample is not None and sample.batch["x"][:, 0].tolist() == [n, n + 1]


def test_answers_that_nobody_reads_are_bounded() -> None:
    """Many requests at once, and no reading: the server does not keep all the answers."""
    with Server(ITEM, 8, TcpTransport()) as server:
        server.publish(1, {"w": np.zeros(4 << 20, np.uint8)})
        with connected(server.port) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.sendall(HELLO + frame(1, 0, opening()))
            before = rss(server.pid)
            sock.sendall(make_frame(GET, -1, bytes(8)) * 80)
            until(lambda: server.stats().bytes_out > 0, "the first answer")
            with Client("127.0.0.1", server.port).sock:
                pass  # the server is past what it had received
            assert rss(server.pid) < before + (100 << 20)


@pytest.mark.parametrize("in_process", [False, True])
def test_impossible_requests_are_answered(in_process: bool) -> None:
    """What cannot be sampled is an error for who asked, at once, and for nobody else."""
    buffer = ReplayBuffer(LazyTensorStorage(1000, example=ITEM), batch_size=8)
    buffer.extend({"x": np.zeros((50, 4), np.float32), "number": np.arange(50)})
    with Server(buffer=buffer, transport=TcpTransport(in_process=in_process)) as server:
        client = Client("127.0.0.1", server.port)
        client.sock.settimeout(20)
        try:
            for request, rows in enumerate([2**40, 2**62, 2**63, 2**64 - 1], start=1):
                with pytest.raises(RuntimeError) as caught:
                    client.sample(request, rows)
                assert caught.value.args[0]["message"]
            assert len(client.sample(9, 8)["index",]) == 8
            assert client.ask(STATS, 10)["rows"] == 50
            client.bye()
        finally:
            client.sock.close()


def test_batches_larger_than_a_frame_are_refused() -> None:
    """The bound on frames holds in both directions; a client is told, and can go on."""
    wide = {"x": np.zeros(10_000, np.uint8)}
    buffer = ReplayBuffer(LazyTensorStorage(1000, example=wide), batch_size=8)
    buffer.extend({"x": np.zeros((500, 10_000), np.uint8)})
    transport = TcpTransport(max_frame=1 << 20, max_bytes=8 << 20)
    with Server(buffer=buffer, transport=transport) as server:
        with RemoteReplayBuffer("127.0.0.1", server.port, sample_timeout_s=20) as remote:
            with pytest.raises(ValueError, match="max_frame"):
                remote.sample(400)
            assert len(remote.sample(8)) == 8


def test_waiting_for_one_table_holds_up_no_other() -> None:
    empty, full = (ReplayBuffer(LazyTensorStorage(100, example=ITEM), batch_size=4) for _ in "ab")
    full.extend({"x": np.zeros((50, 4), np.float32), "number": np.arange(50)})
    with Server(tables={"empty": empty, "full": full}, transport=TcpTransport()) as server:
        waiting = Client("127.0.0.1", server.port, table="empty")
        asking = Client("127.0.0.1", server.port, table="full")
        try:
            for request in range(20):
                waiting.send(SAMPLE, request, bytes(8))
            assert asking.ask(STATS, 1)["rows"] == 50
            assert len(asking.sample(2)["index",]) == 4
            waiting.send(STATS, 99)
            assert json.loads(waiting.until(REPLY)[2])["rows"] == 0
            empty.extend({"x": np.zeros((5, 4), np.float32), "number": np.arange(5)})
            assert {waiting.until(BATCH)[1] for _ in range(20)} == set(range(20))
            waiting.bye()
            asking.bye()
        finally:
            waiting.sock.close()
            asking.sock.close()


def test_a_server_that_comes_back_different() -> None:
    """Items are never sent to a table of another layout, even if the client was given none."""
    other = {"other": np.zeros(RECORD, np.uint8)}
    with (
        Server(ITEM, 2, TcpTransport()) as first,
        Server(other, 2, TcpTransport()) as second,
        Sniffer(first.port) as proxy,
    ):
        client = TcpClient("127.0.0.1", proxy.port, reconnect_s=WAIT_S)
        proxy.target = second.port
        proxy.cut()
        with pytest.raises(ConnectionClosedError, match="other"):
            for n in range(4):
                client.send({**ITEM, "number": n})
            client.wait(WAIT_S)
        with suppress(ConnectionClosedError):  # if an item was taken before the cut was noticed
            client.close(1.0)
        assert second.stats().items_in == 0


def test_items_that_fit_no_frame_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="max_frame"):
        Server({"x": np.zeros(4000, np.uint8)}, 2, TcpTransport(max_frame=2000))


def test_small_frames() -> None:
    """A server that takes small frames only gets them, whatever a client sends at once."""
    item = {"x": np.zeros(100, np.uint8)}
    transport = TcpTransport(max_frame=1500, max_bytes=1 << 20, in_process=True)
    with Server(item, 100, transport, num_buffers=4) as server:
        with TcpClient("127.0.0.1", server.port, item) as client:
            client.send_many(
                {"x": np.repeat(np.arange(200, dtype=np.uint8), 100).reshape(200, 100)}
            )
            client.wait(WAIT_S)
        for first in (0, 100):
            sample = server.sample(timeout=WAIT_S)
            assert sample is not None
            assert sample.batch["x"][:, 7].tolist() == list(range(first, first + 100))
        assert not server.stats().rejected


def test_weights_larger_than_a_frame() -> None:
    """What the server publishes has nothing to do with the frames it takes."""
    weights = np.arange(1 << 20, dtype=np.float64)
    transport = TcpTransport(max_frame=1 << 20, max_bytes=8 << 20)
    with Server(ITEM, 8, transport) as server:
        server.publish(1, {"w": weights})
        client = TcpClient("127.0.0.1", server.port, ITEM)
        got = client.weights(timeout_s=20)
        assert got is not None
        np.testing.assert_array_equal(got.tree["w"], weights)
        client.close()


def test_accepted_is_the_first_answer() -> None:
    """Frames that come with the OPEN are not read before it is accepted."""
    with Server(ITEM, 2, TcpTransport(in_process=True)) as server:
        with connected(server.port) as sock:
            items = frame(4, 0, struct.pack("<q4f", 7, 1, 1, 1, 1) * 2, rows=2)
            sock.sendall(HELLO + frame(1, 0, opening()) + items + make_frame(6))
            got = read_all(sock)
        kinds = [got[64 + 4]]
        assert kinds == [ACCEPT] and got[64:68] == b"cFrm"
        sample = server.sample(timeout=WAIT_S)
        assert sample is not None and sample.batch["number"].tolist() == [7, 7]


def test_sampling_a_queue_is_refused() -> None:
    with Server(ITEM, 2, TcpTransport(in_process=True)) as server:
        client = Client("127.0.0.1", server.port)
        with pytest.raises(PermissionError, match="sampled"):
            client.send(SAMPLE, 1, bytes(8))
            client.until(ACCEPT)
        assert server.stats().rejected == {"type": 1}


@pytest.mark.parametrize("first", [100, 40_000, 99_000])
def test_a_small_frame_after_a_large_one_in_pieces(first: int) -> None:
    """Of a large frame the server waits for much at a time, and of what comes after it for little,
    also if there was no room for it meanwhile."""
    item = {"x": np.zeros(100_000, np.uint8)}
    with Server(item, 1, TcpTransport(), num_buffers=2) as server:
        client = Client("127.0.0.1", server.port, layout=Layout(item).to_json())
        for number in range(3):
            whole = make_frame(ITEMS, number, bytes([number]) * 100_000, 0, 1)
            before = server.stats().bytes_in
            client.sock.sendall(whole[:first])
            until(lambda b=before: server.stats().bytes_in == b + first, "the first piece")
            client.sock.sendall(whole[first:])
        for number in range(3):
            sample = server.sample(WAIT_S)
            assert sample is not None and (sample.batch["x"] == number).all()
        client.next = 3
        client.wait()
        assert client.get() is None
        client.bye()
