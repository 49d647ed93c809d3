"""Checkpoints of storages in memory have observations once, as the storage has; and nothing of them
is all expanded at once when they are loaded."""

from __future__ import annotations

import json
import threading
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    Blob,
    DeviceStorage,
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    SharedStorage,
)
from contig.replay.redistribute import load_share, save_shard
from contig.sample import RandomSampler
from tests.replay.checkpoint.buffers import read_meta, write_meta
from tests.tape.observations import Env, Form, batch_bytes, stacked

CAPACITY = 200
FORMS = {
    "stack first": Form(frames=4, image=True, state=True),
    "stack last": Form(frames=3, axis=-1, image=True),
    "next only": Form(state=True),
    "stack alone": Form(frames=4, below_next=False),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def memory(form: Form, capacity: int = CAPACITY, **more: Any) -> LazyTensorStorage:
    told: dict[str, Any] = {"stack": form.stack} if form.frames > 1 else {"share_next": True}
    return LazyTensorStorage(capacity, **(told | more))


def fill(storage: Any, form: Form, rows: int, seed: int = 0) -> None:
    """Of three envs, in appends of all sizes; what comes next is not always what follows."""
    rnd = np.random.default_rng(seed)
    envs = [Env(form, i + 1, rnd) for i in range(3)]
    writers = [storage.writer() for _ in range(2)]
    written = 0
    while written < rows:
        if rnd.random() < 0.3:
            count = int(rnd.integers(1, 40))
            which = int(rnd.integers(2))
            steps = [envs[which].row(rnd.random() < 0.1) for _ in range(count)]
            writers[which].extend(stacked(steps))
            written += count
        else:
            storage.default_writer.add_step(stacked([e.row(rnd.random() < 0.1) for e in envs]))
            written += 3


def everything(storage: Any) -> tuple[Any, Any, bytes]:
    episodes = storage.episodes()
    head, tail = storage.tape.snapshot()[:2]
    batch = ReplayBuffer(storage)[:]
    rows = {x.path: np.ascontiguousarray(batch[x.path]).tobytes() for x in storage.layout.leaves}
    return rows, (head, tail), episodes.tobytes()


def same_sharing(one: Any, other: Any) -> bool:
    return bool(one.schema.sharing == other.schema.sharing is not None)


@forms
@pytest.mark.parametrize("rows", [1, 90, 777])
def test_the_same_rows_stored_the_same_way(form: Form, rows: int, tmp_path: Path) -> None:
    with memory(form) as first, LazyTensorStorage(CAPACITY) as second:
        fill(first, form, rows)
        ReplayBuffer(first).save(tmp_path / "a")
        ReplayBuffer(second).load(tmp_path / "a")
        assert everything(first) == everything(second)
        assert same_sharing(first, second)
        assert second.nbytes <= first.nbytes
        ReplayBuffer(second).save(tmp_path / "b")
        fill(first, form, 60, seed=1)
        fill(second, form, 60, seed=1)
        assert everything(first)[0] == everything(second)[0]
        assert second.nbytes <= first.nbytes
    one, other = ((tmp_path / x / "slots.bin").read_bytes() for x in "ab")
    assert len(other) <= len(one)


@forms
def test_into_other_storages(form: Form, tmp_path: Path) -> None:
    with memory(form) as first:
        fill(first, form, 500)
        ReplayBuffer(first).save(tmp_path / "a")
        there = everything(first)
        others: dict[str, Any] = {
            "plain": LazyTensorStorage(CAPACITY, share_next=False),
            "no stacks": LazyTensorStorage(CAPACITY, stack={}),
            "larger": SharedStorage(1000),
            "disk": DiskStorage(tmp_path / "disk", CAPACITY),
            "plain disk": DiskStorage(tmp_path / "plain", CAPACITY, share_next=False),
            "device": DeviceStorage(CAPACITY, "cpu"),
        }
        for name, other in others.items():
            with other:
                ReplayBuffer(other).load(tmp_path / "a")
                assert everything(other) == there, name
                if name in ("larger", "disk"):
                    assert same_sharing(first, other), name
                if name == "no stacks" and form.frames > 1 and form.below_next:
                    assert all(x.frames == 1 for x in other.schema.sharing.leaves)
                if name.startswith("plain"):
                    assert other.schema.sharing is None
                # And out of it again.
                ReplayBuffer(other).save(tmp_path / "b")
            with memory(form) as again:
                ReplayBuffer(again).load(tmp_path / "b")
                assert everything(again) == there, name


@forms
@pytest.mark.parametrize("capacity", [1, 7, 64, 150])
def test_the_newest_that_fit(form: Form, capacity: int, tmp_path: Path) -> None:
    with memory(form) as first, LazyTensorStorage(capacity) as second:
        fill(first, form, 500)
        ReplayBuffer(first).save(tmp_path / "a")
        ReplayBuffer(second).load(tmp_path / "a")
        assert len(second) == capacity and same_sharing(first, second)
        head = first.tape.snapshot()[0]
        seqs = np.arange(head - capacity, head)
        newest = batch_bytes(ReplayBuffer(first)[seqs])
        assert batch_bytes(ReplayBuffer(second)[:]) == newest
        fill(second, form, 30, seed=3)


@forms
def test_shares(form: Form, tmp_path: Path) -> None:
    """Of one checkpoint among three ranks, and of two shards among three."""
    written: list[Counter[Any]] = []
    paths = [tmp_path / str(shard) for shard in range(2)]
    for shard, path in enumerate(paths):
        with memory(form) as storage:
            fill(storage, form, 400, seed=shard)
            written.append(Counter(identified(ReplayBuffer(storage)[:])))
            save_shard(storage, RandomSampler(), {}, path)
    ranks: Counter[Any] = Counter()
    shares: Counter[Any] = Counter()
    for rank in range(3):
        with LazyTensorStorage(2 * CAPACITY) as storage:
            ReplayBuffer(storage).load(paths[0], rank=rank, world_size=3)
            assert storage.schema is not None and storage.schema.sharing is not None
            ranks.update(identified(ReplayBuffer(storage)[:]))
            load_share(storage, RandomSampler(), paths, (rank, 3))
            shares.update(identified(ReplayBuffer(storage)[:]))
    assert ranks == written[0]
    assert shares == written[0] + written[1]


def identified(batch: Any) -> list[tuple[int, bytes, bytes]]:
    following = batch["next", "obs"] if ("next", "obs") in batch else batch["obs"]
    both = zip(batch["action"], batch["obs"], following)
    return [(int(a), o.tobytes(), n.tobytes()) for a, o, n in both]


def test_what_was_not_to_be_recognised_is_kept(tmp_path: Path) -> None:
    """Stacks that the first rows do not show, and next observations that save no memory."""
    n = 40
    noise = np.random.default_rng(0).normal(size=(n, 4, 8)).astype(np.float32)
    small = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
    rows = {"obs": noise, "small": small, "next": {"obs": noise, "small": small}}
    for told in ({"stack": {"obs": 4}}, {"share_next": True, "stack": {}}):
        with LazyTensorStorage(50, **told) as first, LazyTensorStorage(50) as second:  # type: ignore[arg-type]
            ReplayBuffer(first).extend(rows)
            ReplayBuffer(first).save(tmp_path / "a")
            ReplayBuffer(second).load(tmp_path / "a")
            assert everything(first) == everything(second)
            assert same_sharing(first, second)


@pytest.mark.parametrize("share_next", [True, False])
def test_beside_leaves_of_any_size(share_next: bool, tmp_path: Path) -> None:
    """Their bytes are where they should be, whichever form the rows have."""
    rnd, n = np.random.default_rng(0), 120
    seen = rnd.normal(size=(n + 1, 30))
    text = [bytes(rnd.integers(0, 256, i % 13, np.uint8)) for i in range(n)]
    done = np.arange(n) % 11 == 10
    rows = {"obs": seen[:-1], "text": text, "next": {"obs": seen[1:], "done": done}}
    example = {"obs": seen[0], "text": Blob(), "next": {"obs": seen[0], "done": False}}
    with LazyTensorStorage(100, example=example) as first:
        for at in range(0, n, 8):
            part = {"obs": rows["obs"][at : at + 8], "text": text[at : at + 8]}
            both = {key: value[at : at + 8] for key, value in rows["next"].items()}
            ReplayBuffer(first).extend({**part, "next": both})
        ReplayBuffer(first).save(tmp_path / "a")
        assert read_meta(tmp_path / "a")["format"] == 5
        for capacity in (100, 33):
            with LazyTensorStorage(capacity, share_next=share_next) as second:
                ReplayBuffer(second).load(tmp_path / "a")
                batch = ReplayBuffer(second)[:]
                assert [bytes(x) for x in batch["text"]] == text[-capacity:]
                assert np.array_equal(batch["obs"], seen[n - capacity : n])
                assert np.array_equal(batch["next", "obs"], seen[n - capacity + 1 :])
        with LazyTensorStorage(100, share_next=share_next) as half:
            ReplayBuffer(half).load(tmp_path / "a", rank=1, world_size=2)
            batch = ReplayBuffer(half)[:]
            assert [bytes(x) for x in batch["text"]] == text[-len(half) :]


def pictures(n: int = 600) -> dict[str, Any]:
    frames = np.random.default_rng(0).integers(0, 256, (n + 5, 40, 40), np.uint8)
    stack = np.lib.stride_tricks.sliding_window_view(frames, 4, axis=0).transpose(0, 3, 1, 2)
    flags = {"reward": np.arange(n, dtype=np.float32), "done": np.arange(n) == n - 1}
    return {"obs": stack[:n], "next": {"obs": stack[1 : n + 1], **flags}}


def test_bytes_of_the_files(tmp_path: Path) -> None:
    rows = pictures()
    n = len(rows["obs"])
    with LazyTensorStorage(n) as storage:
        ReplayBuffer(storage).extend(rows)
        ReplayBuffer(storage).save(tmp_path / "a")
    size = sum(f.stat().st_size for f in (tmp_path / "a").iterdir())
    assert size < 1.05 * n * (1600 + 40)
    assert (tmp_path / "a" / "slots.bin").stat().st_size == (n + 4) * 1600
    meta = read_meta(tmp_path / "a")
    assert meta["format"] == 5 and meta["shared"]["leaves"] == [[["obs"], 4, True]]
    with LazyTensorStorage(n, share_next=False) as storage:
        ReplayBuffer(storage).extend(rows)
        ReplayBuffer(storage).save(tmp_path / "plain")
    assert read_meta(tmp_path / "plain")["format"] == 2  # for programs that know no other
    assert not (tmp_path / "plain" / "slots.bin").exists()


@pytest.mark.parametrize("there", ["memory", "plain", "disk", "device"])
@pytest.mark.parametrize("here", ["memory", "disk"])
def test_memory_of_a_load(
    here: str, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than a few pieces, and what the rows take once."""
    for name in ("snapshot", "disk.loading_slots", "disk.linked_rows", "disk.loading"):
        monkeypatch.setattr(f"contig.tape.{name}._PIECE_BYTES", 1 << 18)
    monkeypatch.setattr("contig.tape.disk.linked_rows._EXPANDED_BYTES", 1 << 18)
    monkeypatch.setattr("contig.replay.checkpoint._CHUNK_BYTES", 1 << 18)
    rows = pictures(2000)
    n = len(rows["obs"])
    plain, once = n * 12800, n * 1700
    storages: dict[str, Any] = {
        "memory": lambda x: LazyTensorStorage(n),
        "plain": lambda x: LazyTensorStorage(n, share_next=False),
        "disk": lambda x: DiskStorage(tmp_path / x, n),
        "device": lambda x: DeviceStorage(n, "cpu"),
    }
    with storages[here]("here") as first:
        ReplayBuffer(first).extend(rows)
        ReplayBuffer(first).save(tmp_path / "a")
    with storages[there]("there") as second:
        buffer = ReplayBuffer(second)
        tracemalloc.start()
        try:
            buffer.load(tmp_path / "a")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2 * once + (5 << 20) < plain / 2
        batch = buffer[:]
        assert np.array_equal(batch["obs"], rows["obs"])
        assert np.array_equal(batch["next", "obs"], rows["next"]["obs"])


def test_while_rows_come_and_go(tmp_path: Path) -> None:
    """A save takes whole rows only, however fast they are evicted."""
    form = FORMS["stack first"]
    with memory(form, 64) as storage:
        fill(storage, form, 200)
        stop = threading.Event()
        known = set(identified(ReplayBuffer(storage)[:]))

        def write() -> None:
            env = Env(form, 9, np.random.default_rng(1))
            while not stop.is_set():
                rows = stacked([env.row(j == 6) for j in range(7)])
                both = zip(rows["action"], rows["obs"], rows["next"]["obs"])
                known.update((int(a), o.tobytes(), n.tobytes()) for a, o, n in both)
                storage.default_writer.extend(rows)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(12):
                ReplayBuffer(storage).save(tmp_path / "a")
                with LazyTensorStorage(64) as other:
                    ReplayBuffer(other).load(tmp_path / "a")
                    assert known.issuperset(identified(ReplayBuffer(other)[:]))
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("damage", ["missing", "other", "short"])
def test_damaged_observations_are_found(damage: str, tmp_path: Path) -> None:
    form = FORMS["stack first"]
    with memory(form) as first:
        fill(first, form, 90)
        ReplayBuffer(first).save(tmp_path / "a")
    file = tmp_path / "a" / "slots.bin"
    raw = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(raw[:-1] if damage == "short" else bytes([raw[0] ^ 1]) + raw[1:])
    refused(tmp_path / "a", r"slots\.bin")


def refused(path: Path, match: str) -> None:
    """By one that is empty, and by one that has rows, which stays as it was."""
    form = FORMS["stack first"]
    with memory(form) as second:
        for rows in (0, 120):
            fill(second, form, rows)
            before = everything(second) if rows else None
            with pytest.raises((LayoutError, FileNotFoundError), match=match):
                ReplayBuffer(second).load(path)
            assert (everything(second) == before) if rows else second.schema is None


@pytest.mark.parametrize("what", ["references", "form", "frames", "slots", "no form", "rows"])
def test_what_does_not_fit_together(what: str, tmp_path: Path) -> None:
    """Files that are as their checksums say, and still no checkpoint."""
    form, path = FORMS["stack first"], tmp_path / "a"
    with memory(form) as first:
        fill(first, form, 90)
        ReplayBuffer(first).save(path)
    meta = read_meta(path)
    match = "damaged|cannot be loaded"
    if what == "references":
        raw = bytearray((path / "records.bin").read_bytes())
        raw[:4] = b"\xff\xff\xff\x7f"
        rewrite(path, meta, "records.bin", bytes(raw))
        match = "refer to observations that are not there"
    elif what == "slots":
        rewrite(path, meta, "slots.bin", (path / "slots.bin").read_bytes()[:-1])
    elif what == "rows":
        rewrite(path, meta, "records.bin", (path / "records.bin").read_bytes()[:-4])
    elif what == "form":
        meta["shared"]["leaves"][0][0] = ["nowhere"]
    elif what == "frames":
        meta["shared"]["leaves"][0][1] = 5
    else:
        del meta["shared"]
    write_meta(path, meta)
    refused(path, match)


def rewrite(path: Path, meta: dict[str, Any], name: str, raw: bytes) -> None:
    (path / name).write_bytes(raw)
    meta["files"][name] = [len(raw), zlib.crc32(raw)]


def test_a_save_over_another_form(tmp_path: Path) -> None:
    """A checkpoint gives way to one that has other files, and the other way round."""
    form = FORMS["next only"]
    for told in ({"share_next": True}, {"share_next": False}, {"share_next": True}):
        with LazyTensorStorage(CAPACITY, **told) as storage:
            fill(storage, form, 50)
            ReplayBuffer(storage).save(tmp_path / "a")
            there = {f.name for f in (tmp_path / "a").iterdir()}
            assert ("slots.bin" in there) == told["share_next"]
            meta = json.loads((tmp_path / "a" / "checkpoint.json").read_text())
            assert set(meta["files"]) == there - {"checkpoint.json"}
