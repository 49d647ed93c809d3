"""Parquet and Arrow files of trajectories, ours and those of other programs: reading them.

    file -> which rows are which trajectory, by its columns `episode` and `step`   (checked first)
         -> tables of one trajectory each -> leaves -> one append each

Row groups mean nothing: whoever rewrites a file makes others. Needs pyarrow.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import LayoutError
from ..ragged import Blob, Ragged
from ..tape import Storage
from ..tape.disk import files
from ..tree import Path as TreePath
from ..tree import as_path, show_path
from .episodes import need, nested, storage_of
from .parquet import OWN

__all__ = ["from_parquet"]

Array = np.ndarray[Any, Any]
_EPISODE, _STEP, *_ENDS = OWN


def from_parquet(
    path: str | Path, target: Any, *, columns: Mapping[str, str | TreePath] | None = None
) -> int:
    """Appends the trajectories of a Parquet or Arrow file to a storage or a ReplayBuffer, one at a
    time.

    Rows with the same `episode`, one behind the other, are a trajectory, and `step` counts them.
    Both are looked at before anything is appended. A file of `to_parquet` or `to_arrow` says the
    rest itself; for a table of another program, `columns` does.

    Args:
        columns: which of the file's columns to take, and as what: a leaf (``"observation"``,
            ``"next.reward"`` or ``("next", "reward")``), or one of ``"episode"``, which is needed,
            ``"step"``, which counts from 0 or 1, ``"terminated"`` and ``"truncated"``, which say in
            a trajectory's last row how it ended. Without these, leaves of such names under `next`
            say it; a trajectory of which nothing says how it ended is truncated. A column of
            structs is named by its fields, ``"obs.camera"``. Lists of equally many numbers are
            arrays, other lists `Ragged` leaves, text and bytes `Blob` leaves.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: no such file, damaged, or with rows that are not in order. Nothing was
            appended, unless a trajectory does not fit those before it.
    """
    arrow = need("pyarrow", "pyarrow", "parquet")
    storage = storage_of(target)
    writer, count = storage.writer(), 0
    try:
        with contextlib.closing(_File(str(path))) as file:
            form = _Mapped.of(file, columns, storage) if columns else _Ours.of(file)
            ends = _ends(file, form.names, last_begin=1 if columns else 0)
            for table in _cut(file, ends, form.needed):
                leaves, end, fields = form.read(table)
                writer.extend_trajectory(nested(leaves), **end, fields=nested(fields) or None)
                count += 1
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise LayoutError(f"{path} is damaged, or no such file: {error}") from error
    return count


class _File:
    """A Parquet or Arrow file as a sequence of tables.

    Attributes:
        names: of its columns; fields of structs are columns.
        metadata: that its writer put into its schema.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with files.open_stream(path) as file:
            magic = file.read(6)
        arrow = need("pyarrow", "pyarrow", "parquet")
        self._tables = arrow.Table
        self._arrow: Any = None
        self._parquet: Any = None
        if magic == b"ARROW1":
            self._mapped = arrow.memory_map(path)
            self._arrow = need("pyarrow.ipc", "pyarrow", "parquet").open_file(self._mapped)
            schema, self._count = self._arrow.schema, self._arrow.num_record_batches
        else:
            self._parquet = need("pyarrow.parquet", "pyarrow", "parquet").ParquetFile(path)
            schema, self._count = self._parquet.schema_arrow, self._parquet.num_row_groups
        self.names: list[str] = _flattened(schema.empty_table()).column_names
        self.metadata: dict[bytes, bytes] = schema.metadata or {}

    def tables(self, names: Collection[str]) -> Iterator[Any]:
        """Returns the named columns of all rows, in order."""
        for i in range(self._count):
            if self._parquet is not None:
                roots = {name.partition(".")[0] for name in names} | set(names)
                known = [n for n in self._parquet.schema_arrow.names if n in roots]
                table = self._parquet.read_row_group(i, columns=known)
            else:
                table = self._tables.from_batches([self._arrow.get_batch(i)])
            yield _flattened(table).select(list(names))

    def close(self) -> None:
        if self._parquet is not None:
            self._parquet.close()
        else:
            self._mapped.close()


