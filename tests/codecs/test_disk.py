"""Leaves with codecs on disk: kept encoded, and checked by the checksum before they are decoded."""

from __future__ import annotations

import numpy as np
import pytest

from contig import (
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    NStepSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
)
from contig.codecs import codec_of, encode_rows
from contig.tape.decoding import stored_bytes
from tests.codecs.frames import ALL, check, codecs, pixels, rows


def fill(buffer, count=10):
    for first in range(0, count * 8, 8):
        n = np.arange(first, first + 8)
        buffer.extend(rows(n, n % 8 == 7))
    buffer.add(rows(count * 8))


@pytest.mark.parametrize("name", ALL)
def test_a_directory_is_opened_again_with_its_codecs(tmp_path, name):
    exact = name != "jpeg:90"
    with DiskStorage(tmp_path / "tape", codecs=codecs(name)) as storage:
        buffer = ReplayBuffer(storage, SliceSampler(slice_len=4), batch_size=16, seed=0)
        fill(buffer)
        check(buffer.sample(), exact)
        storage.flush()
        with DiskStorage(tmp_path / "tape", read_only=True) as follower:
            check(ReplayBuffer(follower, batch_size=16, seed=0).sample(), exact)
    with DiskStorage(tmp_path / "tape") as storage:
        assert {c.name for c in storage.codecs.values()} == {name}
        buffer = ReplayBuffer(storage, batch_size=16, seed=0)
        check(buffer[:], exact)
        buffer.extend(rows(np.arange(81, 85)))
        assert len(ReplayBuffer(storage, NStepSampler(3, 0.9), batch_size=16).sample()) == 16
        expected = encode_rows(codec_of(name), pixels(np.arange(85)))
        assert [bytes(x) for x in stored_bytes(storage, "pixels", np.arange(85))] == expected
    with pytest.raises(LayoutError, match=f"stored with {name}, asked for zstd:19"):
        DiskStorage(tmp_path / "tape", codecs={"pixels": "zstd:19"})


@pytest.mark.parametrize("target", ["memory", "disk"])
def test_checkpoints_from_disk_and_into_it(tmp_path, target):
    with DiskStorage(tmp_path / "tape", codecs=codecs("lz4")) as storage:
        buffer = ReplayBuffer(storage, RandomSampler(), batch_size=16, seed=0)
        fill(buffer)
        buffer.save(tmp_path / "saved")
        expected = buffer.sample()
    other = LazyTensorStorage(500) if target == "memory" else DiskStorage(tmp_path / "other")
    with other:
        loaded = ReplayBuffer(other, RandomSampler(), batch_size=16, seed=5)
        loaded.load(tmp_path / "saved")
        check(loaded[:])
        assert np.array_equal(loaded.sample()["pixels"], expected["pixels"])


def damage(folder, data):
    """Turns a byte of some bytes in the files of a storage."""
    for path in sorted(folder.rglob("*.bin")):
        at = path.read_bytes().find(data)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(data) // 2)
                byte = file.read(1)[0]
                file.seek(at + len(data) // 2)
                file.write(bytes([byte ^ 255]))
            return
    raise AssertionError("the bytes are in no file")


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("name", ["png", "lz4"])
def test_damaged_bytes_set_their_trajectory_aside_and_are_never_decoded(tmp_path, again, name):
    storage = DiskStorage(tmp_path / "tape", codecs=codecs(name))
    fill(ReplayBuffer(storage, batch_size=64, seed=0))
    storage.flush()
    damage(tmp_path, bytes(stored_bytes(storage, "pixels", [20])[0]))
    if again:
        storage.close()
        storage = DiskStorage(tmp_path / "tape")
    with storage:
        for sampler in (NStepSampler(3, 0.9), RandomSampler(), SliceSampler(slice_len=4)):
            buffer = ReplayBuffer(storage, sampler, batch_size=64, seed=0)
            for _ in range(20):
                batch = buffer.sample()
                assert np.array_equal(batch["pixels"], pixels(batch["t"]))
                assert not set(batch["t"].tolist()) & {20}
        assert len(storage.quarantined) == 1
