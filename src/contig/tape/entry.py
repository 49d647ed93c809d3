"""An entry of the index: one run of rows, as 16 words.

Entries are structured arrays. Copy them with `take` and `compress` and put them together with
`join`: these move whole entries; indexing and `np.concatenate` go field by field, several times
slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native

__all__ = ["ENTRY", "NONE", "ends_of", "flags_of", "join", "read_entries", "steps_of"]

Array = np.ndarray[Any, Any]

# EntryWords of native/tape/tape_format.h; a test compares the two.
ENTRY = np.dtype(
    [
        ("first", "<i8"),  # seq of the first row
        ("steps_flags", "<i8"),  # `steps_of`, `flags_of`
        ("prev", "<i8"),  # number of the trajectory's previous run, or NONE
        ("jump", "<i8"),  # number of an earlier one, or NONE
        ("before", "<i8"),  # steps of the trajectory before this run
        ("ordinal", "<i8"),  # the trajectory's number, which `episodes` calls `id`
        ("version", "<i8"),  # of the policy
        ("ret", "<f8"),  # return of the trajectory up to this run's end
        ("traj_id", "<i8"),  # as given by the data, or -1
        ("writer", "<i8"),
        ("time_ns", "<i8"),
        ("depth", "<i8"),  # the rank of `jump`, marked as such (`_native.RANKED`)
        ("unused", "<i8", (3,)),
        ("number", "<i8"),  # of the entry
    ]
)
NONE = -1  # a link to nothing

_FLAG_MASK = (1 << _native.FLAG_BITS) - 1
_STEPS_MASK = _native.MOST_RUN_ROWS << _native.FLAG_BITS


def steps_of(entries: Any) -> Any:
    """Rows of entries, or of one."""
    return (entries["steps_flags"] & _STEPS_MASK) >> _native.FLAG_BITS


def flags_of(entries: Any) -> Any:
    """How runs began and ended: `_native.RunFlag`."""
    return entries["steps_flags"] & _FLAG_MASK


def ends_of(entries: Any) -> Any:
    """The seqs behind the last rows."""
    return entries["first"] + steps_of(entries)


def join(parts: Sequence[Array]) -> Array:
    """Entries, one part after another; there is at least one."""
    return np.concatenate([part.view(np.int64) for part in parts]).view(parts[0].dtype)


def read_entries(tape: Any) -> Array:
    """The index of a native tape, in the order of numbers."""
    return tape.read_index()[0].view(ENTRY)  # type: ignore[no-any-return]
