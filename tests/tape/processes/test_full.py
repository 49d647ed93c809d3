"""Shared memory that runs out: an error, with everything as it was, and never a SIGBUS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

HEADER = """
import os, resource, subprocess, sys
import numpy as np
import contig
from contig import _native
from contig import LazyTensorStorage, ReplayBuffer, SharedStorage, SliceSampler, StorageFull

def free():
    s = os.statvfs("/dev/shm")
    return s.f_bavail * s.f_bsize

def fill(leave=0):
    # Takes the rest of /dev/shm away.
    fd = os.open("/dev/shm/filler", os.O_RDWR | os.O_CREAT)
    size = os.fstat(fd).st_size
    os.posix_fallocate(fd, size, free() - leave)
    os.close(fd)

def check(storage, expected):
    head, tail, _, _ = storage.tape.snapshot()
    batch, lost = storage.gather(np.arange(tail, head, dtype=np.int64))
    assert not lost
    got = np.asarray(batch["x"])[:, 0].tolist()
    assert got == expected, (got[:5], expected[:5], len(got), len(expected))
"""


def run(code: str, megabytes: int | None = None) -> None:
    """A program with a /dev/shm of its own, of that size, which only it can see."""
    command = [sys.executable, "-c", HEADER + textwrap.dedent(code)]
    if megabytes is not None:
        unshare, mount = shutil.which("unshare"), shutil.which("mount")
        assert unshare and mount, "these tests need unshare and mount (util-linux)"
        command = [
            unshare,
            *([] if os.geteuid() == 0 else ["--map-root-user"]),
            "--mount",
            "sh",
            "-c",
            f'mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm && exec "$@"',
            "sh",
            *command,
        ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def test_rows() -> None:
    run(
        """
        row = lambda v, n: {"x": np.full((n, 512), v)}  # 4 kB a row, 16 MB in all
        storage = SharedStorage(4096, example={"x": np.zeros(512)})
        writer = storage.writer()
        expected = []
        for v in range(4096):
            try:
                writer.extend(row(v, 10))
            except StorageFull as error:
                assert isinstance(error, OSError)
                assert "capacity" in str(error)
                break
            expected += [float(v)] * 10
        else:
            raise AssertionError("16 MB fit into 10")
        before = storage.tape.snapshot()
        table = str(storage.episodes())
        check(storage, expected)
        for _ in range(3):  # it stays refused, and refusals leave nothing
            try:
                writer.extend(row(-1, 10))
            except StorageFull:
                pass
            else:
                raise AssertionError("it fits now?")
        assert storage.tape.snapshot() == before
        assert str(storage.episodes()) == table
        check(storage, expected)
        # Fewer rows fit into what is reserved, and go on with the trajectory.
        room = -len(expected) % 512
        assert room
        for v in range(room):
            writer.add({"x": np.full(512, 5000.0 + v)})
            expected.append(5000.0 + v)
        check(storage, expected)
        assert storage.episodes()["steps"].tolist() == [len(expected)]
        batch = ReplayBuffer(storage, batch_size=64).sample()
        assert len(batch) == 64
        # And it starts again where there is room again.
        other = SharedStorage(64, example={"x": np.zeros(8)})
        other.default_writer.add({"x": np.ones(8)})
        """,
        megabytes=10,
    )


def test_room_again() -> None:
    run(
        """
        storage = SharedStorage(4096, example={"x": np.zeros(512)})
        writer = storage.writer()
        writer.extend({"x": np.zeros((8, 512))})
        fill()
        big = {"x": np.ones((2000, 512))}
        try:
            writer.extend(big)
        except StorageFull:
            check(storage, [0.0] * 8)
        else:
            raise AssertionError("it fits?")
        os.unlink("/dev/shm/filler")
        writer.extend(big)
        check(storage, [0.0] * 8 + [1.0] * 2000)
        assert storage.episodes()["steps"].tolist() == [2008]
        """,
        megabytes=24,
    )


def test_layout() -> None:
    """Full when the first row comes."""
    run(
        """
        storage = SharedStorage(64)
        fill()
        for _ in range(2):
            try:
                storage.default_writer.add({"x": np.zeros(512)})
            except StorageFull:
                pass
            else:
                raise AssertionError("it fits?")
        assert len(storage) == 0
        os.unlink("/dev/shm/filler")
        storage.default_writer.add({"x": np.ones(512)})
        check(storage, [1.0])
        """,
        megabytes=2,
    )


def test_creation() -> None:
    run(
        """
        SharedStorage(64).close()
        fill(leave=64 << 10)
        before, files = free(), len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            try:
                SharedStorage(64)
            except OSError as error:
                assert error.errno == 28, error
            else:
                raise AssertionError("it fits?")
        assert sorted(os.listdir("/dev/shm")) == ["filler"], os.listdir("/dev/shm")
        assert free() == before, "a failed creation keeps memory"
        assert len(os.listdir("/proc/self/fd")) == files, "a failed creation keeps files open"
        """,
        megabytes=2,
    )


def test_index() -> None:
    """Trajectories of one row: the index needs more memory than the rows."""
    run(
        """
        row = lambda v: {"x": np.full(1, v, np.float32), "next": {"done": True}}
        storage = SharedStorage(1 << 16, example=row(0))
        writer = storage.writer()
        expected = []
        for v in range(1 << 16):
            try:
                writer.add(row(v))
            except StorageFull:
                break
            expected.append(float(v))
        else:
            raise AssertionError("it fits?")
        before = storage.tape.snapshot()
        check(storage, expected)
        assert storage.episodes()["id"].tolist() == list(range(len(expected)))
        try:
            writer.add(row(-1))
        except StorageFull:
            pass
        assert storage.tape.snapshot() == before
        buffer = ReplayBuffer(storage, SliceSampler(slice_len=1), batch_size=64)
        assert len(buffer.sample()) == 64
        """,
        megabytes=5,
    )


def test_a_slow_reader_of_index_memory_that_is_used_again() -> None:
    """Memory of evicted entries serves new ones. A reader that still has the old numbers must not
    need memory to find that out, nor a writer that goes on: there is none."""
    run(
        """
        one = lambda v: {"x": np.full(1, v, np.float32), "next": {"done": True}}
        capacity = 1 << 15
        storage = SharedStorage(capacity, example=one(0))
        writer = storage.writer()
        for v in range(12000):
            writer.add(one(v))
        # A view of the index of now, as a reader has it that is stopped right after its refresh.
        buffer = ReplayBuffer(storage, SliceSampler(slice_len=1), batch_size=64)
        buffer.sample()
        many = {"x": np.zeros((2048, 1), np.float32), "next": {"done": np.arange(2048) == 2047}}
        for _ in range(16):
            writer.extend(many)
        assert storage.tape.snapshot()[3] > 8192
        fill()
        view = buffer._index.view
        spec = _native.SliceSpec(1)
        view.draw_slices(buffer._rng.words, None, spec, 64)  # without a refresh
        buffer.sample()
        few = {"x": np.zeros((8, 1), np.float32), "next": {"done": np.arange(8) == 7}}
        for _ in range(20000):  # entries past the memory there is, 4096 of them alive
            writer.extend(few)
        assert storage.tape.snapshot()[2] > 30000
        buffer.sample()
        """,
        megabytes=24,
    )


def test_a_limit_on_file_sizes() -> None:
    """The memory of LazyTensorStorage has no file system that could be full; this can stop it."""
    run(
        """
        storage = LazyTensorStorage(4096)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, unlimited[1]))
        for _ in range(2):
            try:
                storage.default_writer.add({"x": np.zeros(512)})
            except StorageFull:
                pass
            else:
                raise AssertionError("it fits?")
        assert len(storage) == 0 and storage.layout is None
        storage.default_writer.extend({"x": np.ones((8, 4))})  # smaller rows
        check(storage, [1.0] * 8)
        """
    )


def test_storages_that_are_made() -> None:
    run(
        """
        example = {"x": np.zeros(512)}
        kept = SharedStorage(8, example=example)
        fill()
        before = sorted(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))

        def refused(make):
            try:
                make()
            except StorageFull as error:
                assert isinstance(error, OSError) and error.errno, error
                for word in ("capacity", "/dev/shm", "No space left"):
                    assert word in str(error), error
            else:
                raise AssertionError("there was room for it")

        for _ in range(2):
            refused(lambda: SharedStorage(1 << 20))
            refused(lambda: SharedStorage(8, name="mine", example=example))
        after = sorted(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
        assert before == after, (before, after)
        os.unlink("/dev/shm/filler")
        writer = SharedStorage(8, name="mine", example=example).writer()
        writer.extend({"x": np.full((2, 512), 7.0)})
        """,
        megabytes=10,
    )


def test_memory_of_which_there_is_too_little() -> None:
    run(
        """
        import errno

        def no_memory(fd, offset, nbytes):  # as in a control group that is full
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        os.posix_fallocate = no_memory
        descriptors = len(os.listdir("/proc/self/fd"))
        for make in (lambda: LazyTensorStorage(8), lambda: SharedStorage(8)):
            try:
                make()
            except StorageFull as error:
                assert error.errno == errno.ENOMEM and "smaller capacity" in str(error), error
            else:
                raise AssertionError("there was room for it")
        assert len(os.listdir("/proc/self/fd")) == descriptors
        """
    )
