"""Stacks of frames as the first rows show them: what a step leads to are the same frames, moved up
by one, and a new one.

Whatever is found here, bytes are compared when rows are written: a mistake costs a little memory,
no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..keys import FLAGS, NEXT
from ..layout import Layout, Leaf
from ..tree import Path
from .sharing import pairs
from .stacks import Stack, Stacks, axes_of, possible_stacks

__all__ = ["ROWS_LOOKED_AT", "columns_in", "recognised", "with_axes"]

Array = np.ndarray[Any, Any]

ROWS_LOOKED_AT = 64
_COLOURS = 3
_PART = 16  # one piece of so many


def recognised(layout: Layout, columns: Sequence[Any]) -> Stacks:
    """Stacks among the leaves that are below `next`, too: more than half of the rows that go on
    show one. Rows in which nothing moves are asked only if there are no others.

    Args:
        columns: of the layout's leaves, ``[..., *shape]`` each; None where there is none.
    """
    out: Stacks = {}
    for path in pairs(layout):
        seen = _seen(layout, columns, path)
        if seen is not None:
            shape = layout.by_path[path].shape
            found = seen.best(possible_stacks(shape)) or seen.still(shape)
            if found is not None:
                out[path] = found
    return out


def with_axes(layout: Layout, columns: Sequence[Any], stacks: Stacks) -> Stacks:
    """Stacks of which only the frames were said, with the axis on which rows move; without, where
    rows do not show it."""
    out = dict(stacks)
    for path, stack in stacks.items():
        leaf = layout.by_path.get(path)
        if isinstance(stack, Stack) or leaf is None or len(axes_of(leaf.shape, stack)) < 2:
            continue
        seen = _seen(layout, columns, path)
        found = None if seen is None else seen.best(axes_of(leaf.shape, stack))
        out[path] = stack if found is None else found
    return out


def columns_in(layout: Layout, records: Array) -> list[Any]:
    """For `recognised`, of rows that are packed one after another."""
    rows = records.reshape(-1)[: ROWS_LOOKED_AT * layout.record_size]
    rows = rows.reshape(-1, layout.record_size)

    def column(leaf: Leaf) -> Any:
        stored = np.ascontiguousarray(rows[:, leaf.offset : leaf.offset + leaf.nbytes])
        return stored.view(leaf.dtype).reshape(len(rows), *leaf.shape)  # which may be empty

    return [None if x.variable else column(x) for x in layout.leaves]


class _Seen(NamedTuple):
    """Observations of some rows and what they led to, as bytes, ``[n, *shape, itemsize]``: NaNs are
    equal to themselves, and zeros differ."""

    now: Array
    following: Array

    def best(self, stacks: list[Stack]) -> Stack | None:
        """The one that most rows show, of those that more than half of them do."""
        shown = [self._shown(x) for x in stacks]
        most = max(shown, default=0)
        return stacks[shown.index(most)] if most else None

    def _shown(self, stack: Stack) -> int:
        """How many rows show this stack; 0 if half of them show something else."""
        now, following = _frames(self.now, stack), _frames(self.following, stack)
        part = slice(None, None, _PART)  # which most that are no stacks do not pass
        if 2 * np.count_nonzero(_same(following[:, :-1, part], now[:, 1:, part])) <= len(now):
            return 0
        moved = _same(following[:, :-1], now[:, 1:])
        good = sum(_in_order(now[i], following[i, -1]) for i in np.flatnonzero(moved))
        return good if good > np.count_nonzero(~moved) else 0

    def still(self, shape: tuple[int, ...]) -> Stack | None:
        """Images that are the same several times, and stay so: an episode that begins slowly. One
        value all over shows nothing, nor do vectors."""
        if len(shape) < 3 or not np.array_equal(self.now, self.following):
            return None
        values = self.now.reshape(len(self.now), -1, self.now.shape[-1])
        if np.array_equal(values, np.broadcast_to(values[:, :1], values.shape)):
            return None

        def alike(stack: Stack) -> bool:
            frames = _frames(self.now, stack)
            return bool(_same(frames[:, 1:], frames[:, :-1]).all())

        def channels(stack: Stack) -> int:
            return (shape[0] if stack.leading else shape[-1]) // stack.frames

        # Three that are the same are more likely colours than frames.
        found = [
            x for x in possible_stacks(shape) if alike(x) and (x.frames, channels(x)) != (3, 1)
        ]
        return min(found, key=lambda x: channels(x) != _COLOURS, default=None)


def _seen(layout: Layout, columns: Sequence[Any], path: Path) -> _Seen | None:
    """The first rows of a leaf; only those that go on, if some do: what the end of an episode led
    to may be where the next one begins."""
    leaf, below = layout.by_path[path], layout.number.get((*NEXT, *path))
    now = _first_rows(columns[layout.number[path]], leaf)
    if now is None:
        return None
    ended = _ended(layout, columns, len(now))
    if below is not None:
        following = _first_rows(columns[below], leaf)
    else:  # what they led to are the rows behind them
        now, following, ended = now[:-1], now[1:], ended[:-1]
    if following is None or now.shape != following.shape or not len(now):
        return None
    going = ~ended if not ended.all() else ended
    return _Seen(now[going], following[going])


def _first_rows(column: Any, leaf: Leaf) -> Array | None:
    if leaf.variable or not isinstance(column, np.ndarray) or column.size == 0:
        return None
    rows = np.ascontiguousarray(column.reshape(-1, *leaf.shape)[:ROWS_LOOKED_AT])
    return rows.view(np.uint8).reshape(*rows.shape, leaf.dtype.itemsize)


def _ended(layout: Layout, columns: Sequence[Any], n: int) -> Array:
    ended = np.zeros(n, np.bool_)
    for path in (*((*NEXT, x) for x in FLAGS), *((x,) for x in FLAGS)):
        number = layout.number.get(path)
        column = None if number is None else columns[number]
        if isinstance(column, np.ndarray) and column.size and number is not None:
            flags = column.reshape(-1, *layout.leaves[number].shape)[:n]
            ended[: len(flags)] |= flags.reshape(len(flags), -1).any(1)
    return ended


def _frames(rows: Array, stack: Stack) -> Array:
    """Frames of rows, ``[n, frames, pieces, bytes of a piece]``."""
    n, itemsize = len(rows), rows.shape[-1]
    if stack.leading:
        return rows.reshape(n, stack.frames, -1, itemsize)
    return rows.reshape(n, -1, stack.frames, rows.shape[-2] // stack.frames * itemsize).swapaxes(
        1, 2
    )


def _same(a: Array, b: Array) -> Array:
    """Which rows are."""
    return np.asarray((a == b).reshape(len(a), -1).all(1))


def _in_order(frames: Array, newest: Array) -> bool:
    """Whether there are several frames, and none that had gone comes back: a dot that moves over an
    empty grid is no stack, though its lines move up."""
    seen: list[bytes] = [x.tobytes() for x in (*frames, newest)]
    runs = 1 + sum(a != b for a, b in pairwise(seen))
    return 1 < runs == len(set(seen))
