"""Leaves of any size from clients and back: what a server's buffer has is what was written."""

from __future__ import annotations

import os
import random
import signal
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    OverloadError,
    Ragged,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SharedClient,
    SharedStorage,
    SliceSampler,
    TcpClient,
    TcpTransport,
    _native,
    wire,
)
from contig.layout import Layout
from tests.client.scripts import Script, any_size, writing
from tests.client.serving import HOST, client, serving
from tests.waiting import Threads, until
from tests.wire.independent_client import Client as OldClient

ROW = {
    "n": np.int64(0),
    "text": "",
    "data": b"",
    "tokens": Ragged(np.int32, (3,)),
    "next": {"done": False, "terminated": False, "truncated": False},
}
FIELDS = {
    "task": np.int32(0),
    "success": False,
    "group": {"id": np.int64(0), "scores": np.zeros(2, np.float32)},
}
TINY = {"n": np.int64(0), "data": b""}


def buffer_of(kind: type = LazyTensorStorage, example: Any = ROW, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(kind(5000, example=example, **options), batch_size=4, seed=0)


def check(batch: Any) -> list[int]:
    """Rows of a batch by their numbers; fails if a byte is not its row's."""
    numbers = np.asarray(batch["n"]).tolist()
    for i, n in enumerate(numbers):
        expected = any_size(n)
        assert batch["text"][i] == expected["text"] and batch["data"][i] == expected["data"], n
        np.testing.assert_array_equal(batch["tokens"][i], expected["tokens"])
    return numbers


def shown(storage: Any) -> list[Any]:
    table = storage.episodes()
    names = ("steps", "terminated", "truncated", "task", "success")
    seen = [[table[name][i].tolist() for name in names] for i in range(len(table))]
    return list(zip(seen, (check(storage.read_episode(int(e))) for e in table["id"])))


@pytest.mark.parametrize("envs", [False, True], ids=["rows", "envs"])
@pytest.mark.parametrize("kind", ["tcp", "remote", "shared"])
def test_what_clients_write(kind: str, envs: bool) -> None:
    """Whatever is called in whatever order: as if it had been written here."""
    for seed in range(2):
        here = buffer_of(ndim=2, fields=FIELDS)
        script = Script(seed, envs, any_size=True)
        for _ in range(50):
            script.call(here)
        buffer = buffer_of(SharedStorage, ndim=2, fields=FIELDS)
        with serving(buffer, process=seed == 0, max_frame=2048) as server:
            with writing(kind, server) as far:
                again = Script(seed, envs, any_size=True)
                for _ in range(50):
                    again.call(far)
        assert shown(buffer.storage) == shown(here.storage)
        for b in (here, buffer):
            b.storage.close()


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_step_by_step(kind: str) -> None:
    buffer = buffer_of(SharedStorage)
    with serving(buffer) as server:
        with TcpClient(HOST, server.port) if kind == "tcp" else SharedClient(server.name) as far:
            with far.writer() as writer:
                for n in range(20):
                    writer.append({"n": n, **any_size(n)})
                    if n % 6 == 5:
                        writer.end_episode(terminated=True)
                with pytest.raises(LayoutError, match="tokens"):
                    writer.append({"n": 9, **any_size(9), "tokens": np.zeros((2, 4), np.int32)})
            far.wait(60)
        assert [check(buffer.storage.read_episode(e)) for e in range(4)] == [
            list(range(0, 6)),
            list(range(6, 12)),
            list(range(12, 18)),
            [18, 19],
        ]
    buffer.storage.close()


def test_samples_from_afar() -> None:
    """The same draws as here, leaf by leaf; in every output."""
    torch = pytest.importorskip("torch")
    buffer, twin = buffer_of(ndim=2), buffer_of(ndim=2)
    for b in (buffer, twin):
        b.extend(Script(0, False, any_size=True).rows(1, 200))
    with serving(buffer, process=True) as server:
        with RemoteReplayBuffer(HOST, server.port, prefetch=0) as far:
            for _ in range(5):
                mine, theirs = twin.sample(32), far.sample(32)
                assert check(theirs) == check(mine) and theirs.layout == mine.layout
        with RemoteReplayBuffer(HOST, server.port, batch_size=8, output="torch") as far:
            got = far.sample()
            assert got["tokens"].is_nested and len(got["text"]) == 8
            assert got["tokens"].dtype == torch.int32


# -- what is too large ----------------------------------------------------------------------------


def test_a_row_that_the_ring_has_no_room_for() -> None:
    """It is said where it is sent, whatever way it goes, and nothing was."""
    buffer = buffer_of(SharedStorage, TINY, blob_bytes=1000)
    with serving(buffer) as server, client(server) as far:
        large = {"n": 1, "data": b"x" * 1001}
        rows = {"n": np.arange(2), "data": [b"", b"y" * 1001]}
        calls = {
            "send": lambda: far.send(large),
            "extend": lambda: far.extend(rows),
            "trajectory": lambda: far.send_trajectory(rows),
            "step": lambda: far.add_step(rows),
            "envs": lambda: far.add_step(rows, np.array([3, 4])),
        }
        for name, call in calls.items():
            with pytest.raises(
                LayoutError, match=r'"data": row \d has 1001 .* for 1000.*blob_bytes='
            ):
                call()
            assert far.pending == far.acked == 0, name
        writer = far.writer()
        writer.append(large)
        with pytest.raises(LayoutError, match="blob_bytes="):
            writer.close()
        writer.forget()
        for n in range(50):  # each as large as all that is kept
            far.send({"n": n, "data": bytes([n]) * 1000})
        far.wait(60)
        newest = int(buffer.storage.tape.snapshot()[0]) - 1
        batch, _ = buffer.storage.gather(np.array([newest]))
        assert batch["data"][0] == bytes([49]) * 1000 and len(buffer) == 1
    buffer.storage.close()


def test_what_a_frame_has_no_room_for() -> None:
    buffer = buffer_of(LazyTensorStorage, TINY, fields={"note": np.zeros(3000, np.uint8)})
    with serving(buffer, max_frame=4096) as server, client(server) as far:
        for call in (
            lambda: far.send({"n": 1, "data": b"x" * 4096}),
            lambda: far.send_trajectory({"n": np.arange(3), "data": [b"x" * 1500] * 3}),
            lambda: far.send({"n": 1, "data": b"x" * 1500}, fields={"note": np.ones(3000)}),
            lambda: far.add_step({"n": np.arange(2), "data": [b"", b"x" * 4001]}, np.array([0, 2])),
        ):
            with pytest.raises(LayoutError, match=r"largest frame \(\d+ bytes\).*max_frame="):
                call()
        assert far.pending == far.acked == 0
        # What fits one by one is cut into as many frames as it takes.
        ids = np.arange(0, 40, 2)
        far.add_step({"n": ids, "data": [bytes([n]) * 1500 for n in ids]}, ids)
        far.wait(60)
        batch, _ = buffer.storage.gather(np.arange(20))
        assert list(batch["data"]) == [bytes([n]) * 1500 for n in ids]


def test_bytes_count_in_flight() -> None:
    """What is not acked is bounded by its bytes, not by its records."""
    inflight = _native.Inflight(24, False, 0, 1 << 16, 1000)
    inflight.builder.set_variable(np.array([8], np.int64))
    inflight.limit(10_000, False)
    record = np.frombuffer(struct.pack("<QQQ", 0, 0, 3000), np.uint8)
    for n in range(4):
        assert inflight.room() == 0 and inflight.bytes >= 3000 * n
        inflight.builder.add_run(record, 48, -1, -1, 1, True, None, np.zeros(3000, np.uint8))
    assert inflight.room() == 2 and inflight.bytes == 4 * 3024  # they are one run, yet open
    buffer = buffer_of(example=TINY)
    with serving(buffer, process=True, max_bytes=4 << 20, max_frame=1 << 20) as server:
        with TcpClient(HOST, server.port, on_full="raise", max_inflight_msgs=1000) as far:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)  # nothing is acked
            try:
                with pytest.raises(OverloadError, match="bytes are in flight"):
                    for n in range(2000):
                        far.send({"n": n, "data": b"x" * 20_000})
                assert 1 << 20 <= far._session.inflight.bytes <= (1 << 20) + 30_000
            finally:
                os.kill(server.pid, signal.SIGCONT)
            far.wait(60)


