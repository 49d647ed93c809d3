"""What of a row is stored once: observations, which are also the step before's next ones, and
frames of stacks, which are in several observations.

Only how rows are stored is decided here. What comes out is what went in: the tape compares bytes
when rows are written, and stores what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..arguments import whole
from ..errors import LayoutError
from ..keys import FLAGS, NEXT
from ..layout import Layout, Leaf
from ..tree import Path, as_path, show_path

__all__ = [
    "SharedLeaf",
    "Sharing",
    "Stack",
    "Stacks",
    "columns_in",
    "possible_stacks",
    "recognised",
    "shared_form",
    "shared_roots",
    "stacks_from_json",
    "stacks_of",
    "stacks_to_json",
]

_MOST_FRAMES = 64  # of a stack, natively
_MOST_RECOGNISED = 16
_LEAST_BYTES = 8  # smaller leaves stay in the row
_ROWS_LOOKED_AT = 64
_NEVER = (*FLAGS, "reward")  # what a step is made of, not what was seen


class Stack(NamedTuple):
    """Frames of a leaf, and whether they are its first dim; else its last one."""

    frames: int
    leading: bool


Stacks = dict[Path, Stack | int]  # a number: where the frames are is to be found out


def stacks_of(given: Any) -> Stacks | None:
    """The argument `stack` of a storage: frames, or frames and axis, by leaf; None: to be
    recognised.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(
            f'stack: expected frames by leaf, as in {{"observation": 4}}, or {{}} for none, got '
            f"{given!r}"
        )
    return {as_path(key): _stack(as_path(key), value) for key, value in given.items()}


def _stack(path: Path, value: Any) -> Stack | int:
    what = f"stack: {show_path(path)}"
    frames, axis = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, None)
    frames = whole(what, frames, 2, "a number of frames")
    if frames > _MOST_FRAMES:
        raise ValueError(f"{what}: at most {_MOST_FRAMES} frames, got {frames}")
    if axis not in (None, 0, -1):
        raise ValueError(f"{what}: frames are the first axis, 0, or the last, -1; got {axis!r}")
    return frames if axis is None else Stack(frames, axis == 0)


class SharedLeaf(NamedTuple):
    """A leaf that is stored once: the root's path, and its frames; one: it is no stack."""

    path: Path
    frames: int = 1
    leading: bool = True

    def inner(self, leaf: Leaf) -> int:
        """Bytes of a frame that are adjacent."""
        if self.leading:
            return leaf.nbytes // self.frames
        return leaf.shape[-1] // self.frames * leaf.dtype.itemsize


