"""Parquet and Arrow files of trajectories, for data frames and query engines: writing them.

    episode | step | terminated | truncated | one column per leaf (next.reward) | fields.<name>

Leaves of any size are lists, bytes or text; fields of trajectories are the same in all of a
trajectory's rows. A row group, or record batch, is one trajectory here; `parquet_reading` does not
rely on that. Needs pyarrow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..ragged import Blob, Ragged
from ..replay.folder import keep_out_of_storages
from ..tape.disk import files
from ..tree import Path as TreePath
from ..tree import show_path
from .episodes import Episode, OnEpisode, check_plain_keys, episodes_of, need
from .writing_process import raising_full

__all__ = ["OWN", "column_names", "to_arrow", "to_parquet"]

Array = np.ndarray[Any, Any]
OWN = ("episode", "step", "terminated", "truncated")


def to_parquet(
    source: Any,
    path: str | Path,
    *,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
) -> int:
    """Writes the complete trajectories of a storage or a ReplayBuffer, one row group each.

    Columns are `episode`, `step`, `terminated`, `truncated` (how the trajectory ended, at its last
    row) and one per leaf, named by its path (``next.reward``): numbers, or fixed-size lists of
    them, rows first; the file's metadata has the shapes (`contig.shapes`). Leaves of any size are
    lists, bytes or text. Fields of trajectories are columns ``fields.<name>``. The file is there
    when it is complete.

    Args:
        drop: leaves to leave out, by name.
        on_episode: called with (done, total) after each trajectory.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: there is none, or a leaf that the format cannot hold.
        StorageFull: the disk is full; nothing is left of the file.
    """
    parquet = need("pyarrow.parquet", "pyarrow", "parquet")

    def write(writer: Any, table: Any) -> None:
        writer.write_table(table, row_group_size=max(len(table), 1))

    return _write(source, Path(path), drop, on_episode, parquet.ParquetWriter, write)


def to_arrow(
    source: Any,
    path: str | Path,
    *,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
) -> int:
    """As `to_parquet`, to an Arrow IPC file: one record batch each, to be mapped into memory."""
    ipc = need("pyarrow.ipc", "pyarrow", "parquet")

    def write(writer: Any, table: Any) -> None:
        writer.write_batch(table.combine_chunks().to_batches()[0])

    return _write(source, Path(path), drop, on_episode, ipc.new_file, write)


def _write(
    source: Any,
    path: Path,
    drop: Collection[str],
    on_episode: OnEpisode | None,
    make: Callable[[str, Any], Any],
    write: Callable[[Any, Any], None],
) -> int:
    keep_out_of_storages(path)
    temporary = path.with_name(path.name + ".tmp")
    writer, count = None, 0
    try:
        with raising_full(str(path)):
            for episode in episodes_of(source, drop, on_episode):
                table = _table(episode)
                if writer is None:
                    writer = make(str(temporary), table.schema)
                write(writer, table)
                count += 1
            if writer is None:
                raise LayoutError("all trajectories were evicted before they could be written")
            writer.close()
            files.sync(temporary)
        files.rename(temporary, path)
    except BaseException:
        if writer is not None:
            with suppress(Exception):  # it writes what the file ends with, which may fail as well
                writer.close()
            files.unlink(temporary)
        raise
    return count


def _table(episode: Episode) -> Any:
    arrow = need("pyarrow", "pyarrow", "parquet")
    names = column_names(episode.columns, OWN)
    steps = episode.steps
    columns: dict[str, Any] = {
        "episode": arrow.array(np.full(steps, episode.id, np.int64)),
        "step": arrow.array(np.arange(steps, dtype=np.int64)),
        "terminated": arrow.array(episode.ends("terminated")),
        "truncated": arrow.array(episode.ends("truncated")),
    }
    shapes, kinds = {}, {}
    for path, values in episode.columns.items():
        name = names[path]
        if isinstance(values, Ragged):
            columns[name], kinds[name] = _any_size(arrow, values, path, name)
            shapes[name] = list(values.inner_shape)
        else:
            columns[name] = _fixed(arrow, values, path, name)
            shapes[name] = list(values.shape[1:])
    about: dict[str, Any] = {"contig.shapes": shapes}
    if kinds:
        about["contig.kinds"] = kinds
    if episode.fields:
        about["contig.fields"] = {}
    for path, value in episode.fields.items():
        name = ".".join(("fields", *map(str, path)))
        if name in columns:
            raise LayoutError(
                f"{name}: a leaf and a field of trajectories are both called so in a table; rename "
                f'one, or leave them out with drop=["fields"]'
            )
        columns[name] = _fixed(arrow, np.repeat(value[None], steps, 0), path, name)
        about["contig.fields"][name] = list(value.shape)
    table = arrow.table(columns)
    return table.replace_schema_metadata({k: json.dumps(v) for k, v in about.items()})


def _fixed(arrow: Any, values: Array, path: TreePath, name: str) -> Any:
    """A column of numbers, or of lists of equally many."""
    shape = values.shape[1:]
    if values.dtype.kind not in "biuf" or math.prod(shape) == 0:
        raise LayoutError(
            f"{show_path(path)}: a table cannot hold {values.dtype} {list(shape)}; convert it, "
            f'or leave it out with drop=["{name}"]'
        )
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, math.prod(shape)) if shape else flat


def _any_size(arrow: Any, column: Ragged, path: TreePath, name: str) -> tuple[Any, str]:
    """A column of lists, bytes or text; and which of these."""
    if isinstance(column, Blob):
        kind = arrow.large_string() if column.text else arrow.large_binary()
        return arrow.array(list(column), kind), "text" if column.text else "blob"
    packed = column.packed()
    values = _fixed(arrow, packed.values, path, name)
    return arrow.LargeListArray.from_arrays(arrow.array(packed.offsets), values), "ragged"


def column_names(paths: Collection[TreePath], own: Collection[str]) -> dict[TreePath, str]:
    """What the columns of leaves are called in a table: keys joined with dots.

    Args:
        own: columns that the table has besides.

    Raises:
        LayoutError: a leaf cannot be called so.
    """
    check_plain_keys(paths, ".", "a table")
    names = {path: ".".join(map(str, path)) for path in paths}
    for name in names.values():
        if name in own:
            raise LayoutError(
                f'{name}: the table has a column of its own of this name; drop=["{name}"]'
            )
    return names
