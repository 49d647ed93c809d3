"""Codecs for images, by imagecodecs: PNG, JPEG, QOI."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _native
from .codec import Array, Codec, need
from .headers import (
    Header,
    ends_jpeg,
    ends_png,
    ends_qoi,
    jpeg_damage,
    jpeg_header,
    png_damage,
    png_header,
    qoi_header,
)
from .threads import cores

__all__ = ["Jpeg", "Png", "Qoi"]


class _Image(Codec):
    """Leaves ``[height, width]`` and ``[height, width, channels]``.

    Attributes:
        channels: that the format can hold; 1 also as ``[height, width]``.
        largest: sides of an image at most.
    """

    channels: tuple[int, ...] = ()
    largest = 2**31 - 1
    dtypes: tuple[str, ...] = ("uint8",)
    header: Callable[[memoryview], Header]
    ends: Callable[[memoryview], bool]

    def load(self) -> None:
        self._library()

    def _library(self) -> Any:
        return need("imagecodecs", "imagecodecs", "images", self.name)

    def unfit(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        deep = shape[2] if len(shape) == 3 else 1
        sides = shape[:2]
        if dtype.name not in self.dtypes:
            return f"{self.kind} holds {' or '.join(self.dtypes)}; zstd and lz4 take any dtype"
        if len(shape) in (2, 3) and deep in self.channels and min(sides) > 0:
            if max(sides) <= self.largest:
                return ""
            return f"{self.kind} holds images of up to {self.largest} pixels a side"
        forms = [f"[height, width, {n}]" for n in self.channels]
        if 1 in self.channels:
            forms.insert(0, "[height, width]")
        hint = "zstd and lz4 take any shape"
        if len(shape) == 3 and shape[0] in (1, 3):
            hint = f"move the channels to the end, or take another: {hint}"
        return f"{self.kind} holds {', '.join(forms)}; {hint}"

    def wrong(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        try:
            found = type(self).header(data)
        except ValueError as error:
            return str(error)
        height, width, channels = (*shape, 1)[:3]
        expected = Header(height, width, channels, dtype.itemsize * 8)
        if found != expected:
            return f"{_show(found)}, expected {_show(expected)}"
        if not type(self).ends(data):
            return f"a {self.kind.upper()} that is cut short"
        return self._damage(data, shape)

    @abstractmethod
    def _damage(self, data: memoryview, shape: tuple[int, ...]) -> str:
        """Why bytes with the right header and an end are no whole image; empty if they are, as far
        as it is known without decoding what is slow to decode."""

    def described(self, data: memoryview) -> tuple[tuple[int, ...], np.dtype[Any]]:
        height, width, channels, bits = type(self).header(data)
        shape = (height, width) if channels == 1 else (height, width, channels)
        return shape, np.dtype(np.uint16 if bits == 16 else np.uint8)


class _ByLibrary(_Image):
    """Decoded row by row."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self._decode: Any = None

    @abstractmethod
    def _decoder(self, library: Any) -> Any:
        """The library's function."""

    def decode(self, data: memoryview, out: Array) -> None:
        decode = self._decode
        if decode is None:
            decode = self._decode = self._decoder(self._library())
        if not type(self).ends(data):  # decoders make something up for what is missing
            raise ValueError(f"no {self.kind.upper()}, or one that is cut short")
        if out.ndim == 3 and out.shape[2] == 1:
            out = out[:, :, 0]
        decode(data, out=out)


def _show(header: Header) -> str:
    height, width, channels, bits = header
    return f"{bits}-bit [{height}, {width}, {channels}]"


class Png(_ByLibrary):
    """PNG.

    Args:
        level: of compression, 0 to 9. Higher ones than 1 take much longer for a little.
    """

    kind = "png"
    channels = (1, 3, 4)
    dtypes = ("uint8", "uint16")
    header = staticmethod(png_header)
    ends = staticmethod(ends_png)

    def __init__(self, name: str, level: int = 1) -> None:
        super().__init__(name, level)
        self._level = level

    def encode(self, row: Array) -> bytes:
        return self._library().png_encode(row, level=self._level)  # type: ignore[no-any-return]

    def _damage(self, data: memoryview, shape: tuple[int, ...]) -> str:
        return png_damage(data)

    def _decoder(self, library: Any) -> Any:
        return library.png_decode


class Qoi(_Image):
    """QOI: larger than PNG, and several times as fast."""

    kind = "qoi"
    channels = (3, 4)
    header = staticmethod(qoi_header)
    ends = staticmethod(ends_qoi)

    def encode(self, row: Array) -> bytes:
        return self._library().qoi_encode(row)  # type: ignore[no-any-return]

    def decode(self, data: memoryview, out: Array) -> None:
        if not self._decoded(data, out):
            raise ValueError(self.wrong(data, out.shape, out.dtype))

    def _decoded(self, data: memoryview, out: Array) -> bool:
        ends = np.array([0, len(data)])
        return self.at_once(np.frombuffer(data, np.uint8), ends, out[None])

    def _damage(self, data: memoryview, shape: tuple[int, ...]) -> str:
        # Nothing but its pixels says how many there are; they are decoded quickly.
        return "" if self._decoded(data, np.empty(shape, np.uint8)) else "a QOI that is damaged"

    def at_once(self, values: Array, offsets: Array, out: Array) -> bool:
        # Not by the library: see native/kernels/decode.h.
        _, height, width, channels = out.shape
        flat = out.reshape(-1)
        return _native.decode_qoi(values, offsets, flat, height, width, channels, cores()) < 0


class Jpeg(_ByLibrary):
    """JPEG, which does not give back the same pixels.

    Args:
        quality: 1 to 100; even 100 is lossy.
    """

    kind = "jpeg"
    lossless = False
    slow = True
    channels = (1, 3)
    largest = 65535
    header = staticmethod(jpeg_header)
    ends = staticmethod(ends_jpeg)

    def __init__(self, name: str, quality: int) -> None:
        super().__init__(name, quality)
        self._quality = quality

    def encode(self, row: Array) -> bytes:
        return self._library().jpeg8_encode(row, level=self._quality)  # type: ignore[no-any-return]

    def _damage(self, data: memoryview, shape: tuple[int, ...]) -> str:
        return jpeg_damage(data)

    def _decoder(self, library: Any) -> Any:
        return library.jpeg8_decode
