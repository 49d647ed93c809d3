"""Rows that can be checked by themselves, items made of them, and what must hold for a storage.

An item is what one append brings: rows of one trajectory. All words of a row are hashes of who
wrote it, which item it is of, and where in it it lies, so a wrong row is found out whatever its
checksum says. A row takes 512 bytes on disk: eight of them are an extent.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from contig import _native
from contig._native import RunFlag
from contig.tape.disk import DiskStorage
from tests.tape.rows import hashed, mixed

WORDS = 53
EXTENT = 8  # rows
FIELDS = ("writer", "item", "size", "pos", "traj", "step")
LONGEST = 11  # rows of an item
SINGLE = 60  # items of this writer and of those above have one row

Tree = dict[str, Any]

_HEADER = struct.Struct("<4sBBHQIIQI")
_RUN = struct.Struct("<IIqqII")
_ITEMS = 4


def words_of(fields: Any, done: Any) -> Any:
    """``[n, WORDS]`` from fields ``[n, 6]`` and done flags ``[n]``."""
    return hashed(fields, done, WORDS)


def rows_of(fields: Any, done: Any) -> Tree:
    return {
        "fields": np.ascontiguousarray(fields, np.int64),
        "words": words_of(fields, done),
        "next": {
            "done": np.asarray(done, bool),
            "terminated": np.asarray(done, bool),
            "reward": np.ones(len(fields), np.float32),
        },
    }


def example() -> Tree:
    one = rows_of(np.zeros((1, 6), np.int64), [False])
    return {
        "fields": one["fields"][0],
        "words": one["words"][0],
        "next": {"done": False, "reward": np.float32(0)},
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
