"""Checkpoints: a directory with everything a buffer is, and no pickle.

    checkpoint.json   format, layout, keys, bounds, random numbers, sampler, limiter counters
    records.bin       the rows, as they lie on the tape
    index.bin         the index's live entries, 16 little-endian words each
    array-N.npy       arrays of the sampler's state

Made under a temporary name, synced, then renamed: a checkpoint is whole or not there.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..errors import EmptyBufferError, LayoutError
from ..layout import Layout
from ..tape import Storage
from ..tape.episodes import BEFORE, FIRST, NUMBER, STEPS_FLAGS, read_index

if TYPE_CHECKING:
    from .buffer import ReplayBuffer

__all__ = ["save", "load"]

FORMAT = 1
_CHUNK_BYTES = 16 << 20


def save(buffer: ReplayBuffer, path: Path) -> None:
    """Writes a checkpoint of a buffer. Lock-free: writers go on; rows they evict are left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.mkdir()
    try:
        meta = {"format": FORMAT, **_save_rows(buffer.storage, temporary)}
        arrays: list[np.ndarray[Any, Any]] = []
        meta["state"] = _encode(buffer.state(), arrays)
        tape = buffer.storage.tape
        meta["limiter"] = {"inserted": int(tape.inserted), "sampled": int(tape.sampled)}
        for i, array in enumerate(arrays):
            with open(temporary / f"array-{i}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                _sync(file)
        with open(temporary / "checkpoint.json", "wb") as file:
            file.write(json.dumps(meta).encode())
            _sync(file)
        _sync_directory(temporary)
        _replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _save_rows(storage: Storage, to: Path) -> dict[str, Any]:
    schema = storage.schema
    if schema is None:
        raise EmptyBufferError("cannot save a buffer to which nothing was ever written")
    table = read_index(storage.tape)
    words = table.words[np.argsort(table.words[:, NUMBER])]
    ends = words[:, FIRST] + (words[:, STEPS_FLAGS] >> 8)
    head = int(ends.max()) if len(words) else table.head
    first = tail = min(table.tail, head)
    size = schema.layout.record_size
    step = max(_CHUNK_BYTES // size, 1)
    with open(to / "records.bin", "wb") as file:
        for at in range(first, head, step):
            seqs = np.arange(at, min(at + step, head), dtype=np.int64)
            chunk = np.empty(len(seqs) * size, np.uint8)
            tail = max(tail, int(storage.tape.gather_records(seqs, chunk)))
            file.write(chunk.data)
        _sync(file)
    words = words[ends > tail]
    with open(to / "index.bin", "wb") as file:
        file.write(np.ascontiguousarray(words, "<i8").data)
        _sync(file)
    return {
        "layout": schema.layout.to_json(),
        "keys": schema.boundaries.to_json(),
        "file_first": first,
        "tail": min(tail, head),
        "head": head,
        "trajectories": int(storage.tape.trajectories),
    }


def load(buffer: ReplayBuffer, path: Path) -> None:
    """Takes a checkpoint in, in place of what the buffer holds.

    Raises:
        FileNotFoundError: no checkpoint there.
        LayoutError: the buffer holds another layout, or the files do not fit together.
    """
    try:
        meta = json.loads((path / "checkpoint.json").read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no checkpoint (no checkpoint.json) there") from None
    except ValueError as error:
        raise LayoutError(f"{path}: checkpoint.json is damaged: {error}") from error
    if meta["format"] != FORMAT:
        raise LayoutError(f"{path}: format {meta['format']}, this contig reads format {FORMAT}")
    state = _decode(meta["state"], path)
    storage = buffer.storage
    layout = Layout.from_json(meta["layout"])
    rows, entries, tail = _read_rows(path, meta, layout, storage.capacity)
    schema = storage.schema
    if schema is None:
        storage.bind_keys(meta["keys"]["traj_key"], meta["keys"]["end_key"])
        storage.publish(layout)
    elif schema.layout != layout:
        raise LayoutError(
            f"{path}: another layout than the buffer's:\n{schema.layout.diff(layout)}"
        )
    numbers = entries[:, NUMBER]
    index_tail = int(numbers[0]) if len(numbers) else 0
    storage.tape.restore(
        rows,
        tail,
        meta["head"],
        np.ascontiguousarray(entries).reshape(-1).view(np.uint64),
        index_tail,
        index_tail + len(numbers),
        meta["trajectories"],
    )
    storage.tape.inserted = meta["limiter"]["inserted"]
    storage.tape.sampled = meta["limiter"]["sampled"]
    buffer.load_state(state)


def _read_rows(
    path: Path, meta: dict[str, Any], layout: Layout, capacity: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Rows that fit the capacity, their index entries, and the seq of the first row."""
    head, first, size = meta["head"], meta["file_first"], layout.record_size
    tail = max(meta["tail"], head - capacity)
    expected = (head - first) * size
    found = (path / "records.bin").stat().st_size
    if found != expected:
        raise LayoutError(f"{path}: records.bin has {found} bytes, expected {expected}; damaged")
    rows = np.fromfile(path / "records.bin", np.uint8, offset=(tail - first) * size)
    words = np.fromfile(path / "index.bin", "<i8")
    if len(words) % 16:
        raise LayoutError(f"{path}: index.bin is damaged ({len(words)} words)")
    entries = words.astype(np.int64).reshape(-1, 16)
    entries = entries[entries[:, FIRST] + (entries[:, STEPS_FLAGS] >> 8) > tail]
    numbers = entries[:, NUMBER]
    if len(numbers) and (
        np.any(np.diff(numbers) != 1) or np.any(entries[:, BEFORE] < 0) or numbers[0] < 0
    ):
        raise LayoutError(f"{path}: index.bin is damaged (its runs are not in order)")
    return rows, entries, tail


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
            return np.load(path / f"array-{int(value['__array__'])}.npy", allow_pickle=False)
        return {k: _decode(v, path) for k, v in value.items()}
    if isinstance(value, list):
        return [_decode(v, path) for v in value]
    return value


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    if os.name == "nt":
        return  # directories cannot be opened there
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _replace(temporary: Path, path: Path) -> None:
    """Puts the new checkpoint in the old one's place; one of them is there at any time but for the
    instant between two renames, when the old one is beside it under a name that says so."""
    old = None
    if path.exists():
        old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
        path.rename(old)
    temporary.rename(path)
    _sync_directory(path.parent)
    if old is not None:
        shutil.rmtree(old)
