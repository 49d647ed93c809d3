"""Checkpoints of rows with codecs, where storages were asked for others."""

from __future__ import annotations

import numpy as np
import pytest

from contig import (
    DeviceStorage,
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    SharedStorage,
)
from contig.replay.redistribute import load_share

pytest.importorskip("torch")


@pytest.mark.parametrize("target", ["lazy", "shared", "disk", "device"])
@pytest.mark.parametrize("source", ["lazy", "disk", "device"])
def test_rows_of_the_same_size_without_the_codec_are_refused(source, target, tmp_path):
    """Two float64 take as much of a record as the place of encoded bytes does."""
    makes = {
        "lazy": lambda path, **o: LazyTensorStorage(20, **o),
        "shared": lambda path, **o: SharedStorage(20, **o),
        "disk": lambda path, **o: DiskStorage(path, 20, **o),
        "device": lambda path, **o: DeviceStorage(20, "cpu", **o),
    }
    given = {"x": np.arange(20.0).reshape(10, 2), "next": {"done": np.arange(10) % 5 == 4}}
    with makes[source](tmp_path / "one") as one:
        one.writer().extend(given)
        ReplayBuffer(one).save(tmp_path / "saved")
    with makes[target](tmp_path / "other", codecs={"x": "zstd"}) as other:
        buffer = ReplayBuffer(other, output="numpy")
        with pytest.raises(LayoutError, match=r'"x": float64\[2\], expected .*zstd.*codecs='):
            buffer.load(tmp_path / "saved")
        assert other.layout is None and len(other) == 0
        buffer.extend(given)
        assert buffer[:]["x"].tolist() == given["x"].tolist()


@pytest.mark.parametrize("target", ["lazy", "disk", "device"])
def test_shares_of_other_rows_are_refused(target, tmp_path):
    """Records of the same size, by the way in that shards have, into a storage that has rows."""
    other = {"y": np.arange(10.0), "z": np.arange(10.0), "next": {"done": np.arange(10) % 5 == 4}}
    mine = {"y": np.arange(10), "z": np.arange(10), "next": other["next"]}
    with LazyTensorStorage(20) as one:
        one.writer().extend(other)
        ReplayBuffer(one).save(tmp_path / "saved")
    makes = {
        "lazy": lambda: LazyTensorStorage(20),
        "disk": lambda: DiskStorage(tmp_path / "tape", 20),
        "device": lambda: DeviceStorage(20, "cpu"),
    }
    with makes[target]() as storage:
        buffer = ReplayBuffer(storage, output="numpy")
        buffer.extend(mine)
        with pytest.raises(ValueError, match='"y": dtype float64, expected int64'):
            load_share(storage, buffer.sampler, [tmp_path / "saved"], (0, 1))
        assert buffer[:]["y"].tolist() == list(range(10))
