"""What the processes of the tests of fields do. Each function runs in a process of its own.

Every byte of a record says whose it is: the trajectory's first uid, hashed with a number that
nobody else gives. A record made of two others is found out wherever the seam lies.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from contig import SharedStorage, _native
from tests.tape.rows import hashed
from tests.waiting import until

from .trap import trapped

WORDS = 500  # of a record's body: one that takes a while to copy
FIELDS = {"key": np.zeros(2, np.int64), "body": np.zeros(WORDS, np.int64)}
ROW = {"uid": np.int64(0), "next": {"done": False}}
LONGEST = 6


def record(first: int, number: int) -> dict[str, Any]:
    """Of the trajectory that begins with this uid; (0, 0) is nobody's."""
    key = np.array([first, number], np.int64)
    return {"key": key, "body": hashed(key[None], np.zeros(1, bool), WORDS)[0]}


def wrong(keys: Any, bodies: Any) -> str | None:
    """Whether some record is not one that was given as a whole."""
    given = (keys != 0).any(1)
    want = np.where(given[:, None], hashed(keys, np.zeros(len(keys), bool), WORDS), 0)
    bad = np.flatnonzero((bodies != want).any(1))
    return f"mixed: {keys[bad[0]].tolist()}" if len(bad) else None


def write(name: str, writer: int, stop: str, trap: float | None = None) -> dict[str, Any]:
    """Trajectories one after another, whose fields change with some of the rows; `trap`: stops
    itself inside a change of stored ones, at this part of the record."""
    storage = SharedStorage.attach(name)
    storage.tape.lock_timeout_s = 60
    handle = storage.writer()
    rng = np.random.default_rng(writer)
    uid, number, appends = writer << 32, 0, 0
    while not os.path.exists(stop):
        first, steps = uid, int(rng.integers(1, LONGEST + 1))
        for t in range(steps):
            number += 1
            fields = record(first, number) if t == 0 or rng.random() < 0.5 else None
            handle.add({"uid": uid, "next": {"done": t == steps - 1}}, fields)
            uid += 1
            appends += 1
        if trap is not None and appends > 20:
            _change(storage, rng, writer << 20, trap)
    storage.close()
    return {"appends": appends}


def change(name: str, writer: int, stop: str) -> dict[str, Any]:
    """Changes stored ones, all the time."""
    storage = SharedStorage.attach(name)
    storage.tape.lock_timeout_s = 60
    rng = np.random.default_rng(writer)
    changed = number = 0
    while not os.path.exists(stop):
        number += 1
        changed += _change(storage, rng, (writer << 20) + number)
    storage.close()
    return {"changed": changed}


def evict(name: str, how: str, go: str, count: int) -> dict[str, Any]:
    """Attaches before there is a layout, and evicts every row when it may."""
    storage = SharedStorage.attach(name)
    until(lambda: os.path.exists(go), "somebody says so")
    if how == "empty":
        storage.empty()
    else:
        storage.writer().extend_trajectory({"uid": np.arange(1000, 1000 + count)})
    evicted = 1 not in storage.episodes()["key"][:, 0]
    storage.close()
    return {"evicted": bool(evicted)}


def go_on(name: str, end: str) -> dict[str, Any]:
    """One trajectory, whose second row comes when it may: which fields it has then."""
    storage = SharedStorage.attach(name)
    handle = storage.writer()
    handle.add({"uid": 1, "next": {"done": False}}, record(1, 1))
    until(lambda: os.path.exists(end), "somebody says so")
    handle.add({"uid": 2, "next": {"done": True}})
    table = storage.episodes()[-1:]
    out = {"key": table["key"][0].tolist(), "wrong": wrong(table["key"], table["body"])}
    storage.close()
    return out


def _change(storage: Any, rng: Any, number: int, trap: float | None = None) -> int:
    table = storage.episodes()
    if not len(table):
        return 0
    some = table[rng.integers(0, len(table), 2)]
    # The trajectory's own name is in what its writer gave it with the first row.
    records = [record(int(key[0]), number) for key in some["key"]]
    body = np.stack([r["body"] for r in records])
    if trap is not None:
        layout = storage.fields
        flat = np.zeros((2, layout.record_size), np.uint8)
        for i, r in enumerate(records):
            flat[i] = layout.pack_one(r)
        view = _native.View(storage.tape)
        return int(storage.tape.set_fields(view, some["id"].copy(), trapped(flat, trap), 3).sum())
    fields = {"key": np.stack([r["key"] for r in records]), "body": body}
    return int(storage.set_fields(some["id"], fields))


def read(name: str, stop: str) -> dict[str, Any]:
    """Reads them as `episodes()` does and by the log; compares."""
    storage = SharedStorage.attach(name)
    tape, layout = storage.tape, storage.fields
    view = _native.View(tape)
    tables = records = changes = all_at_once = seen = 0
    known: dict[int, tuple[int, Any]] = {}
    found: str | None = None
    while not os.path.exists(stop) and found is None:
        table = storage.episodes()
        tables += len(table)
        found = wrong(table["key"], table["body"]) or _strangers(storage, table)
        view.refresh()
        now, numbers = tape.changed_fields(seen)
        all_at_once += numbers is None
        changes += now - seen
        seen = now
        again = set() if numbers is None else set(numbers.tolist())
        ids = np.sort(table["id"])
        runs = view.last_runs(ids)
        kept = {}
        for i, run in zip(ids.tolist(), runs.tolist()):
            old = known.get(i)
            if run < 0:
                continue
            if old is not None and numbers is not None and old[0] == run and run not in again:
                kept[i] = old
                continue
            got = tape.fields_of(np.array([run]))
            if run >= tape.snapshot()[3]:  # it was there all the time
                kept[i] = (run, got[0])
                tree = layout.unpack(got)
                found = found or wrong(tree["key"], tree["body"])
                records += 1
        known = kept
    storage.close()
    out = {"tables": tables, "records": records, "changes": int(changes), "all": all_at_once}
    return {"wrong": found, **out}


def _strangers(storage: Any, table: Any) -> str | None:
    """Whether a trajectory has another one's fields."""
    for episode in table[:: max(len(table) // 4, 1)]:
        try:
            uids = storage.read_episode(int(episode["id"]))["uid"]
        except KeyError:
            continue
        first = int(episode["key"][0])
        if not first <= uids[0] < first + LONGEST:
            return f"fields of {first}, rows from {uids[0]}"
    return None
