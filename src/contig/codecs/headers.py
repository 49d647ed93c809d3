"""What encoded images say of themselves: format, size, channels, whether their end is there, and
whether what lies between is whole.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

__all__ = [
    "Header",
    "ends_jpeg",
    "ends_png",
    "ends_qoi",
    "jpeg_damage",
    "jpeg_header",
    "png_damage",
    "png_header",
    "qoi_header",
]

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type; 3 is a palette
_PNG_NEEDED = (b"IHDR", b"PLTE", b"IDAT", b"IEND")  # of those that a decoder must know
_QOI_END = b"\x00\x00\x00\x00\x00\x00\x00\x01"
_JPEG_END = b"\xff\xd9"
# Markers of JPEG that begin a frame of Huffman-coded DCT: baseline, extended, progressive.
_JPEG_FRAMES = (0xC0, 0xC1, 0xC2)
_JPEG_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
_JPEG_SCAN = 0xDA
_JPEG_ALONE = (0x01, *range(0xD0, 0xD9))  # markers without a length


class Header(NamedTuple):
    """An encoded image.

    Attributes:
        height, width, channels: of its pixels.
        bits: of a channel.
    """

    height: int
    width: int
    channels: int
    bits: int


def png_header(data: memoryview) -> Header:
    """Raises ValueError if it is no PNG of gray, RGB or RGBA pixels."""
    if bytes(data[:8]) != _PNG or bytes(data[12:16]) != b"IHDR" or len(data) < 33:
        raise ValueError(f"no PNG: it begins with {bytes(data[:8])!r}")
    width, height, bits, colour = struct.unpack(">IIBB", data[16:26])
    if colour not in _PNG_CHANNELS:
        raise ValueError("a PNG with a palette, which has no channels: decode it first")
    return Header(height, width, _PNG_CHANNELS[colour], bits)


def png_damage(data: memoryview) -> str:
    """Why a PNG that begins and ends as one cannot be decoded to the channels that it says; empty
    if it can. Chunks are checked by their checksums, and not inflated."""
    at, kind, pixels = 8, b"", False
    while kind != b"IEND":
        size, kind = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8])
        end = at + 12 + size
        if end > len(data):
            return "a PNG that is cut short"
        if zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            return f"a PNG that is damaged: the checksum of {kind!r} differs"
        if kind == b"tRNS":
            return "a PNG with a transparent colour, which decodes to one more channel: decode it"
        if not kind[0] & 0x20 and kind not in _PNG_NEEDED:
            return f"a PNG with {kind!r}, which is not known: decode it first"
        pixels |= kind == b"IDAT"
        at = end
    if at != len(data) or not pixels:
        return "a PNG with something behind it" if pixels else "a PNG without pixels"
    compression, filters, interlace = data[26:29]
    return "a PNG of an unknown method" if compression or filters or interlace > 1 else ""


def qoi_header(data: memoryview) -> Header:
    """Raises ValueError if it is no QOI."""
    if bytes(data[:4]) != b"qoif" or len(data) < 14:
        raise ValueError(f"no QOI: it begins with {bytes(data[:8])!r}")
    width, height, channels = struct.unpack(">IIB", data[4:13])
    return Header(height, width, channels, 8)


def jpeg_header(data: memoryview) -> Header:
    """Raises ValueError if it is no JPEG, or one of a kind that is hardly ever met."""
    if bytes(data[:3]) != b"\xff\xd8\xff":
        raise ValueError(f"no JPEG: it begins with {bytes(data[:8])!r}")
    for marker, at in _jpeg_markers(data):
        if marker in _JPEG_FRAMES and at + 10 <= len(data):
            bits, height, width, channels = struct.unpack(">BHHB", data[at + 4 : at + 10])
            return Header(height, width, channels, bits)
        if marker in _JPEG_OTHER_FRAMES:
            raise ValueError(f"a JPEG of the kind SOF{marker - 0xC0}: decode it first")
    raise ValueError("a JPEG that ends before it says its size")


def jpeg_damage(data: memoryview) -> str:
    """Why a JPEG with a header and an end has no pixels; empty if it has. A decoder makes something
    up for what is missing among them."""
    found = any(marker == _JPEG_SCAN for marker, _ in _jpeg_markers(data))
    return "" if found else "a JPEG without pixels"


def _jpeg_markers(data: memoryview) -> Iterator[tuple[int, int]]:
    """The markers that have a length, and where, up to the first scan."""
    at, marker = 2, 0
    while at + 4 <= len(data) and data[at] == 0xFF and marker != _JPEG_SCAN:
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes may precede a marker
            at += 1
        elif marker in _JPEG_ALONE:
            at += 2
        else:
            yield marker, at
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def ends_png(data: memoryview) -> bool:
    return bytes(data[-12:]) == _PNG_END


def ends_qoi(data: memoryview) -> bool:
    # No valid pixels end in these bytes: an encoder never writes the same index twice.
    return bytes(data[-8:]) == _QOI_END


def ends_jpeg(data: memoryview) -> bool:
    """Whether the last marker is there; cameras pad behind it with zeros."""
    return bytes(data[-2:]) == _JPEG_END or bytes(data[-64:]).rstrip(b"\x00")[-2:] == _JPEG_END
