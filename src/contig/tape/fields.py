"""Fields of trajectories: a small record of the user's for each of them.

What a call gives of them is packed into records, each with a mask of the leaves that it has; the
tape puts those over what the trajectory had before.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..convert import as_array, cast, plain_tree
from ..errors import LayoutError
from ..layout import Layout
from ..tree import Path, flatten, show_path, unflatten
from .episodes import EPISODE, field_column

__all__ = ["Given", "RowFields", "check_fields", "fields_layout", "first_fields", "pack_fields"]

Array = np.ndarray[Any, Any]
Given = tuple[Array, Array]  # records uint8 [n, size], masks uint64 [n]; n is 1, or one per lane

# What `where=` of samplers knows besides; a field of that name could not be asked for.
_TAKEN = {*(EPISODE.names or ()), "age"}


def fields_layout(example: Any) -> Layout:
    """The layout of fields, from an example of them.

    Raises:
        LayoutError: it is no mapping of a few fixed-size leaves, or a name is taken.
    """
    layout = example
    if not isinstance(layout, Layout):
        tree = plain_tree(example)[0]
        if not flatten(tree)[1]:
            raise LayoutError(
                f"fields: {example!r} has none, so it is not known what they are; give an example "
                'of each, such as {"task": np.int32(0)}, or leave fields= out'
            )
        layout = Layout(tree)
    keys = {type(key) for leaf in layout.leaves for key in leaf.path}
    if layout.structure.kind != "dict" or keys != {str}:
        raise LayoutError('fields: expected a dict of named values, such as {"task": np.int32(0)}')
    if layout.variable:
        leaf = layout.variable[0]
        raise LayoutError(
            f"fields: {show_path(leaf.path)}: {leaf.describe()}, and fields have a fixed size; "
            "store it as a leaf of the rows"
        )
    if len(layout.leaves) > _native.MOST_FIELD_LEAVES:
        raise LayoutError(
            f"fields: {len(layout.leaves)} leaves, a trajectory has at most "
            f"{_native.MOST_FIELD_LEAVES}; put numbers of one dtype into one array"
        )
    if layout.record_size > _native.MOST_FIELD_BYTES:
        raise LayoutError(
            f"fields: {layout.record_size} bytes, a trajectory has at most "
            f"{_native.MOST_FIELD_BYTES}; store what is large as leaves of the rows"
        )
    names: dict[str, Path] = {}
    for leaf in layout.leaves:
        name = field_column(leaf.path)
        if name in _TAKEN:
            raise LayoutError(
                f"fields: {show_path(leaf.path)}: episodes() has a column {name!r} already; "
                "choose another name"
            )
        if names.setdefault(name, leaf.path) != leaf.path:
            raise LayoutError(
                f"fields: {show_path(names[name])} and {show_path(leaf.path)} would both be "
                f"column {name!r} of episodes(); choose another name for one"
            )
    return layout


def check_fields(there: Layout | None, wanted: Layout | None, whose: str = "") -> None:
    """Raises LayoutError if somebody wants fields that a storage does not have, or others."""
    if wanted is None or wanted == there:
        return
    if there is None:
        raise LayoutError(
            f"{whose}this storage has no fields of trajectories: they must be known before the "
            "first row, fields= of the storage in the process that writes first"
        )
    raise LayoutError(
        f"{whose}this storage has other fields of trajectories:\n{there.diff(wanted)}"
    )


def first_fields(fields: Any, lead: tuple[int, ...]) -> Layout:
    """The layout of fields by the first ones that a storage gets, of so many lanes: a leaf with
    the lanes' dims is one value for each."""
    if isinstance(fields, (list, tuple)):
        fields = next((x for x in fields if x), {})
        lead = ()
    _, values, structure = flatten(plain_tree(fields)[0], _is_value)
    arrays = (np.array(x) if _is_value(x) else x for x in values)
    full = fields_layout(unflatten(structure, arrays))
    if not lead:
        return full
    specs = []
    for leaf in full.leaves:
        each = leaf.shape[: len(lead)] == lead
        specs.append((leaf.path, leaf.shape[len(lead) :] if each else leaf.shape, leaf.dtype))
    return Layout.of(full.structure, specs)