def test_a_client_that_does_not_check() -> None:
    """A frame with such a row is refused for good; rows before it in its own frame are not in."""
    buffer = buffer_of(LazyTensorStorage, TINY, blob_bytes=1000)
    with serving(buffer) as server, TcpClient(HOST, server.port) as far:
        far.send({"n": 0, "data": b"good"})
        far.wait(60)
        far._session.max_row = 0
        far.send({"n": 1, "data": b"x" * 1001})
        with pytest.raises(ConnectionError, match=r"size.*1001 bytes.*blob_bytes="):
            far.wait(60)
        assert len(buffer) == 1 and server.stats().rejected["size"] == 1
        with pytest.raises(ConnectionError, match="1 items"):
            far.close()


def test_a_sample_that_a_frame_has_no_room_for() -> None:
    """It is known before there is memory for it, and the next one is answered."""
    buffer = buffer_of(LazyTensorStorage, TINY)
    for n in range(20):
        buffer.add({"n": n, "data": bytes([n]) * 20_000})
    with serving(buffer, max_frame=100 << 10) as server:
        with RemoteReplayBuffer(HOST, server.port) as far:
            with pytest.raises(ValueError, match=r"2\d{6} bytes, more than a frame may have"):
                far.sample(100)
            got = far.sample(4)
            assert list(got["data"]) == [bytes([n]) * 20_000 for n in got["n"]]


