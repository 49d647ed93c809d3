"""Parquet files of trajectories, for data frames and query engines. Needs pyarrow."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..tape.disk import files
from .optional import episodes_of, need, storage_of

__all__ = ["to_parquet"]


def to_parquet(source: Any, path: str | Path) -> int:
    """Writes the complete trajectories of a storage or a ReplayBuffer, one row group each.

    Columns are `episode`, `step` and one per leaf, named by its path (``next.reward``): numbers,
    or fixed-size lists of them, rows first; the file's metadata has the shapes (`contig.shapes`).
    The file is there when it is complete.

    Returns:
        how many trajectories.
    """
    need("pyarrow", "pyarrow")
    parquet = need("pyarrow.parquet", "pyarrow")
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    writer, count = None, 0
    try:
        for entry, rows in episodes_of(storage_of(source)):
            table = _table(rows, int(entry["id"]))
            if writer is None:
                writer = parquet.ParquetWriter(temporary, table.schema)
            writer.write_table(table, row_group_size=max(len(rows), 1))
            count += 1
    except BaseException:
        if writer is not None:
            writer.close()
        files.unlink(temporary)
        raise
    assert writer is not None
    writer.close()
    files.rename(temporary, path)
    return count


def _table(rows: Batch, episode: int) -> Any:
    arrow = need("pyarrow", "pyarrow")
    columns: dict[str, Any] = {
        "episode": arrow.array(np.full(len(rows), episode, np.int64)),
        "step": arrow.array(np.arange(len(rows), dtype=np.int64)),
    }
    shapes = {}
    for leaf in rows.layout.leaves:
        name, values = ".".join(map(str, leaf.path)), np.asarray(rows[leaf.path])
        flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
        if leaf.shape:
            flat = arrow.FixedSizeListArray.from_arrays(flat, math.prod(leaf.shape))
        columns[name] = flat
        shapes[name] = list(leaf.shape)
    table = arrow.table(columns)
    return table.replace_schema_metadata({"contig.shapes": json.dumps(shapes)})