def pack_fields(layout: Layout | None, fields: Any, lead: tuple[int, ...] = ()) -> Given | None:
    """What a call gives, as the native writer takes it; None if that is nothing.

    Args:
        layout: of the storage's fields.
        fields: a mapping of some of them, each a value for every trajectory of the append, or one
            with the dims of `lead` before it; or a list with a mapping (or None) for each lane.
        lead: dims of the lanes.

    Raises:
        LayoutError: a field that is not known, or does not fit.
    """
    if layout is None:
        raise LayoutError(
            "this storage has no fields of trajectories: make it with fields= (an example of "
            "them); where a server has it, do so there"
        )
    if isinstance(fields, (list, tuple)):
        return _pack_each(layout, fields, lead)
    record = np.zeros((1, layout.record_size), np.uint8)
    if layout.plan.pack(fields, record[0]):  # all of them, each as it is stored
        return record, np.full(1, (1 << len(layout.leaves)) - 1, np.uint64)
    paths, values, _ = flatten(plain_tree(fields)[0], _is_value)
    lanes = math.prod(lead)
    given, mask = [], 0
    for path, value in zip(paths, values):
        leaf = layout.by_path.get(path)
        if leaf is None:
            known = ", ".join(show_path(x.path) for x in layout.leaves)
            raise LayoutError(f"fields: unknown field {show_path(path)}; this storage has {known}")
        array = as_array(value, path)
        each = array.shape != leaf.shape
        if each and (not lead or array.shape != (*lead, *leaf.shape)):
            one = f", or {[*lead, *leaf.shape]}, one for each" if lead else ""
            raise LayoutError(
                f"fields: {show_path(path)}: shape {list(array.shape)}, expected "
                f"{list(leaf.shape)}{one}; nothing is broadcast: reshape the data"
            )
        given.append((leaf, each, cast(array, leaf.dtype, path)))
        mask |= 1 << layout.number[path]
    if not given:
        return None
    n = lanes if any(each for _, each, _ in given) else 1
    records = np.zeros((n, layout.record_size), np.uint8)
    for leaf, each, array in given:
        rows = np.ascontiguousarray(array).reshape(n if each else 1, -1)
        if leaf.nbytes:
            records[:, leaf.offset : leaf.offset + leaf.nbytes] = rows.view(np.uint8)
    return records, np.full(n, mask, np.uint64)


class RowFields(NamedTuple):
    """Fields for each row of an append; those of a run's last row count for its trajectory.

    Attributes:
        records: uint8 ``[rows, size]``.
        masks: uint64 ``[rows]``, which leaves each of them has.
    """

    records: Array
    masks: Array

    @staticmethod
    def of(layout: Layout | None, fields: Any, given: Array) -> RowFields:
        """A mapping of fields, each ``[*batch, ...]``, of the rows that a mask ``[*batch]`` says.

        Raises:
            LayoutError: a field that is not known, or does not fit.
        """
        packed = pack_fields(layout, fields, given.shape)
        assert packed is not None
        records, masks = packed
        return RowFields(records, masks * given.reshape(-1).astype(np.uint64))


def _is_value(node: Any) -> bool:
    """Names lead to values: a list is one for each lane, not a tree."""
    return isinstance(node, (list, tuple))


def _pack_each(layout: Layout, fields: Any, lead: tuple[int, ...]) -> Given | None:
    lanes = math.prod(lead)
    if len(fields) != lanes or not lead:
        raise LayoutError(
            f"fields: a list of {len(fields)}, expected one mapping (or None) for each of "
            f"{lanes} lanes"
            if lead
            else "fields: a list, but this append has one trajectory; give a mapping"
        )
    records = np.zeros((lanes, layout.record_size), np.uint8)
    masks = np.zeros(lanes, np.uint64)
    for i, some in enumerate(fields):
        given = None if some is None else pack_fields(layout, some)
        if given is not None:
            records[i], masks[i] = given[0][0], given[1][0]
    return (records, masks) if masks.any() else None
