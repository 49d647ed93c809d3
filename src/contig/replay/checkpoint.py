"""Checkpoints: a directory with everything a buffer is, and no pickle.

    checkpoint.json   format, layout, keys, bounds, random numbers, sampler, limiter counters;
                      size and CRC-32 of every other file
    records.bin       the rows, as they lie on the tape; of a storage on disk instead
    extents/          its files, linked, each row with its checksum
    index.bin         the index's live entries, 16 little-endian words each
    array-N.npy       arrays of the sampler's state

Made under a temporary name, synced, then put in its place: a checkpoint is whole or not there
(see `folder`).
"""

from __future__ import annotations

import io
import json
import logging
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import EmptyBufferError, LayoutError
from ..layout import Layout
from ..tape import PackedRows, Snapshot, Storage
from ..tape.disk import DiskStorage, files
from ..tape.disk.linked_rows import LinkedRows
from ..tape.entry import ENTRY, ends_of
from ..tape.episodes import read_index
from .folder import Kind, new_directory, reading

__all__ = ["Saved", "load", "read_saved", "save"]

log = logging.getLogger("contig.replay")

FORMAT = 2  # 1: without salts in what is linked, sampler states by slot; read as well
_CHUNK_BYTES = 16 << 20


class Saveable(Protocol):
    """A buffer, as far as a checkpoint knows it."""

    @property
    def storage(self) -> Storage: ...

    @property
    def sampler(self) -> Any: ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: dict[str, Any], /) -> None: ...


def save(buffer: Saveable, path: Path) -> None:
    """Writes a checkpoint of a buffer. Lock-free: writers go on; rows they evict are left out.

    Raises:
        FileExistsError: something else than a checkpoint is there.
    """
    live = [buffer.storage.path] if isinstance(buffer.storage, DiskStorage) else []
    with new_directory(path, _KIND, live) as folder:
        out = _Files(folder)
        meta = {"format": FORMAT, **_save_rows(buffer.storage, out)}
        arrays: list[np.ndarray[Any, Any]] = []
        meta["sampler"] = buffer.sampler.name
        meta["state"] = _encode(buffer.state(), arrays)
        meta["limiter"] = _counters(buffer.storage, meta["head"])
        for i, array in enumerate(arrays):
            image = io.BytesIO()
            np.save(image, array, allow_pickle=False)
            out.write(f"array-{i}.npy", [image.getbuffer()])
        meta["files"] = out.sums
        out.write(_META, [json.dumps(meta).encode()])


def _fault(path: Path) -> str | None:
    """Why a directory is no checkpoint, or None."""
    try:
        meta = json.loads(files.read(path / _META))
    except (OSError, ValueError):
        return f"there is no {_META} that can be read"
    if not (isinstance(meta, dict) and {"format", "sampler", "files"} <= meta.keys()):
        return f"{_META} there is not that of a checkpoint"
    return None


_META = "checkpoint.json"
_KIND = Kind(
    "a checkpoint of a ReplayBuffer",
    _META,
    re.compile(
        rf"{re.escape(_META)}|records\.bin|index\.bin|array-\d+\.npy"
        r"|extents/|extents/\d{8,}\.rec(\.tmp)?"
    ),
    _fault,
)