def test_a_queue_takes_none() -> None:
    with pytest.raises(LayoutError, match=r'"data": bytes of any length.*use a table'):
        Server(TINY, 4)
    with Server({"n": np.int64(0)}, 4, TcpTransport(in_process=True)) as server:
        with pytest.raises(LayoutError, match='"data": not expected'):
            TcpClient(HOST, server.port, TINY)


# -- the handshake --------------------------------------------------------------------------------


def test_layouts_are_compared() -> None:
    other = {**ROW, "text": b"", "tokens": Ragged(np.int64, (3,))}
    with serving(buffer_of(SharedStorage)) as server:
        for make in (client, lambda s, sample: SharedClient(s.name, sample)):
            make(server, ROW).close()
            with pytest.raises(LayoutError) as wrong:
                make(server, other)
            assert '"text": bytes of any length, expected text' in str(wrong.value)
            assert '"tokens"' in str(wrong.value) and '"data"' not in str(wrong.value)


def test_a_table_without_a_layout() -> None:
    """The server's process that fixes it has the ring that the storage was made with."""
    buffer = ReplayBuffer(LazyTensorStorage(100, blob_bytes=5000), batch_size=4)
    with serving(buffer, process=True) as server, client(server, TINY) as far:
        with pytest.raises(LayoutError, match="room for 5000"):
            far.send({"n": 0, "data": b"x" * 5001})
        far.send({"n": 0, "data": b"x" * 5000})
        far.wait(60)
        assert buffer.storage.read_episode(0)["data"][0] == b"x" * 5000


