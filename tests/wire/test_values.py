"""What a record may not have: bools that are neither 0 nor 1, wherever it comes in."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import (
    DiskStorage,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
    _native,
)
from contig._native import Received
from contig.layout import Layout
from contig.wire import Type
from tests.client.test_outgoing import next_frame, opened

ROW = {"mask": np.zeros(3, bool), "n": np.int64(0), "next": {"done": np.zeros((), bool)}}
WIDE = {"flags": np.zeros(100_000, bool), "n": np.int64(0), "x": np.zeros(100_000, np.float32)}


def frame(body: bytes, rows: int, runs: int = 0, number: int = 0) -> bytes:
    crc = _native.crc32c(body)
    head = struct.pack("<IBBHQIIQI", 0x6D724663, 4, 0, 0, number, runs, rows, len(body), crc)
    return head + struct.pack("<I", _native.crc32c(head)) + body


def server_of(kind: str, example: Any, path: Path) -> Server:
    if kind == "queue":
        return Server(example, 4, TcpTransport(heartbeat_s=600.0))
    on_disk = kind == "disk"
    storage: Any = DiskStorage(path, 100, example=example) if on_disk else None
    storage = storage or LazyTensorStorage(100, example=example)
    return Server(buffer=ReplayBuffer(storage), transport=TcpTransport(heartbeat_s=600.0))


@pytest.mark.parametrize("kind", ["queue", "tape", "disk"])
@pytest.mark.parametrize("example", [ROW, WIDE], ids=["small", "wide"])
def test_bools_are_0_or_1(kind: str, example: Any, tmp_path: Path) -> None:
    with server_of(kind, example, tmp_path / "disk") as server:
        buffer = server.buffers.get("default")
        layout = Layout(example) if buffer is None else buffer.storage.layout
        assert layout is not None
        size = layout.record_size
        runs = b"" if kind == "queue" else struct.pack("<IIqqII", 4, 1, 5, -1, 0, 0)
        places = [x.offset + i for x in layout.leaves if x.dtype == bool for i in (0, x.nbytes - 1)]
        for producer, place in enumerate(places, 1):
            peer = opened(server, producer=producer, sends=layout.to_json())
            with closing(peer.sock):
                records = bytearray(4 * size)
                records[2 * size + place] = 2
                peer.sock.sendall(frame(runs + records, 4, len(runs) // 32))
                kind_, _, payload = next_frame(peer)
                assert kind_ == Type.REFUSE and b'"value"' in payload and b"bool" in payload
        stats = server.stats()
        assert stats.rejected == {"value": len(places)} and stats.items_in == 0
        peer = opened(server, producer=99, sends=layout.to_json())
        with closing(peer.sock):  # and all that are 1 are as good as those that are 0
            records = bytearray(4 * size)
            for place in places:
                records[place::size] = b"\1" * 4
            peer.sock.sendall(frame(runs + records, 4, len(runs) // 32))
            assert next_frame(peer)[0] == Type.ACK
        for table in server.buffers.values():
            assert len(table) == 4
            server.close()
            table.storage.close()


@given(st.data())
def test_bytes_of_bools(data: st.DataObject) -> None:
    """The native check, against one byte at a time."""
    size = data.draw(st.integers(1, 70))
    rows = data.draw(st.integers(1, 5))
    places = data.draw(
        st.lists(
            st.integers(0, size - 1).flatmap(
                lambda at: st.tuples(st.just(at), st.integers(1, size - at))
            ),
            max_size=3,
        )
    )
    value = st.one_of(st.integers(0, 1), st.integers(0, 1), st.integers(0, 255))
    records = bytes(data.draw(st.lists(value, min_size=rows * size, max_size=rows * size)))
    receiver = _native.Receiver(4096, 1 << 20)
    sent = frame(records, rows)
    room = receiver.room()
    room[: len(sent)] = sent
    receiver.received(len(sent))
    receiver.set_bools(np.array(places, np.int64).reshape(-1))
    assert receiver.next() == Received.READY
    covered = {r * size + at + i for r in range(rows) for at, n in places for i in range(n)}
    fits = all(records[i] <= 1 for i in covered)
    assert receiver.check_items(size, False) == fits
    assert receiver.refusal == ("none" if fits else "value")


@pytest.mark.parametrize("kind", ["queue", "tape", "disk"])
def test_a_client_sends_bools_as_0_or_1(kind: str, tmp_path: Path) -> None:
    """Numpy takes any byte but 0 for True, so arrays may have others, and they are not refused."""
    odd = np.array([2, 0, 255], "u1").view(bool)
    with server_of(kind, ROW, tmp_path / "disk") as server:
        with TcpClient("127.0.0.1", server.port, ROW) as client:
            rows = [{"mask": odd, "n": n, "next": {"done": odd[0]}} for n in range(4)]
            columns = {
                "mask": np.stack([odd] * 4),
                "n": np.arange(4, 8),
                "next": {"done": np.array([2, 0, 3, 1], "u1").view(bool)},
            }
            if kind == "queue":
                for row in rows:
                    client.send(row)
                client.send_many(columns)
            else:
                for row in rows[:2]:
                    client.send(row)
                writer = client.writer()
                for row in rows[2:]:
                    writer.append(row)
                    writer.end_episode()
                client.extend(columns)
                over = {"done": np.array([0, 0, 0, 2], "u1").view(bool)}
                client.send_trajectory({**columns, "n": np.arange(8, 12), "next": over})
                client.add_step({**columns, "n": np.arange(12, 16)})
            client.wait(20)
        assert server.stats().rejected == {}
        if kind == "queue":
            batches = [s.batch for s in (server.sample(20), server.sample(20)) if s is not None]
        else:
            storage = server.buffers["default"].storage
            batches = [storage.gather(np.arange(16, dtype=np.int64))[0]]
        for batch in batches:
            masks = np.asarray(batch["mask"]).view("u1")
            np.testing.assert_array_equal(masks, np.tile([1, 0, 1], (len(masks), 1)))
            assert set(np.asarray(batch["next", "done"]).view("u1").ravel().tolist()) <= {0, 1}
        numbers = [n for b in batches for n in np.asarray(b["n"]).tolist()]
        assert numbers == list(range(len(numbers)))
