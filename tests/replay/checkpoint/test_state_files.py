"""Arrays of a checkpoint's state: files that numpy reads, written in pieces."""

from __future__ import annotations

import io

import numpy as np
import pytest

from contig.replay.state_files import file_pieces

ARRAYS = [
    np.arange(10),
    np.float32(3.5) * np.ones(()),
    np.zeros((0, 3)),
    np.arange(24).reshape(2, 3, 4)[:, ::2],
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.array([(1, 2.0), (3, 4.0)], [("a", "i8"), ("b", "f4")]),
    np.arange(2_000_003, dtype=np.uint8),
    np.array([True, False]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype} {a.shape}")
def test_numpy_reads_what_is_written(array):
    pieces = list(file_pieces(array))
    assert max(len(piece) for piece in pieces) <= 1 << 20
    back = np.load(io.BytesIO(b"".join(pieces)), allow_pickle=False)
    assert back.dtype == array.dtype and back.shape == array.shape
    np.testing.assert_array_equal(back, array)


def test_nothing_is_pickled():
    with pytest.raises(ValueError, match="nothing is pickled"):
        list(file_pieces(np.array([object()])))
