"""Tapes with one damaged word, attached to and used by a process that may die of it.

``python -m tests.tape.processes.damage KIND FIRST`` tries every word from attempt FIRST on: it
prints the number of each attempt before it makes it, and what was wrong after it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from contig import LazyTensorStorage, RandomSampler, ReplayBuffer, SliceSampler, Storage, _native
from contig.errors import ContigError, StorageFull, TapeBusy
from contig.tape.memory import storage_of_fd

OURS = (ContigError, TapeBusy, StorageFull, ValueError, KeyError)
CAPACITY = 48
FIRST_UID = 1000
TOO_LONG_S = 30


def rows(first: int, n: int) -> dict[str, Any]:
    uid = np.arange(first, first + n)
    next_uid = uid + 1
    frame = lambda x: np.repeat(x[:, None], 16, 1).astype(np.int32)  # noqa: E731
    return {"uid": uid, "obs": frame(uid), "next": {"obs": frame(next_uid)}}


def texts(first: int, n: int) -> dict[str, Any]:
    tree = rows(first, n)
    return tree | {"text": [f"row {uid} " * (uid % 5) for uid in tree["uid"]]}


def write(storage: Storage, of: Callable[[int, int], Any], first: int, n: int) -> None:
    """Trajectories of five rows, each in two appends; the last one stays open."""
    writer = storage.default_writer
    for at in range(first, first + n, 5):
        part = of(at, 2)
        part["next"]["done"] = np.zeros(2, np.bool_)
        writer.extend(part)
        part = of(at + 2, 3)
        part["next"]["done"] = np.arange(3) == (2 if at + 5 < first + n else 7)
        writer.extend(part)


KINDS: dict[str, tuple[dict[str, Any], Callable[[int, int], Any]]] = {
    "plain": ({"share_next": False, "stack": {}}, rows),
    "once": ({"share_next": True}, rows),
    "encoded": ({"share_next": True, "codecs": {"obs": "lz4"}}, rows),
    "any size": ({"share_next": False, "stack": {}, "blob_bytes": 4096}, texts),
    "fields": ({"share_next": False, "stack": {}, "fields": {"score": 0.0}}, rows),
}


class Original:
    """A tape in good order, and which of its words are tried."""

    def __init__(self, kind: str) -> None:
        options, self.rows = KINDS[kind]
        with LazyTensorStorage(CAPACITY, **options) as storage:
            write(storage, self.rows, FIRST_UID, 70)  # the ring has turned
            if "fields" in options:
                storage.set_fields(storage.episodes()["id"][:3], {"score": 2.5})
            storage.tape.set_producer(7, 3)
            self.bytes = os.pread(storage.fd, os.fstat(storage.fd).st_size, 0)
            self.uids = uids_of(storage)
            control = storage._open().control.nbytes
            words = np.frombuffer(self.bytes[:control], np.uint64)
            self.header = int(words[4] // 8)  # header and maps; then producers
            index = int(words[5] // 8)
            oldest, newest = storage.tape.snapshot()[3:1:-1]
            entries = range(index + 8 * oldest, index + 8 * newest, 2)
            self.words = [*range(index), *entries, *self._tables(storage)]
            # Of the table of producers, the first few.
            self.words = [w for w in self.words if not self.header + 15 <= w < index]
        self.uids_after = {*self.uids, *range(2000, 2007)}

    @staticmethod
    def _tables(storage: Storage) -> Iterator[int]:
        for offset, nbytes in (storage.tape.slots_range, storage.tape.fields_range):
            yield from range(offset // 8, (offset + min(nbytes, 2048)) // 8, 3)

    def attempts(self) -> Iterator[tuple[int, int]]:
        """Words and what is put into them."""
        there = np.frombuffer(self.bytes[: len(self.bytes) // 8 * 8], np.uint64)
        chance = random.Random(5)
        for word in self.words:
            now = int(there[word])
            values = [2**64 - 1, chance.getrandbits(64)]
            if word < self.header:
                values += [0, (now + 1) % 2**64, now ^ (1 << 33)]
            for value in values:
                if value != now:
                    yield word, value


def uids_of(storage: Storage) -> set[int]:
    """All rows, read trajectory by trajectory; each must be one that was written."""
    found: set[int] = set()
    for id in storage.episodes()["id"].tolist():
        found.update(checked(storage.read_episode(id)))
    return found


def checked(batch: Any) -> list[int]:
    uids: list[int] = np.asarray(batch["uid"]).reshape(-1).tolist()
    obs = np.asarray(batch["obs"]).reshape(len(uids), -1)
    after = np.asarray(batch["next", "obs"]).reshape(len(uids), -1)
    assert (obs == np.array(uids)[:, None]).all(), "another row's observation"
    assert (after == np.array(uids)[:, None] + 1).all(), "another row's next observation"
    return uids


def use(storage: Storage, original: Original) -> None:
    """What a process does with a tape that it attached to."""
    known = original.uids_after
    assert uids_of(storage) <= known, "rows that nobody wrote"
    for sampler in (RandomSampler(), SliceSampler(slice_len=2)):
        buffer = ReplayBuffer(storage, sampler, batch_size=16)
        assert set(checked(buffer.sample())) <= known, "rows that nobody wrote"
    storage.tape.seen(7, 0)
    storage.default_writer.extend(original.rows(2000, 4) | _open_end(original, 4))
    storage.default_writer.add(_first(original.rows(2004, 1) | _open_end(original, 1)))
    if storage.fields is not None:
        storage.set_fields(storage.episodes()["id"], {"score": 7.0})
    assert uids_of(storage) <= known, "rows that nobody wrote, behind an append"
    storage.tape.leave(7)
    repr(storage), storage.nbytes, storage.blob_bytes
    storage.tape.read_index()
    storage.empty()


def _open_end(original: Original, n: int) -> dict[str, Any]:
    after = original.rows(2000 if n == 4 else 2004, n)["next"]
    return {"next": after | {"done": np.zeros(n, np.bool_)}}


def _first(tree: dict[str, Any]) -> dict[str, Any]:
    return {k: _first(v) if isinstance(v, dict) else v[0] for k, v in tree.items()}


def attempt(original: Original, fd: int, word: int, value: int) -> str:
    """What is wrong; empty: nothing."""
    os.ftruncate(fd, len(original.bytes))
    os.pwrite(fd, original.bytes, 0)
    os.pwrite(fd, value.to_bytes(8, "little"), 8 * word)
    strict = word < original.header
    try:
        with storage_of_fd(os.dup(fd)) as storage:
            storage.tape.lock_timeout_s = 0.02
            use(storage, original)
    except OURS:
        return ""
    except AssertionError as error:
        return f"{error}" if strict else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(kind: str, first: int) -> None:
    original = Original(kind)
    fd = os.memfd_create("damage")
    for number, (word, value) in enumerate(original.attempts()):
        if number < first:
            continue
        signal.alarm(TOO_LONG_S)
        print(f"{number} word {word} = {value:#x}", flush=True)
        if wrong := attempt(original, fd, word, value):
            print(f"! {wrong}", flush=True)
    print("all", flush=True)
    os._exit(0)


if __name__ == "__main__":
    assert _native.control_bytes(CAPACITY)
    main(sys.argv[1], int(sys.argv[2]))
