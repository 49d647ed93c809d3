"""Episodes as blocks of Ray Data, and back: Arrow tables whose columns survive whatever Ray does.

    episodes  episode | traj_id | steps | return | terminated | truncated | policy_version | leaves
    rows      episode | traj_id | step           | terminated | truncated | policy_version | leaves

Leaves are named as in Parquet files (``next.reward``). Of an episode, each is a tensor
``[T, ...]``; of a row, a number or a tensor. What Arrow cannot hold is there as bits, and its name
says so: ``half:bfloat16`` is uint16, ``field:complex64`` pairs of float32. A table's metadata would
be lost where a user's function makes new ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..convert import numpy_dtype
from ..errors import LayoutError
from ..layout import Layout
from ..tape.episodes import EPISODE
from ..tree import Path, show_path
from .episodes import Array, need, nested, without
from .parquet import column_names

__all__ = [
    "Stored",
    "about_of",
    "check_layout",
    "columns_of",
    "decoded",
    "episodes_block",
    "field_names",
    "fields_of",
    "is_rows",
    "rows_block",
    "split_episodes",
]

_OWN = ("episode", "traj_id", "steps", "step", "return", "terminated", "truncated")
_OWN_COLUMNS = frozenset((*_OWN, "policy_version"))
_NEEDED = ("terminated", "truncated")
_FIELD = "fields."


class Stored(NamedTuple):
    """An episode that was read: its entry in the index, and its leaves."""

    entry: Array
    leaves: dict[Path, Array]

    @property
    def steps(self) -> int:
        return int(self.entry["steps"])


def check_layout(layout: Layout, fields: Collection[str], drop: Collection[str]) -> None:
    """Raises LayoutError unless all leaves can be columns, apart from those to be left out, and
    fields of trajectories, whose names are given, beside them."""
    for leaf in layout.leaves:
        if fields and leaf.path[0] == "fields":
            raise LayoutError(
                f"{show_path(leaf.path)}: columns of that name are fields of trajectories; rename "
                "the leaf"
            )
    for leaf in layout.leaves:
        if leaf.ragged and ".".join(map(str, leaf.path)) not in drop:
            raise LayoutError(
                f"{show_path(leaf.path)}: a Ray dataset cannot hold leaves of any size; leave it "
                f'out with drop=["{".".join(map(str, leaf.path))}"], or export to parquet'
            )
    empty = {x.path: np.empty((0, *x.shape), x.dtype) for x in layout.leaves}
    kept = without(empty, drop)
    column_names(kept, _OWN_COLUMNS)
    for path, values in kept.items():
        name = ".".join(map(str, path))
        if math.prod(values.shape[1:]) == 0 or (
            not _is_plain(values.dtype) and _bits(values) is None
        ):
            raise LayoutError(
                f"{show_path(path)}: a Ray dataset cannot hold {values.dtype} "
                f'{list(values.shape[1:])}; convert it, or leave it out with drop=["{name}"]'
            )
        if _coded(name) is not None:
            raise LayoutError(
                f"{show_path(path)}: its name ends like that of a column of bits; rename it, or "
                f'leave it out with drop=["{name}"]'
            )


# -- there -----------------------------------------------------------------------------------------


def episodes_block(episodes: list[Stored], drop: Collection[str]) -> Any:
    """A table with a row per episode."""
    arrow, tensors = _arrow()
    entries = np.array([e.entry for e in episodes])
    columns = _own_columns(arrow, entries)
    columns["steps"] = arrow.array(entries["steps"])
    columns["return"] = arrow.array(entries["return"])
    kept = [_encoded(e.leaves, drop) for e in episodes]
    for name in kept[0]:
        values = [leaves[name] for leaves in kept]
        columns[name] = tensors.ArrowVariableShapedTensorArray.from_numpy(values)
    columns.update(_field_columns(arrow, tensors, entries))
    return arrow.table(columns)


def rows_block(episodes: list[Stored], drop: Collection[str]) -> Any:
    """A table with a row per step."""
    arrow, tensors = _arrow()
    counts = np.array([e.steps for e in episodes])
    entries = np.array([e.entry for e in episodes])
    last = np.cumsum(counts) - 1
    columns = _own_columns(arrow, np.repeat(entries, counts))
    step = np.arange(counts.sum()) - np.repeat(last + 1 - counts, counts)
    columns["step"] = arrow.array(step)
    for flag in _NEEDED:
        values = np.zeros(len(step), bool)
        values[last] = entries[flag]
        columns[flag] = arrow.array(values)
    kept = [_encoded(e.leaves, drop) for e in episodes]
    for name in kept[0]:
        joined = np.concatenate([leaves[name] for leaves in kept])
        if joined.ndim == 1:
            columns[name] = arrow.array(joined)
        else:
            columns[name] = tensors.ArrowTensorArray.from_numpy(joined)
    columns.update(_field_columns(arrow, tensors, np.repeat(entries, counts)))
    return arrow.table(columns)


def field_names(entries: Array) -> list[str]:
    """What a table of episodes has besides: fields of trajectories."""
    return [name for name in entries.dtype.names or () if name not in (EPISODE.names or ())]


def _field_columns(arrow: Any, tensors: Any, entries: Array) -> dict[str, Any]:
    columns = {}
    for name in field_names(entries):
        values = np.ascontiguousarray(entries[name])
        one = values.ndim == 1
        made = arrow.array(values) if one else tensors.ArrowTensorArray.from_numpy(values)
        columns[f"{_FIELD}{name}"] = made
    return columns


def _own_columns(arrow: Any, entries: Array) -> dict[str, Any]:
    columns = {"episode": arrow.array(np.ascontiguousarray(entries["id"]))}
    for name in ("traj_id", "terminated", "truncated", "policy_version"):
        columns[name] = arrow.array(np.ascontiguousarray(entries[name]))
    return columns


def _arrow() -> tuple[Any, Any]:
    return need("pyarrow", "pyarrow", "ray"), need("ray.data.extensions", "ray[data]", "ray")


def _encoded(leaves: dict[Path, Array], drop: Collection[str]) -> dict[str, Array]:
    """Leaves by the names of their columns, as Arrow can hold them."""
    out = {}
    for path, values in without(leaves, drop).items():
        name, values = ".".join(map(str, path)), np.ascontiguousarray(values)
        bits = None if _is_plain(values.dtype) else _bits(values)
        if bits is None:
            out[name] = values
        else:
            out[f"{name}:{values.dtype.name}"] = bits
    return out


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and dtype.name in np.sctypeDict and dtype.itemsize <= 8


def _bits(values: Array) -> Array | None:
    """Numbers of a kind that Arrow does not know as some that it does; None: there is no way."""
    dtype = values.dtype
    if dtype.kind == "c" and dtype.itemsize <= 16:
        parts = np.dtype(f"f{dtype.itemsize // 2}")
        return values.reshape(*values.shape, 1).view(parts)
    known = _coded(f":{dtype.name}")
    if known == dtype and dtype.itemsize in (1, 2, 4, 8):
        return values.view(f"u{dtype.itemsize}")
    return None


def _coded(name: str) -> np.dtype[Any] | None:
    """The dtype whose bits a column has, by its name; None: it has plain numbers."""
    suffix = name.rpartition(":")[2] if ":" in name else ""
    try:
        dtype = numpy_dtype(suffix) if suffix else None
    except (TypeError, ValueError, ImportError, LayoutError):
        return None
    if dtype is None or dtype.name != suffix or suffix.startswith("void") or _is_plain(dtype):
        return None
    return dtype


# -- back ------------------------------------------------------------------------------------------


def is_rows(names: Collection[str]) -> bool:
    """Whether columns are those of rows, and not of episodes.

    Raises:
        LayoutError: they are neither.
    """
    missing = [name for name in _NEEDED if name not in names]
    if "step" in names and "episode" not in names:
        missing.insert(0, "episode")
    if missing or not set(names) - _OWN_COLUMNS:
        what = ", ".join(missing) or "leaves"
        raise LayoutError(
            f"no dataset of to_ray_dataset: it lacks {what}; it has {', '.join(names) or 'nothing'}"
        )
    return "step" in names


def columns_of(table: Any) -> dict[str, Array]:
    """Columns of a block as arrays: of the same numbers, bit by bit.

    Raises:
        LayoutError: a value is missing.
    """
    from ray.data.block import BlockAccessor

    for name in table.column_names:
        if table[name].null_count:
            raise LayoutError(
                f"{name}: {table[name].null_count} of {len(table)} values are missing; a storage "
                "has a value for every leaf of every row"
            )
    found: Any = BlockAccessor.for_block(table).to_numpy(table.column_names)
    return {name: np.asarray(values) for name, values in found.items()}


def decoded(leaves: dict[str, Array]) -> Any:
    """The tree of some columns, each with a leading dim of rows."""
    out: dict[Path, Array] = {}
    for name, values in leaves.items():
        if name in _OWN_COLUMNS:
            continue
        dtype = _coded(name)
        if dtype is not None:
            name = name.rpartition(":")[0]
            values = np.ascontiguousarray(values).view(dtype)
            if dtype.kind == "c":
                values = values[..., 0]
        out[tuple(name.split("."))] = values
    return nested(out)


def fields_of(leaves: dict[str, Array], i: int | None) -> Any:
    """Takes fields of a trajectory from its columns: of row i, or, if None, the whole columns."""
    names = [name for name in leaves if name.startswith(_FIELD)]
    found = {name: leaves.pop(name) for name in names}
    keys = {n: tuple(n[len(_FIELD) :].split(".")) for n in names}
    return nested({keys[n]: v if i is None else v[i] for n, v in found.items()}) or None


def about_of(columns: dict[str, Array], i: int) -> dict[str, Any]:
    """What row i says of its episode."""
    return {name: columns[name][i].item() for name in columns if name in _OWN_COLUMNS}


def split_episodes(columns: dict[str, Array]) -> Iterator[tuple[dict[str, Any], dict[str, Array]]]:
    """Of a block of episodes, each one: what is known of it, and its leaves."""
    names = list(columns)
    for i in range(len(columns[names[0]])):
        yield (
            about_of(columns, i),
            {n: np.asarray(columns[n][i]) for n in names if n not in _OWN_COLUMNS},
        )
