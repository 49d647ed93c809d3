"""What is selected in the browser, as files: the table as CSV or JSON, the rows as NPZ."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from typing import Any

import numpy as np

from ..batch import Batch, stack_batches
from ..convert import as_array
from ..ragged import Blob, Ragged
from .book import Book, read_kept, row_bytes
from .curves import as_json

__all__ = ["FORMATS", "TooLarge", "episode_json", "export"]

Array = np.ndarray[Any, Any]

FORMATS = {"csv": "text/csv", "json": "application/json", "npz": "application/octet-stream"}
_MOST_BYTES = 256 << 20  # of rows in one answer
_MAX_NAME = 200  # characters: file systems take 255 bytes
_WIDE = ("traj_id", "writer")  # 64 bits, more than a number of JSON has in a page


class TooLarge(ValueError):
    """More was selected than one answer may have."""


def episode_json(line: Any) -> dict[str, Any]:
    """One line of `episodes()` as JSON."""
    out: dict[str, Any] = {}
    for name in line.dtype.names:
        value = line[name]
        if name in _WIDE:
            out[name] = str(int(value))
        else:
            out[name] = as_json(np.asarray(value))
    return out


def export(book: Book, chosen: Array, form: str) -> bytes:
    """Some lines of `episodes()` in a format.

    Raises:
        TooLarge: more rows than one answer may have.
        KeyError: an episode that is gone.
    """
    if form == "json":
        return json.dumps([episode_json(line) for line in chosen], indent=1).encode()
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text)
        names = chosen.dtype.names or ()
        writer.writerow([_cell(name) for name in names])
        for line in chosen:
            writer.writerow([_cell(np.asarray(line[n]).tolist()) for n in names])
        return text.getvalue().encode()
    return _npz(book, chosen)


def _cell(value: Any) -> Any:
    """Returns a cell that a spreadsheet shows as it is: text that would be a formula is quoted."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str) and value.lstrip()[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return value


def _npz(book: Book, chosen: Array) -> bytes:
    """One .npz, as `np.load` reads it: an array per leaf, named by its path, with the rows of all
    episodes behind each other; `_episodes`, the table; `_offsets`, where each one's rows begin."""
    nbytes = int(chosen["steps"].sum()) * row_bytes(book.layout)
    if nbytes > _MOST_BYTES:
        raise TooLarge(
            f"{len(chosen)} episodes have {nbytes} bytes, and at most {_MOST_BYTES} are exported "
            "from the page: select fewer, or use `contig export` with a directory"
        )
    read = [_rows(book, number) for number in chosen["id"].tolist()]
    columns = _columns(read)
    more = {"_episodes": chosen, "_offsets": np.cumsum([0, *map(len, read)], dtype=np.int64)}
    for name, array in more.items():
        while name in columns:  # a leaf's
            name = f"_{name}"
        columns[name] = array
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return out.getvalue()


def _rows(book: Book, episode: int) -> Batch:
    return read_kept(book, episode, lambda kept: book.read(kept, np.arange(kept.first, kept.end)))


def _entry_name(path: tuple[Any, ...]) -> str:
    """Returns a leaf's name in the archive, which leads nowhere when the archive is unpacked."""
    name = ".".join(str(key) for key in path)
    name = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in name)
    return name.lstrip(".")[:_MAX_NAME] or "_"


def _columns(read: list[Batch]) -> dict[str, Array]:
    """The leaves of some episodes: their rows behind each other."""
    if not read:
        return {}
    rows, out = stack_batches(read), dict[str, Array]()
    for leaf in rows.layout.leaves:
        name = _entry_name(leaf.path)
        while name in out or f"{name}.values" in out:
            name = f"{name}_"
        column = rows[leaf.path]
        if isinstance(column, (Blob, Ragged)):
            out[f"{name}.values"], out[f"{name}.offsets"] = column.values, column.offsets
        else:
            out[name] = as_array(column)
    return out