class _Ours(NamedTuple):
    """A file of `to_parquet` or `to_arrow`: its metadata says what the columns are."""

    path: str
    shapes: dict[str, list[int]]
    kinds: dict[str, str]
    fields: dict[str, list[int]]

    @staticmethod
    def of(file: _File) -> _Ours:
        if b"contig.shapes" not in file.metadata or not set(OWN) <= set(file.names):
            raise LayoutError(
                f"{file.path}: no file of to_parquet or to_arrow: it lacks contig.shapes in its "
                f"metadata or one of the columns {', '.join(OWN)}. {_how_to_map(file)}"
            )
        said = (
            json.loads(file.metadata.get(key, b"{}"))
            for key in (b"contig.shapes", b"contig.kinds", b"contig.fields")
        )
        return _Ours(file.path, *said)

    @property
    def names(self) -> dict[str, str]:
        return {name: name for name in OWN}

    @property
    def needed(self) -> list[str]:
        return [*_ENDS, *self.shapes, *self.fields]

    def read(self, table: Any) -> tuple[dict[TreePath, Any], dict[str, bool], dict[TreePath, Any]]:
        leaves: dict[TreePath, Any] = {}
        for name, shape in self.shapes.items():
            column, kind = self._column(table, name), self.kinds.get(name)
            read = _numbers(column, shape) if kind is None else _of_any_size(column, kind, shape)
            leaves[tuple(name.split("."))] = read
        fields: dict[TreePath, Any] = {
            tuple(name.split(".")[1:]): _numbers(self._column(table, name), shape)[-1]
            for name, shape in self.fields.items()
        }
        return leaves, {flag: bool(table[flag][-1].as_py()) for flag in _ENDS}, fields

    def _column(self, table: Any, name: str) -> Any:
        return _joined(table, name, self.path)


class _Mapped(NamedTuple):
    """A table of another program: the caller says what the columns are.

    Attributes:
        names: columns by what they say: "episode" and the like.
        leaves: leaves by column.
        any_size: leaves that the storage has as such of any size.
    """

    path: str
    names: dict[str, str]
    leaves: dict[str, TreePath]
    any_size: frozenset[TreePath]

    @staticmethod
    def of(file: _File, columns: Mapping[str, str | TreePath], storage: Storage) -> _Mapped:
        names: dict[str, str] = {}
        leaves: dict[str, TreePath] = {}
        for name, what in columns.items():
            if name not in file.names:
                raise LayoutError(
                    f"{file.path}: columns: it has no column {name!r}, only "
                    f"{', '.join(map(repr, file.names))}"
                )
            if isinstance(what, str) and what in OWN:
                if what in names:
                    raise LayoutError(
                        f"columns: {names[what]!r} and {name!r} are both {what!r}; leave one out"
                    )
                names[what] = name
            else:
                leaf = tuple(what.split(".")) if isinstance(what, str) else as_path(what)
                if leaf in leaves.values():
                    raise LayoutError(
                        f"columns: two columns are {show_path(leaf)}, {name!r} the second; leave "
                        "one out"
                    )
                leaves[name] = leaf
        if _EPISODE not in names or not leaves:
            lacking = "which one is the episode" if leaves else "which ones are leaves"
            raise LayoutError(f"{file.path}: columns: say {lacking}. {_how_to_map(file)}")
        known = () if storage.layout is None else storage.layout.variable
        return _Mapped(file.path, names, leaves, frozenset(x.path for x in known))

    @property
    def needed(self) -> list[str]:
        ends = [self.names[flag] for flag in _ENDS if flag in self.names]
        return list(dict.fromkeys([*ends, *self.leaves]))

    def read(self, table: Any) -> tuple[dict[TreePath, Any], dict[str, bool], dict[TreePath, Any]]:
        leaves = {
            path: _leaf(_joined(table, name, self.path), name, self.path, path in self.any_size)
            for name, path in self.leaves.items()
        }
        ends = {f: bool(table[self.names[f]][-1].as_py()) for f in _ENDS if f in self.names}
        flags = [leaves["next", flag] for flag in ("done", *_ENDS) if ("next", flag) in leaves]
        if not ends and not any(np.any(flag[-1]) for flag in flags):
            ends = {"truncated": True}  # it was cut there
        return leaves, ends, {}


def _how_to_map(file: _File) -> str:
    """Returns the advice for a table of another program, with names that it has."""
    free = [name for name in file.names if name not in OWN]
    named = [name for name in file.names if _EPISODE in name.lower()]
    likely = next(iter([*named, *free]), "id")
    leaf = next((name for name in free if name != likely), "obs")
    return (
        "To take a table of another program, say what its columns are: from_parquet(path, target, "
        f'columns={{"{likely}": "episode", "{leaf}": "observation", ...}}), or contig import '
        f"--columns {likely}=episode {leaf}=observation; it has the columns "
        f"{', '.join(map(repr, file.names))}"
    )


def _ends(file: _File, names: Mapping[str, str], last_begin: int) -> list[int]:
    """Returns the rows at which the trajectories of a file end.

    Args:
        names: columns by what they say.
        last_begin: from which step at most a trajectory may count.

    Raises:
        LayoutError: rows are not in order.
    """
    checks = _Rows(file.path, names, last_begin)
    for table in file.tables(list(dict.fromkeys(names.values()))):
        if len(table):
            checks.take(table)
    return [*checks.starts[1:], checks.rows] if checks.rows else []


