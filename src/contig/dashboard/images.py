"""Leaves that are images, as PNG: written here, so that the page needs no library for it."""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from ..convert import as_array
from .book import Book, row_bytes

__all__ = ["ImageForm", "frames_png", "image_form", "png"]

Array = np.ndarray[Any, Any]

_LEAST = 8  # pixels of a side: smaller leaves are vectors
_COLOURS = (1, 3)
_MOST_CHANNELS = 16  # more of them are no stack of frames
_MOST_PIXELS = 16 << 20  # of one answer
_MOST_FRAMES = 256


class ImageForm(NamedTuple):
    """How a leaf is an image.

    Attributes:
        height, width: pixels.
        axis: of the channels, or None.
        colours: 1 or 3; of a stack of grey frames, the newest one is shown.
    """

    height: int
    width: int
    axis: int | None
    colours: int


def image_form(shape: tuple[int, ...], dtype: Any) -> ImageForm | None:
    """How a leaf of this shape is an image: ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``; None if it
    is none. Of other types than uint8, only what has one or three channels is taken for one."""
    is_bytes = np.dtype(dtype) == np.uint8
    if not is_bytes and not np.issubdtype(dtype, np.floating):
        return None
    if len(shape) == 2 and min(shape) >= (_LEAST if is_bytes else 2 * _LEAST):
        return ImageForm(shape[0], shape[1], None, 1)
    if len(shape) != 3:
        return None
    for axis, (height, width) in ((2, shape[:2]), (0, shape[1:])):
        channels = shape[axis]
        some = channels <= _MOST_CHANNELS if is_bytes else channels in _COLOURS
        if some and 0 < channels < min(height, width) and min(height, width) >= _LEAST:
            return ImageForm(height, width, axis, 3 if channels == 3 else 1)
    return None


def _pixels(frames: Array, form: ImageForm) -> Array:
    """Frames as uint8 ``[n, H, W, colours]``."""
    if form.axis is None:
        frames = frames[..., None]
    elif form.axis == 0:
        frames = np.moveaxis(frames, 1, -1)
    if form.colours == 1:
        frames = frames[..., -1:]
    if frames.dtype == np.uint8:
        return frames
    values = np.nan_to_num(frames.astype(np.float32))
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    if low < 0 or high > 255:
        values = (values - low) / max(high - low, 1e-12) * 255
    elif high <= 1:
        values = values * 255
    return values.astype(np.uint8)


def png(pixels: Array) -> bytes:
    """An image ``[H, W, 1 or 3]`` of uint8 as a PNG file."""
    height, width, colours = pixels.shape
    # Each line begins with its filter: 0, none.
    lines = np.zeros((height, 1 + width * colours), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if colours == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    out = [b"\x89PNG\r\n\x1a\n"]
    for name, body in parts:
        crc = zlib.crc32(name + body)
        out.append(struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc))
    return b"".join(out)


def frames_png(
    book: Book, episode: int, number: int, start: int, count: int, every: int, side: int
) -> tuple[bytes, int]:
    """Frames of an episode, one below another, as PNG; and how many there are.

    Args:
        number: of the leaf.
        start, count, every: steps; those behind the last one are left out.
        side: at most so many pixels high and wide, by leaving out pixels; 0: as they are.

    Raises:
        KeyError: no such episode.
        ValueError: no image, no such step, or more than an answer may have.
    """
    layout = book.layout
    leaves = () if layout is None else layout.leaves
    if not 0 <= number < len(leaves):
        raise ValueError(f"leaf {number}: there are {len(leaves)}, counted from 0")
    leaf = leaves[number]
    form = None if leaf.ragged else image_form(leaf.shape, leaf.dtype)
    if form is None:
        raise ValueError(f"leaf {number} is no image: shape {list(leaf.shape)} {leaf.dtype}")
    kept = book.kept(episode)
    if start < kept.first:
        raise KeyError(f"step {start} of episode {episode} was evicted: {kept.first} is its oldest")
    if not (start < kept.end and 1 <= count <= _MOST_FRAMES and every >= 1 and side >= 0):
        raise ValueError(
            f"from={start} count={count} every={every} side={side}: steps are "
            f"{kept.first} to {kept.end - 1}, and at most {_MOST_FRAMES} frames come at a time"
        )
    shrink = 1 if side == 0 else max(-(-max(form.height, form.width) // side), 1)
    steps = np.arange(start, kept.end, every)[:count]
    if len(steps) * form.height * form.width > _MOST_PIXELS * shrink * shrink:
        raise ValueError(f"count={count}: more than {_MOST_PIXELS} pixels; ask for fewer frames")
    # A few at a time: a row may have far more than the image.
    most = max((64 << 20) // max(row_bytes(layout), 1), 1)
    parts = []
    for at in range(0, len(steps), most):
        frames = as_array(book.read(kept, steps[at : at + most])[leaf.path])
        parts.append(_pixels(frames, form)[:, ::shrink, ::shrink])
    pixels = np.concatenate(parts)
    return png(pixels.reshape(-1, *pixels.shape[2:])), len(steps)
