"""How a trajectory ended: as its last row says, or, if that leaves it open, as the caller says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._native import RunFlag
from ..errors import LayoutError
from ..keys import FLAGS
from ..tree import Path, show_path
from .boundaries import fill_flags
from .schema import Schema

__all__ = ["end_columns", "end_record", "record_leaf"]

Array = np.ndarray[Any, Any]
_Told = dict[str, bool | None]


def _agreed(
    last: dict[str, bool], told: _Told, complaint: Callable[[str, bool], str]
) -> tuple[bool, bool]:
    """Terminated and truncated, of which `last` is what the last row says."""
    if any(last.values()):
        for flag, value in told.items():
            if value is not None and bool(value) != last.get(flag, bool(value)):
                raise LayoutError(complaint(flag, value))
        told = {**told, **last}
    return bool(told["terminated"]), bool(told["truncated"])


def _flags_of(terminated: bool, truncated: bool) -> int:
    return RunFlag.TERMINATED * terminated | RunFlag.TRUNCATED * truncated


def end_columns(
    schema: Schema,
    columns: list[Any],
    rows: int,
    terminated: bool | None,
    truncated: bool | None,
) -> int:
    """The end of a whole trajectory, as flags of its run (`RunFlag`); writes it into flag columns
    that the data lacks, or leaves open. Truncated, if nobody says anything."""
    parent, layout = schema.boundaries.flags, schema.layout
    told: _Told = {"terminated": terminated, "truncated": truncated}
    said = terminated is not None or truncated is not None
    if parent is not None and not schema.flag_paths.isdisjoint(
        x.path for x, c in zip(layout.leaves, columns) if c is not None
    ):
        filled = list(columns)
        fill_flags(layout, parent, filled)
        marks = {f: (*parent, f) for f in told if (*parent, f) in schema.flag_paths}
        last = {f: bool(filled[layout.number[p]].reshape(-1)[-1]) for f, p in marks.items()}

        def complaint(flag: str, value: bool) -> str:
            return (
                f"{show_path((*parent, flag))}: the last row says {last[flag]}, the argument "
                f"{flag}={value}; make them agree or leave the argument out"
            )

        end = _agreed(last, told, complaint)
        if said and not any(last.values()):
            for flag, ended in zip(FLAGS, (any(end), *end)):
                if (*parent, flag) in schema.flag_paths:
                    place = layout.number[(*parent, flag)]
                    columns[place] = filled[place].copy()
                    columns[place][-1] = ended
        return _flags_of(*end)
    end = (bool(terminated), bool(truncated) if said else True)
    if parent is not None:
        for flag, ended in zip(FLAGS[1:], end):
            leaf = layout.by_path.get((*parent, flag))
            if leaf is not None and leaf.path in schema.flag_paths:
                column = np.zeros((rows, *leaf.shape), leaf.dtype)
                column[-1] = ended
                columns[layout.number[leaf.path]] = column
    return _flags_of(*end)


def end_record(
    schema: Schema, record: Array, terminated: bool | None, truncated: bool | None
) -> int:
    """The end of a trajectory at a packed row, as flags of its run; writes it into the row where
    that has such leaves. One that is not terminated is truncated."""
    parent = schema.boundaries.flags
    last = dict.fromkeys(FLAGS[1:], False)
    if parent is not None:
        for flag in last:
            if (*parent, flag) in schema.layout.by_path:
                last[flag] = bool(record_leaf(schema, record, (*parent, flag)).any())

    def complaint(flag: str, value: bool) -> str:
        return (
            f"end_episode({flag}={value}), but the last step says {last[flag]}: make them agree, "
            "or leave the argument out"
        )

    terminated, truncated = _agreed(
        last, {"terminated": terminated, "truncated": truncated}, complaint
    )
    truncated = truncated or not terminated
    if parent is not None:
        for flag, ended in zip(FLAGS, (True, terminated, truncated)):
            if (*parent, flag) in schema.flag_paths:
                node = record_leaf(schema, record, (*parent, flag))
                node[...] = node | ended if node.dtype == bool else ended
    return _flags_of(terminated, truncated)


def record_leaf(schema: Schema, record: Array, path: Path) -> Array:
    """A leaf of a packed row, ``[1, ...]``; a view."""
    node = schema.layout.unpack(record.reshape(1, -1))
    for key in path:
        node = node[key]
    return np.asarray(node)