class _Rows:
    """Goes through a file's columns `episode` and `step`, and through its ends.

    Attributes:
        starts: of its trajectories, in rows of the file.
        rows: that there were so far.
    """

    def __init__(self, path: str, names: Mapping[str, str], last_begin: int) -> None:
        self._path, self._names, self._last_begin = path, names, last_begin
        self.starts: list[int] = []
        self.rows = 0
        self._seen: set[Any] = set()
        self._last: tuple[Any, Any, bool] | None = None  # the last row's episode, step, end

    def take(self, table: Any) -> None:
        episodes = _values(table, self._names[_EPISODE], self._path)
        begins = np.ones(len(episodes), bool)
        begins[1:] = episodes[1:] != episodes[:-1]
        if self._last is not None:
            begins[0] = episodes[0] != self._last[0]
        for row in np.flatnonzero(begins).tolist():
            episode = episodes[row]
            if episode in self._seen:
                raise self._fault(
                    row, episode, "other episodes lie between its rows: sort the file by episode"
                )
            self._seen.add(episode)
            self.starts.append(self.rows + row)
        step = None
        if _STEP in self._names:
            step = self._steps(_values(table, self._names[_STEP], self._path), begins, episodes)
        ended = np.zeros(len(episodes), bool)
        for flag in _ENDS:
            if flag in self._names:
                ended |= _values(table, self._names[flag], self._path).astype(bool)
        before = np.concatenate(([self._last is not None and self._last[2]], ended[:-1]))
        for row in np.flatnonzero(before & ~begins)[:1].tolist():
            raise self._fault(row, episodes[row], "the row before it ended it: it has rows of two")
        self._last = (episodes[-1], step, bool(ended[-1]))
        self.rows += len(episodes)

    def _steps(self, steps: Array, begins: Array, episodes: Array) -> Any:
        """Checks that steps count up; returns the last."""
        if steps.dtype.kind not in "iu":
            raise LayoutError(
                f"{self._path}: column {self._names[_STEP]!r} is {steps.dtype}, expected the whole "
                "numbers of steps. Nothing was appended"
            )
        before = np.empty_like(steps)
        before[1:] = steps[:-1]
        before[0] = 0 if self._last is None else self._last[1]
        wrong = np.where(begins, (steps < 0) | (steps > self._last_begin), steps != before + 1)
        for row in np.flatnonzero(wrong)[:1].tolist():
            wanted = "0" if begins[row] else str(before[row] + 1)
            what = f"expected step {wanted}, got {steps[row]}: rows are missing, there twice, or "
            raise self._fault(row, episodes[row], what + "not sorted by episode and step")
        return steps[-1]

    def _fault(self, row: int, episode: Any, what: str) -> LayoutError:
        return LayoutError(
            f"{self._path}: row {self.rows + row}, of episode {episode}: {what}. Nothing was "
            "appended"
        )


def _cut(file: _File, ends: list[int], names: list[str]) -> Iterator[Any]:
    """Tables of one trajectory each, which end at these rows."""
    arrow = need("pyarrow", "pyarrow", "parquet")
    pieces: list[Any] = []
    left = iter(ends)
    end, first = next(left, None), 0
    for table in file.tables(names):
        start = 0
        while end is not None and end <= first + len(table):
            pieces.append(table.slice(start, end - first - start))
            yield arrow.concat_tables(pieces)
            pieces, start, end = [], end - first, next(left, None)
        if start < len(table):
            pieces.append(table.slice(start))
        first += len(table)


def _flattened(table: Any) -> Any:
    """A table in which fields of structs are columns."""
    arrow = need("pyarrow", "pyarrow", "parquet")
    while any(arrow.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def _joined(table: Any, name: str, path: str) -> Any:
    """A column as one array.

    Raises:
        LayoutError: it lacks values.
    """
    column = table[name].combine_chunks()
    if column.null_count:
        raise LayoutError(f"{path}: column {name!r} lacks {column.null_count} values; fill them in")
    return column


def _values(table: Any, name: str, path: str) -> Array:
    """Numbers or texts of a column, to compare."""
    return np.asarray(_joined(table, name, path).to_numpy(zero_copy_only=False))


def _leaf(column: Any, name: str, path: str, any_size: bool) -> Any:
    """The values of a column of another program."""
    types = need("pyarrow", "pyarrow", "parquet").types
    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return Blob.of(column.to_pylist(), text=True)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return Blob.of(column.to_pylist(), text=False)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _leaf(column.flatten(), name, path, False)
        counts = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False), np.int64)
        if isinstance(inner, np.ndarray) and not any_size and len(set(counts.tolist())) == 1:
            return inner.reshape(len(counts), counts[0], *inner.shape[1:])
        if isinstance(inner, np.ndarray):
            return Ragged(inner, np.concatenate(([0], np.cumsum(counts))))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        if column.null_count:
            raise LayoutError(f"{path}: column {name!r} has lists that lack values; fill them in")
        return np.asarray(column.to_numpy(zero_copy_only=False))
    raise LayoutError(
        f"{path}: column {name!r} is {column.type}, which is no leaf; convert it, or leave it out "
        "of columns"
    )


def _numbers(column: Any, shape: list[int]) -> Array:
    flat = column.flatten() if shape else column
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), *shape)


def _of_any_size(column: Any, kind: str, shape: list[int]) -> Ragged:
    if kind != "ragged":
        return Blob.of(column.to_pylist(), text=kind == "text")
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.values[offsets[0] : offsets[-1]]
    return Ragged(_numbers(values, shape), offsets - offsets[0])
