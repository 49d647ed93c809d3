"""Workers of test_any_size.py: rows whose every byte follows from a number of their own."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from contig import Blob, LazyTensorStorage, Ragged, ReplayBuffer, SharedStorage, SliceSampler

RING = 6000
EXAMPLE = {
    "uid": np.int64(0),
    "blob": Blob(),
    "next": {"tokens": Ragged(np.int32, (2,)), "done": False},
}


def lengths(uid: int) -> tuple[int, int]:
    draw = random.Random(uid)
    return draw.choice((0, 1, 7, 64, 500)), draw.choice((0, 1, 3, 40))


def tokens_of(uid: int) -> np.ndarray[Any, Any]:
    size = 2 * lengths(uid)[1]
    return (np.arange(size, dtype=np.int64) * 7 + uid).astype(np.int32).reshape(-1, 2)


def blob_of(uid: int) -> bytes:
    return (uid.to_bytes(8, "little") * 64)[: lengths(uid)[0]]


def rows(uids: list[int], done: bool) -> dict[str, Any]:
    flags = np.zeros(len(uids), np.bool_)
    flags[-1] = done
    return {
        "uid": np.array(uids, np.int64),
        "blob": [blob_of(u) for u in uids],
        "next": {"tokens": [tokens_of(u) for u in uids], "done": flags},
    }


def wrong(batch: Any) -> str | None:
    """Which row of a batch has bytes of another one."""
    for i, uid in enumerate(batch["uid"].tolist()):
        if batch["blob"][i] != blob_of(uid):
            return f"row {uid}: blob {batch['blob'][i]!r}"
        if not np.array_equal(batch["next", "tokens"][i], tokens_of(uid)):
            return f"row {uid}: tokens {batch['next', 'tokens'][i]!r}"
    return None


def write_to(storage: Any, number: int, stop: Path) -> int:
    writer = storage.writer()
    draw = random.Random(number)
    uid = number << 40
    while not stop.exists():
        n = draw.choice((1, 2, 5, 40))
        uids = list(range(uid, uid + n))
        uid += n
        if n == 1:
            tree = rows(uids, draw.random() < 0.2)
            tree["next"] = {
                "tokens": tree["next"]["tokens"][0],
                "done": bool(tree["next"]["done"][0]),
            }
            writer.add({"uid": tree["uid"][0], "blob": tree["blob"][0], "next": tree["next"]})
        else:
            writer.extend(rows(uids, draw.random() < 0.5))
    return uid


def write(name: str, number: int, stop: str) -> dict[str, Any]:
    """Appends until it is stopped, or killed."""
    storage = SharedStorage.attach(name)
    return {"rows": write_to(storage, number, Path(stop)), "pid": os.getpid()}


def read_from(storage: Any, seed: int, stop: Path) -> dict[str, Any]:
    buffers = [
        ReplayBuffer(storage, seed=seed),
        ReplayBuffer(storage, SliceSampler(slice_len=4), seed=seed),
    ]
    seen = nbytes = 0
    found: list[str] = []
    while not stop.exists() and not found:
        for buffer in buffers:
            if len(storage):
                batch = buffer.sample(16)
                seen += len(batch)
                nbytes += len(batch["blob"].values)
                bad = wrong(batch)
                found += [] if bad is None else [bad]
    return {"rows": seen, "bytes": nbytes, "wrong": found}


def read(name: str, seed: int, stop: str) -> dict[str, Any]:
    """Samples until it is stopped; the first wrong byte it saw, if any."""
    return read_from(SharedStorage.attach(name), seed, Path(stop))


def fill(storage: LazyTensorStorage, first: int, last: int) -> None:
    """In a worker that a storage was passed to."""
    storage.writer().extend(rows(list(range(first, last)), True))
