"""Entries of the index: 64 bytes in memory, 16 words everywhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer, SharedStorage, SliceSampler, _native
from contig.tape.entry import ENTRY, NONE, read_entries
from contig.tape.snapshot import PackedRows, Snapshot

RANKED = 1 << 62


def test_python_and_native_code_have_the_same_entry() -> None:
    fields = {n: (offset, dtype.str) for n, (dtype, offset) in ENTRY.fields.items()}
    unused = fields.pop("unused")
    assert fields == _native.entry_fields()
    assert unused == (96, "|V24") and ENTRY.itemsize == 128
    assert _native.FLAG_BITS == 8 and _native.RANKED == RANKED
    assert {f.name: f.value for f in _native.RunFlag} == {
        "BEGINS": 1, "TERMINATED": 2, "TRUNCATED": 4, "CUT": 8,
        "MARKED": 16, "GOES_ON": 32, "TOLD": 64, "SEVERAL": 1024,
    }  # fmt: skip


def step(envs: int, t: int) -> dict[str, Any]:
    uid = np.arange(envs) * 100_000 + t
    return {"uid": uid, "next": {"reward": np.ones(envs, np.float32), "done": np.zeros(envs, bool)}}


def contents_of(storage: Any) -> Snapshot:
    head, tail, _, _ = storage.tape.snapshot()
    size = storage.layout.record_size
    records = np.empty((head - tail) * size, np.uint8)
    storage.tape.gather_records(np.arange(tail, head), records)
    rows = PackedRows(records, tail, size)
    return Snapshot(rows, tail, head, read_entries(storage.tape), storage.tape.trajectories)


def allocated(storage: Any) -> int:
    return os.fstat(storage.fd).st_blocks * 512


def test_an_entry_is_a_cache_line() -> None:
    """Steps of many envs are an entry for each row; the index takes 64 bytes for it, not 128."""
    envs, steps = 4096, 40
    storage = LazyTensorStorage(envs * steps * 2)
    storage.default_writer.add_step(step(envs, 0))
    before = allocated(storage)
    for t in range(1, steps + 1):
        storage.default_writer.add_step(step(envs, t))
    rows = envs * steps
    record = storage.layout.record_size
    extent = 4 << 20  # rows get memory by so many bytes
    index = allocated(storage) - before - rows * record
    assert index <= rows * 64 + rows * 64 // 100 + extent + 8192 * 80


def test_stamps_are_of_the_append_that_made_the_run() -> None:
    """Several writers in turn, so that every row is a run and most have stamps of their own."""
    capacity = 20_000
    storage = LazyTensorStorage(capacity)
    writers = [storage.writer() for _ in range(3)]
    for i in range(27_000):
        writer = writers[i % 3]
        if i % 100 == 7:  # several entries of one append
            writer.add_step(step(5, i))
        else:
            writer.add({"uid": i, "next": {"reward": 1.0, "done": False}})
    ids = {w.id: k for k, w in enumerate(writers)}
    entries = read_entries(storage.tape)
    batch, lost = storage.gather(entries["first"].copy())
    assert not lost and len(entries) > 15_000
    expected = batch["uid"] % 100_000 % 3
    np.testing.assert_array_equal([ids[w] for w in entries["writer"].tolist()], expected)
    order = np.argsort(entries["number"])
    assert (np.diff(entries["time_ns"][order]) >= 0).all()
    together = batch["uid"] % 100_000 % 100 == 7  # of one append: one time
    for uid in np.unique(batch["uid"][together] % 100_000):
        assert len(np.unique(entries["time_ns"][batch["uid"] % 100_000 == uid])) == 1


def as_old(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As contig 0.1 wrote them: the number of runs before a run, in place of its skip's rank."""
    out = entries.copy()
    depth: dict[int, int] = {}
    for entry in out[np.argsort(out["number"])]:
        depth[int(entry["number"])] = depth.get(int(entry["prev"]), -1) + 1
    out["depth"] = [depth[int(n)] for n in out["number"]]
    return out


@pytest.mark.parametrize("old", [False, True], ids=["ours", "of 0.1"])
def test_an_index_is_restored_and_goes_on(old: bool) -> None:
    """From its words; and what is appended afterwards has links as if nothing had happened."""
    source = LazyTensorStorage(5000)
    for t in range(1300):
        source.default_writer.add_step(step(3, t))
    saved = contents_of(source)
    assert saved.tail == 0 and (saved.entries["depth"] & RANKED != 0).all()
    if old:
        saved = saved._replace(entries=as_old(saved.entries))
    kept = LazyTensorStorage(
        5000,
        example={
            k: v[0] if k == "uid" else {n: a[0] for n, a in v.items()}
            for k, v in step(3, 0).items()
        },
    )
    kept.default_writer.add_step(step(2, 7))  # what a restore replaces
    kept.restore(saved, (0, 0))
    np.testing.assert_array_equal(read_entries(kept.tape), read_entries(source.tape))
    buffer = ReplayBuffer(kept, SliceSampler(slice_len=50), batch_size=500, seed=1)
    uid = buffer.sample()["uid"].reshape(-1, 50)
    assert (np.diff(uid, axis=1) == 1).all()