class _Files:
    """Writes files of a directory, synced, and keeps their sizes and checksums."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sums: dict[str, list[int]] = {}

    def write(self, name: str, pieces: Iterable[Any]) -> None:
        size = crc = 0
        fd = files.create(self.directory / name, 0)
        try:
            for piece in pieces:
                crc = zlib.crc32(piece, crc)
                size = files.pwrite_all(fd, piece, size)
            files.fsync(fd)
        finally:
            files.close(fd)
        self.sums[name] = [size, crc]


def _counters(storage: Storage, head: int) -> dict[str, int]:
    """The limiter's counters as they were when `head` was the tape's."""
    with storage.held():
        since = int(storage.tape.snapshot()[0]) - head
        return {
            "inserted": max(int(storage.tape.inserted) - since, 0),
            "sampled": int(storage.tape.sampled),
        }


def _save_rows(storage: Storage, out: _Files) -> dict[str, Any]:
    saved = _try_rows(storage, out)
    if saved["tail"] == saved["head"] and len(storage):
        with storage.held():  # writers turned the whole ring meanwhile
            saved = _try_rows(storage, out)
    return saved


def _try_rows(storage: Storage, out: _Files) -> dict[str, Any]:
    schema = storage.schema
    if schema is None:
        raise EmptyBufferError("cannot save a buffer to which nothing was ever written")
    table = read_index(storage.tape)
    entries = table.by_number()
    ends = ends_of(entries)
    head = int(ends.max()) if len(entries) else table.head
    first = min(table.tail, head)
    linked = storage.link_rows(out.directory, first, head)
    if linked is None:
        tails = [first]
        out.write("records.bin", _chunks(storage, first, head, tails))
    else:
        tails = [int(storage.tape.snapshot()[1])]
    tail = min(max(tails), head)
    out.write("index.bin", [entries.compress(ends > tail).view(np.uint8).data])
    return {
        "layout": schema.layout.to_json(),
        "keys": schema.boundaries.to_json(),
        "file_first": first,
        "tail": tail,
        "head": head,
        "trajectories": int(storage.tape.trajectories),
        "extents": linked,
        "quarantine": {str(o): reason for o, reason in storage.quarantined.items()},
    }


def _chunks(storage: Storage, first: int, head: int, tails: list[int]) -> Iterator[Any]:
    """Records of rows [first, head); notes below which seq rows were evicted meanwhile."""
    assert storage.layout is not None
    size = storage.layout.record_size
    step = max(_CHUNK_BYTES // size, 1)
    for at in range(first, head, step):
        seqs = np.arange(at, min(at + step, head), dtype=np.int64)
        chunk = np.empty(len(seqs) * size, np.uint8)
        tails.append(int(storage.tape.gather_records(seqs, chunk)))
        yield chunk.data


def load(buffer: Saveable, path: Path, shard: tuple[int, int] = (0, 1)) -> None:
    """Takes a checkpoint in, in place of what the buffer holds. A failed load changes nothing.

    Args:
        shard: (rank, world size): with more than one rank, each gets its share of the
            trajectories, and its sampler starts anew.

    Raises:
        FileNotFoundError: no checkpoint there, or not all of it.
        LayoutError: the buffer has another layout or sampler, or the checkpoint is damaged.
    """
    rank, world_size = shard
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: expected 0 <= rank < world_size")
    with reading(path, _META) as found:
        _load(buffer, found, rank, world_size)


def _load(buffer: Saveable, path: Path, rank: int, world_size: int) -> None:
    try:
        saved = read_saved(path, buffer.sampler.name)
        contents, renumbered = _wanted(saved, path, buffer.storage, rank, world_size)
    except (FileNotFoundError, NotADirectoryError, LayoutError):
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, OSError) as error:
        raise LayoutError(f"{path}: the checkpoint is damaged: {error!r}") from error
    storage, schema = buffer.storage, buffer.storage.schema
    if schema is not None and schema.layout != saved.layout:
        raise LayoutError(
            f"{path}: another layout than the buffer's:\n{schema.layout.diff(saved.layout)}"
        )
    before, restored = buffer.state(), storage.restored

    def settle() -> None:
        if renumbered:
            buffer.sampler.reset()
        if world_size > 1:  # ranks draw different batches
            seeds = np.random.SeedSequence([*buffer.state()["rng"], rank])
            words = [int(w) for w in seeds.generate_state(4, np.uint64)]
            buffer.load_state({**buffer.state(), "rng": words})

    try:
        buffer.load_state(saved.state)
        counters = saved.counters if world_size == 1 else (contents.head, 0)
        storage.restore(contents, counters, saved.layout, saved.keys)
    except BaseException as error:
        if storage.restored == restored:
            buffer.load_state(before)  # the rows are as they were, so the sampler is
        else:  # an interrupt that came when they were not any more
            settle()
        if isinstance(error, (KeyError, TypeError, ValueError, IndexError, AttributeError)):
            raise LayoutError(f"{path}: cannot be loaded: {error!r}") from error
        raise
    settle()


class Saved(NamedTuple):
    """A checkpoint, read and checked."""

    layout: Layout
    keys: tuple[Any, Any]
    contents: Snapshot
    quarantine: dict[int, str]
    counters: tuple[int, int]
    state: dict[str, Any]


def _wanted(
    saved: Saved, path: Path, storage: Storage, rank: int, world_size: int
) -> tuple[Snapshot, bool]:
    """What of it this buffer takes, and whether rows get other seqs than they had."""
    contents = saved.contents
    ordinals = contents.ordinals()
    if saved.quarantine:
        log.warning("%s: %d damaged trajectories are left out", path, len(saved.quarantine))
        ordinals = ordinals[~np.isin(ordinals, list(saved.quarantine))]
    # The first ranks get one more if the numbers do not divide.
    ordinals = np.array_split(ordinals, world_size)[rank]
    renumbered = len(ordinals) < len(contents.ordinals())
    if renumbered:
        contents = contents.only(ordinals.tolist())
    return contents.newest(storage.capacity), renumbered


def read_saved(path: Path, sampler: str) -> Saved:
    """Reads and checks a checkpoint of a buffer with such a sampler."""
    meta = _read_meta(path)
    _verify(path, meta["files"])
    if meta["sampler"] != sampler:
        raise LayoutError(
            f"{path}: saved with {meta['sampler']}, this buffer has {sampler}; load it into a "
            "buffer with the same sampler"
        )
    try:
        layout = Layout.from_json(meta["layout"])
    except LayoutError as error:
        raise ValueError(str(error)) from None
    counters = (meta["limiter"]["inserted"], meta["limiter"]["sampled"])
    if min(counters) < 0:
        raise ValueError(f"its counters {counters} make no sense")
    return Saved(
        layout=layout,
        keys=(meta["keys"]["traj_key"], meta["keys"]["end_key"]),
        contents=_read_contents(path, meta, layout.record_size),
        quarantine={int(o): str(reason) for o, reason in meta.get("quarantine", {}).items()},
        counters=counters,
        state=_decode(meta["state"], path),
    )


def _read_contents(path: Path, meta: dict[str, Any], record_size: int) -> Snapshot:
    first, tail, head = meta["file_first"], meta["tail"], meta["head"]
    if not 0 <= first <= tail <= head < 2**63:
        raise ValueError(f"its bounds {first}, {tail}, {head} make no sense")
    entries = np.frombuffer(files.read(path / "index.bin"), ENTRY)
    ends = ends_of(entries)
    if len(entries) and (
        np.any(np.diff(entries["number"]) != 1)
        or entries["number"][0] < 0
        or np.any(ends[:-1] != entries["first"][1:])
        or ends[-1] != head
        or not entries["ordinal"].max() < meta["trajectories"]
    ):
        raise ValueError("its runs are not in order")
    if bool(len(entries)) != (head > tail):
        raise ValueError("it has rows without runs, or runs without rows")
    linked = meta.get("extents")
    if linked is not None:
        rows: Any = LinkedRows(
            path / "extents",
            record_size,
            int(linked["stride"]),
            int(linked["rows_per_extent"]),
            linked.get("salts", ()),
        )
    else:
        if meta["files"]["records.bin"][0] != (head - first) * record_size:
            raise ValueError("records.bin does not have the rows it should have")
        # Mapped, so that only what fits is read; nothing has no mapping.
        nothing: Any = np.zeros(0, np.uint8)
        mapped = files.mapped(path / "records.bin") if head > first else nothing
        rows = PackedRows(np.asarray(mapped), first, record_size)
    return Snapshot(rows, tail, head, entries, meta["trajectories"])


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads(files.read(path / _META))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no checkpoint (no {_META}) there") from None
    except NotADirectoryError:
        raise NotADirectoryError(
            f"{path}: a file, expected the directory that a buffer's save() wrote"
        ) from None
    if meta["format"] not in range(1, FORMAT + 1):
        raise LayoutError(
            f"{path}: format {meta['format']}, this contig reads formats up to {FORMAT}; use a "
            "newer one"
        )
    return meta


def _verify(path: Path, sums: dict[str, list[int]]) -> None:
    """Raises unless every file is there as it was written."""
    for name, (size, crc) in sums.items():
        found = found_crc = 0
        try:
            for piece in files.read_pieces(path / name, _CHUNK_BYTES):
                found += len(piece)
                found_crc = zlib.crc32(piece, found_crc)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: {name} is missing from the checkpoint") from None
        if (found, found_crc) != (size, crc):
            raise LayoutError(
                f"{path}: {name} is damaged ({found} bytes, expected {size}, or other contents)"
            )


def _encode(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"__array__": len(arrays) - 1}
    if isinstance(value, dict):
        return {k: _encode(v, arrays) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(v, arrays) for v in value]
    return value


def _decode(value: Any, path: Path) -> Any:
    if isinstance(value, dict):
        if set(value) == {"__array__"}:
            image = files.read(path / f"array-{int(value['__array__'])}.npy")
            return np.load(io.BytesIO(image), allow_pickle=False)
        return {k: _decode(v, path) for k, v in value.items()}
    if isinstance(value, list):
        return [_decode(v, path) for v in value]
    return value
