"""What clients ask for and do not read: bounded in the server's memory, and nobody waits for it."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from contig import (
    Batch,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
    _native,
    wire,
)
from contig.client.connecting import Connected, ServerAddress, connect
from contig.layout import Layout
from contig.wire import Type
from tests.waiting import Threads, until

MAX_BYTES = 32 << 20
ROW = {"x": np.zeros(4096, np.float32)}  # 16 kB
SLACK = 24 << 20  # what one answer takes on its way, and the allocator


def transport(max_frame: int = MAX_BYTES // 2) -> TcpTransport:
    """For peers that have no heartbeat of their own."""
    return TcpTransport(max_bytes=MAX_BYTES, max_frame=max_frame, heartbeat_s=600.0)


def peak(pid: int | None) -> int:
    """The most memory a process ever had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def opened(server: Server, table: str = "default", producer: int = 1, sends: Any = None) -> Any:
    opening = {"producer": producer, "layout": sends, "ack": "committed", "next": 0}
    opening["heartbeat"] = False  # nobody here says a word unless the test wants it
    connected = connect(ServerAddress("127.0.0.1", server.port, table, None, None), opening, 20.0)
    connected.sock.settimeout(30)
    return connected


def next_frame(peer: Connected) -> tuple[int, int, bytes]:
    receiver = peer.receiver
    while (state := receiver.next()) != 1:
        if state == 2:
            receiver.resize(receiver.needed)
        got = peer.sock.recv_into(receiver.room())
        assert got, "the server closed the connection"
        receiver.received(got)
    found = int(receiver.type), int(receiver.number), bytes(receiver.payload())
    receiver.pop()
    return found


def serving(rows: int) -> tuple[Server, ReplayBuffer]:
    buffer = ReplayBuffer(LazyTensorStorage(1024, example=ROW), batch_size=8, seed=0)
    if rows:
        data = np.repeat(np.arange(rows, dtype=np.float32)[:, None], 4096, axis=1)
        buffer.extend({"x": data})
    return Server(buffer=buffer, transport=transport()), buffer


def settle(count: Callable[[], int]) -> None:
    """Until a server has done whatever it does: nothing more is counted for a while."""
    last, looks = -1, 0
    while looks < 20:
        now = count()
        last, looks = now, looks + 1 if now == last else 0
        time.sleep(0.05)


def test_samples_that_nobody_reads() -> None:
    """64 requests of 8 MB: they wait where they are small; who reads gets all of them, whole."""
    server, buffer = serving(512)
    with server, closing(buffer), ExitStack() as stack:
        before = peak(server.pid)
        peers = [opened(server, producer=1 + n) for n in range(4)]
        for peer in peers:
            stack.callback(peer.sock.close)
            for request in range(16):
                peer.sock.sendall(wire.frame(Type.SAMPLE, request, struct.pack("<Q", 512)))
        until(lambda: server.stats().bytes_out >= 8 << 20, "the first answers")
        settle(lambda: server.stats().bytes_out)  # nobody reads them

        def read(peer: Connected) -> None:
            answered = set()
            for _ in range(16):
                kind, number, payload = next_frame(peer)
                assert kind == Type.BATCH
                head, block = wire.parse_described(payload)
                batch = Batch(block, Layout.from_json(head["layout"]), tuple(head["shape"]))
                assert (batch["x"] == batch["index"][:, None]).all() and len(batch) == 512
                answered.add(number)
            assert answered == set(range(16))

        Threads(*(partial(read, peer) for peer in peers)).join(60)
        assert peak(server.pid) - before < MAX_BYTES + SLACK


def test_looks_that_nobody_reads() -> None:
    """The same of rows that somebody wants to see, 4 MB at a time."""
    server, buffer = serving(250)
    steps = list(range(250))
    asked = json.dumps({"what": "rows", "table": "default", "id": 0, "steps": steps}).encode()
    with server, closing(buffer), ExitStack() as stack:
        before = peak(server.pid)
        peers = [opened(server, producer=1 + n) for n in range(8)]
        for peer in peers:
            stack.callback(peer.sock.close)
            for request in range(16):
                peer.sock.sendall(wire.frame(Type.WATCH, request, asked))
        until(lambda: server.stats().bytes_out >= 4 << 20, "the first answers")
        settle(lambda: server.stats().bytes_out)
        deaf = server.stats().bytes_out

        def read(peer: Connected) -> None:
            for request in range(16):
                kind, number, payload = next_frame(peer)
                assert (kind, number) == (Type.BATCH, request)
                head, block = wire.parse_described(payload)
                batch = Batch(block, Layout.from_json(head["layout"]), tuple(head["shape"]))
                assert batch["x"][:, 0].tolist() == steps

        # All at once: who does not read for some seconds is sent away.
        Threads(*(partial(read, peer) for peer in peers)).join(60)
        assert deaf < server.stats().bytes_out  # the others waited
        assert peak(server.pid) - before < MAX_BYTES + SLACK