class Sharing(NamedTuple):
    """Which leaves of a layout are stored once.

    Attributes:
        leaves: by the paths that they have at the root.
        paired: whether they are below `next`, too.
        codec: what they are encoded with where they are stored; only lz4 is.
    """

    leaves: tuple[SharedLeaf, ...]
    paired: bool
    codec: str | None = None

    @staticmethod
    def of(
        layout: Layout, share_next: bool | None, stacks: Stacks | None, codec: str | None = None
    ) -> Sharing | None:
        """What is stored once of rows of a layout; None: nothing is.

        Args:
            share_next: False: nothing that is below `next`. None: what makes rows smaller.
            stacks: what was asked for, or recognised.
            codec: what they are to be encoded with.

        Raises:
            LayoutError: a stack that the layout does not have.
        """
        placed = {path: _placed(layout, path, x) for path, x in (stacks or {}).items()}
        if share_next is False:
            if placed:
                names = ", ".join(show_path(x) for x in placed)
                raise LayoutError(
                    f"stack: frames of {names} are stored once, next observations included; with "
                    "share_next=False they are not. Leave one of the two out"
                )
            return None
        pairs = _pairs(layout)
        if placed.keys() <= set(pairs):
            leaves = tuple(SharedLeaf(x, *placed.get(x, Stack(1, True))) for x in pairs)
            sharing = Sharing(leaves, True, codec)
            return sharing._if_smaller(layout, share_next is True or codec is not None)
        alone = next(x for x in placed if x not in pairs)
        if any(x in pairs for x in placed):
            raise LayoutError(
                f"stack: {show_path(alone)} is not below next, and other stacks are; give those "
                "that are, or those that are not"
            )
        return Sharing(tuple(SharedLeaf(x, *stack) for x, stack in placed.items()), False, codec)

    def _if_smaller(self, layout: Layout, always: bool) -> Sharing | None:
        if not self.leaves:
            return None
        form = self.native(layout)
        return self if always or form.row_bytes + form.slot_bytes < layout.record_size else None

    def native(self, layout: Layout) -> Any:
        """For the tape."""
        shared = []
        paths = set()
        for x in self.leaves:
            leaf, below = layout.by_path[x.path], (*NEXT, *x.path)
            paths |= {x.path, below} if self.paired else {x.path}
            next_offset = layout.by_path[below].offset if self.paired else -1
            shared += [leaf.offset, next_offset, leaf.nbytes, x.frames, x.inner(leaf)]
        kept = [n for x in layout.leaves if x.path not in paths for n in (x.offset, x.nbytes)]
        numbers = np.array(shared, np.int64), np.array(kept, np.int64)
        return _native.SharedForm(*numbers, layout.record_size, self.codec is not None)

    def to_json(self) -> Any:
        leaves = [[list(x.path), x.frames, x.leading] for x in self.leaves]
        out = {"leaves": leaves, "paired": self.paired}
        return out if self.codec is None else {**out, "codec": self.codec}

    @staticmethod
    def from_json(data: Any) -> Sharing:
        leaves = (SharedLeaf(tuple(path), *stack) for path, *stack in data["leaves"])
        return Sharing(tuple(leaves), bool(data["paired"]), data.get("codec"))

    @property
    def paths(self) -> list[Path]:
        """Of all leaves that are stored once, those below `next` included."""
        roots = [x.path for x in self.leaves]
        return [*roots, *((*NEXT, *x) for x in roots)] if self.paired else roots


def shared_form(schema: Mapping[str, Any]) -> Any:
    """The native form of rows of a schema that came from elsewhere, as JSON; None: nothing is
    stored once.

    Raises:
        LayoutError: it makes no sense.
    """
    if schema.get("shared") is None:
        return None
    try:
        return Sharing.from_json(schema["shared"]).native(Layout.from_json(schema["layout"]))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise LayoutError(f"what is stored once does not fit the layout: {error!r}") from None


def stacks_to_json(stacks: Stacks) -> list[Any]:
    """For a peer; `stacks_from_json` takes it."""
    return [[list(path), *stack] for path, stack in stacks.items() if isinstance(stack, Stack)]


def stacks_from_json(data: Any) -> Stacks:
    """What a peer says of its stacks.

    Raises:
        LayoutError: it makes no sense.
    """
    try:
        found = {tuple(path): (frames, leading) for path, frames, leading in data}
        if not all(type(leading) is bool for _, leading in found.values()):
            raise TypeError("expected true or false")
        return stacks_of({p: (n, 0 if leading else -1) for p, (n, leading) in found.items()}) or {}
    except (TypeError, ValueError) as error:
        raise LayoutError(f"stacks of frames: {error}") from None


def shared_roots(layout: Layout, stacks: Stacks | None) -> tuple[list[Path], bool]:
    """Leaves that may be stored once, by their paths at the root; and whether they are below
    `next`, too."""
    pairs = _pairs(layout)
    alone = [x for x in stacks or {} if x not in pairs]
    return (alone, False) if alone else (pairs, True)


def _pairs(layout: Layout) -> list[Path]:
    """Paths of leaves that are the same below `next`, but for what says how a step went."""

    def same(leaf: Leaf) -> bool:
        other = layout.by_path.get((*NEXT, *leaf.path))
        return (
            other is not None
            and not (leaf.variable or other.variable)
            and (leaf.shape, leaf.dtype) == (other.shape, other.dtype)
            and leaf.nbytes >= _LEAST_BYTES
            and leaf.path[-1] not in _NEVER
        )

    return [x.path for x in layout.leaves if x.path[:1] != NEXT and same(x)]


