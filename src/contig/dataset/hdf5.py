"""HDF5 files with arrays of rows, as D4RL has them, both ways. Needs h5py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np

from ..codecs import Codec
from ..errors import LayoutError
from ..keys import FLAGS, NEXT, REWARD, TERMINATED, TRUNCATED
from ..ragged import Blob, Ragged
from ..replay.folder import keep_out_of_storages
from ..tape.disk import files
from ..tree import Path, show_path
from .episodes import Episode, OnEpisode, check_plain_keys, episodes_of, need, nested, storage_of
from .writing_process import WritingProcess, raising_full

__all__ = ["from_hdf5", "to_hdf5"]

_CHUNK_ROWS = 1 << 16
_PLACES: dict[str, Path] = {
    "observations": ("observation",),
    "actions": ("action",),
    "rewards": REWARD,
    "terminals": TERMINATED,
    "timeouts": TRUNCATED,
    "next_observations": ("next", "observation"),
}
_KIND, _INNER, _FIELDS = (
    "contig_kind",
    "contig_inner_shape",
    "contig_fields",
)  # what attributes say: see to_hdf5
_NEEDED = ("observations", "actions", "rewards", "terminals")


def from_hdf5(path: str | FilePath, target: Any) -> int:
    """Appends the trajectories of a file to a storage or a ReplayBuffer, one at a time.

    Rows are cut where `terminals` or `timeouts` are set; the rows behind the last of these are a
    trajectory that was cut (truncated). Other arrays with as many rows are leaves of their own;
    groups are nested dicts. A leaf that the storage has a codec for may also be encoded in the
    file, as rows of bytes of different lengths or padded with zeros to one length: such bytes are
    stored as they are.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: an array is missing, or has another number of rows.
    """
    h5py = need("h5py", "h5py", "hdf5")
    storage = storage_of(target)
    writer = storage.writer()
    try:
        opened = h5py.File(path, "r")
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise LayoutError(f"{path} is damaged, or no HDF5 file: {error}") from error
    with opened as file:
        columns = _columns(h5py, file, str(path), storage.codecs)
        rows = next(iter(columns.values())).shape[0]
        ours = {("fields", *name.split("/")) for name in file.attrs.get(_FIELDS, ())}
        count, start = 0, 0
        while start < rows:
            end = _end_of(columns, start, rows)
            piece: dict[Path, Any] = {p: _rows_of(c, start, end) for p, c in columns.items()}
            for flag in FLAGS[1:]:
                piece.setdefault(("next", flag), np.zeros(end - start, bool))
            if not piece["next", "terminated"][-1].any():
                piece["next", "truncated"][-1] = True
            fields = {p[1:]: piece.pop(p)[-1] for p in list(piece) if p in ours}
            writer.extend_trajectory(nested(piece), fields=nested(fields) or None)
            count, start = count + 1, end
    return count


class _AnySize(NamedTuple):
    """A dataset whose rows have different lengths."""

    dataset: Any
    kind: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape  # type: ignore[no-any-return]

    def rows(self, start: int, end: int) -> Ragged:
        found = self.dataset.asstr()[start:end] if self.kind == "text" else self.dataset[start:end]
        if self.kind == "ragged":
            inner = tuple(int(n) for n in self.dataset.attrs.get(_INNER, ()))
            return Ragged.of([row.reshape(-1, *inner) for row in found])
        return Blob.of([x if isinstance(x, str) else x.tobytes() for x in found], text=None)


class _Encoded(NamedTuple):
    """A dataset whose rows are encoded bytes."""

    dataset: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape  # type: ignore[no-any-return]

    @staticmethod
    def holds(h5py: Any, node: Any, codec: Codec | None) -> bool:
        """Whether a dataset is of that kind: bytes of any length, or padded ones where an image
        should be."""
        if codec is None:
            return False
        if h5py.check_vlen_dtype(node.dtype) == np.uint8 and len(node.shape) == 1:
            return True
        image = codec.kind in ("png", "jpeg", "qoi")
        return image and node.dtype == np.uint8 and len(node.shape) == 2


def _rows_of(column: Any, start: int, end: int) -> Any:
    if isinstance(column, _AnySize):
        return column.rows(start, end)
    if not isinstance(column, _Encoded):
        return np.asarray(column[start:end])
    rows = [row.tobytes() for row in column.dataset[start:end]]
    padded = len(column.shape) == 2  # and no image ends with a zero
    return Blob.of([row.rstrip(b"\0") for row in rows] if padded else rows, text=False)


def _columns(h5py: Any, file: Any, where: str, codecs: Mapping[Path, Codec]) -> dict[Path, Any]:
    check_own_data(file, where)
    for name in _NEEDED:
        if name not in file:
            raise LayoutError(
                f"{where}: no {name}; it has {', '.join(sorted(file)) or 'nothing'}; expected "
                f"{', '.join(_NEEDED)} and, if there are any, timeouts and next_observations"
            )
    rows = file["terminals"].shape[0]
    out: dict[Path, Any] = {}

    def visit(name: str, node: Any) -> None:
        first, *rest = name.split("/")
        path = (*_PLACES.get(first, (first,)), *rest)
        if not isinstance(node, h5py.Dataset):
            return
        if _Encoded.holds(h5py, node, codecs.get(path)):
            node = _Encoded(node)
        elif _KIND in node.attrs:
            node = _AnySize(node, str(node.attrs[_KIND]))
        elif node.dtype.kind not in "biuf":
            return
        aligned = len(node.shape) > 0 and node.shape[0] == rows
        if first in _PLACES and not aligned:
            raise LayoutError(f"{where}: {name} has shape {list(node.shape)}, expected {rows} rows")
        if aligned:
            out[path] = node

    file.visititems(visit)
    return out


def check_own_data(file: Any, where: str) -> None:
    """Raises LayoutError if a part of an HDF5 file lies in other files.

    Links, external storage and virtual datasets name any file of this machine: whoever made such
    a file would have that one read in place of its own data.
    """
    h5py = need("h5py", "h5py", "hdf5")
    groups, seen = [file], set()
    while groups:
        group = groups.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:  # a group may be a member of itself
            continue
        seen.add(address)
        for name in group:
            link = group.get(name, getlink=True)
            path = f"{group.name.rstrip('/')}/{name}"
            if isinstance(link, h5py.SoftLink):
                continue  # leads to another place of this file
            node = None if isinstance(link, h5py.ExternalLink) else group[name]
            if node is None or (
                isinstance(node, h5py.Dataset) and (node.external or node.is_virtual)
            ):
                raise LayoutError(
                    f"{where}: {path} lies in another file; copy its data into this one first "
                    "(h5repack, or h5py's Group.copy with expand_external=True)"
                )
            if isinstance(node, h5py.Group):
                groups.append(node)


def _end_of(columns: dict[Path, Any], start: int, rows: int) -> int:
    """Where the trajectory that begins at `start` ends; reads flags only."""
    at = start
    while at < rows:
        over = np.zeros(min(_CHUNK_ROWS, rows - at), bool)
        for flag in FLAGS[1:]:
            if ("next", flag) in columns:
                over |= columns["next", flag][at : at + len(over)].reshape(-1) != 0
        found = np.flatnonzero(over)
        if len(found):
            return at + int(found[0]) + 1
        at += len(over)
    return rows


def to_hdf5(
    source: Any,
    path: str | FilePath,
    *,
    drop: Collection[str] = (),
    on_episode: OnEpisode | None = None,
) -> int:
    """Writes the complete trajectories of a storage or a ReplayBuffer, one after another.

    Arrays are `observations`, `actions`, `rewards`, `terminals`, `timeouts` and, if there are any,
    `next_observations`; other leaves have their own names, and nested dicts are groups. Leaves of
    any size are rows of different lengths, bytes or text; elements that are arrays themselves are
    flat, and an attribute of the dataset has their shape. Fields of trajectories are arrays below
    `fields`, with the same values in all of a trajectory's rows. The file is there when it is
    complete. A process of its own writes it: the HDF5 library does not survive a full disk.

    Args:
        drop: leaves to leave out, by name.
        on_episode: called with (done, total) after each trajectory.

    Returns:
        how many trajectories.

    Raises:
        LayoutError: a leaf is missing, or one that the format cannot hold.
        StorageFull: the disk is full; nothing is left of the file.
    """
    need("h5py", "h5py", "hdf5")
    path = FilePath(path)
    keep_out_of_storages(path)
    temporary = path.with_name(path.name + ".tmp")
    count = 0
    try:
        with WritingProcess(str(path), _File, str(temporary)) as file:
            for episode in episodes_of(source, drop, on_episode):
                fields = ["/".join(map(str, path)) for path in episode.fields]
                file.write((_named(episode), fields))
                count += 1
            if not count:
                raise LayoutError("all trajectories were evicted before they could be written")
            file.finish()
        with raising_full(str(path)):
            files.sync(temporary)
        files.rename(temporary, path)
    except BaseException:
        files.unlink(temporary)
        raise
    return count


class _File:
    """The file, in the process that writes it."""

    def __init__(self, path: str) -> None:
        self._h5py = need("h5py", "h5py", "hdf5")
        self._file = self._h5py.File(path, "w")

    def write(self, item: tuple[dict[str, Any], list[str]]) -> None:
        columns, fields = item
        _append(self._h5py, self._file, columns)
        self._file.attrs[_FIELDS] = fields

    def close(self) -> None:
        self._file.close()


def _named(episode: Episode) -> dict[str, Any]:
    """Arrays by their names in the file."""
    check_plain_keys(episode.columns, "/", "an HDF5 file")
    episode.check_ends("an HDF5 file of this form")
    columns = dict(episode.columns)
    for path, value in episode.fields.items():
        field = ("fields", *path)
        if any(p[: len(field)] == field or field[: len(p)] == p for p in columns):
            raise LayoutError(
                f"{show_path(field)}: a leaf and a field of trajectories are both called so in an "
                'HDF5 file; rename one, or leave them out with drop=["fields"]'
            )
        columns[field] = np.repeat(value[None], episode.steps, 0)
    if REWARD not in columns and REWARD[1:] in columns:
        columns[REWARD] = columns.pop(REWARD[1:])
    for flag in FLAGS[1:]:
        columns.setdefault((*NEXT, flag), episode.ends(flag))
    out: dict[str, Any] = {}
    came: dict[tuple[Any, ...], Path] = {}  # which leaf a name is of
    for leaf, values in columns.items():
        place = next(((n, p) for n, p in _PLACES.items() if leaf[: len(p)] == p), None)
        keys = leaf if place is None else (place[0], *leaf[len(place[1]) :])
        fits = isinstance(values, Ragged) or bool(values[:1].size)
        if values.dtype.kind not in "biuf" or not fits:
            raise LayoutError(
                f"{show_path(leaf)}: HDF5 cannot hold {_what(values)}; "
                f'convert it, or leave it out with drop=["{".".join(map(str, leaf))}"]'
            )
        other = next((n for n in came if n[: len(keys)] == keys or keys[: len(n)] == n), None)
        if other is not None:
            raise LayoutError(
                f"{show_path(leaf)} and {show_path(came[other])}: both are {keys[0]} in an HDF5 "
                f'file; rename one, or leave it out with drop=["{".".join(map(str, leaf))}"]'
            )
        came[keys] = leaf
        out["/".join(map(str, keys))] = values
    for needed in _NEEDED:
        if not any(name.split("/")[0] == needed for name in out):
            raise LayoutError(
                f"{'.'.join(map(str, _PLACES[needed]))}: missing; an HDF5 file of this form has "
                f"{needed}"
            )
    return out


def _what(values: Any) -> str:
    if isinstance(values, Ragged):
        return f"rows of any number of {values.dtype} {list(values.inner_shape)}"
    return f"{values.dtype} {list(values.shape[1:])}"


def _append(h5py: Any, file: Any, columns: dict[str, Any]) -> None:
    for name, values in columns.items():
        if name not in file:
            _create(h5py, file, name, values)
        stored = file[name]
        before = stored.shape[0]
        stored.resize(before + len(values), 0)
        if isinstance(values, Ragged):
            for i, row in enumerate(values):
                stored[before + i] = _flat(row)
        else:
            stored[before:] = values


def _flat(row: Any) -> Any:
    """A row of any size as the file has it: in one dim, or a str."""
    if isinstance(row, str):
        return row
    return np.frombuffer(row, np.uint8) if isinstance(row, bytes) else row.reshape(-1)


def _create(h5py: Any, file: Any, name: str, values: Any) -> None:
    if not isinstance(values, Ragged):
        rows = max(1, min(1024, (1 << 20) // max(1, values[:1].nbytes)))
        shape = values.shape[1:]
        file.create_dataset(
            name, (0, *shape), values.dtype, maxshape=(None, *shape), chunks=(rows, *shape)
        )
        return
    kind = "ragged"
    dtype = h5py.vlen_dtype(values.dtype)
    if isinstance(values, Blob):
        kind = "text" if values.text else "blob"
        dtype = h5py.string_dtype() if values.text else dtype
    made = file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(1024,))
    made.attrs[_KIND] = kind
    if values.inner_shape:
        made.attrs[_INNER] = values.inner_shape
