"""Observations that are stored once, in files: a row has the bytes of those that are new with it as
those of a leaf of any size, in ``extents/NNNNNNNN.bin``, and refers to earlier ones of its
trajectory (native/tape/stored_slots.h).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ... import _native
from ...layout import Layout
from ..packed_bytes import RecordPlaces
from ..schema import Schema
from ..sharing import Sharing

__all__ = ["StoredSlots", "reach_for"]

Array = np.ndarray[Any, Any]

_MOST_REACH, _LEAST_REACH = 4096, 64
_REACH_BYTES = 32 << 20  # that are kept for the oldest rows
_MOST_BYTES = 1 << 43  # of addresses


def reach_for(rows: int, slot_bytes: int, max_bytes: int | None) -> int:
    """How far back, in observations, a row may refer: further, and it has its own. So much is kept
    besides what the oldest row has itself: a sixteenth of all, at most 4096 or 32 MB, at least 64.
    """
    budget = _REACH_BYTES if max_bytes is None else min(_REACH_BYTES, max_bytes // 16)
    return max(min(rows // 16, _MOST_REACH, budget // slot_bytes), _LEAST_REACH)


@dataclass(frozen=True)
class StoredSlots:
    """Which leaves are stored once, and how. Equal ones can be linked into each other's files.

    Attributes:
        layout: of rows as they come in.
        sharing: which leaves.
        reach: see `reach_for`.
    """

    layout: Layout
    sharing: Sharing
    reach: int
    form: Any = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.reach < 1 << 31:
            raise ValueError(f"rows that refer to {self.reach} observations before make no sense")
        if self.sharing.codec is not None:
            raise ValueError(f"observations stored once with {self.sharing.codec}, in files")
        object.__setattr__(self, "form", self.sharing.native(self.layout))

    @staticmethod
    def of(schema: Schema, reach: int) -> StoredSlots | None:
        """Of a storage with such rows; None: they have all of theirs."""
        return None if schema.sharing is None else StoredSlots(schema.layout, schema.sharing, reach)

    @cached_property
    def margin(self) -> int:
        """Bytes that are kept before the first that the oldest row has itself."""
        return int(self.reach * self.form.slot_bytes)

    @cached_property
    def record_size(self) -> int:
        """Of rows as they are stored."""
        return int(_native.stored_bytes(self.form))

    @cached_property
    def leaves(self) -> Array:
        """As the tape takes leaves of any size."""
        return np.array([self.places.offsets[0], self.form.slot_bytes], np.int64)

    @cached_property
    def places(self) -> RecordPlaces:
        """Where a stored record says which bytes it has."""
        return RecordPlaces(self.record_size, (self.record_size - 16,))

    def most(self, rows: int) -> int:
        """Bytes that so many rows may have: then rows do not give way to them, unless there are
        not as many addresses."""
        each = self.form.slot_bytes * self.form.references
        return int(min(rows * each + self.margin, max(_MOST_BYTES, 2 * self.margin)))

    def to_json(self) -> dict[str, Any]:
        return {"shared": self.sharing.to_json(), "reach": self.reach}

    @staticmethod
    def from_json(layout: Layout, data: dict[str, Any]) -> StoredSlots:
        return StoredSlots(layout, Sharing.from_json(data["shared"]), int(data["reach"]))