def test_one_that_does_not_read_does_not_hold_up_the_others() -> None:
    server, buffer = serving(512)
    with server, closing(buffer), ExitStack() as stack:
        deaf = opened(server, producer=1)
        stack.callback(deaf.sock.close)
        for request in range(8):
            deaf.sock.sendall(wire.frame(Type.SAMPLE, request, struct.pack("<Q", 512)))
        peer = opened(server, producer=2)
        stack.callback(peer.sock.close)
        for request in range(4):
            peer.sock.sendall(wire.frame(Type.SAMPLE, request, struct.pack("<Q", 512)))
            kind, number, _ = next_frame(peer)
            assert (kind, number) == (Type.BATCH, request)


def test_requests_of_clients_that_are_gone_are_dropped() -> None:
    """They waited for the first rows: nothing is drawn for those who do not wait any more."""
    server, buffer = serving(0)
    with server, closing(buffer):
        before = peak(server.pid)
        for n in range(20):
            peer = opened(server, producer=1 + n)
            for request in range(16):
                peer.sock.sendall(wire.frame(Type.SAMPLE, request, struct.pack("<Q", 512)))
            peer.sock.sendall(wire.frame(Type.STATS, 99))
            assert next_frame(peer)[:2] == (Type.REPLY, 99)  # it has seen them all
            peer.sock.close()
        until(lambda: server.stats().connections == 0, "all disconnects")
        data = np.repeat(np.arange(512, dtype=np.float32)[:, None], 4096, axis=1)
        buffer.extend({"x": data})
        with closing(opened(server, producer=99).sock) as sock:
            sock.sendall(wire.frame(Type.SAMPLE, 7, struct.pack("<Q", 8)))
            assert sock.recv(1)
            until(lambda: buffer.stats().batches_sampled >= 1, "a draw")
        settle(lambda: buffer.stats().batches_sampled)
        # A few were with the learner already.
        assert buffer.stats().batches_sampled <= 1 + 4
        assert peak(server.pid) - before < MAX_BYTES + SLACK


def test_a_sample_of_everything_before_there_is_anything() -> None:
    """It waits for the first rows, and is refused as soon as their size is known."""
    buffer = ReplayBuffer(LazyTensorStorage(1024), batch_size=8)
    with Server(buffer=buffer, transport=transport()) as server, closing(buffer):
        peer = opened(server)
        for request, rows in enumerate((1 << 62, 1 << 20)):
            peer.sock.sendall(wire.frame(Type.SAMPLE, request, struct.pack("<Q", rows)))
        with TcpClient("127.0.0.1", server.port, ROW) as client:
            client.extend({"x": np.zeros((4, 4096), np.float32)})
        for _ in range(2):
            kind, _, payload = next_frame(peer)
            assert kind == Type.REPLY and b"max_frame" in payload
        peer.sock.close()


def test_a_frame_of_millions_of_lanes() -> None:
    """What a server would keep for each lane is a hundred times what the frame has."""
    row = {"done": np.zeros((), bool)}
    buffer = ReplayBuffer(LazyTensorStorage(1 << 24, example=row), batch_size=8)
    with Server(buffer=buffer, transport=transport()) as server, closing(buffer):
        layout = buffer.storage.layout
        assert layout is not None
        peer = opened(server, sends=layout.to_json())
        before, lanes = peak(server.pid), 5_000_000
        run = struct.pack("<IIqqII", lanes, 16, -1, -1, lanes, 0)
        body = run + bytes(lanes * layout.record_size)
        head = struct.pack("<IBBHQIIQI", 0x6D724663, 4, 0, 0, 0, 1, lanes, len(body), _crc(body))
        peer.sock.sendall(head + struct.pack("<I", _crc(head)) + body)
        kind, _, payload = next_frame(peer)
        assert kind == Type.REFUSE and b"lanes" in payload
        assert peak(server.pid) - before < MAX_BYTES + SLACK
        peer.sock.close()


