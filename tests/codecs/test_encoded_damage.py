"""Bytes that somebody else encoded and that nobody could decode are refused when they are written.

What passes the check can be decoded: every prefix, and every changed byte where a format has
checksums or its pixels are counted.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import imagecodecs
import numpy as np
import pytest
import zstandard
from PIL import Image

from contig import LayoutError, LazyTensorStorage, ReplayBuffer
from contig.codecs import codec_of, encode_rows
from tests.codecs.frames import H, W, pixels, rows

CODECS = ["zstd", "lz4", "png", "qoi", "jpeg:90"]
SHAPE, BYTE = (H, W, 3), np.dtype(np.uint8)


def encoded(name: str) -> bytes:
    return encode_rows(codec_of(name), pixels(np.arange(1)))[0]


def wrong(name: str, data: bytes) -> str:
    return codec_of(name).wrong(memoryview(data), SHAPE, BYTE)


def decodes(name: str, data: bytes) -> bool:
    try:
        codec_of(name).decode(memoryview(data), np.empty(SHAPE, np.uint8))
    except Exception:
        return False
    return True


def saved(**options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(0)).save(out, "PNG", **options)
    return out.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunk(kind: bytes, data: bytes) -> bytes:
    png = encoded("png")
    return png[:33] + chunk(kind, data) + png[33:]  # behind the header


@pytest.mark.parametrize("name", CODECS)
def test_every_prefix_is_refused(name: str) -> None:
    data = encoded(name)
    assert not wrong(name, data)
    for end in range(len(data)):
        assert wrong(name, data[:end]), end


@pytest.mark.parametrize("name", ["zstd", "lz4", "png", "qoi"])
def test_more_than_one_row_is_refused(name: str) -> None:
    data = encoded(name)
    assert wrong(name, data + data)
    assert wrong(name, data + b"xx")


@pytest.mark.parametrize("name", ["lz4", "png", "qoi"])
def test_what_passes_can_be_decoded_whatever_byte_changed(name: str) -> None:
    data = encoded(name)
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        assert wrong(name, changed) or decodes(name, changed), at


@pytest.mark.parametrize("size", [1, 255, 256, 300, 65_791, 65_792, 131_072, 131_073, 400_000])
@pytest.mark.parametrize("level", [-5, 3, 19])
def test_frames_of_zstd_of_every_form(size: int, level: int) -> None:
    noise = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    codec = codec_of("zstd")
    for values in (noise, noise & 1, noise * 0, np.where(np.arange(size) < size // 2, noise, 7)):
        values = np.ascontiguousarray(values, np.uint8)
        for checksum in (False, True):
            library = zstandard.ZstdCompressor(level=level, write_checksum=checksum)
            whole = library.compress(values)
            stream = library.compressobj(size=size)
            for data in (whole, stream.compress(values) + stream.flush()):
                assert not codec.wrong(memoryview(data), (size,), BYTE)
                for bad in (data[:-1], data[:-5], data + b"x", data + data):
                    assert codec.wrong(memoryview(bad), (size,), BYTE)
                assert codec.wrong(memoryview(data), (size + 1,), BYTE)


def test_frames_of_zstd_that_say_too_little() -> None:
    raw = pixels(0).tobytes()
    assert "does not say its size" in wrong(
        "zstd", zstandard.ZstdCompressor(write_content_size=False).compress(raw)
    )
    samples = [bytes([i % 7]) * 20 + raw[i : i + 50] for i in range(300)]
    words = zstandard.train_dictionary(400, samples)
    assert "dictionary" in wrong("zstd", zstandard.ZstdCompressor(dict_data=words).compress(raw))
    reserved = bytearray(encoded("zstd"))
    reserved[4] |= 8
    assert "not known" in wrong("zstd", bytes(reserved))
    skippable = b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab"
    assert "no zstd frame" in wrong("zstd", skippable + encoded("zstd"))


@pytest.mark.parametrize(
    ("png", "text"),
    [
        (lambda: saved(transparency=(1, 2, 3)), "transparent colour"),
        (lambda: with_chunk(b"tRNS", bytes(6)), "transparent colour"),
        (lambda: with_chunk(b"XYZW", b"?"), "not known"),
        (lambda: encoded("png")[:33] + chunk(b"IEND", b""), "without pixels"),
        (lambda: encoded("png")[:50] + chunk(b"IEND", b""), "cut short|damaged"),
    ],
)
def test_a_png_that_cannot_be_decoded_is_refused_and_changes_nothing(png: Any, text: str) -> None:
    assert not decodes("png", png())
    for example in (rows(0), None):
        storage = LazyTensorStorage(8, example=example, codecs={"pixels": "png"})
        buffer = ReplayBuffer(storage, batch_size=1)
        with pytest.raises(LayoutError, match=text):
            buffer.add({**rows(0), "pixels": png()})
        assert len(buffer) == 0
        assert (storage.layout is None) == (example is None)


def test_chunks_that_change_nothing_are_welcome() -> None:
    for kind, data in ((b"gAMA", struct.pack(">I", 45455)), (b"tEXt", b"a\x00b")):
        png = with_chunk(kind, data)
        assert not wrong("png", png)
        out = np.empty(SHAPE, np.uint8)
        codec_of("png").decode(memoryview(png), out)
        assert np.array_equal(out, pixels(0))


def test_a_jpeg_without_a_scan() -> None:
    data = encoded("jpeg:90")
    assert "without pixels" in wrong("jpeg:90", data[: data.index(b"\xff\xda")] + b"\xff\xd9")


def test_a_qoi_with_pixels_missing_in_its_middle() -> None:
    data = imagecodecs.qoi_encode(pixels(0))
    assert "damaged" in wrong("qoi", data[:40] + data[-8:])