def _placed(layout: Layout, path: Path, stack: Stack | int) -> Stack:
    """A stack of a leaf of the layout."""
    leaf = layout.by_path.get(path)
    if leaf is None:
        known = ", ".join(show_path(x.path) for x in layout.leaves)
        raise LayoutError(f"stack: no leaf {show_path(path)}; there are {known}")
    what = f"stack: {show_path(path)} is {leaf.describe()}"
    if leaf.variable:
        raise LayoutError(f"{what}; stacks are arrays of a fixed shape, without a codec")
    if path[:1] == NEXT:
        raise LayoutError(f"{what}; name the leaf at the root: the one below next is stacked alike")
    frames = stack.frames if isinstance(stack, Stack) else stack
    # Of both axes the one that has a place for each frame, or else fewer for each: colours.
    axes = [(leaf.shape[0], True), (leaf.shape[-1], False)] if leaf.shape else []
    if isinstance(stack, Stack):
        axes = [x for x in axes if x[1] == stack.leading]
    fitting = [(size, not leading) for size, leading in axes if size > 0 and size % frames == 0]
    if not fitting:
        raise LayoutError(f"{what}, which has no axis of {frames} frames, first or last")
    return Stack(frames, not min(fitting)[1])


def recognised(layout: Layout, columns: Sequence[Any], moving: bool = False) -> Stacks:
    """Stacks in the first rows: leaves whose next observations are the same frames, moved up by
    one, and a new one. A mistake costs a little memory, no more.

    Args:
        columns: of the layout's leaves, ``[n, ...]`` each; None where there is none.
        moving: only those in which some frame differs from the others: zeros show nothing.
    """
    out: Stacks = {}
    for path in _pairs(layout):
        leaf = layout.by_path[path]
        now = _first_rows(columns[layout.number[path]], leaf)
        following = _first_rows(columns[layout.number[(*NEXT, *path)]], leaf)
        if now is None or following is None:
            continue
        for stack in possible_stacks(leaf.shape):
            if _moved_up(now, following, stack, moving):
                out[path] = stack
                break
    return out


def columns_in(layout: Layout, records: np.ndarray[Any, Any]) -> list[Any]:
    """For `recognised`, of rows that are packed one after another."""
    rows = records.reshape(-1)[: _ROWS_LOOKED_AT * layout.record_size]
    rows = rows.reshape(-1, layout.record_size)

    def column(leaf: Leaf) -> Any:
        stored = np.ascontiguousarray(rows[:, leaf.offset : leaf.offset + leaf.nbytes])
        return stored.view(leaf.dtype).reshape(-1, *leaf.shape)

    return [None if x.variable else column(x) for x in layout.leaves]


def _first_rows(column: Any, leaf: Leaf) -> np.ndarray[Any, Any] | None:
    """Rows as bytes, ``[n, *shape, itemsize]``: NaNs are equal to themselves, and zeros differ."""
    if column is None or not isinstance(column, np.ndarray) or column.size == 0:
        return None
    rows = np.ascontiguousarray(column.reshape(-1, *leaf.shape)[:_ROWS_LOOKED_AT])
    return rows.view(np.uint8).reshape(*rows.shape, leaf.dtype.itemsize)


def possible_stacks(shape: tuple[int, ...]) -> list[Stack]:
    """Stacks that a leaf of this shape may be; those of colour frames before those of grey ones."""
    found = []
    axes = [(True, shape[0])] if len(shape) >= 2 else []
    if len(shape) >= 3:
        axes.append((False, shape[-1]))
    for leading, size in axes:
        if len(shape) >= 3 and size % 3 == 0 and 3 < size <= 3 * _MOST_RECOGNISED:
            found.append(Stack(size // 3, leading))
        if 2 <= size <= _MOST_RECOGNISED:
            found.append(Stack(size, leading))
    return found


def _moved_up(
    now: np.ndarray[Any, Any], following: np.ndarray[Any, Any], stack: Stack, moving: bool
) -> bool:
    if not stack.leading:  # the last axis but the bytes
        width = now.shape[-2] // stack.frames
        moved = np.array_equal(following[..., :-width, :], now[..., width:, :])
        same = np.array_equal(now[..., :-width, :], now[..., width:, :])
    else:
        width = now.shape[1] // stack.frames
        moved = np.array_equal(following[:, :-width], now[:, width:])
        same = np.array_equal(now[:, :-width], now[:, width:])
    # Where nothing moves at all, three are more likely colours than frames.
    still = same and np.array_equal(now, following)
    return bool(moved) and not (still and (moving or stack.frames == 3))
