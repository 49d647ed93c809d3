"""What frames of items for a table are checked against, as native code takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..layout import Layout, Leaf
from ..tape.sharing import shared_form

__all__ = ["ItemShape"]

Array = np.ndarray[Any, Any]
_ANY, _TEXT, _BOOLS = range(3)  # what bytes of any number are
_WORTH_BYTES = 16


class ItemShape(NamedTuple):
    """A table's items, beyond the size of their records.

    Attributes:
        bools: offset and bytes of each bool leaf of a record.
        variable: of each leaf of any size: where a record has its place, bytes of an element, and
            what they are (0 anything, 1 text, 2 bools).
        fields: of trajectories: their bytes, their leaves, and which of them are bools; or None.
        form: if rows may come with their observations once, how; or None.
    """

    bools: Array
    variable: Array
    fields: tuple[int, int, Array] | None
    form: Any = None

    @staticmethod
    def of(schema: dict[str, Any]) -> ItemShape:
        """Of a table with this schema."""
        layout, fields = Layout.from_json(schema["layout"]), None
        if schema.get("fields") is not None:
            of = Layout.from_json(schema["fields"])
            fields = (of.record_size, len(of.leaves), _bools(of))
        return ItemShape(_bools(layout), _variable(layout), fields, shared_form(schema))

    @property
    def slot_bytes(self) -> int:
        """Of the observations of a single step, mostly; 0: rows come whole, or slots are so small
        that little is gained by not sending them again: a reference has 8 bytes."""
        if self.form is None or self.form.slot_bytes < _WORTH_BYTES:
            return 0
        return int((self.form.stack + 1) * self.form.slot_bytes)

    def tell(self, receiver: Any) -> None:
        """Has a receiver check what comes."""
        receiver.set_bools(self.bools)
        if len(self.variable):
            receiver.set_variable(self.variable)
        if self.fields is not None:
            receiver.set_fields(*self.fields)
        if self.form is not None:
            receiver.set_shared(self.form)


def _bools(layout: Layout) -> Array:
    fixed = [x for x in layout.leaves if x.dtype == bool and not x.variable]
    return np.array([(x.offset, x.nbytes) for x in fixed if x.nbytes], np.int64).reshape(-1)


def _variable(layout: Layout) -> Array:
    leaves = [(x.offset, x.stored_element_bytes, _content(x)) for x in layout.variable]
    return np.array(leaves, np.int64).reshape(-1)


def _content(leaf: Leaf) -> int:
    if leaf.codec is not None:
        return _ANY
    return _TEXT if leaf.kind == "text" else _BOOLS if leaf.dtype == bool else _ANY
