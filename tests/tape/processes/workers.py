"""What the processes of these tests do. Each function runs in a process of its own."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np

import contig
from contig import RandomSampler, ReplayBuffer, SharedStorage, SliceSampler

from . import rows
from .trap import trapped

RECORD = struct.Struct("<qqq")  # append, first seq (-1: about to), rows


def write(
    name: str,
    writer: int,
    seed: int,
    ids: bool,
    log: str,
    stop: str,
    appends: int = 0,
    big: int = 12,
    pause_s: float = 0.0,
    trap: float | None = None,
) -> dict[str, Any]:
    """Appends until told to stop (or so many times), with a log that survives a SIGKILL.

    trap: stops itself inside one of the first appends, at this part of the payload.
    """
    storage = SharedStorage.attach(name)
    storage.tape.lock_timeout_s = 60  # others may be stopped inside it, for as long as they live
    handle = storage.writer()
    script = rows.Script(writer, seed, ids, big)
    total = done = 0
    last = -1
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for kind, n, tree in script.blocks():
        os.write(fd, RECORD.pack(done, -1, n))
        if trap is not None and done >= 3 and kind in ("extend", "whole"):
            tree, trap = {**tree, "payload": trapped(tree["payload"], trap)}, None
        first = rows.append(handle, kind, tree)
        os.write(fd, RECORD.pack(done, first, n))
        if first <= last:
            raise AssertionError(f"seqs go back: {first} after {last}")
        last = first + n - 1
        total += n
        done += 1
        if done == appends or (done % 16 == 0 and os.path.exists(stop)):
            break
        if pause_s:
            time.sleep(pause_s)
    storage.close()
    return {"rows": total, "appends": done}


def read(name: str, seed: int, ids: bool, stop: str, kinds: str = "rseq") -> dict[str, Any]:
    """Reads in every way there is, checks what it gets; returns counts and what was wrong.

    kinds: r rows, s slices, e episodes, q the whole tape in sequence.
    """
    storage = SharedStorage.attach(name)
    short = SliceSampler(slice_len=6)
    steps = SliceSampler(slice_len=5, over="steps", strict_length=True, burn_in=3)
    complete = SliceSampler(slice_len=rows.LONGEST, complete_only=True)
    buffers = {
        "r": [ReplayBuffer(storage, RandomSampler(), batch_size=32, seed=seed)],
        "s": [
            ReplayBuffer(storage, short, batch_size=48, seed=seed),
            ReplayBuffer(storage, steps, batch_size=20, seed=seed),
        ],
        "c": [ReplayBuffer(storage, complete, batch_size=2 * rows.LONGEST, seed=seed)],
    }
    count = {"rows": 0, "slices": 0, "linked": 0, "complete": 0, "episodes": 0, "scans": 0}
    count |= {"nothing": 0}
    wrong: list[str] = []

    def note(what: str | None) -> None:
        if what is not None and len(wrong) < 20:
            wrong.append(what)

    rounds = 0
    while not os.path.exists(stop) and not wrong:
        rounds += 1
        for kind in kinds:
            if kind == "e":
                _episodes(storage, count, note)
            elif kind == "q":
                _scan(storage, count, note)
            for buffer in buffers.get(kind, ()):
                try:
                    batch = buffer.sample()
                except (contig.EmptyBufferError, contig.NothingEligibleError):
                    count["nothing"] += 1
                    continue
                _batch(batch, count, note, whole=kind == "c")
    storage.close()
    return {"wrong": wrong, "rounds": rounds, **count}


def _batch(batch: Any, count: dict[str, int], note: Any, whole: bool) -> None:
    count["rows"] += len(batch)
    note(rows.torn(batch))
    if ("collector", "slice_end") not in batch:
        return
    fields = np.asarray(batch["fields"])
    done = np.asarray(batch["next", "done"])
    starts = np.asarray(batch["is_init"])
    ends = np.r_[starts[1:], True]
    note(rows.broken(fields, ends))
    if not starts[0] or np.any(done != ends):
        note("a slice whose first or last row is not marked")
    # Rows of one slice that are not neighbours on the tape: it crossed a link.
    seqs = np.asarray(batch["index"])
    count["linked"] += int(np.count_nonzero((np.diff(seqs) != 1) & ~ends[:-1]))
    count["slices"] += int(ends.sum())
    if whole:
        count["complete"] += int(ends.sum())
        if np.any(fields[starts, 2] != 0):
            note(f"complete_only: a trajectory without its start, {fields[starts].tolist()}")
        if np.any(
            (np.asarray(batch["payload"]) != rows.payload(fields, np.ones_like(done))).any(1)[ends]
        ):
            note(f"complete_only: a trajectory without its end, {fields[ends].tolist()}")


def _episodes(storage: Any, count: dict[str, int], note: Any) -> None:
    table = storage.episodes()
    if len(np.unique(table["id"])) != len(table):
        note("episodes(): an id twice")
    for episode in table[:: max(len(table) // 4, 1)]:
        if episode["steps"] < 1 or episode["return"] < episode["steps"]:
            note(f"episodes(): {episode}")
        if not episode["trimmed"] and episode["return"] != episode["steps"]:
            note(f"episodes(): the return is not the number of steps: {episode}")
        try:
            batch = storage.read_episode(int(episode["id"]))
        except KeyError:
            continue
        count["episodes"] += 1
        fields = np.asarray(batch["fields"])
        note(rows.torn(batch))
        note(rows.broken(fields, np.arange(len(fields)) == len(fields) - 1))
        ended = bool(np.asarray(batch["next", "done"])[-1])
        if (episode["complete"] or episode["terminated"]) and not ended:
            note(f"episodes(): ended, but its last row is not done: {episode}")
        tail = storage.tape.snapshot()[1]
        if episode["complete"] and fields[0, 2] != 0 and tail <= episode["first"]:
            note(f"episodes(): complete, but it starts at {fields[0].tolist()}")


def scan(storage: Any) -> tuple[np.ndarray, Any, bool]:
    """All rows of the tape now that survived the reading: fields, batch, whether it begins at 0."""
    head, tail, _, _ = storage.tape.snapshot()
    seqs = np.arange(tail, head, dtype=np.int64)
    batch, lost = storage.gather(seqs)
    kept = seqs >= lost
    batch = batch[np.flatnonzero(kept)] if lost else batch
    return np.asarray(batch["fields"]), batch, bool(len(seqs)) and max(tail, lost) == 0


def _scan(storage: Any, count: dict[str, int], note: Any) -> None:
    fields, batch, from_start = scan(storage)
    if not len(fields):
        return
    count["scans"] += 1
    note(rows.torn(batch))
    note(rows.partial(fields, from_start))


def read_log(path: Path) -> tuple[dict[int, tuple[int, int]], int]:
    """A writer's log: append -> (first, rows), and the rows of the one it may have died in."""
    data = path.read_bytes() if path.exists() else b""
    done: dict[int, tuple[int, int]] = {}
    open_rows = 0
    for number, first, n in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
        if first < 0:
            open_rows = n
        else:
            done[number], open_rows = (first, n), 0
    return done, open_rows