# -- weights ---------------------------------------------------------------------------------------

WEIGHTS = {"w": np.arange(5 << 20, dtype=np.float32)}  # 20 MB


def get(peer: Connected, newer_than: int = -1) -> None:
    peer.sock.sendall(wire.frame(Type.GET, newer_than, struct.pack("<d", 30.0)))


def test_weights_are_sent_from_one_copy() -> None:
    """64 actors ask for 20 MB and read late: not 64 copies; meanwhile others' items are acked."""
    with (
        Server({"x": 0.0}, 1, transport(1 << 20)) as server,
        ExitStack() as stack,
    ):
        server.publish(1, WEIGHTS)
        before = peak(server.pid)
        peers = [opened(server, producer=10 + n) for n in range(64)]
        for peer in peers:
            stack.callback(peer.sock.close)
            get(peer)
        with TcpClient("127.0.0.1", server.port, {"x": 0.0}) as client:
            for n in range(20):
                client.send({"x": float(n)})
                client.wait(timeout=30)
                sample = server.sample(timeout=60)
                assert sample is not None and sample.batch["x"][0] == n
        for peer in peers:
            kind, version, payload = next_frame(peer)
            assert (kind, version) == (Type.WEIGHTS, 1)
            _, record = wire.parse_described(payload)
            assert np.array_equal(np.frombuffer(record, np.float32), WEIGHTS["w"])
        # One copy to send, one on its way to it, and a piece for each.
        assert peak(server.pid) - before < 2 * WEIGHTS["w"].nbytes + 64 * (512 << 10) + SLACK


def test_what_comes_after_weights_comes_after_them() -> None:
    """Acks and answers wait for the end of a frame that is sent in pieces."""
    with (
        Server({"x": 0.0}, 4, transport(1 << 20)) as server,
        ExitStack() as stack,
    ):
        server.publish(1, WEIGHTS)
        layout = {"structure": {"kind": "dict", "keys": ["x"], "children": ["leaf"]},
                  "leaves": [{"path": ["x"], "shape": [], "dtype": "float32"}]}  # fmt: skip
        peer = opened(server, sends=layout)
        stack.callback(peer.sock.close)
        get(peer)
        body = np.arange(3, dtype=np.float32).tobytes()
        head = struct.pack("<IBBHQIIQI", 0x6D724663, 4, 0, 0, 0, 0, 3, 12, _crc(body))
        peer.sock.sendall(head + struct.pack("<I", _crc(head)) + body)
        until(lambda: server.stats().items_in == 3, "items while weights are on their way")
        assert next_frame(peer)[:2] == (Type.WEIGHTS, 1)
        assert next_frame(peer)[:2] == (Type.ACK, 3)


def _crc(data: bytes) -> int:
    return _native.crc32c(data)


def test_slow_readers_of_old_weights_do_not_keep_new_ones_from_others() -> None:
    """Two versions are in memory at most; who reads nothing for long makes room."""
    with (
        Server({"x": 0.0}, 1, transport(1 << 20)) as server,
        ExitStack() as stack,
    ):
        before = peak(server.pid)
        deaf = []
        for version in range(1, 8):
            server.publish(version, WEIGHTS)
            deaf.append(opened(server, producer=version))
            stack.callback(deaf[-1].sock.close)
            get(deaf[-1])
        client = stack.enter_context(TcpClient("127.0.0.1", server.port, {"x": 0.0}))
        newest = client.weights(newer_than=6, timeout_s=60)
        assert newest is not None and newest.version == 7
        assert np.array_equal(newest.tree["w"], WEIGHTS["w"])
        assert server.stats().rejected["stalled"] >= 1
        assert peak(server.pid) - before < 4 * WEIGHTS["w"].nbytes + SLACK


def test_closing_while_weights_are_on_their_way() -> None:
    with (
        Server({"x": 0.0}, 1, transport(1 << 20)) as server,
        ExitStack() as stack,
    ):
        server.publish(1, WEIGHTS)
        peer = opened(server)
        stack.callback(peer.sock.close)
        get(peer)
        found: list[int] = []
        reader = threading.Thread(target=lambda: found.extend(next_frame(peer)[0] for _ in "ab"))
        reader.start()
        until(lambda: server.stats().bytes_out > 0, "the first piece")
        server.close()
        reader.join(30)
        assert found == [Type.WEIGHTS, Type.BYE]
