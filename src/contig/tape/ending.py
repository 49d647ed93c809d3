"""How a trajectory ends: what its last row says, what the caller says, and what is stored.

    rows have flags    the last row's count; the caller may close what it leaves open, and must not
                       contradict it
    rows have none     the caller's; they are written into the flags that the layout has
    nobody says        it is truncated, if it is known to be whole

Rows are columns here: an array ``[rows, ...]`` of each leaf, None where it is not given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import LayoutError
from ..keys import FLAGS
from ..tree import show_path
from .boundaries import fill_flags
from .schema import Schema

__all__ = ["End", "end_rows", "last_version", "record_columns", "zero_flags"]

Array = np.ndarray[Any, Any]
_TERMINATED, _TRUNCATED = 2, 4


class End(NamedTuple):
    """How a trajectory ended: neither means that it is open, None that it is not said."""

    terminated: bool | None = None
    truncated: bool | None = None

    @staticmethod
    def of_last_row(schema: Schema, columns: list[Any]) -> End:
        """What the flags of the last row say; flags of agents are ordinary leaves."""
        marks = dict(_marks(schema))
        numbers = (marks.get(flag) for flag in End._fields)
        return End(*(None if n is None else bool(columns[n].reshape(-1)[-1]) for n in numbers))

    @property
    def is_said(self) -> bool:
        return self.terminated is not None or self.truncated is not None

    @property
    def flags(self) -> int:
        """As an index entry has them, and a run on the wire."""
        return _TERMINATED * bool(self.terminated) | _TRUNCATED * bool(self.truncated)

    def closing(self, last: End) -> End:
        """How it ended, if this is what the caller says and that what the last row does."""
        if not any(last):
            return self
        return End(*(mine if row is None else row for mine, row in zip(self, last)))

    def contradicted(self, last: End) -> str | None:
        """The flag in which a last row that has an end says another one than this."""
        both = zip(End._fields, self, last)
        wrong = (f for f, mine, row in both if None not in (mine, row) and bool(mine) != row)
        return next(wrong, None) if any(last) else None

    def write(self, schema: Schema, columns: list[Any]) -> None:
        """Writes it into the last row's flags, in place."""
        said = {"done": any(self), "terminated": self.terminated, "truncated": self.truncated}
        for flag, number in _marks(schema):
            columns[number][-1] = bool(said[flag])


def end_rows(schema: Schema, columns: list[Any], rows: int, told: End) -> End:
    """How a trajectory of some rows ended. Completes their flags, as new columns.

    Raises:
        LayoutError: the caller says something else than a done row.
    """
    if zero_flags(schema, columns, rows):
        end = told if told.is_said else End(False, True)
        end.write(schema, columns)
        return end
    fill_flags(schema.layout, schema.boundaries.flags, columns)
    last = End.of_last_row(schema, columns)
    if any(last) or not told.is_said:
        wrong = told.contradicted(last)
        if wrong is not None:
            assert schema.boundaries.flags is not None
            raise LayoutError(
                f"{show_path((*schema.boundaries.flags, wrong))}: the last row says "
                f"{getattr(last, wrong)}, the argument {wrong}={getattr(told, wrong)}; make them "
                "agree or leave the argument out"
            )
    else:
        for _, number in _marks(schema):
            columns[number] = columns[number].copy()  # it may be the caller's
        told.write(schema, columns)
    return told.closing(last)


def zero_flags(schema: Schema, columns: list[Any], rows: int) -> bool:
    """Whether rows have no flags: then they get the layout's, as zeros."""
    numbers = [number for _, number in _marks(schema)]
    if any(columns[n] is not None for n in numbers):
        return False
    for n in numbers:
        leaf = schema.layout.leaves[n]
        columns[n] = np.zeros((rows, *leaf.shape), leaf.dtype)
    return True


def last_version(schema: Schema, columns: list[Any]) -> int:
    """The policy's version that the last row carries, or -1."""
    path = schema.boundaries.version
    return -1 if path is None else int(columns[schema.layout.number[path]].reshape(-1)[-1])


def record_columns(schema: Schema, record: Array) -> list[Array | None]:
    """One packed row as columns: views into it. Of leaves of any size there are none."""
    out: list[Array | None] = []
    for leaf in schema.layout.leaves:
        place = record.reshape(-1)[leaf.offset : leaf.offset + leaf.nbytes]
        fixed = None if leaf.variable else place.view(leaf.dtype).reshape(1, *leaf.shape)
        out.append(fixed)
    return out


def _marks(schema: Schema) -> list[tuple[str, int]]:
    """The flags that the layout has, one for each row, and the numbers of their leaves."""
    parent, number = schema.boundaries.flags, schema.layout.number
    if parent is None:
        return []
    paths = ((flag, (*parent, flag)) for flag in FLAGS)
    return [(flag, number[path]) for flag, path in paths if path in schema.flag_paths]
