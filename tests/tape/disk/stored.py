"""Rows that can be checked by themselves, items made of them, and what must hold for a storage.

An item is what one append brings: rows of one trajectory. All words of a row are hashes of who
wrote it, which item it is of, and where in it it lies, so a wrong row is found out whatever its
checksum says. A row takes 512 bytes on disk: eight of them are an extent.

`any_size` gives rows two leaves of any size as well, whose bytes are hashes, too; `shared` an
observation, which is also the next one of the row before.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import contig
from contig import _native
from contig._native import RunFlag
from contig.tape.disk import DiskStorage
from tests.tape.rows import hashed, mixed

WORDS = 53
EXTENT = 8  # rows
FIELDS = ("writer", "item", "size", "pos", "traj", "step")
LONGEST = 11  # rows of an item
SINGLE = 60  # items of this writer and of those above have one row

MOST_BYTES = 700  # of a row in leaves of any size

Tree = dict[str, Any]

_HEADER = struct.Struct("<4sBBHQIIQI")
_RUN = struct.Struct("<IIqqII")
_ITEMS = 4


OBS_WORDS = 17  # not a part of a page: some lie in two files

_sizes = False
_shared = False


@contextlib.contextmanager
def any_size(on: bool = True) -> Iterator[None]:
    """Meanwhile, rows have leaves of any size; they take as many bytes without these."""
    global _sizes
    before, _sizes = _sizes, on
    try:
        yield
    finally:
        _sizes = before


def has_any_size() -> bool:
    return _sizes


@contextlib.contextmanager
def shared(on: bool = True) -> Iterator[None]:
    """Meanwhile, rows have observations, stored once; they take as many bytes without these."""
    global _shared
    before, _shared = _shared, on
    try:
        yield
    finally:
        _shared = before


def has_shared() -> bool:
    return _shared


def obs_of(fields: Any) -> Any:
    """``[n, OBS_WORDS]``, of a trajectory's step."""
    of = np.array(fields, np.int64)
    of[:, 1:4] = 0
    return hashed(of, np.zeros(len(of), bool), OBS_WORDS)


