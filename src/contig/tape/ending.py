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
from ..tree import Path, show_path
from .boundaries import fill_flags
from .schema import Schema

__all__ = ["End", "Whole", "end_rows", "record_columns", "zero_flags"]

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


class Whole(NamedTuple):
    """The ends, id and version that a caller gives to rows of one whole trajectory.

    Attributes:
        end: how it ended.
        traj_id: its id; None: the rows say it.
        is_grid: the rows are of a grid of steps and envs: episodes lie inside, and marks in rows
            say nothing of the whole.
    """

    end: End = End()
    traj_id: int | None = None
    is_grid: bool = False

    def settle(self, schema: Schema, columns: list[Any], rows: int) -> End:
        """Returns how the trajectory ended. Completes the flags of its rows, as new columns.

        Raises:
            LayoutError: the caller says something else than a done row, or the rows are of several
                trajectories.
        """
        end = end_rows(schema, columns, rows, self.end)
        if not self.is_grid:
            self._check_one(schema, columns, rows)
        return end

    def _check_one(self, schema: Schema, columns: list[Any], rows: int) -> None:
        marks = schema.boundaries
        if marks.id is None or marks.traj_key is None:  # else ids decide alone
            for path, places in _inner_ends(schema, columns).items():
                if places.size:
                    row = int(places[0])
                    what = "begins one" if path == marks.init else "is done"
                    raise _several(path, f"row {row} {what}", rows)
        ids = self._ids(schema, columns)
        others = np.flatnonzero(ids != ids[:1])
        if others.size:
            assert marks.id is not None
            row = int(others[0])
            raise _several(marks.id, f"row {row} has the id {ids[row]}, row 0 {ids[0]}", rows)

    def _ids(self, schema: Schema, columns: list[Any]) -> Array:
        """The ids of the rows, as far as they count."""
        path, number = schema.boundaries.id, schema.layout.number
        if self.traj_id is not None or path is None or columns[number[path]] is None:
            return np.empty(0)
        return np.asarray(columns[number[path]].reshape(-1))

    def id_of(self, schema: Schema, columns: list[Any]) -> int:
        """The trajectory's id, or -1."""
        if self.traj_id is not None:
            return self.traj_id
        ids = self._ids(schema, columns)
        return int(ids[0]) if len(ids) else -1


def _inner_ends(schema: Schema, columns: list[Any]) -> dict[Path, Array]:
    """Rows at which another trajectory ends or begins, by the leaf that says so."""
    marks, number = schema.boundaries, schema.layout.number
    ends = [(*(marks.flags or ()), flag) for flag in ("terminated", "truncated")]
    found: dict[Path, Array] = {}
    for path in [*(ends if marks.done is None else [marks.done]), marks.init]:
        if path is not None and path in number and columns[number[path]] is not None:
            values = columns[number[path]].reshape(-1)
            later = path == marks.init
            found[path] = np.flatnonzero(values[1:] if later else values[:-1]) + later
    return found


def _several(path: Path, what: str, rows: int) -> LayoutError:
    return LayoutError(
        f"{show_path(path)}: {what}, of {rows} rows that were given as one whole trajectory: these "
        "are several episodes: use extend"
    )


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
