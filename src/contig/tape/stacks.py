"""Stacks of frames: which leaves are said to be some, which may be, and where frames lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..arguments import whole
from ..errors import LayoutError
from ..keys import NEXT
from ..layout import Layout
from ..tree import Path, as_path, show_path

__all__ = [
    "Stack",
    "Stacks",
    "axes_of",
    "placed",
    "possible_stacks",
    "stacks_from_json",
    "stacks_of",
    "stacks_to_json",
]

_MOST_FRAMES = 64  # of a stack, natively


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


def possible_stacks(shape: tuple[int, ...]) -> list[Stack]:
    """Stacks that a leaf of this shape may be, of one channel or several: those of the first axis
    before those of the last, frames of fewer channels before those of more."""
    axes = [(True, shape[0])] if len(shape) >= 2 else []
    if len(shape) >= 3:
        axes.append((False, shape[-1]))
    return [
        Stack(frames, leading)
        for leading, size in axes
        for frames in range(min(size, _MOST_FRAMES), 1, -1)
        if size % frames == 0
    ]


def axes_of(shape: tuple[int, ...], frames: int) -> list[Stack]:
    """Where so many frames may lie in a leaf, the likelier axis first: the one that has a place for
    each frame, or else fewer for each: colours. Of two that are alike, the first."""
    axes = [(shape[0], True), (shape[-1], False)] if shape else []
    fitting = [(size, leading) for size, leading in axes if size > 0 and size % frames == 0]
    return [Stack(frames, leading) for _, leading in sorted(fitting, key=lambda x: x[0])]


def placed(layout: Layout, path: Path, stack: Stack | int) -> Stack:
    """A stack of a leaf of the layout, with its axis.

    Raises:
        LayoutError: there is no such leaf, or it has no such axis.
    """
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
    fitting = axes_of(leaf.shape, frames)
    if isinstance(stack, Stack):
        fitting = [x for x in fitting if x == stack]
    if not fitting:
        raise LayoutError(f"{what}, which has no axis of {frames} frames, first or last")
    if leaf.nbytes == 0:
        raise LayoutError(f"{what}, which has no elements, so none to store once; leave it out")
    return fitting[0]


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
