"""Codecs for leaves of any shape and dtype: their bytes, compressed."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from .. import _native
from .codec import Array, Codec, need
from .threads import cores
from .zstd_frame import zstd_damage

__all__ = ["Lz4", "Zstd"]


# What the library's own threads are worth. 256 frames of 84x84 take 1.3 ms of one core by two
# threads, 1.6 in a loop, and 2.5 by one: it is then a slower way through the library.
_THREAD_ROWS = 8


class _Compressed(Codec):
    """Any leaf that has bytes."""

    def unfit(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        if math.prod(shape) == 0:
            return f"{self.kind} has nothing to encode in a leaf without elements"
        return ""


class Zstd(_Compressed):
    """zstandard frames that say how large their contents are.

    Args:
        level: -7 (fast) to 22 (small).
    """

    kind = "zstd"

    def __init__(self, name: str, level: int = 3) -> None:
        super().__init__(name, level)
        self._level = level
        self._own = threading.local()  # compressors and decompressors belong to one thread

    def load(self) -> None:
        self._library()

    def _library(self) -> Any:
        return need("zstandard", "zstandard", "zstd", self.name)

    def _mine(self) -> tuple[Any, Any, Any]:
        """The calling thread's (compress, decompress, content size)."""
        try:
            return self._own.functions  # type: ignore[no-any-return]
        except AttributeError:
            library = self._library()
            self._own.decompressor = library.ZstdDecompressor()
            functions = (
                library.ZstdCompressor(level=self._level).compress,
                self._own.decompressor.decompress,
                library.frame_content_size,
            )
            self._own.functions = functions
            return functions

    def encode(self, row: Array) -> bytes:
        return self._mine()[0](row.reshape(-1).view(np.uint8))  # type: ignore[no-any-return]

    def decode(self, data: memoryview, out: Array) -> None:
        _, decompress, content_size = self._mine()
        # Before anything is allocated for it: the frame may say what it likes.
        holds = content_size(data)
        if holds != out.nbytes:
            raise ValueError(f"it holds {holds} bytes, expected {out.nbytes}")
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(decompress(data), np.uint8)

    def at_once(self, values: Array, offsets: Array, out: Array) -> bool:
        library = self._library()
        rows = len(out)
        threads = min(cores(), rows // _THREAD_ROWS)
        if threads < 2 or not hasattr(library, "BufferWithSegments"):  # its C backend has it
            return False
        segments = np.empty((rows, 2), np.uint64)
        segments[:, 0], segments[:, 1] = offsets[:-1], np.diff(offsets)
        size = out.nbytes // rows
        self._mine()
        try:
            done = self._own.decompressor.multi_decompress_to_buffer(
                library.BufferWithSegments(values, segments.tobytes()),
                decompressed_sizes=np.full(rows, size, np.uint64).tobytes(),
                threads=threads,
            )
        except (library.ZstdError, ValueError, MemoryError):
            return False
        flat, at = out.reshape(-1).view(np.uint8).data, 0
        for row in done:
            flat[at : at + size] = row
            at += size
        return at == out.nbytes

    def wrong(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        return zstd_damage(data, math.prod(shape) * dtype.itemsize)


class Lz4(_Compressed):
    """lz4 blocks, without a header: a row's size is known.

    Args:
        level: None is the fast mode, 1 to 12 the high compression mode.
    """

    kind = "lz4"

    def __init__(self, name: str, level: int | None = None) -> None:
        super().__init__(name, level)
        self._options: dict[str, Any] = {"store_size": False}
        if level is not None:
            self._options |= {"mode": "high_compression", "compression": level}

    def load(self) -> None:
        self._library()

    def _library(self) -> Any:
        return need("lz4.block", "lz4", "lz4", self.name)

    def encode(self, row: Array) -> bytes:
        flat = row.reshape(-1).view(np.uint8)
        return self._library().compress(flat, **self._options)  # type: ignore[no-any-return]

    def decode(self, data: memoryview, out: Array) -> None:
        ends = np.array([0, len(data)])
        if not self.at_once(np.frombuffer(data, np.uint8), ends, out[None]):
            raise ValueError(f"it is no block of {out.nbytes} bytes")

    def at_once(self, values: Array, offsets: Array, out: Array) -> bool:
        # Not by the library: see native/kernels/decode.h.
        flat = out.reshape(-1).view(np.uint8)
        return _native.decode_lz4(values, offsets, flat, flat.size // len(out), cores()) < 0

    def wrong(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        # A block has no header: whether it is one shows when it is decoded.
        try:
            self.decode(data, np.empty(shape, dtype))
        except ValueError as error:
            return str(error)
        return ""
