"""Rows of a leaf, encoded and decoded.

[n, *shape]  ->  encode_rows  ->  bytes of one row after another, and their lengths
             <-  decode_rows  <-  the same bytes and offsets
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import CodecError, LayoutError
from ..tree import Path, show_path
from .codec import Array, Codec
from .threads import in_parts

__all__ = ["check_encoded", "check_leaf", "decode_rows", "encode_row", "encode_rows"]


def check_leaf(codec: Codec, shape: tuple[int, ...], dtype: np.dtype[Any], path: Path) -> None:
    """Looks whether a codec can hold a leaf, and its library is there.

    Raises:
        LayoutError: it cannot, with what it can.
        ImportError: the library is not installed, with what to do.
    """
    reason = codec.unfit(shape, dtype)
    if reason:
        raise LayoutError(
            f"{show_path(path)}: codec {codec.name} for {dtype.name}{list(shape)}: {reason}"
        )
    codec.load()


def encode_row(codec: Codec, row: Array) -> bytes:
    """One row, contiguous, of a shape and dtype that fit the codec."""
    return codec.encode(row)


def encode_rows(codec: Codec, rows: Array) -> list[bytes]:
    """Rows ``[n, *shape]``, contiguous, of a shape and dtype that fit the codec."""
    encode = codec.encode
    rows = rows.reshape(len(rows), 1) if rows.ndim == 1 else rows  # not numbers, but arrays

    def part(start: int, end: int) -> list[bytes]:
        return [encode(row) for row in rows[start:end]]

    size = rows.nbytes // len(rows) if len(rows) else 0
    return [data for done in in_parts(part, len(rows), size, codec.slow) for data in done]


def decode_rows(codec: Codec, values: Any, offsets: Array, out: Array, path: Path) -> None:
    """Encoded rows into a column.

    Args:
        values: a buffer of bytes.
        offsets: int64 ``[n + 1]``: row i is ``values[offsets[i]:offsets[i + 1]]``.
        out: ``[n, *shape]``, contiguous.
        path: of the leaf, for errors.

    Raises:
        CodecError: a row is damaged, or of another shape.
    """
    data = np.frombuffer(values, np.uint8)
    if not len(out) or codec.at_once(data, offsets, out):
        return
    view = data.data
    bounds = offsets.tolist()
    places = out.reshape(len(out), 1) if out.ndim == 1 else out  # not numbers, but arrays

    def part(start: int, end: int) -> None:
        decode, at = codec.decode, start
        try:
            for at in range(start, end):
                decode(view[bounds[at] : bounds[at + 1]], places[at])
        except ImportError:
            raise
        except Exception as error:
            size = bounds[at + 1] - bounds[at]
            raise CodecError(
                f"{show_path(path)}: row {at} of {len(out)}, {size} bytes, is no {codec.name} of "
                f"{out.dtype.name}{list(out.shape[1:])}: {error}. It was damaged, or encoded by "
                "something else"
            ) from error

    in_parts(part, len(out), out.nbytes // len(out), codec.slow)


def check_encoded(
    codec: Codec, data: Any, shape: tuple[int, ...], dtype: np.dtype[Any], path: Path
) -> None:
    """Looks whether bytes that somebody else encoded are a row of a leaf; see `Codec.wrong`.

    Raises:
        LayoutError: they are not, with what they are.
    """
    reason = codec.wrong(memoryview(data).cast("B"), shape, dtype)
    if reason:
        raise LayoutError(
            f"{show_path(path)}: bytes for codec {codec.name}: {reason}; give the pixels, or bytes "
            "that the codec can decode to the leaf's shape"
        )
