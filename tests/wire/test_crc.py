"""crc32c, with the processor's instruction and by tables, against a table of this test's own."""

from __future__ import annotations

import random
import struct

import pytest

from contig import _native
from tests.wire.independent_client import CRC_TABLE, crc32c

KERNELS = [_native.crc32c, _native.crc32c_portable]


@pytest.fixture(params=KERNELS, ids=["chosen", "portable"])
def kernel(request: pytest.FixtureRequest):
    return request.param


def test_published_values(kernel) -> None:
    # RFC 3720, B.4
    assert kernel(b"123456789") == 0xE3069283
    assert kernel(bytes(32)) == 0x8A9136AA
    assert kernel(b"\xff" * 32) == 0x62A8AB43
    assert kernel(bytes(range(32))) == 0x46DD794E
    assert kernel(bytes(range(31, -1, -1))) == 0x113FDB5C


@pytest.mark.parametrize("before", [0, 1, 0xDEADBEEF, 0xFFFFFFFF])
def test_every_length(kernel, before: int) -> None:
    data = random.Random(before).randbytes(5000)
    state = before ^ 0xFFFFFFFF
    for length in range(5001):
        assert kernel(data[:length], before) == state ^ 0xFFFFFFFF, length
        if length < 5000:
            state = state >> 8 ^ CRC_TABLE[(state ^ data[length]) & 255]


def test_parts_continue(kernel) -> None:
    rng = random.Random(0)
    data = rng.randbytes(40_000)
    for _ in range(300):
        start, middle, end = sorted(rng.randrange(len(data) + 1) for _ in range(3))
        whole = kernel(data[start:end])
        assert kernel(data[middle:end], kernel(data[start:middle])) == whole


def test_any_alignment() -> None:
    # Through a frame's header, because its parts are taken where they lie.
    rng = random.Random(1)
    data = memoryview(rng.randbytes(12_000))
    for start in range(64):
        for length in (0, 1, 7, 8, 9, 100, rng.randrange(3000), 3072 + rng.randrange(8000)):
            part = data[start : start + length]
            header = _native.make_header(6, 0, [part])
            assert struct.unpack_from("<I", header, 32)[0] == _native.crc32c_portable(bytes(part))
    assert struct.unpack_from("<I", header, 32)[0] == crc32c(part)


def test_joined() -> None:
    rng = random.Random(2)
    data = rng.randbytes(40_000)
    for _ in range(300):
        start, middle, end = sorted(rng.randrange(len(data) + 1) for _ in range(3))
        first, second = _native.crc32c(data[start:middle]), _native.crc32c(data[middle:end])
        joined = _native.crc32c_join(first, second, end - middle)
        assert joined == _native.crc32c(data[start:end])
