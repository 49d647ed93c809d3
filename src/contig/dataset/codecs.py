"""How parts of an observation are made smaller in a file, and what they were.

normalized_image   [0, 1] as uint8
one_hot            a one among zeros, as its number
quantised          [low, high] as uint8 or uint16
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import LayoutError

__all__ = ["check_codec", "decode", "encode"]

Array = np.ndarray[Any, Any]

_WIDTHS = {"uint8": 255, "uint16": 65535}


def check_codec(name: str, codec: Any, shape: tuple[int, ...]) -> None:
    """Raises LayoutError unless a part of an observation can be stored so."""
    kind = _kind(codec)
    if kind not in (None, "normalized_image", "one_hot", "quantised"):
        raise LayoutError(
            f"{name}: codec {kind!r}; known are normalized_image, one_hot and quantised"
        )
    if kind == "one_hot" and len(shape) != 1:
        raise LayoutError(f"{name}: one_hot is for a vector, the part has shape {list(shape)}")
    if kind == "quantised":
        _range(name, codec)


def encode(name: str, codec: Any, values: Array) -> Array:
    """Rows ``[n, *shape]`` as they are stored.

    Raises:
        LayoutError: values that the codec cannot hold.
    """
    kind = _kind(codec)
    if kind is None:
        return values
    if kind == "one_hot":
        found = np.asarray(values.argmax(-1))
        if not np.array_equal(values, np.eye(values.shape[-1], dtype=values.dtype)[found]):
            raise LayoutError(f"{name}: a row is not one-hot; store it without a codec")
        return found.astype(np.uint16 if values.shape[-1] > 256 else np.uint8)
    low, high, dtype = _range(name, codec)
    if values.size and not (low <= float(values.min()) and float(values.max()) <= high):
        raise LayoutError(
            f"{name}: values from {values.min()} to {values.max()}, expected {low} to {high}; "
            "scale them or store them without a codec"
        )
    scaled = (values.astype(np.float64) - low) / (high - low) * _WIDTHS[dtype]
    return np.asarray(np.rint(scaled), dtype)


def decode(name: str, codec: Any, stored: Array, shape: tuple[int, ...]) -> Array:
    """What was encoded, float32 ``[n, size]``, flattened."""
    kind, rows, size = _kind(codec), len(stored), math.prod(shape)
    if kind == "one_hot":
        out = np.zeros((rows, size), np.float32)
        numbers = stored.reshape(rows)
        if rows and int(numbers.max()) >= size:
            raise LayoutError(f"{name}: {int(numbers.max())}, expected less than {size}")
        out[np.arange(rows), numbers] = 1.0
        return out
    if stored.size != rows * size:
        raise LayoutError(
            f"{name}: shape {list(stored.shape)}, expected [{rows}, {', '.join(map(str, shape))}]"
        )
    flat = stored.reshape(rows, size)
    if kind is None:
        return flat
    low, high, dtype = _range(name, codec)
    out = flat.astype(np.float32)
    out *= np.float32((high - low) / _WIDTHS[dtype])
    if low:
        out += np.float32(low)
    return out


def _kind(codec: Any) -> Any:
    return codec.get("codec") if isinstance(codec, dict) else codec


def _range(name: str, codec: Any) -> tuple[float, float, str]:
    if _kind(codec) == "normalized_image":
        return 0.0, 1.0, "uint8"
    try:
        low, high = float(codec["low"]), float(codec["high"])
        dtype = str(codec.get("dtype", "uint8"))
    except (TypeError, KeyError, ValueError):
        low, high, dtype = 0.0, 0.0, ""
    if not low < high or dtype not in _WIDTHS:
        raise LayoutError(
            f'{name}: quantised needs {{"codec": "quantised", "low": a, "high": b, "dtype": '
            f'"uint8" or "uint16"}} with a < b, got {codec!r}'
        )
    return low, high, dtype
