"""Observations that are stored once on disk: samples are those of a storage that has all of them in
each row, files are smaller."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig.tape.disk.following as following
from contig import (
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TrajectorySampler,
)
from contig.cli.main import main
from contig.errors import LayoutError
from contig.tape.disk import DiskStorage
from contig.tape.disk.repair import verify
from contig.tape.disk.stored_slots import reach_for

Tree = dict[str, Any]

FRAMES = 4


def pixels(rng: Any, *shape: int) -> Any:
    return rng.integers(0, 256, shape, np.uint8)


def episode(seed: int, steps: int, ended: bool = True, stacked: bool = False) -> Tree:
    """Rows of a trajectory whose values are all different, some of them no numbers or zeros. Frames
    are the first axis, or the last."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, (steps + 1, 9), np.uint64).astype(np.uint32)
    bits[rng.random(bits.shape) < 0.2] |= 0x7F800001  # NaNs of all kinds
    state = bits.view(np.float32)
    state[rng.random(state.shape) < 0.1] = -0.0
    if steps > 3:
        state[3] = state[2]  # nothing happened
    seen: Tree = {"state": state}
    if stacked:
        frames = pixels(rng, steps + 1, 8, 8)
        at = np.maximum(np.arange(steps + 1)[:, None] + np.arange(1 - FRAMES, 1), 0)
        seen["frames"] = frames[at]
        seen["pixels"] = np.moveaxis(pixels(rng, steps + 1, 6, 6)[at], 1, -1)
    done = np.zeros((steps, 1), bool)
    done[-1] = ended
    return {
        **{name: x[:-1] for name, x in seen.items()},
        "action": rng.standard_normal((steps, 2)),
        "next": {
            **{name: x[1:] for name, x in seen.items()},
            "reward": rng.standard_normal((steps, 1)).astype(np.float32),
            "done": done,
            "terminated": done,
        },
    }


def part(rows: Tree, which: Any) -> Tree:
    return {k: part(v, which) if isinstance(v, dict) else v[which] for k, v in rows.items()}


def joined(rows: list[Tree]) -> Tree:
    out = {}
    for key, value in rows[0].items():
        parts = [one[key] for one in rows]
        out[key] = joined(parts) if isinstance(value, dict) else np.concatenate(parts)
    return out


def same(a: Any, b: Any) -> None:
    """Two batches, byte for byte."""
    assert a.layout == b.layout
    for leaf in a.layout.leaves:
        x, y = (np.ascontiguousarray(batch[leaf.path]) for batch in (a, b))
        assert x.tobytes() == y.tobytes(), leaf.path


def everything(storage: Any) -> Any:
    head, tail, _, _ = storage.tape.snapshot()
    batch, lost = storage.gather(np.arange(tail, head, dtype=np.int64))
    assert not np.any(lost)
    return batch


def check(storage: Any, rows: Tree) -> None:
    """It has the newest of these rows, and nothing else."""
    batch = everything(storage)
    for leaf in batch.layout.leaves:
        value: Any = rows
        for key in leaf.path:
            value = value.get(key) if value is not None else None
        if value is None:
            continue
        x = np.ascontiguousarray(batch[leaf.path])
        y = np.ascontiguousarray(value[len(value) - len(batch) :])
        assert x.tobytes() == y.tobytes(), leaf.path


def used(path: Path) -> int:
    """Bytes of files that have blocks."""
    return sum(os.stat(f).st_blocks * 512 for f in path.rglob("*") if f.is_file())


def pair(path: Path, capacity: int, **options: Any) -> tuple[DiskStorage, DiskStorage]:
    """One that shares, and one that does not."""
    once = DiskStorage(path / "once", capacity, **options)
    options.pop("stack", None)
    return once, DiskStorage(path / "each", capacity, share_next=False, **options)


SAMPLERS: dict[str, Any] = {
    "random": RandomSampler,
    "without": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=4),
    "trajectories": lambda: TrajectorySampler(4),
    "priorities": PrioritizedSampler,
    "steps": lambda: NStepSampler(3, 0.9),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("stacked", (False, True))
