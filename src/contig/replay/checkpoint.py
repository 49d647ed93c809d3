"""Checkpoints: a directory with everything a buffer is, and no pickle.

    checkpoint.json   format, layout, keys, bounds, random numbers, sampler, limiter counters;
                      size and CRC-32 of every other file
    records.bin       the rows, as they lie on the tape; of a storage on disk instead
    slots.bin         observations that are stored once, if rows refer to some (see `saved_once`)
    extents/          its files, linked, each row with its checksum
    index.bin         the index's live entries, 16 little-endian words each
    fields.bin        a record for each of them, if trajectories have fields
    blobs.bin         bytes of leaves of any size, if rows have some, by position
    array-N.npy       arrays of the sampler's state

Made under a temporary name, synced, then put in its place: a checkpoint is whole or not there
(see `folder`).
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Iterator
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
from ..tape.fields import check_fields, fields_layout
from .folder import Kind, new_directory, reading
from .saved_bytes import read_bytes, save_bytes
from .saved_once import RECORDS_FILE, mapped, read_once, save_once
from .state_files import FilesWithSums, decode, encode, file_pieces

__all__ = [
    "META",
    "Saved",
    "load",
    "read_contents",
    "read_layouts",
    "read_meta",
    "read_saved",
    "save",
    "verify",
    "write",
]

log = logging.getLogger("contig.replay")

# 1: without salts in what is linked, sampler states by slot; read as well. 3: with fields of
# trajectories, or leaves of any size; others are written as 2, for contigs that know neither.
# 4: linked rows whose observations are stored once. 5: the same of rows in memory.
FORMAT = 5
_CHUNK_BYTES = 16 << 20
_VERIFIED_BYTES = 1 << 20  # giving larger pieces back holds the interpreter's lock for milliseconds


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
        write(buffer, folder)


def write(buffer: Saveable, folder: Path) -> None:
    """Makes a directory a checkpoint of a buffer."""
    out = FilesWithSums(folder)
    meta = _save_rows(buffer.storage, out)
    layout = buffer.storage.layout
    any_size = layout is not None and bool(layout.variable)
    meta["format"] = 3 if "fields" in meta or any_size else 2
    if (meta["extents"] or {}).get("slots") is not None:
        meta["format"] = 4
    if "shared" in meta:
        meta["format"] = 5
    arrays: list[np.ndarray[Any, Any]] = []
    meta["sampler"] = buffer.sampler.name
    meta["state"] = encode(buffer.state(), arrays)
    meta["limiter"] = _counters(buffer.storage, meta["head"])
    for i, array in enumerate(arrays):
        out.write(f"array-{i}.npy", file_pieces(array))
    meta["files"] = out.sums
    out.write(META, [json.dumps(meta).encode()])


def _fault(path: Path) -> str | None:
    """Why a directory is no checkpoint, or None."""
    try:
        meta = json.loads(files.read(path / META))
    except (OSError, ValueError):
        return f"there is no {META} that can be read"
    if not (isinstance(meta, dict) and {"format", "sampler", "files"} <= meta.keys()):
        return f"{META} there is not that of a checkpoint"
    return None


META = "checkpoint.json"
_KIND = Kind(
    "a checkpoint of a ReplayBuffer",
    META,
    re.compile(
        rf"{re.escape(META)}|records\.bin|slots\.bin|index\.bin|fields\.bin|blobs\.bin|array-\d+\.npy"
        r"|extents/|extents/\d{8,}\.(rec|bin)(\.tmp)?"
    ),
    _fault,
)


def _counters(storage: Storage, head: int) -> dict[str, int]:
    """The limiter's counters as they were when `head` was the tape's."""
    with storage.held():
        since = int(storage.tape.snapshot()[0]) - head
        return {
            "inserted": max(int(storage.tape.inserted) - since, 0),
            "sampled": int(storage.tape.sampled),
        }


def _save_rows(storage: Storage, out: FilesWithSums) -> dict[str, Any]:
    saved = _try_rows(storage, out)
    if saved["tail"] == saved["head"] and len(storage):
        with storage.held(files=True):  # writers turned the whole ring meanwhile
            saved = _try_rows(storage, out)
    return saved


def _try_rows(storage: Storage, out: FilesWithSums) -> dict[str, Any]:
    schema = storage.schema
    if schema is None:
        raise EmptyBufferError("cannot save a buffer to which nothing was ever written")
    table = read_index(storage.tape)
    entries = table.by_number()
    ends = ends_of(entries)
    head = int(ends.max()) if len(entries) else table.head
    # Before the rows: of what is evicted meanwhile, neither is kept.
    numbers = np.ascontiguousarray(entries["number"])
    fields = None if schema.fields is None else storage.tape.fields_of(numbers)
    first = min(table.tail, head)
    more: dict[str, Any] = {} if schema.fields is None else {"fields": schema.fields.to_json()}
    linked = storage.link_rows(out.directory, first, head)
    if linked is None:
        tails = [first]
        sharing = save_once(storage, first, head, tails, out)
        if sharing is None:
            out.write(RECORDS_FILE, _chunks(storage, first, head, tails))
        else:
            more["shared"] = sharing.to_json()
        if schema.layout.variable:
            more["blob_first"] = save_bytes(storage, head, tails, out.write)
    else:
        tails = [int(storage.tape.snapshot()[1])]
    tail = min(max(tails), head)
    is_saved = ends > tail
    if not is_saved.all():
        entries = entries.compress(is_saved)
    out.write("index.bin", [entries.view(np.uint8).data])
    if fields is not None:
        out.write("fields.bin", [np.ascontiguousarray(fields[is_saved]).reshape(-1).data])
    return {
        "layout": schema.layout.to_json(),
        **more,
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
        tails.append(storage.read_records(seqs, chunk))
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
    with reading(path, META) as found:
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
    if schema is not None or storage.fields is not None:
        check_fields(storage.fields, saved.fields, f"{path}: ")
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
        storage.restore(contents, counters, saved.layout, saved.keys, saved.fields)
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
    fields: Layout | None
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
    meta = read_meta(path)
    verify(path, meta["files"])
    if meta["sampler"] != sampler:
        raise LayoutError(
            f"{path}: saved with {meta['sampler']}, this buffer has {sampler}; load it into a "
            "buffer with the same sampler"
        )
    try:
        layout, fields = read_layouts(meta)
    except LayoutError as error:
        raise ValueError(str(error)) from None
    counters = (meta["limiter"]["inserted"], meta["limiter"]["sampled"])
    if min(counters) < 0:
        raise ValueError(f"its counters {counters} make no sense")
    return Saved(
        layout=layout,
        fields=fields,
        keys=(meta["keys"]["traj_key"], meta["keys"]["end_key"]),
        contents=read_contents(path, meta, layout, fields),
        quarantine={int(o): str(reason) for o, reason in meta.get("quarantine", {}).items()},
        counters=counters,
        state=decode(meta["state"], path),
    )


def read_layouts(meta: dict[str, Any]) -> tuple[Layout, Layout | None]:
    """Of rows, and of fields of trajectories, if there are any."""
    layout, fields = Layout.from_json(meta["layout"]), meta.get("fields")
    return layout, None if fields is None else fields_layout(Layout.from_json(fields))


def read_contents(
    path: Path, meta: dict[str, Any], layout: Layout, fields: Layout | None
) -> Snapshot:
    record_size = layout.record_size
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
        rows: Any = LinkedRows.saved(path / "extents", layout, linked)
    elif meta.get("shared") is not None:
        rows = read_once(path, meta, layout)
    else:
        if meta["files"][RECORDS_FILE][0] != (head - first) * record_size:
            raise ValueError(f"{RECORDS_FILE} does not have the rows it should have")
        # Mapped, so that only what fits is read.
        records = mapped(path / RECORDS_FILE, (head - first) * record_size)
        blobs = read_bytes(path, meta, layout) if layout.variable else None
        rows = PackedRows(records, first, record_size, blobs)
    given = None
    if fields is not None:
        given = np.frombuffer(files.read(path / "fields.bin"), np.uint8)
        given = given.reshape(len(entries), fields.record_size)
    return Snapshot(rows, tail, head, entries, meta["trajectories"], given)


def read_meta(path: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads(files.read(path / META))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no checkpoint (no {META}) there") from None
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


def verify(path: Path, sums: dict[str, list[int]]) -> None:
    """Raises unless every file is there as it was written."""
    for name, (size, crc) in sums.items():
        found = found_crc = 0
        try:
            for piece in files.read_pieces(path / name, _VERIFIED_BYTES):
                found += len(piece)
                found_crc = zlib.crc32(piece, found_crc)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: {name} is missing from the checkpoint") from None
        if (found, found_crc) != (size, crc):
            raise LayoutError(
                f"{path}: {name} is damaged ({found} bytes, expected {size}, or other contents)"
            )
