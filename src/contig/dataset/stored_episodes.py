"""Episodes that are in files: those of a storage on disk, or of a checkpoint of any storage.

    directory  ->  plan: which episodes there are  ->  read some of them, in any process

Whoever reads needs the directory's path and the plan's entries only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..batch import Batch
from ..codecs import codec_of, decode_rows
from ..errors import CodecError, LayoutError
from ..layout import Layout, Leaf
from ..replay import ReplayBuffer
from ..replay.saved_rows import SavedRows, saved_rows
from ..tape import Storage
from ..tape.disk import DiskStorage, files
from ..tape.entry import ends_of
from ..tape.episodes import IndexTable, with_fields
from ..tape.packed_bytes import Packed
from ..tree import Path
from .episodes import complete

__all__ = ["Plan", "StoredEpisodes", "open_stored", "plan_of", "stored_path"]

Array = np.ndarray[Any, Any]


class Plan(NamedTuple):
    """What there is to read in a directory.

    Attributes:
        path: the directory.
        layout: of its rows.
        entries: complete episodes (see `contig.tape.episodes.EPISODE`), in the order of their rows.
        rows_per_extent: rows of one file.
        stamp: of a checkpoint; another one has another.
    """

    path: str
    layout: Layout
    entries: Array
    rows_per_extent: int
    stamp: int


class StoredEpisodes(Protocol):
    """An opened directory."""

    @property
    def layout(self) -> Layout: ...

    @property
    def fields(self) -> Layout | None:
        """Of trajectories."""

    def entries(self) -> Array:
        """Complete episodes, without those that are set aside as damaged."""

    def columns(self, entry: Array) -> dict[Path, Any] | None:
        """The leaves of one of them, arrays ``[T, ...]`` or a Ragged; None: it was evicted, or is
        damaged."""


def stored_path(source: Any) -> FilePath:
    """The directory of a DiskStorage or of a ReplayBuffer with one, or a path.

    Raises:
        TypeError: it is none of these.
    """
    storage = source.storage if isinstance(source, ReplayBuffer) else source
    if isinstance(storage, DiskStorage):
        if not storage.read_only:
            storage.flush()  # what others read is what is committed
        return storage.path
    if isinstance(storage, (str, FilePath)):
        return FilePath(storage).absolute()
    hint = "; other processes cannot read it: save() it, and give the checkpoint's path"
    raise TypeError(
        f"source: expected a DiskStorage, its directory, or a checkpoint's, got "
        f"{type(source).__name__}{hint if isinstance(storage, Storage) else ''}"
    )


def plan_of(source: Any) -> Plan:
    """Which episodes there are now in a storage on disk or a checkpoint. A checkpoint's files are
    checked, once for all who read.

    Raises:
        LayoutError: there is no complete episode, or a checkpoint is damaged.
        OSError: there is no such directory.
    """
    path = stored_path(source)
    with open_stored(path, verify=True) as stored:
        entries = stored.entries()
        if not len(entries):
            raise LayoutError(f"{path}: there is no complete episode")
        entries = entries[np.argsort(entries["first"], kind="stable")]
        return Plan(str(path), stored.layout, entries, stored.rows_per_extent, stored.stamp)


@contextmanager
def open_stored(
    path: str | FilePath, stamp: int | None = None, verify: bool = False
) -> Iterator[Any]:
    """Opens a directory to read episodes of it.

    Args:
        path: of a storage, which others may write to meanwhile, or of a checkpoint.
        stamp: of the plan; a checkpoint that was replaced since then is refused.
        verify: whether a checkpoint's files are checked.

    Raises:
        FileNotFoundError: there is nothing of that kind.
        LayoutError: it was replaced, or is damaged.
    """
    path = FilePath(path)
    if not files.is_dir(path):
        raise FileNotFoundError(
            f"{path}: no such directory on this machine; expected that of a DiskStorage, or of a "
            "checkpoint, in a place that every node of a cluster can read"
        )
    if not files.exists(path / "layout.json"):
        with saved_rows(path, verify) as saved:
            if stamp is not None and stamp != saved.stamp:
                raise LayoutError(f"{path}: another checkpoint took its place; make a new dataset")
            yield _OfCheckpoint(saved)
        return
    with DiskStorage(path, read_only=True) as storage:
        yield _OfStorage(storage)


class _OfStorage:
    """Episodes of a storage on disk."""

    stamp = 0

    def __init__(self, storage: DiskStorage) -> None:
        assert storage.layout is not None, "a directory with a description has a layout"
        self.layout = storage.layout
        self.rows_per_extent = storage.first_extent_behind(1)
        self.fields = storage.fields
        self._storage = storage

    def entries(self) -> Array:
        return complete(self._storage)

    def columns(self, entry: Array) -> dict[Path, Any] | None:
        try:
            batch = self._storage.read_episode(int(entry["id"]))
        except (KeyError, CodecError):
            return None
        if len(batch) != entry["steps"]:
            return None
        return {leaf.path: batch[leaf.path] for leaf in batch.layout.leaves}


class _OfCheckpoint:
    """Episodes of a checkpoint."""

    def __init__(self, saved: SavedRows) -> None:
        self.layout, self.stamp = saved.layout, saved.stamp
        self.rows_per_extent = saved.rows_per_extent
        self._saved = saved
        runs = saved.contents.entries
        self._order = np.lexsort((runs["number"], runs["ordinal"]))
        self._runs = runs.take(self._order)
        self.fields = saved.fields

    def entries(self) -> Array:
        table = IndexTable(self._runs, self._saved.contents.head, self._saved.contents.tail)
        found = table.episodes()
        fields, records = self._saved.fields, self._saved.contents.fields
        if fields is not None and records is not None:
            found = with_fields(found, fields, records[self._order][table.lasts()])
        return found[found["complete"] & ~np.isin(found["id"], list(self._saved.quarantine))]

    def columns(self, entry: Array) -> dict[Path, Any] | None:
        low, high = np.searchsorted(self._runs["ordinal"], [entry["id"], entry["id"] + 1])
        runs = self._runs[low:high]
        spans = [(int(first), int(end)) for first, end in zip(runs["first"], ends_of(runs))]
        try:
            columns = _read(self._saved, spans)
        except (ValueError, FileNotFoundError):  # damaged
            return None
        return columns if len(next(iter(columns.values()))) == entry["steps"] else None


def _read(saved: SavedRows, spans: list[tuple[int, int]]) -> dict[Path, Any]:
    """The leaves of some rows of a checkpoint."""
    layout, rows = saved.layout, saved.contents.rows
    if rows.places is None:
        records, blobs = np.concatenate([rows.read(*span) for span in spans]), None
    else:
        records, blobs = Packed.joined([rows.pack(*span) for span in spans], rows.places)
    records = records.reshape(-1, layout.record_size)
    batch = Batch.from_records(layout.encoded, records, blobs)
    return {x.path: _decoded(x, batch[x.path]) for x in layout.leaves}


def _decoded(leaf: Leaf, column: Any) -> Any:
    if leaf.codec is None:
        return column
    out = np.empty((len(column), *leaf.shape), leaf.dtype)
    decode_rows(codec_of(leaf.codec), column.values, column.offsets, out, leaf.path)
    return out