def test_samples_are_the_same(tmp_path: Path, name: str, stacked: bool) -> None:
    stores = pair(tmp_path, 90, rows_per_extent=16)
    buffers = [
        ReplayBuffer(s, SAMPLERS[name](), batch_size=None if name == "trajectories" else 16, seed=3)
        for s in stores
    ]
    assert stores[0].schema is None
    for n in range(30):
        rows = episode(n, 1 + n % 13, stacked=stacked)
        for buffer in buffers:
            buffer.extend(rows)
        if n < 5:
            continue
        one, other = (buffer.sample() for buffer in buffers)
        same(one, other)
        if name == "priorities":
            for buffer, batch in zip(buffers, (one, other)):
                buffer.update_priority(batch["index"], np.linspace(0.1, 3, 16))
    assert stores[0].schema.sharing is not None and stores[1].schema.sharing is None
    same(*(everything(s) for s in stores))
    for store in stores:
        store.close()


def interleaved(rng: Any, count: int, stacked: bool) -> list[tuple[Tree, Any]]:
    """Rows of several envs, some at a time: (rows, envs)."""
    todo = {env: episode(1000 + env, 40, stacked=stacked) for env in range(count)}
    at, out = dict.fromkeys(todo, 0), []
    while todo:
        chosen = [e for e in todo if rng.random() < 0.8]
        rows = []
        for env in chosen:
            rows.append(part(todo[env], slice(at[env], at[env] + 1)))
            at[env] += 1
            if at[env] == 40:
                del todo[env]
        if rows:
            out.append((joined(rows), np.array(chosen, np.int64)))
    return out


@pytest.mark.parametrize("capacity", (7, 64, 400))
@pytest.mark.parametrize("stacked", (False, True))
def test_machine(tmp_path: Path, capacity: int, stacked: bool) -> None:
    """Appends of all kinds, retention, reopening, checkpoints: always as without sharing."""
    rng = np.random.default_rng(capacity)
    stores = list(pair(tmp_path, capacity, rows_per_extent=16))
    writers = [s.writer() for s in stores]
    steps = interleaved(rng, 5, stacked)
    for n in range(120):
        op = rng.integers(0, 10)
        if op < 4:
            rows = episode(int(rng.integers(1 << 30)), int(rng.integers(1, 30)), stacked=stacked)
            for writer in writers:
                writer.extend(rows)
        elif op < 7 and steps:
            rows, envs = steps.pop(0)
            for writer in writers:
                writer.add_step(rows, envs)
        elif op == 7:
            rows = part(episode(n, 1, ended=bool(n % 2), stacked=stacked), 0)
            for writer in writers:
                writer.add(rows)
        elif op == 8 and n % 3 == 0:
            for i, store in enumerate(stores):
                store.close()
                stores[i] = DiskStorage(store.path, capacity)
            writers = [s.writer() for s in stores]
        elif op == 9 and n % 4 == 0 and len(stores[0]):
            for i, store in enumerate(stores):
                ReplayBuffer(store).save(tmp_path / f"saved-{i}-{n}")
            for i, store in enumerate(stores):  # crosswise
                ReplayBuffer(store).load(tmp_path / f"saved-{1 - i if n % 8 else i}-{n}")
        if len(stores[0]):
            same(*(everything(s) for s in stores))
    found = [s.episodes() for s in stores]
    for name in ("id", "first", "steps", "return", "complete"):
        np.testing.assert_array_equal(found[0][name], found[1][name])
    for store in stores:
        assert not verify(store).trajectories
        store.close()


@pytest.mark.parametrize(("stacked", "most"), ((False, 0.62), (True, 0.2)))
def test_bytes_on_disk(tmp_path: Path, stacked: bool, most: float) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for n in range(6):
        one = episode(n, 150)
        seen = pixels(rng, 151, 32, 32)
        at = np.maximum(np.arange(151)[:, None] + np.arange(1 - FRAMES, 1), 0)
        seen = seen[at] if stacked else seen
        one["pixels"], one["next"]["pixels"] = seen[:-1], seen[1:]
        rows.append(one)
    stores = pair(tmp_path, 1 << 14)
    for store in stores:
        for one in rows:
            store.default_writer.extend(one)
        store.close()
    once, each = (used(s.path / "extents") for s in stores)
    assert once < most * each, (once, each)