def test_skips_of_a_restored_index_are_as_long_as_ever() -> None:
    source = LazyTensorStorage(5000)
    for t in range(1000):
        source.default_writer.add_step(step(2, t))
    entries = read_entries(source.tape)
    ranks = entries["depth"][np.argsort(entries["number"])] & 63
    assert ranks.max() >= 8  # 2^8 - 1 runs at once
    jumps = entries[entries["jump"] != NONE]
    for e in jumps[-50:]:
        assert e["number"] - e["jump"] == ((1 << (e["depth"] & 63)) - 1) * 2  # two envs take turns


def test_the_ends_of_every_range() -> None:
    """Ids and versions are exact to the last bit; numbers may be as large as they get."""
    base, ordinal, seq = 2**61, 2**57 - 2, 2**62
    storage = LazyTensorStorage(100, example={"uid": np.int64(0)})
    entries = np.zeros(3, ENTRY)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for i, e in enumerate(entries):
        e["first"], e["steps_flags"] = seq + 2 * i, 2 << 8 | (1 if i == 0 else 0)
        e["prev"] = e["jump"] = (NONE, base, 5)[i]  # the last one's is evicted long since
        e["before"] = (0, 2, 2**51 - 2)[i]
        e["ordinal"] = ordinal if i < 2 else -5
        e["version"], e["traj_id"] = (low, high, 3)[i], (high, low, 7)[i]
        e["writer"] = e["time_ns"] = high
        e["ret"] = -1.5
        e["depth"], e["number"] = i, base + i
    rows = PackedRows(np.arange(6).view(np.uint8), seq, 8)
    storage.restore(Snapshot(rows, seq, seq + 6, entries, 2**57 - 1), (0, 0))
    got = read_entries(storage.tape)
    entries["prev"][2] = entries["jump"][2] = NONE
    entries["depth"] = [RANKED, RANKED | 1, RANKED]
    np.testing.assert_array_equal(got[np.argsort(got["number"])], entries)
    batch, lost = storage.gather(seq + np.arange(6))
    assert not lost and batch["uid"].tolist() == list(range(6))


@pytest.mark.parametrize(
    ("field", "value"), [("before", 2**51), ("ordinal", 2**57), ("ordinal", -(2**57) - 1)]
)
def test_what_does_not_fit_is_refused_before_anything_changes(field: str, value: int) -> None:
    storage = LazyTensorStorage(100)
    for t in range(3):
        storage.default_writer.add_step(step(2, t))
    saved, before = contents_of(storage), read_entries(storage.tape)
    entries = saved.entries.copy()
    entries[field][3] = value
    with pytest.raises(ValueError, match="index entry 3"):
        storage.restore(saved._replace(entries=entries), (0, 0))
    np.testing.assert_array_equal(read_entries(storage.tape), before)
    storage.default_writer.add_step(step(2, 3))
    assert len(storage) == 8


def test_no_more_trajectories_than_can_be_told_apart() -> None:
    storage = LazyTensorStorage(100)
    storage.default_writer.add_step(step(2, 0))
    saved = contents_of(storage)
    storage.restore(saved._replace(trajectories=2**57 - 1), (0, 0))
    other = storage.writer()
    with pytest.raises(ValueError, match="trajectories"):
        other.add_step(step(2, 0))
    assert len(storage) == 2 and storage.tape.trajectories == 2**57 - 1
    other.add_step(step(1, 0))
    assert read_entries(storage.tape)["ordinal"].max() == 2**57 - 1


@pytest.mark.skipif(not _native.ROBUST_LOCKS, reason="sharing needs robust locks")
def test_a_tape_of_another_version_is_refused() -> None:
    storage = SharedStorage(100, example={"uid": np.int64(0)})
    path = Path("/dev/shm") / f"contig-{storage.name}"
    with path.open("r+b") as file:  # the header's second word
        file.seek(8)
        assert int.from_bytes(file.read(8), "little") == 7
        file.seek(8)
        file.write((1).to_bytes(8, "little"))
        file.flush()
        with pytest.raises(ValueError, match=r"format 1.*reads format 7.*version.*save\(\)"):
            SharedStorage(100, name=storage.name)
        file.seek(8)
        file.write((7).to_bytes(8, "little"))
    again = SharedStorage(100, name=storage.name)
    again.close()
    storage.close()
