"""Images of datasets: compressed files, or raw numbers. Compressed ones need Pillow."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs import Codec
from ..errors import LayoutError
from .episodes import need

__all__ = ["decode_image", "encoded_image", "in_shape"]

Array = np.ndarray[Any, Any]

_COMPRESSED = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


def decode_image(stored: Any, shape: tuple[int, ...], where: str, root: Path) -> Array:
    """One image in its declared shape.

    Args:
        stored: bytes, or a dict of `bytes` and `path`: a file below `root`, where bytes are None.
        shape: ``[height, width, channels]``, or channels first.

    Raises:
        LayoutError: neither PNG nor JPEG nor raw numbers of that shape.
    """
    data = _bytes_of(stored, where, root)
    if data.startswith(_COMPRESSED):
        return in_shape(_decompressed(data, where), shape, where)
    if len(data) != math.prod(shape):
        raise LayoutError(
            f"{where}: {len(data)} bytes that are neither PNG nor JPEG, nor raw uint8 of shape "
            f"{list(shape)}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def encoded_image(
    stored: Any, codec: Codec, shape: tuple[int, ...], where: str, root: Path
) -> bytes:
    """One image as a storage with a codec keeps it: the file's own bytes, if they are of the codec
    and of the declared shape; else decoded, and encoded anew. Arguments as of `decode_image`."""
    data = _bytes_of(stored, where, root)
    if not codec.wrong(memoryview(data), shape, np.dtype(np.uint8)):
        return data
    return codec.encode(np.ascontiguousarray(decode_image(data, shape, where, root)))


def _bytes_of(stored: Any, where: str, root: Path) -> bytes:
    data = stored.get("bytes") if isinstance(stored, dict) else stored
    if data is None and isinstance(stored, dict) and stored.get("path"):
        file = (root / stored["path"]).resolve()
        if not file.is_relative_to(root.resolve()):
            raise LayoutError(f"{where}: {stored['path']} leads out of the dataset")
        try:
            data = file.read_bytes()
        except OSError as error:
            raise LayoutError(f"{where}: {error}") from error
    if not isinstance(data, bytes):
        raise LayoutError(f"{where}: expected an image's bytes, got {type(data).__name__}")
    return data


def _decompressed(data: bytes, where: str) -> Array:
    pillow = need("PIL.Image", "Pillow", "lerobot")
    try:
        with pillow.open(io.BytesIO(data)) as image:
            plain = image.convert("RGB") if image.mode == "P" else image
            return np.asarray(plain)
    except (OSError, SyntaxError, ValueError) as error:
        raise LayoutError(f"{where}: a damaged image: {error}") from error


def in_shape(image: Array, shape: Any, where: str) -> Array:
    """An image ``[height, width]`` or ``[height, width, channels]`` in its declared shape.

    Raises:
        LayoutError: it is of another size.
    """
    pixels = image[..., None] if image.ndim == 2 else image
    if pixels.shape == tuple(shape):
        return pixels
    first = np.moveaxis(pixels, -1, 0)
    if first.shape == tuple(shape):
        return np.ascontiguousarray(first)
    if image.shape == tuple(shape):
        return image
    raise LayoutError(f"{where}: an image of shape {list(pixels.shape)}, expected {list(shape)}")
