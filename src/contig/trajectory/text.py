"""Lists of strings in trajectories: what the env was asked to do, for example.

[[str] * B] * T, or [str] * B for all steps   as it is given and read
[T * B] of dtype S                            as rows
[T * B, width] uint8, zeros behind it         as it is stored
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import LayoutError
from ..tree import Path, show_path

__all__ = ["show_text", "stored_text", "text_of", "text_rows", "text_width", "unstored_text"]

Array = np.ndarray[Any, Any]
_LEAST_BYTES = 256


def text_of(value: Any) -> Array | None:
    """Strings in lists as an array of objects; None if it is something else."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "UO":
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not value:
        return None
    inner = [x for row in value for x in (row if isinstance(row, (list, tuple)) else (row,))]
    if not inner or not all(isinstance(x, str) for x in inner):
        return None
    nests = {len(row) if isinstance(row, (list, tuple)) else -1 for row in value}
    if len(nests) != 1:
        return None
    out = np.empty(len(inner), object)
    out[:] = inner
    return out if nests == {-1} else out.reshape(len(value), -1)


def text_rows(path: Path, text: Array, steps: int, envs: int) -> Array:
    """Strings of every row.

    Raises:
        LayoutError: not as many as the trajectory has steps and envs.
    """
    if text.shape == (envs,):
        text = np.broadcast_to(text, (steps, envs))
    elif envs == 1 and text.shape == (steps,):
        text = text[:, None]
    if text.shape != (steps, envs):
        raise LayoutError(
            f"{show_path(path)}: strings {list(text.shape)}, expected strings [{steps}, {envs}] or "
            f"[{envs}]"
        )
    encoded = [x.encode(errors="surrogatepass") for x in text.reshape(-1)]
    if any(x.endswith(b"\0") for x in encoded):
        raise LayoutError(f"{show_path(path)}: a string that ends with a zero; give another")
    return np.array(encoded, f"S{max(1, *map(len, encoded))}")


def text_width(text: Array) -> int:
    """The bytes to store a row in, of which the first are known."""
    return max(_LEAST_BYTES, -(-int(text.dtype.itemsize) // 8) * 8)


def stored_text(path: Path, text: Array, width: int) -> Array:
    """Rows as they are stored.

    Raises:
        LayoutError: one has no room.
    """
    if text.dtype.itemsize > width:
        raise LayoutError(
            f"{show_path(path)}: a string of {text.dtype.itemsize} bytes, and the first trajectory "
            f"said that there are at most {width} bytes; give a shorter one"
        )
    return text.astype(f"S{width}").view(np.uint8).reshape(len(text), width)


def unstored_text(rows: Any) -> Array:
    """Rows as they are stored, as text again."""
    data = np.ascontiguousarray(np.asarray(rows))
    return data.reshape(-1, data.shape[-1]).view(f"S{data.shape[-1]}")[:, 0]


def show_text(text: Array) -> Any:
    """Strings in lists, as many deep as there are dims."""
    if text.ndim > 1:
        return [show_text(row) for row in text]
    return [x.decode(errors="surrogatepass") for x in text.tolist()]
