"""Leaves of any size in shared memory: writers that are killed, readers beside them, and no byte of
another row."""

from __future__ import annotations

import multiprocessing
import os
import random
from pathlib import Path

import pytest

from contig import LazyTensorStorage, ReplayBuffer, SharedStorage, _native
from tests.tape.processes import any_size
from tests.tape.processes.test_full import run
from tests.waiting import WAIT_S, Task, until
from tests.zygote import Zygote

pytestmark = pytest.mark.skipif(not _native.ROBUST_LOCKS, reason="sharing needs robust locks")


def at_rest(storage: SharedStorage | LazyTensorStorage) -> None:
    batch = ReplayBuffer(storage)[:]
    assert any_size.wrong(batch) is None
    assert len(batch) == len(storage) > 0
    assert batch["blob"].values.nbytes <= storage.blob_bytes <= any_size.RING


@pytest.mark.parametrize("capacity", [48, 5000], ids=["rows evict", "bytes evict"])
def test_killed_writers_leave_no_byte_of_theirs(
    capacity: int, zygote: Zygote, name: str, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    storage = SharedStorage(capacity, name, example=any_size.EXAMPLE, blob_bytes=any_size.RING)
    with storage:
        readers = [zygote.start(any_size.read, name=name, seed=r, stop=str(stop)) for r in range(2)]
        writers = [
            zygote.start(any_size.write, name=name, number=w, stop=str(stop)) for w in range(2)
        ]
        draw = random.Random(capacity)
        for kill in range(25):
            head = storage.tape.snapshot()[0]
            until(lambda head=head: storage.tape.snapshot()[0] > head + 20, "rows are written")
            writers.pop(draw.randrange(2)).kill()
            # The lock's last holder may be dead: the next one repairs, and all is well.
            storage.default_writer.extend(any_size.rows([(1 << 50) + kill], True))
            writers.append(
                zygote.start(any_size.write, name=name, number=10 + kill, stop=str(stop))
            )
            dead = [child for child in (*readers, *writers) if not child.alive()]
            assert not dead, dead[0].result(WAIT_S)
        stop.touch()
        read = [child.result(WAIT_S) for child in readers]
        assert [r["wrong"] for r in read] == [[], []]
        assert all(r["bytes"] > 0 for r in read)
        for child in writers:
            child.result(WAIT_S)
        at_rest(storage)


def test_threads_write_and_read(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with LazyTensorStorage(64, example=any_size.EXAMPLE, blob_bytes=any_size.RING) as storage:
        writers = [Task(any_size.write_to, storage, n, stop) for n in range(2)]
        readers = [Task(any_size.read_from, storage, n, stop) for n in range(2)]
        until(lambda: storage.tape.snapshot()[0] > 20 * 64, "the ring goes round")
        stop.touch()
        assert [reader.result()["wrong"] for reader in readers] == [[], []]
        for writer in writers:
            writer.result()
        at_rest(storage)


def test_a_storage_that_is_passed_on_has_its_bytes() -> None:
    context = multiprocessing.get_context("spawn")
    with LazyTensorStorage(64, example=any_size.EXAMPLE, blob_bytes=any_size.RING) as storage:
        any_size.fill(storage, 0, 3)
        child = context.Process(target=any_size.fill, args=(storage, 3, 6))
        child.start()
        child.join(WAIT_S)
        assert child.exitcode == 0
        batch = ReplayBuffer(storage)[:]
        assert batch["uid"].tolist() == list(range(6)) and any_size.wrong(batch) is None


def test_the_ring_is_the_first_writers(name: str) -> None:
    first = SharedStorage(8, name, example=any_size.EXAMPLE, blob_bytes=100)
    other = SharedStorage(8, name, example=any_size.EXAMPLE, blob_bytes=7)
    assert first.blob_ring == other.blob_ring == 100
    other.close()
    first.close()


def test_memory_is_taken_only_as_it_is_used() -> None:
    with LazyTensorStorage(1000, example={"x": b""}) as storage:
        assert storage.blob_ring == 256 << 20
        storage.default_writer.extend({"x": [b"a" * 1000] * 100})
        assert os.fstat(storage.fd).st_blocks * 512 < 16 << 20
    with LazyTensorStorage(1 << 20, example={"x": b""}) as storage:
        assert storage.blob_ring == 1 << 30  # 1 KiB for each row


def test_a_full_dev_shm_is_an_error_that_changes_nothing() -> None:
    run(
        """
        storage = SharedStorage(4096, example={"x": b""}, blob_bytes=64 << 20)
        writer = storage.writer()
        kept = 0
        for v in range(4096):
            try:
                writer.extend({"x": [bytes([v % 256]) * 100_000] * 10})
            except StorageFull as error:
                assert "leaves of any size" in str(error)
                break
            kept += 10
        else:
            raise AssertionError("64 MB fit into 20")
        before = storage.tape.snapshot(), storage.blob_bytes
        assert len(storage) == kept
        try:
            writer.extend({"x": [b"z" * 10_000_000]})
        except StorageFull:
            pass
        assert (storage.tape.snapshot(), storage.blob_bytes) == before
        rows = ReplayBuffer(storage)[:]["x"]
        assert [rows[i] == bytes([i // 10 % 256]) * 100_000 for i in range(kept)] == [True] * kept
        """,
        megabytes=20,
    )