def big_appends(name: str, stop: str, trap: float) -> dict[str, Any]:
    """Appends of many bytes, one after another; stops itself inside the first, at this part."""
    storage = SharedStorage.attach(name)
    rows_each = storage.capacity // 2
    width = storage.layout.leaves[0].shape[0]
    writer = storage.writer()
    n = 0
    while not os.path.exists(stop):
        block = np.full((rows_each, width), n, np.int64)
        writer.extend({"x": block if n else trapped(block, trap)})
        n += 1
    return {"appends": n}


def hold_open(name: str, stop: str) -> dict[str, Any]:
    """Has a storage open until told to stop."""
    storage = SharedStorage.attach(name)
    while not os.path.exists(stop):
        time.sleep(0.005)
    return {"rows": len(storage)}


def next_process() -> dict[str, Any]:
    """What the next contig process does when it makes a storage: it reaps."""
    SharedStorage(4).close()
    return {}


def add_rows(name: str, first: int, then: int, go: str) -> dict[str, Any]:
    """Some rows of a trajectory that stays open, and on a sign the others, of the same one."""
    storage = SharedStorage.attach(name)
    writer = storage.writer()
    for i in range(first + then):
        if i == first:
            Path(go).with_suffix(".ready").touch()
            while not os.path.exists(go):
                time.sleep(0.002)
        writer.add({"x": np.float32(i), "next": {"done": False}})
    storage.close()
    return {}


def sample_for_ever(name: str, stop: str) -> dict[str, Any]:
    """Samples rows of `big_appends`: all words of a row are alike."""
    storage = SharedStorage.attach(name)
    buffer = ReplayBuffer(storage, batch_size=4)
    n = 0
    while not os.path.exists(stop):
        try:
            x = np.asarray(buffer.sample()["x"])
        except contig.EmptyBufferError:
            continue
        if np.any(x != x[:, :1]):
            return {"wrong": "torn row"}
        n += 1
    return {"samples": n}


def passed(storage: Any, pipe: Any) -> None:
    """Got a storage through a Process's arguments."""
    head, tail, _, _ = storage.tape.snapshot()
    seen: list[float] = []
    if head > tail:
        seen = np.asarray(storage.gather(np.arange(tail, head))[0]["x"]).tolist()
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=2), batch_size=4)
    for part in range(3):
        x = np.arange(2, dtype=np.float32) + 10 + 2 * part
        buffer.extend({"episode": np.full(2, 7, np.int64), "x": x})
    table = storage.episodes()
    pipe.send((seen, str(storage.layout), int(table["steps"][-1]) == 6, storage.keys[0]))
    assert pipe.recv() == "go on"
    head, tail, _, _ = storage.tape.snapshot()
    pipe.send(np.asarray(storage.gather(np.arange(tail, head))[0]["x"]).tolist())


def first_row(name: str, go: str, leaf: str, width: int) -> dict[str, Any]:
    """Writes first, or finds that somebody else did."""
    storage = SharedStorage.attach(name)
    mine = {"leaf": leaf, "width": width}
    while not os.path.exists(go):
        pass
    try:
        storage.default_writer.add({leaf: np.full(width, 7, np.float32)})
    except contig.LayoutError as error:
        return {**mine, "won": False, "error": str(error)}
    return {**mine, "won": True}
