"""Native decoders of rows, beside the libraries that encode them."""

from __future__ import annotations

import imagecodecs
import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import _native


def lz4_of(data: bytes, size: int) -> bytes | None:
    """What the kernel makes of one block."""
    out = np.full(size, 99, np.uint8)
    values = np.frombuffer(data, np.uint8)
    bad = _native.decode_lz4(values, np.array([0, len(data)]), out, size, 1)
    return None if bad >= 0 else out.tobytes()


def lz4_by_library(data: bytes, size: int) -> bytes | None:
    try:
        found = lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        return None
    return found if len(found) == size else None


# Long runs, short periods of every length and noise: each way that a match is copied.
plain = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 60)).map(
            lambda p: p[0] * p[1]
        ),
    ),
    min_size=1,
    max_size=12,
).map(b"".join)


@given(plain.filter(len), st.sampled_from([None, 1, 9, 12]))
@settings(max_examples=200, deadline=None)
def test_lz4_gives_back_what_was_encoded(data, level):
    options = {} if level is None else {"mode": "high_compression", "compression": level}
    block = lz4.block.compress(data, store_size=False, **options)
    assert lz4_of(block, len(data)) == data
    assert lz4_of(block, len(data) + 1) is None
    if len(data) > 1:
        assert lz4_of(block, len(data) - 1) is None


@given(plain.filter(len), st.data())
@settings(max_examples=300, deadline=None)
def test_lz4_says_of_damaged_blocks_what_the_library_says(data, draw):
    block = bytearray(lz4.block.compress(data, store_size=False))
    for _ in range(draw.draw(st.integers(1, 3))):
        block[draw.draw(st.integers(0, len(block) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(block)))
    damaged = bytes(block[:cut])
    ours, theirs = lz4_of(damaged, len(data)), lz4_by_library(damaged, len(data))
    # The library may refuse blocks whose last literals are too few, which ours takes.
    assert ours == theirs or theirs is None
    if ours is not None:
        assert len(ours) == len(data)


def qoi_of(data: bytes, shape: tuple[int, ...]) -> np.ndarray | None:
    out = np.full(shape, 99, np.uint8)
    ends = np.array([0, len(data)])
    bad = _native.decode_qoi(np.frombuffer(data, np.uint8), ends, out.reshape(-1), *shape, 1)
    return None if bad >= 0 else out


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([3, 4]),
    st.integers(1, 256),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=200, deadline=None)
def test_qoi_gives_back_what_was_encoded(height, width, channels, colours, seed):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, colours, (height, width, channels), np.uint8)
    image = np.repeat(image, rng.integers(1, 5), 1)
    data = imagecodecs.qoi_encode(image)
    assert np.array_equal(qoi_of(data, image.shape), image)
    assert np.array_equal(imagecodecs.qoi_decode(data), image)


@given(st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=200, deadline=None)
def test_qoi_never_leaves_its_memory(seed, draw):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 9, (6, 7, 3), np.uint8)
    data = bytearray(imagecodecs.qoi_encode(image))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    guarded = np.full(6 * 7 * 3 + 64, 88, np.uint8)
    values, ends = np.frombuffer(bytes(data), np.uint8), np.array([0, len(data)])
    _native.decode_qoi(values, ends, guarded[:-64], 6, 7, 3, 1)
    assert (guarded[-64:] == 88).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_bad_row_is_said_whoever_decodes_it(threads):
    rows, size = 40, 1_000_000  # enough for several threads
    data = [bytes([i]) * size for i in range(rows)]
    blocks = [lz4.block.compress(x, store_size=False) for x in data]
    values = np.frombuffer(b"".join(blocks), np.uint8)
    offsets = np.cumsum([0, *map(len, blocks)])
    out = np.zeros(rows * size, np.uint8)
    assert _native.decode_lz4(values, offsets, out, size, threads) == -1
    assert out.tobytes() == b"".join(data)
    for bad in (0, 17, 39):
        changed = values.copy()
        changed[offsets[bad] :] = 255
        assert _native.decode_lz4(changed, offsets, out, size, threads) == bad


def test_arrays_that_do_not_fit_each_other_are_refused():
    values, out = np.zeros(10, np.uint8), np.zeros(8, np.uint8)
    for offsets in ([0, 11], [-1, 3], [4, 2, 8], [0, 5, 4]):
        with pytest.raises(ValueError, match="offsets that lead out"):
            rows = len(offsets) - 1
            _native.decode_lz4(values, np.array(offsets), out, 8 // rows, 1)
    with pytest.raises(ValueError, match="other bytes than its rows"):
        _native.decode_lz4(values, np.array([0, 5]), out, 7, 1)
    with pytest.raises(ValueError, match="other bytes than its rows"):
        _native.decode_lz4(values, np.array([0, 5]), out, 0, 1)
    with pytest.raises(ValueError, match="other bytes than its rows"):
        _native.decode_qoi(values, np.array([0, 5]), out, 2, 2, 3, 1)
    with pytest.raises(ValueError, match="3 or 4 channels"):
        _native.decode_qoi(values, np.array([0, 5]), out, 2, 2, 2, 1)
    with pytest.raises(ValueError, match="one more than rows"):
        _native.decode_lz4(values, np.zeros(0, np.int64), out, 8, 1)


def test_an_image_whose_bytes_cannot_be_counted_is_refused():
    # Height x width x channels are 2^64 + 4: 4 bytes, for who does not look.
    height, width = 2**31 - 2**16 + 1, 2**31 + 2**16 + 1
    assert height * width * 4 == 2**64 + 4
    head = b"qoif" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([4, 0])
    data = np.frombuffer(head + b"\xfd" * 20 + bytes(7) + b"\1", np.uint8)
    guarded = np.full(20 * 62 * 4 + 64, 88, np.uint8)
    with pytest.raises(ValueError, match="other bytes than its rows"):
        _native.decode_qoi(data, np.array([0, len(data)]), guarded[:4], height, width, 4, 1)
    assert (guarded == 88).all()