def test_peers_of_the_old_version(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = {"n": np.int64(0)}
    tables = {"old": buffer_of(example=fixed), "new": buffer_of(example=TINY)}
    with serving(tables) as server:
        OldClient(HOST, server.port, table="old", layout=Layout(fixed).to_json()).bye()
        with pytest.raises(PermissionError) as refused:
            OldClient(HOST, server.port, table="new", layout=Layout(fixed).to_json())
        assert refused.value.args[0]["reason"] in ("layout", "version")
        with pytest.raises(PermissionError) as refused:
            OldClient(HOST, server.port, table="new")
        assert refused.value.args[0]["reason"] == "version"
        assert 'leaves of any size ("data")' in refused.value.args[0]["message"]
        new = wire.Hello.new  # and a server that greets with version 1
        monkeypatch.setattr(wire.Hello, "new", lambda: new()._replace(newest=0))
        client(server, fixed, table="old").close()
        with pytest.raises(ValueError, match=r'leaves of any size \("data"\) need 2: update'):
            client(server, TINY, table="old")


# -- with everything else -----------------------------------------------------------------------


def pixels(n: int) -> Any:
    return np.full((8, 8), n, np.uint8)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_codecs_predicates_and_disks(kind: str, tmp_path: Path) -> None:
    """Leaves that clients encode, and trajectories that a sampler at the server picks."""
    pytest.importorskip("zstandard")
    row = {"n": np.int64(0), "pixels": pixels(0), "text": "", "next": {"done": False}}
    more: dict[str, Any] = {"codecs": {"pixels": "zstd"}, "fields": {"task": np.int32(0)}}
    storage: Any = (
        LazyTensorStorage(1000, example=row, **more)
        if kind == "memory"
        else DiskStorage(tmp_path / "tape", example=row, **more)
    )
    sampler = SliceSampler(num_slices=2, where=("task", "==", 3))
    buffer = ReplayBuffer(storage, sampler, batch_size=4, seed=0)

    def rows(*numbers: int, **ends: Any) -> dict[str, Any]:
        each = np.stack([pixels(n) for n in numbers])
        return {"n": np.array(numbers), "pixels": each, "text": ["x" * n for n in numbers], **ends}

    with serving(buffer) as server:
        with client(server) as far:
            for n in range(5):
                one = {"n": n, "pixels": pixels(n), "text": "x" * n, "next": {"done": n == 4}}
                far.send(one, fields={"task": 7})
            far.send_trajectory(rows(5, 6, 7), terminated=True, fields={"task": 3})
            done = {"next": {"done": np.array([True, True])}}
            far.add_step(rows(8, 9, **done), np.array([3, 5]), fields={"task": [1, 2]})
            with far.writer() as writer:
                for n in (10, 11):
                    writer.append({"n": n, "pixels": pixels(n), "text": "x" * n})
                writer.end_episode(terminated=True)
            far.wait(60)
        table = storage.episodes()
        assert table["task"].tolist() == [7, 3, 1, 2, 0] and table["steps"].sum() == 12
        for entry in table:
            got = storage.read_episode(int(entry["id"]))
            assert (got["pixels"] == got["n"][:, None, None]).all()
            assert list(got["text"]) == ["x" * n for n in got["n"]]
        with RemoteReplayBuffer(HOST, server.port, prefetch=0) as far_buffer:

            def seen() -> set[int]:
                out: set[int] = set()
                for _ in range(30):
                    got = far_buffer.sample()
                    assert (got["pixels"] == got["n"][:, None, None]).all()
                    out |= set(got["n"].tolist())
                return out

            assert seen() == {5, 6, 7}
            assert far_buffer.set_fields(int(table["id"][0]), {"task": 3}) == 1
            assert seen() == set(range(8))
    storage.close()
    if kind == "disk":
        again = DiskStorage(tmp_path / "tape")
        assert again.episodes()["task"].tolist() == [3, 3, 1, 2, 0]
        assert (again.read_episode(4)["pixels"][:, 0, 0] == [10, 11]).all()
        again.close()


def test_rows_larger_than_a_disk_keeps(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path / "tape", example=TINY, blob_bytes=10_000)
    with serving(ReplayBuffer(storage, batch_size=1)) as server, client(server) as far:
        most = far._session.max_row
        assert most >= 10_000
        with pytest.raises(LayoutError, match=f"room for {most}"):
            far.send({"n": 0, "data": b"x" * (most + 1)})
        for n in range(5):
            far.send({"n": n, "data": bytes([n]) * most})
        far.wait(60)
        head = int(storage.tape.snapshot()[0])
        batch, _ = storage.gather(np.array([head - 1]))
        assert batch["data"][0] == bytes([4]) * most
    storage.close()


# -- together -------------------------------------------------------------------------------------


def test_bytes_that_lap_the_ring_while_they_are_sampled() -> None:
    """Rows of all sizes through a ring of some kilobytes: no sample has another row's bytes."""
    buffer = buffer_of(SharedStorage, blob_bytes=20_000)
    stop = threading.Event()
    with serving(buffer, process=True) as server:

        def write(who: int) -> None:
            with client(server) as far:
                rng = random.Random(who)
                while not stop.is_set():
                    n = rng.randrange(10_000)
                    far.send({"n": n, **any_size(n), "next": {"done": rng.random() < 0.1}})

        def read() -> None:
            with RemoteReplayBuffer(HOST, server.port) as far:
                for _ in range(60):
                    check(far.sample(64))
            stop.set()

        Threads(read, *(lambda w=w: write(w) for w in range(2))).join(60)
        assert int(buffer.storage.tape.snapshot()[1]) > 0  # something gave way
    buffer.storage.close()


def test_many_large_rows_in_little_memory() -> None:
    """Frames of several clients together have more bytes than the server's: they take turns."""
    buffer = buffer_of(LazyTensorStorage, TINY)
    with serving(buffer, max_bytes=4 << 20, max_frame=1 << 20) as server:

        def write(who: int) -> None:
            with client(server) as far:
                for n in range(12):
                    far.send({"n": who * 100 + n, "data": bytes([who * 20 + n]) * 900_000})

        Threads(*(lambda w=w: write(w) for w in range(6))).join(60)
        assert server.stats().bytes_held <= 4 << 20
        head = int(buffer.storage.tape.snapshot()[0])
        assert head == 72
        batch, _ = buffer.storage.gather(np.arange(head))
        for n, data in zip(batch["n"], batch["data"]):
            assert data == bytes([n // 100 * 20 + n % 100]) * 900_000
        until(lambda: server.stats().connections == 0, "all disconnects")
