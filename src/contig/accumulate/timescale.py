"""The Timescale: the part of an accumulator's record that fills at one rate.

Not thread-safe. An item is first packed into scratch memory and then copied, leaf by leaf, so that
what cannot be stored is refused before the record is touched:

    data ─┬─ Plan.pack ────────────────────────────────┬─▶ scratch ─ a copy per leaf ─▶ slot `count`
          └─ as_array, cast: what the plan cannot read ─┘
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _native
from ..convert import as_array, cast, plain_tree
from ..errors import LayoutError
from ..layout import Layout, Leaf, plan_leaf
from ..tree import Path, Structure, flatten, show_path

__all__ = ["Timescale"]

Array = np.ndarray[Any, Any]


class Timescale:
    """The slots of one timescale.

    Leaves are ``[capacity, ...]`` and a slot is a row of each. But a single 0-d leaf makes the
    timescale one item: its only slot is the whole of each leaf.

    It keeps and writes to the record it is given, and takes nothing of the data it is given.

    Args:
        name: the key in the example.
        structure: of the example below that key.
        leaves: with their places in the record.
        record: uint8 ``[record_size]``.

    Attributes:
        capacity: how many items fit.
        count: how many were added since it was last set to 0.

    Raises:
        ValueError: no leaves, or leaves of unequal leading dims.
    """

    __slots__ = (
        *("name", "capacity", "count"),
        *("_structure", "_unbatched", "_batched", "_scratch", "_copies", "_slow"),
    )

    def __init__(self, name: Any, structure: Structure, leaves: list[Leaf], record: Array) -> None:
        self.name = name
        self.capacity = _capacity(name, leaves)
        self.count = 0
        self._structure = structure
        whole = any(not x.shape for x in leaves)
        shapes = [x.shape if whole else x.shape[1:] for x in leaves]
        item = Layout.of(structure, [(x.path, s, x.dtype) for x, s in zip(leaves, shapes)])
        self._unbatched = item.plan
        batched = [plan_leaf(x._replace(shape=(1, *x.shape))) for x in item.leaves]
        self._batched = _native.Plan(structure.numbered(), batched, [], item.record_size)
        self._scratch = np.zeros(item.record_size, np.uint8)
        # Slots and scratch as opaque bytes: of all numpy's copies these are the fastest.
        self._copies: list[tuple[Array, Array]] = []
        for stored, one in zip(leaves, item.leaves):
            if stored.nbytes:
                opaque = np.dtype((np.void, one.nbytes))
                slots = record[stored.offset : stored.offset + stored.nbytes].view(opaque)
                value = self._scratch[one.offset : one.offset + one.nbytes].view(opaque)
                self._copies.append((slots, value.reshape(())))
        accepted = [_accepted(x.shape, s) for x, s in zip(leaves, shapes)]
        _, targets, _ = flatten(item.unpack(self._scratch))
        self._slow = list(zip(item.leaves, accepted, targets))

    def add(self, data: Any) -> None:
        """Write one item, each leaf unbatched or ``[1, ...]``, into the next slot.

        Raises:
            IndexError: all slots are filled.
            ValueError: another structure, shape or value; nothing has changed then.
        """
        at, scratch = self.count, self._scratch
        if at == self.capacity:
            raise IndexError(
                f"Timescale {self.name!r} has {at} slots, but you tried to add at index {at}; "
                "build() or reset() first"
            )
        if not (self._unbatched.pack(data, scratch) or self._batched.pack(data, scratch)):
            self._convert(data)
        for slots, value in self._copies:
            slots[at] = value
        self.count = at + 1

    def zero_rest(self) -> None:
        """Fill the slots that nothing was added to with zeros."""
        for slots, _ in self._copies:
            slots[self.count :].view(np.uint8).fill(0)

    def _convert(self, data: Any) -> None:
        """Pack an item that the plans cannot read, or say what is wrong with it."""
        values: list[Any] = []
        _take(self._structure, data, (self.name,), values)
        for (leaf, shapes, target), value in zip(self._slow, values):
            try:
                array = as_array(value)
            except Exception as error:
                raise LayoutError(
                    f"{show_path(leaf.path)}: expected {leaf.describe()}, got a "
                    f"{type(value).__name__} that is no array: {error}; convert the data first"
                ) from error
            if array.shape not in shapes:
                expected = " or ".join(f"{leaf.dtype.name}{list(s)}" for s in shapes)
                raise LayoutError(
                    f"{show_path(leaf.path)}: expected {expected}, got "
                    f"{array.dtype.name}{list(array.shape)}; nothing is broadcast: reshape the data"
                )
            target[...] = cast(array, leaf.dtype, leaf.path).reshape(leaf.shape)


def _capacity(name: Any, leaves: list[Leaf]) -> int:
    if not leaves:
        raise ValueError(
            f"Timescale {name!r} has no leaves; give it at least one array or number, or leave it "
            "out of the example"
        )
    if any(not x.shape for x in leaves):
        return 1
    if len({x.shape[0] for x in leaves}) > 1:
        got = ", ".join(f"{show_path(x.path)}: {x.shape[0]}" for x in leaves)
        raise ValueError(
            f"Timescale {name!r}: all leaves must have the same leading dimension, the number of "
            f"its slots, got {got}; for a timescale of one item make a leaf 0-d, or all leaves "
            "[1, ...]"
        )
    return leaves[0].shape[0]


def _accepted(stored: tuple[int, ...], item: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes a leaf's data may have, in a slot whose items have this shape."""
    shapes = [item, (1, *item)]
    if item == stored and stored[:1] == (1,):  # its leading 1 may be left out, too
        shapes.append(stored[1:])
    return shapes


