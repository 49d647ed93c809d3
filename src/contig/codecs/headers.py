"""What encoded images say of themselves: format, size, channels, and whether their end is there."""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["Header", "ends_jpeg", "ends_png", "ends_qoi", "jpeg_header", "png_header", "qoi_header"]

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type; 3 is a palette
_QOI_END = b"\x00\x00\x00\x00\x00\x00\x00\x01"
_JPEG_END = b"\xff\xd9"
# Markers of JPEG that begin a frame of Huffman-coded DCT: baseline, extended, progressive.
_JPEG_FRAMES = (0xC0, 0xC1, 0xC2)
_JPEG_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
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
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes may precede a marker
            at += 1
            continue
        if marker in _JPEG_ALONE:
            at += 2
            continue
        if marker in _JPEG_FRAMES and at + 10 <= len(data):
            bits, height, width, channels = struct.unpack(">BHHB", data[at + 4 : at + 10])
            return Header(height, width, channels, bits)
        if marker in _JPEG_OTHER_FRAMES:
            raise ValueError(f"a JPEG of the kind SOF{marker - 0xC0}: decode it first")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise ValueError("a JPEG that ends before it says its size")


def ends_png(data: memoryview) -> bool:
    return bytes(data[-12:]) == _PNG_END


def ends_qoi(data: memoryview) -> bool:
    # No valid pixels end in these bytes: an encoder never writes the same index twice.
    return bytes(data[-8:]) == _QOI_END


def ends_jpeg(data: memoryview) -> bool:
    """Whether the last marker is there; cameras pad behind it with zeros."""
    return bytes(data[-2:]) == _JPEG_END or bytes(data[-64:]).rstrip(b"\x00")[-2:] == _JPEG_END