@pytest.mark.parametrize("stacked", (False, True))
def test_checkpoints_into_any_storage(tmp_path: Path, stacked: bool) -> None:
    rows = [episode(n, 50 + n, stacked=stacked) for n in range(12)]
    with DiskStorage(tmp_path / "a", 1000, rows_per_extent=32) as disk:
        buffer = ReplayBuffer(disk, batch_size=32, seed=1)
        for one in rows:
            buffer.extend(one)
        sharing = disk.schema.sharing
        assert sharing is not None and any(x.frames > 1 for x in sharing.leaves) == stacked
        buffer.save(tmp_path / "linked")
        expected = buffer.sample()
        names = sorted(f.name for f in (tmp_path / "linked" / "extents").iterdir())
        assert any(name.endswith(".bin") for name in names)
        linked = tmp_path / "linked" / "extents" / "00000000.rec"
        assert os.stat(linked).st_nlink == 2
        # Into memory, and from there back, and into another one on disk.
        memory = ReplayBuffer(LazyTensorStorage(1000), batch_size=32)
        memory.load(tmp_path / "linked")
        check(memory.storage, joined(rows))
        same(memory.sample(), expected)
        memory.save(tmp_path / "packed")
        for name in ("linked", "packed"):
            buffer.extend(rows[0])
            buffer.load(tmp_path / name)
            check(disk, joined(rows))
            buffer.extend(rows[3])  # it goes on
            check(disk, joined([*rows, rows[3]]))
        # Another one takes over how they are stored, and links them.
        with DiskStorage(tmp_path / "b", 1000, rows_per_extent=32) as other:
            ReplayBuffer(other).load(tmp_path / "linked")
            assert other.schema.sharing == sharing
            assert os.stat(next((tmp_path / "b").rglob("00000000.rec"))).st_nlink == 2
            check(other, joined(rows))
            assert not verify(other).trajectories
        for n, options in enumerate(({"share_next": False}, {"stack": {}}, {"capacity": 200})):
            options = {"capacity": 1000, "rows_per_extent": 32, **options}
            with DiskStorage(tmp_path / f"c{n}", **options) as other:
                again = ReplayBuffer(other)
                again.load(tmp_path / "linked")
                check(other, joined(rows))
                again.extend(rows[5])
                check(other, joined([*rows, rows[5]]))
            with DiskStorage(tmp_path / f"c{n}", options["capacity"]) as other:
                check(other, joined([*rows, rows[5]]))
        memory.storage.close()


def test_a_checkpoint_is_damaged(tmp_path: Path) -> None:
    with DiskStorage(tmp_path / "a", 1000, rows_per_extent=32) as disk:
        ReplayBuffer(disk).extend(episode(0, 90))
        ReplayBuffer(disk).save(tmp_path / "saved")
        file = tmp_path / "saved" / "extents" / "00000000.bin"
        data = bytearray(file.read_bytes())
        data[1000] ^= 1
        file.unlink()
        file.write_bytes(data)
        memory = ReplayBuffer(LazyTensorStorage(1000))
        with pytest.raises(LayoutError, match="damaged"):
            memory.load(tmp_path / "saved")
        assert memory.storage.schema is None
        data[1000] ^= 1
        file.write_bytes(data[:-5])
        with pytest.raises(LayoutError, match="00000000.bin"):
            memory.load(tmp_path / "saved")


def test_one_step_and_growing_episodes(tmp_path: Path) -> None:
    """Step by step; a trajectory that is longer than the storage."""
    stores = pair(tmp_path, 10, rows_per_extent=16)
    for store in stores:
        for n in range(5):
            store.default_writer.add(part(episode(n, 1), 0))
        long = episode(99, 64)
        for i in range(64):
            store.default_writer.add(part(long, i))
        assert int(store.tape.snapshot()[1]) == 59
    same(*(everything(s) for s in stores))
    once = stores[0]
    # 2 for each of one step, then one for each step, one was the same, and the last.
    assert int(once.tape.blob_head) == (5 * 2 + 64) * 36
    for store in stores:
        store.close()