def _take(want: Structure, data: Any, path: Path, out: list[Any]) -> None:
    """Append the leaves of data in the order of `want`.

    Raises:
        LayoutError: where the containers are others than those of `want`.
    """
    if not isinstance(data, dict):
        data, _ = plain_tree(data, text=False)
    if want.spec is not None:
        _, leaves, found = flatten(data)
        if found == want:
            out += leaves
            return
    if not _is_alike(want, data):
        raise LayoutError(
            f"{show_path(path)}: expected {_describe(want)}, got {_describe_data(data)}; give the "
            "structure of the example"
        )
    if want.kind == "leaf":
        out.append(data)
    elif want.kind == "dict":
        for key, child in zip(want.keys, want.children):
            if key not in data:
                raise LayoutError(
                    f"{show_path((*path, key))}: missing, expected {_describe(child)}; got only "
                    f"{list(data)}"
                )
            _take(child, data[key], (*path, key), out)
        for key in data:
            if key not in want.keys:
                raise LayoutError(
                    f"{show_path((*path, key))}: not expected, the example has {list(want.keys)}; "
                    "leave it out"
                )
    else:
        for key, child, value in zip(want.keys, want.children, data or ()):
            _take(child, value, (*path, key), out)


def _is_alike(want: Structure, data: Any) -> bool:
    """Whether data is a node of this kind, its children aside."""
    if want.kind == "leaf":
        return data is not None and not isinstance(data, (Mapping, tuple, list))
    if want.kind == "none":
        return data is None
    if want.kind == "dict":
        return isinstance(data, Mapping)
    if want.spec is not None:
        return False  # `flatten` has found it different
    cls = type(data)
    if want.kind == "namedtuple":
        return isinstance(data, tuple) and (cls.__module__, cls.__qualname__) == want.type_name
    return cls in (tuple, list) and cls.__name__ == want.kind and len(data) == len(want.keys)


def _describe(want: Structure) -> str:
    if want.kind == "leaf":
        return "an array or number"
    if want.kind == "none":
        return "None"
    if want.kind == "dict":
        return f"a dict of {list(want.keys)}"
    if want.kind == "namedtuple":
        return f"a {want.type_name[1]}{want.keys}"
    return f"a {want.type_name[1] or want.kind} of {len(want.keys)}"


def _describe_data(data: Any) -> str:
    if data is None:
        return "None"
    size = f" of {len(data)}" if isinstance(data, (Mapping, tuple, list)) else ""
    return f"a {type(data).__name__}{size}"
