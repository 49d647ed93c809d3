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