def test_an_append_larger_than_the_storage(tmp_path: Path) -> None:
    stores = pair(tmp_path, 20, rows_per_extent=16)
    for store in stores:
        store.default_writer.extend(episode(1, 100, ended=False))
        store.default_writer.extend(episode(2, 19))
    same(*(everything(s) for s in stores))
    for store in stores:
        store.close()


def test_further_back_than_it_reaches(tmp_path: Path) -> None:
    """Many envs: a row has its own observation then, and nothing is wrong."""
    capacity = 64 * 16
    assert reach_for(capacity, 36, None) == 64
    for envs, shared in ((20, True), (200, False)):
        with DiskStorage(tmp_path / str(envs), capacity) as disk:
            all_rows = [episode(n, 4) for n in range(envs)]
            for step in range(4):
                now = joined([part(one, slice(step, step + 1)) for one in all_rows])
                disk.default_writer.add_step(now)
            slots = int(disk.tape.blob_head) // 36
            assert slots == envs * (4 if shared else 7)  # one is the same twice in a row
            batch = everything(disk)
            want = np.concatenate([[one["state"][s] for one in all_rows] for s in range(4)])
            assert batch["state"].tobytes() == np.ascontiguousarray(want).tobytes()


def test_numbers_beyond_32_bits(tmp_path: Path) -> None:
    """Rows have the low bits of observations' numbers only."""
    rows = [episode(n, 20) for n in range(4)]
    with DiskStorage(tmp_path, 100, example=part(rows[0], 0)) as disk:
        start = ((1 << 32) - 30) * 36
        disk.opened.bytes.restart(start, start)
        for one in rows:
            disk.default_writer.extend(one)
        assert int(disk.tape.blob_head) // 36 > 1 << 32
        check(disk, joined(rows))
        ReplayBuffer(disk).save(tmp_path / "saved")
    with DiskStorage(tmp_path, 100) as disk:
        check(disk, joined(rows))
        assert not verify(disk).trajectories
    memory = ReplayBuffer(LazyTensorStorage(100))
    memory.load(tmp_path / "saved")
    check(memory.storage, joined(rows))


def test_retention(tmp_path: Path) -> None:
    """Files go, but none that a row refers to."""
    row = 36 + 100
    bounds: tuple[Tree, ...] = ({"max_bytes": 60 * row}, {"max_episodes": 3}, {"capacity": 40})
    for n, bound in enumerate(bounds):
        options = {"capacity": 500, "rows_per_extent": 16, **bound}
        rows = []
        with DiskStorage(tmp_path / str(n), **options) as disk:
            long = episode(7, 600, ended=False)
            for i in range(0, 600, 5):
                rows.append(part(long, slice(i, i + 5)))
                disk.default_writer.extend(rows[-1])
                if n == 1:
                    rows.append(episode(i, 7))
                    disk.default_writer.extend(rows[-1])
                if i % 50 == 0:
                    disk.retain()
                    disk.flush()
                    check(disk, joined(rows))
            disk.retain()
            disk.flush()
            assert len(disk) < 500
            files = sorted((tmp_path / str(n) / "extents").glob("*.bin"))
            assert int(files[0].stem) > 0
            if n == 0:
                live = disk.opened.bytes.head - disk.opened.bytes.tail
                assert live + len(disk) * disk.opened.extents.stride <= 60 * row + 64 * 36
            assert not verify(disk).trajectories
        with DiskStorage(tmp_path / str(n), options["capacity"]) as disk:
            check(disk, joined(rows))
            assert not verify(disk).trajectories


def _read(path: str, pipe: Any) -> None:
    following._POLL_S = 0.0
    with DiskStorage(path, 200, read_only=True) as storage:
        while (want := pipe.recv()) is not None:
            while int(storage.tape.snapshot()[0]) < want:
                storage.poll()
            storage.poll()
            batch = everything(storage)
            pipe.send((np.asarray(batch["state"]).tobytes(), storage.quarantined))


