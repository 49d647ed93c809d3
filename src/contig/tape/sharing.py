"""What of a row is stored once: observations, which are also the step before's next ones, and
frames of stacks, which are in several observations.

Only how rows are stored is decided here. What comes out is what went in: the tape compares bytes
when rows are written, and stores what differs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import LayoutError
from ..keys import FLAGS, NEXT
from ..layout import Layout, Leaf
from ..tree import Path, show_path
from .stacks import Stacks, placed

__all__ = [
    "SharedLeaf",
    "Sharing",
    "pairs",
    "paying",
    "settled",
    "shared_form",
    "shared_roots",
]

_LEAST_BYTES = 8  # smaller leaves stay in the row, unless they are said to be stacks
_NEVER = (*FLAGS, "reward")  # what a step is made of, not what was seen


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
            share_next: False: nothing that is below `next`. None: what makes rows smaller: with
                stacks, or else without them.
            stacks: what was asked for, or recognised, and goes together: see `settled`.
            codec: what they are to be encoded with.

        Raises:
            LayoutError: a stack that the layout does not have.
        """
        found = {path: placed(layout, path, x) for path, x in (stacks or {}).items()}
        if share_next is False:
            if found:
                names = ", ".join(show_path(x) for x in found)
                raise LayoutError(
                    f"stack: frames of {names} are stored once, next observations included; with "
                    "share_next=False they are not. Leave one of the two out"
                )
            return None
        roots, paired = shared_roots(layout, found)
        leaves = [SharedLeaf(x, *found.get(x, (1, True))) for x in roots]
        whole = Sharing(tuple(leaves), paired, codec)
        if not leaves or share_next or codec is not None:
            return whole if leaves else None
        forms = [whole, *([whole._without_stacks()] if paired and found else [])]
        return next((x for x in forms if x.step_bytes(layout) < layout.record_size), None)

    def _without_stacks(self) -> Sharing:
        return self._replace(leaves=tuple(SharedLeaf(x.path) for x in self.leaves))

    def step_bytes(self, layout: Layout) -> int:
        """Of a row, and of one new observation, or frame: an eighth of it if it is encoded."""
        form = self.native(layout)
        return int(form.row_bytes + form.slot_bytes // (1 if self.codec is None else 8))

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


def paying(layout: Layout, stacks: Stacks) -> Stacks:
    """Those of recognised stacks, which are below `next`, that make rows smaller than next
    observations alone do: a row has references for each frame of the largest one, so with it all
    smaller ones pay."""

    def up_to(frames: int) -> Stacks:
        return {x: y for x, y in stacks.items() if placed(layout, x, y).frames <= frames}

    def step_bytes(some: Stacks) -> int:
        sharing = Sharing.of(layout, True, some)
        return layout.record_size if sharing is None else sharing.step_bytes(layout)

    sizes = sorted({1, *(placed(layout, x, y).frames for x, y in stacks.items())})
    return min((up_to(x) for x in sizes), key=step_bytes)


def settled(
    layout: Layout, share_next: bool | None, stacks: Stacks, codecs: Collection[Path] = ()
) -> Stacks:
    """Stacks that are stored once together. Leaves that are below `next` and those that are not do
    not go together: beside stacks that are not, what else there is below `next` stays in each row,
    unless that is more than the stacks save. Then it is stored once, and they are not.

    Args:
        layout: of rows without codecs.
        codecs: leaves that are encoded, which are not counted.

    Raises:
        LayoutError: both were asked for.
    """
    below = pairs(layout, stacks)
    roots = {x.path for x in layout.leaves if x.path[:1] != NEXT}
    alone = {path: x for path, x in stacks.items() if path in roots.difference(below)}
    if not alone or not below or share_next is False:
        return stacks
    name = show_path(next(iter(alone)))
    if len(alone) < len(stacks):
        raise LayoutError(
            f"stack: {name} is not below next, and other stacks are; give those that are, or those "
            "that are not"
        )
    if share_next:
        others = ", ".join(show_path(x) for x in below)
        raise LayoutError(
            f"stack: {name} is not below next, and {others} is: with share_next=True, which is "
            f"about those below next, its frames cannot be stored once. Leave share_next=True out, "
            f"or {name} out of stack"
        )
    counted = [x for x in below if x not in codecs and (*NEXT, *x) not in codecs]
    once = Sharing(tuple(SharedLeaf(x) for x in counted), True)
    frames = Sharing.of(layout, None, alone)
    saves_more = counted and (frames is None or once.step_bytes(layout) < frames.step_bytes(layout))
    return {} if saves_more else stacks


def shared_roots(layout: Layout, stacks: Collection[Path] | None) -> tuple[list[Path], bool]:
    """Leaves that may be stored once, by their paths at the root; and whether they are below
    `next`, too."""
    below = pairs(layout, stacks or ())
    alone = [x for x in stacks or () if x not in below]
    return (alone, False) if alone else (below, True)


def pairs(layout: Layout, stacks: Collection[Path] = ()) -> list[Path]:
    """Paths of leaves that are the same below `next`, but for what says how a step went, and for
    very small ones, unless they are stacks."""

    def same(leaf: Leaf) -> bool:
        other = layout.by_path.get((*NEXT, *leaf.path))
        return (
            other is not None
            and not (leaf.variable or other.variable)
            and (leaf.shape, leaf.dtype) == (other.shape, other.dtype)
            and (leaf.nbytes >= _LEAST_BYTES or leaf.path in stacks)
            and leaf.path[-1] not in _NEVER
        )

    return [x.path for x in layout.leaves if x.path[:1] != NEXT and same(x)]
