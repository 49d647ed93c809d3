"""Rows in large pages: where memory is mapped, and that nothing but its pages changes."""

from __future__ import annotations

import gc
import os
import platform
import sys
from pathlib import Path

import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer, SharedStorage, _native

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux's")
LARGE = 2 << 20


def in_large_pages() -> int:
    """Bytes of this process that are shared memory in large pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("ShmemPmdMapped:"))


def can_ask() -> str:
    """Why this system has no large pages for shared memory that asks for them, or nothing."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if not setting.exists() or "[deny]" in setting.read_text():
        return "this system has no large pages of shared memory"
    known = tuple(int(x) for x in platform.release().split(".")[:2])
    return "" if known >= (6, 1) else "MADV_COLLAPSE is known since Linux 6.1"


@pytest.fixture
def file():
    fd = os.memfd_create("test")
    os.ftruncate(fd, 5 * LARGE)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("offset", [0, 4096, LARGE - 4096, LARGE, LARGE + 3 * 4096])
def test_addresses_are_as_far_from_a_large_page_as_in_the_file(file: int, offset: int) -> None:
    memory = _native.map_file(file, offset, 2 * LARGE + 5)
    assert (memory.ctypes.data - offset) % LARGE == 0
    assert memory.shape == (2 * LARGE + 5,) and memory.flags.writeable
    memory[:8] = np.arange(8)
    memory[-8:] = np.arange(8, 16)
    assert os.pread(file, 8, offset) == bytes(range(8))
    assert os.pread(file, 8, offset + 2 * LARGE - 3) == bytes(range(8, 16))


def test_a_file_that_is_too_short(file: int) -> None:
    for offset, nbytes in ((0, 5 * LARGE + 1), (5 * LARGE, 1), (6 * LARGE, 0), (4096, 5 * LARGE)):
        with pytest.raises(ValueError, match="shorter than its header says"):
            _native.map_file(file, offset, nbytes)
    with pytest.raises(OSError, match="cannot map .* bytes of shared memory"):
        _native.map_file(-1, 0, 1)


def test_arrays_keep_it_mapped_and_nothing_else_does(file: int) -> None:
    memory = _native.map_file(file, 0, 3 * LARGE)
    part = memory[LARGE : LARGE + 8]
    address = memory.ctypes.data
    del memory
    gc.collect()
    part[:] = 7
    assert os.pread(file, 8, LARGE) == bytes([7]) * 8
    mapped = f"{address:x}-"
    assert mapped in Path("/proc/self/maps").read_text()
    del part
    gc.collect()
    assert mapped not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("share_next", [False, True])
@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
def test_rows_go_there_as_they_are_written(kind: type, share_next: bool) -> None:
    """Memory is what it was before; what is in it, too, lap after lap."""
    reason = can_ask()
    if reason:
        pytest.skip(reason)
    before = in_large_pages()
    with kind(200_000, share_next=share_next) as storage:
        buffer = ReplayBuffer(storage, batch_size=4096, seed=0)
        for first in range(0, 500_000, 1000):
            at = np.arange(first, first + 1001, dtype=np.int64)
            wide = np.repeat(at[:, None], 10, 1)
            done = np.zeros(1000, np.bool_)
            done[-1] = True
            observations = {"observation": wide[:-1], "next": {"observation": wide[1:]}}
            observations["next"] |= {"reward": at[:-1].astype(np.float64), "done": done}
            buffer.extend(observations)
            if first % 20_000 == 0:
                batch = buffer.sample()
                rows = batch["index"]
                assert (batch["observation"] == rows[:, None]).all()
                assert (batch["next", "observation"] == rows[:, None] + 1).all()
        held = os.fstat(storage.fd).st_blocks * 512
        large = in_large_pages() - before
        assert large % LARGE == 0
        # All but the index and what is left over at the ends; unless memory is in too small pieces.
        if large < 0.5 * held:
            pytest.skip(f"the system had large pages for {large} of {held} bytes only")
        assert large <= held
    del buffer, storage