def test_another_process_follows(tmp_path: Path) -> None:
    rows: list[Tree] = []
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    with DiskStorage(tmp_path, 200, rows_per_extent=16) as disk:
        disk.default_writer.extend(episode(0, 3, ended=False))
        rows.append(episode(0, 3, ended=False))
        disk.flush()
        process = spawn.Process(target=_read, args=(str(tmp_path), there))
        process.start()
        try:
            for n in range(1, 25):
                rows.append(episode(n, 1 + n % 17, ended=n % 3 == 0))
                disk.default_writer.extend(rows[-1])
                disk.flush()
                here.send(int(disk.tape.snapshot()[0]))
                assert here.poll(60)
                state, quarantined = here.recv()
                assert state == np.asarray(everything(disk)["state"]).tobytes()
                assert not quarantined
            here.send(None)
            process.join(60)
            assert process.exitcode == 0
        finally:
            process.kill()
        check(disk, joined(rows))


def test_what_is_asked_for(tmp_path: Path) -> None:
    rows = {**episode(0, 5), "note": [b"x" * n for n in range(5)]}
    with DiskStorage(tmp_path / "a", 100) as disk:  # not beside leaves of any size
        disk.default_writer.extend(rows)
        assert disk.schema.sharing is None and disk.schema.layout.variable
    with DiskStorage(tmp_path / "b", 100, share_next=True) as disk:
        with pytest.raises(LayoutError, match='"note" .any size.: beside leaves of any size'):
            disk.default_writer.extend(rows)
        assert disk.schema is None
        disk.default_writer.extend(episode(0, 5))
        assert disk.schema.sharing is not None
    with DiskStorage(tmp_path / "b", 100) as disk:  # it stays what it is
        assert disk.schema.sharing is not None
        check(disk, episode(0, 5))
    with DiskStorage(tmp_path / "c", 100, stack={"frames": (FRAMES, 0)}) as disk:
        disk.default_writer.extend(episode(0, 5, stacked=True))
        stacks = {x.path[0]: x.frames for x in disk.schema.sharing.leaves}
        assert stacks == {"frames": FRAMES, "pixels": 1, "state": 1}
    codecs = {("state",): "lz4", ("next", "state"): "lz4"}
    with DiskStorage(tmp_path / "e", 100, codecs=codecs) as disk:  # nor with codecs
        disk.default_writer.extend(episode(0, 5))
        assert disk.schema.sharing is None and len(disk.codecs) == 2
        check(disk, episode(0, 5))
    with DiskStorage(tmp_path / "f", 100, codecs={"state": "lz4"}, share_next=True) as disk:
        with pytest.raises(LayoutError, match='codecs: "state" has lz4.* on disk, that is not'):
            disk.default_writer.extend(episode(0, 5))
    tiny = {"obs": np.zeros((3, 1), np.float32), "next": {"obs": np.zeros((3, 1), np.float32)}}
    with DiskStorage(tmp_path / "d", 100) as disk:  # nothing is saved
        disk.default_writer.extend({**tiny, "next": {**tiny["next"], "done": np.ones(3, bool)}})
        assert disk.schema.sharing is None
    assert b'"format": 2' in (tmp_path / "d" / "layout.json").read_bytes()
    assert b'"format": 4' in (tmp_path / "c" / "layout.json").read_bytes()


def test_inspect(tmp_path: Path, capsys: Any) -> None:
    with DiskStorage(tmp_path / "a", 100) as disk:
        disk.default_writer.extend(episode(0, 5))
    assert main(["inspect", str(tmp_path / "a"), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "180 in observations, each stored once" in said
    shutil.rmtree(tmp_path / "a")


def test_kept_store(tmp_path: Path) -> None:
    """One of this format as it was first written."""
    kept = Path(__file__).parent / "kept" / "format-4"
    rows = [episode(n, 6, stacked=True) for n in range(4)]
    for name in ("closed", "killed"):
        copy = Path(shutil.copytree(kept / name, tmp_path / name))
        with DiskStorage(copy, 20) as disk:
            check(disk, joined(rows))
            assert not verify(disk).trajectories
            disk.default_writer.extend(rows[0])
            check(disk, joined([*rows, rows[0]]))
    memory = ReplayBuffer(LazyTensorStorage(100))
    memory.load(Path(shutil.copytree(kept / "checkpoint", tmp_path / "checkpoint")))
    check(memory.storage, part(joined(rows), slice(4, None)))