def next_obs_of(fields: Any, done: Any) -> Any:
    """Those of the steps behind: in a trajectory that goes on, of the next item's first row."""
    of = np.array(fields, np.int64)
    last = (of[:, 3] == of[:, 2] - 1) & ~np.asarray(done, bool).reshape(-1)
    of[:, 5] = np.where(last, (of[:, 5] // 100 + 1) * 100, of[:, 5] + 1)
    return obs_of(of)


def words_of(fields: Any, done: Any) -> Any:
    """``[n, WORDS]`` from fields ``[n, 6]`` and done flags ``[n]``."""
    return hashed(fields, done, WORDS - 5 if _sizes or _shared else WORDS)


def blob_of(fields: Any) -> bytes:
    """What a row has in its leaf of any size, from its own six numbers."""
    return _values(tuple(fields.tolist()))[0]


def tokens_of(fields: Any) -> Any:
    return _values(tuple(fields.tolist()))[1]


@functools.lru_cache(1 << 14)
def _values(fields: tuple[int, ...]) -> tuple[bytes, Any]:
    chosen = np.random.default_rng([x & 0xFFFFFFFF for x in fields])
    blob = chosen.bytes(int(chosen.choice([0, 1, 7, 64, 300, MOST_BYTES - 40])))
    return blob, chosen.integers(0, 1 << 30, int(chosen.integers(0, 10)), np.int32)


def bytes_of(fields: Any) -> int:
    """Of the leaves of any size of rows ``[n, 6]``."""
    return sum(len(blob_of(f)) + 4 * len(tokens_of(f)) for f in fields)


def rows_of(fields: Any, done: Any) -> Tree:
    more = {}
    if _sizes:
        more = {
            "blob": [blob_of(f) for f in fields],
            "tokens": contig.Ragged.of([tokens_of(f) for f in fields]),
        }
    below = {}
    if _shared:
        more, below = {"obs": obs_of(fields)}, {"obs": next_obs_of(fields, done)}
    return {
        **more,
        "fields": np.ascontiguousarray(fields, np.int64),
        "words": words_of(fields, done),
        "next": {
            **below,
            "done": np.asarray(done, bool),
            "terminated": np.asarray(done, bool),
            "reward": np.ones(len(fields), np.float32),
        },
    }


def example() -> Tree:
    one = rows_of(np.zeros((1, 6), np.int64), [False])
    more: Tree = {"blob": contig.Blob(), "tokens": contig.Ragged(np.int32)} if _sizes else {}
    below: Tree = {}
    if _shared:
        more, below = {"obs": one["obs"][0]}, {"obs": one["next"]["obs"][0]}
    return {
        **more,
        "fields": one["fields"][0],
        "words": one["words"][0],
        "next": {**below, "done": False, "reward": np.float32(0)},
    }


def item(writer: int, number: int, part_of: int = 1) -> Tree:
    """Item `number` of a writer, always the same; `part_of` items make a trajectory."""
    size = 1 + int(mixed(np.array([writer << 32 | number], np.uint64))[0] % np.uint64(LONGEST))
    if writer >= SINGLE:
        size = 1
    traj, part = divmod(number, part_of)
    fields = np.zeros((size, 6), np.int64)
    fields[:, 0], fields[:, 1], fields[:, 2], fields[:, 3] = writer, number, size, np.arange(size)
    fields[:, 4], fields[:, 5] = traj, part * 100 + np.arange(size)
    done = np.zeros(size, bool)
    done[-1] = part == part_of - 1
    return rows_of(fields, done)


def first_row(rows: Tree) -> Tree:
    return {
        k: first_row(v) if isinstance(v, dict) else v[0] for k, v in rows.items()
    }  # as `add` takes it


def frame(storage: DiskStorage, producer: int, first: int, count: int, part_of: int) -> bytes:
    """A wire frame with items of a producer."""
    layout = storage.layout
    assert layout is not None
    runs, records = b"", b""
    total = 0
    for number in range(first, first + count):
        rows = item(producer, number, part_of)
        n = len(rows["fields"])
        packed = np.zeros((n, layout.record_size), np.uint8)
        for leaf in layout.leaves:
            value = rows
            for key in leaf.path:
                value = value.get(key, np.zeros((n, *leaf.shape), leaf.dtype))  # type: ignore
            data = np.ascontiguousarray(value, leaf.dtype).reshape(n, -1).view(np.uint8)
            packed[:, leaf.offset : leaf.offset + data.shape[1]] = data
        flags = RunFlag.BEGINS if number % part_of == 0 else 0
        flags |= RunFlag.TERMINATED if rows["next"]["done"][-1] else 0
        runs += _RUN.pack(n, flags, number // part_of, -1, 0, 0)
        records += packed.tobytes()
        total += n
    body = runs + records
    crc = _native.crc32c(body)
    head = _HEADER.pack(b"cFrm", _ITEMS, 0, 0, first, count, total, len(body), crc)
    return head + struct.pack("<I", _native.crc32c(head)) + body


def received(data: bytes, record_size: int) -> Any:
    receiver = _native.Receiver(1 << 16, 1 << 20)
    receiver.feed(data)
    receiver.next()
    receiver.check_items(record_size, True)
    return receiver


# -- checks ----------------------------------------------------------------------------------------


def contents(storage: DiskStorage) -> tuple[Any, Any]:
    """Fields of all rows of [tail, head), and which of them were served. Wrong ones are errors."""
    head, tail, _, _ = storage.tape.snapshot()
    seqs = np.arange(tail, head, dtype=np.int64)
    if not len(seqs):
        return np.zeros((0, 6), np.int64), np.zeros(0, bool)
    batch, lost = storage.gather(seqs)
    gone = lost if isinstance(lost, np.ndarray) else seqs < lost
    fields, words = np.asarray(batch["fields"]), np.asarray(batch["words"])
    wrong = ~gone & (words != words_of(fields, np.asarray(batch["next", "done"]))).any(1)
    assert not wrong.any(), f"a wrong row is served: seq {seqs[wrong]}, {fields[wrong][0]}"
    if ("blob",) in storage.layout.by_path:
        blobs, tokens = batch["blob"], batch["tokens"]
        for i in np.flatnonzero(~gone):
            right = blobs[i] == blob_of(fields[i])
            assert right and np.array_equal(tokens[i], tokens_of(fields[i])), f"seq {seqs[i]}"
    if ("obs",) in storage.layout.by_path:
        following = next_obs_of(fields, batch["next", "done"])
        wrong = (np.asarray(batch["obs"]) != obs_of(fields)).any(1)
        wrong |= (np.asarray(batch["next", "obs"]) != following).any(1)
        assert not (wrong & ~gone).any(), f"wrong observations: seq {seqs[wrong & ~gone]}"
    return fields, ~gone


def check_order(fields: Any, served: Any, tail: int) -> dict[int, tuple[int, int]]:
    """Whole items, each once, those of a writer in order; (first, last) of each writer."""
    seen: dict[int, tuple[int, int]] = {}
    at = 0
    while at < len(fields):
        if not served[at]:
            at += 1
            continue
        writer, number, size, pos = (int(v) for v in fields[at, :4])
        assert pos == 0 or (at == 0 and tail > 0) or not served[at - 1], f"row {tail + at}: {pos=}"
        n = size - pos
        rows = fields[at : at + n]
        there = served[at : at + n]
        if there.all():
            assert len(rows) == n, f"item {number} of {writer}: {len(rows)} of {n} rows"
            whole = (rows[:, 0] == writer) & (rows[:, 1] == number)
            whole &= rows[:, 3] == np.arange(pos, size)
            assert whole.all(), f"a part of item {number} of {writer}"
        if writer in seen and served.all():
            last = seen[writer][1]
            assert number == last + 1, f"item {number} of {writer} after {last}"
        seen[writer] = (seen.get(writer, (number, 0))[0], number)
        at += n
    return seen


def check_episodes(storage: DiskStorage) -> None:
    """Every trajectory's rows are its steps, in order."""
    for episode in storage.episodes():
        if int(episode["id"]) in storage.quarantined:
            continue
        try:
            batch = storage.read_episode(int(episode["id"]))
        except KeyError:
            assert not contents(storage)[1].all(), "all rows are there, but not of an episode"
            continue
        fields = np.asarray(batch["fields"])
        assert len(fields) == episode["steps"]
        assert len(np.unique(fields[:, [0, 4]], axis=0)) == 1, f"several trajectories: {fields}"
        order = fields[:, 5]
        # Within an item steps go up by one; between items, which have different sizes, they jump.
        ok = (np.diff(order) == 1) | ((np.diff(fields[:, 1]) == 1) & (order[1:] % 100 == 0))
        assert ok.all(), f"steps {order}"


def sizes(path: Path) -> dict[str, int]:
    return {str(f.relative_to(path)): f.stat().st_size for f in path.rglob("*") if f.is_file()}


def contents_while_written(storage: DiskStorage) -> tuple[Any, int]:
    """As `contents`, of a storage that changes: the rows that were served, and how many."""
    storage.poll()
    fields, served = contents(storage)
    return fields[served], int(served.sum())


def check_batch(batch: Any) -> None:
    """Sampled rows are as they were written; a slice's end may be marked as one."""
    fields, words = np.asarray(batch["fields"]), np.asarray(batch["words"])
    done = np.asarray(batch["next", "done"])
    good = (words == words_of(fields, done)).all(1)
    good |= (words == words_of(fields, np.zeros_like(done))).all(1)
    assert good.all(), f"wrong rows: {fields[~good]}"
    if _shared:
        assert np.array_equal(batch["obs"], obs_of(fields))
        following = np.asarray(batch["next", "obs"])
        right = [(following == next_obs_of(fields, np.full(len(fields), d))).all(1) for d in (0, 1)]
        assert np.logical_or(*right).all()
    for i in range(len(fields) if _sizes else 0):
        assert batch["blob"][i] == blob_of(fields[i]), f"row {i}"
        assert np.array_equal(batch["tokens"][i], tokens_of(fields[i])), f"row {i}"
