"""What comes back besides the rows: counters, priorities, continuity, and other users' views."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import EmptyBufferError, RateLimiter, RateLimitError, ReplayBuffer, SliceSampler
from contig.replay import checkpoint
from contig.tape import episodes
from contig.testing import World, episode, identity, row
from tests.replay.checkpoint.buffers import buffer_of, filled, fresh, image, images, read_meta
from tests.waiting import WAIT_S, until


def check_table(storage: contig.Storage) -> None:
    """The index agrees with the rows: steps, order, return, and one episode each."""
    table = storage.episodes()
    assert len(np.unique(table["id"])) == len(table)
    for line in table:
        batch = storage.read_episode(int(line["id"]))
        steps = identity(batch)
        number, t = steps[0]
        assert steps == [(number, t + i) for i in range(len(steps))], "rows of several episodes"
        assert len(steps) == line["steps"]
        if not line["trimmed"]:
            assert line["return"] == batch["next", "reward"].sum()
    assert table["steps"].sum() == len(storage)


# -- rows and index -------------------------------------------------------------------------------


def test_table_of_episodes_comes_back(tmp_path: Path) -> None:
    world = filled()
    buffer = buffer_of(world.storage, "random")
    buffer.save(tmp_path / "a")
    loaded = fresh("random")
    loaded.load(tmp_path / "a")
    assert loaded.storage.episodes().tobytes() == world.storage.episodes().tobytes()
    assert image(loaded[:]) == image(buffer[:])
    check_table(loaded.storage)


def test_seqs_go_on(tmp_path: Path) -> None:
    world = filled()
    buffer = buffer_of(world.storage, "random")
    buffer.save(tmp_path / "a")
    loaded = fresh("random")
    loaded.load(tmp_path / "a")
    newest = max(world.stored())
    assert loaded.extend(episode(900, 3)).tolist() == [newest + 1, newest + 2, newest + 3]
    check_table(loaded.storage)


def test_emptied_buffer(tmp_path: Path) -> None:
    world = filled()
    buffer = buffer_of(world.storage, "without replacement")
    images(buffer, 2)
    buffer.empty()
    buffer.save(tmp_path / "a")
    loaded = fresh("without replacement")
    loaded.load(tmp_path / "a")
    assert len(loaded) == 0
    with pytest.raises(EmptyBufferError):
        loaded.sample()
    seqs = [b.extend(episode(900, 3)).tolist() for b in (buffer, loaded)]
    assert seqs[0] == seqs[1]
    assert images(loaded, 2) == images(buffer, 2)
    check_table(loaded.storage)


def test_other_buffers_of_the_storage_see_it(tmp_path: Path) -> None:
    world = filled()
    buffer_of(world.storage, "random").save(tmp_path / "a")
    shared = World(contig.LazyTensorStorage(150))
    shared.write(3)
    first, second = (buffer_of(shared.storage, "slices", seed=s) for s in (1, 2))
    images(second, 2)
    buffer_of(shared.storage, "random").load(tmp_path / "a")
    for batch in (b.sample() for b in (first, second) for _ in range(3)):
        steps = [tuple(s) for s in batch["observation"].astype(int).tolist()]
        assert steps == [world.step_at[s] for s in batch["index"].tolist()]


@pytest.mark.parametrize("kind", [contig.LazyTensorStorage, contig.SharedStorage])
def test_any_storage_into_any_other(tmp_path: Path, kind: Any) -> None:
    with kind(150) as storage:
        world = filled(storage)
        buffer = buffer_of(storage, "slices")
        buffer.save(tmp_path / "a")
        for other in (contig.LazyTensorStorage, contig.SharedStorage):
            with other(150) as target:
                loaded = buffer_of(target, "slices", seed=9)
                loaded.load(tmp_path / "a")
                check_table(target)
                assert len(loaded) == len(world.stored())


# -- writers that were at work ---------------------------------------------------------------------


def test_writer_goes_on_after_going_back(tmp_path: Path) -> None:
    # Its open episode grew after the checkpoint; now it has fewer rows again.
    buffer = fresh("random")
    for t in range(4):
        buffer.add(row(1, t))
    buffer.save(tmp_path / "a")
    for t in range(4, 9):
        buffer.add(row(1, t))
    buffer.load(tmp_path / "a")
    assert len(buffer) == 4
    check_table(buffer.storage)
    for t in range(9, 12):
        buffer.add(row(1, t))
    check_table(buffer.storage)


def test_writer_does_not_join_an_episode_of_the_checkpoint(tmp_path: Path) -> None:
    # Entry numbers and steps happen to fit: 3 rows of another episode lie where its own were.
    saved = fresh("random")
    saved.extend(episode(1, 3, end=None))
    saved.extend(episode(2, 4))
    saved.save(tmp_path / "a")
    buffer = fresh("random")
    buffer.extend(episode(7, 3, end=None))
    buffer.load(tmp_path / "a")
    buffer.extend(episode(7, 3, start=3))
    check_table(buffer.storage)
    slices = ReplayBuffer(buffer.storage, SliceSampler(slice_len=4), batch_size=80, seed=0)
    numbers = slices.sample()
    cuts = np.flatnonzero(numbers["is_init"])
    for piece in np.split(numbers["observation"][:, 0], cuts[1:]):
        assert len(set(piece.tolist())) == 1, "a slice of two episodes"


@pytest.mark.parametrize("ids", [True, False])
def test_lanes_of_a_writer_over_a_load(tmp_path: Path, ids: bool) -> None:
    def steps(numbers: list[int], start: int, n: int) -> Any:
        for t in range(start, start + n):
            rows = [episode(k, 1, start=t, end=None, ids=ids) for k in numbers]
            yield {
                "observation": np.concatenate([r["observation"] for r in rows]),
                "action": np.concatenate([r["action"] for r in rows]),
                "next": {k: np.concatenate([r["next"][k] for r in rows]) for k in rows[0]["next"]},
            } | ({"collector": {"traj_ids": np.array(numbers)}} if ids else {})

    saved = fresh("random")
    for step in steps([1, 2, 3], 0, 5):
        saved.add_step(step)
    saved.save(tmp_path / "a")
    buffer = fresh("random")
    for step in steps([11, 12, 13], 0, 5):
        buffer.add_step(step)
    buffer.load(tmp_path / "a")
    for step in steps([11, 12, 13], 5, 3):
        buffer.add_step(step)
    check_table(buffer.storage)
    for step in steps([1, 2, 3], 5, 3):
        saved.add_step(step)
    check_table(saved.storage)


def test_newest_policy_version_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    buffers = []
    for version in (3, 50):
        world = World(contig.LazyTensorStorage(100))
        world.version = version
        world.extend(5)
        sampler = contig.WindowSampler(max_staleness=2)
        buffers.append(ReplayBuffer(world.storage, sampler, batch_size=4, seed=0))
        buffers[-1].sample()
    saved, loaded = buffers
    saved.save(tmp_path / "a")
    loaded.load(tmp_path / "a")
    assert loaded.sample()["collector", "policy_version"].tolist() == [3] * 4


# -- priorities and the limiter -------------------------------------------------------------------


def test_priorities_come_back(tmp_path: Path) -> None:
    world = World(contig.LazyTensorStorage(20))
    world.extend(20)
    sampler = contig.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=500, seed=0)
    buffer.update_priority(np.arange(20), np.arange(20.0))
    buffer.update_priority([19], [0.5])
    world.extend(3)
    buffer.update_priority([0, 1, 22], [1.0, 1.0, 6.0])
    buffer.save(tmp_path / "a")
    other = contig.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    loaded = ReplayBuffer(contig.LazyTensorStorage(20), other, batch_size=500, seed=1)
    loaded.load(tmp_path / "a")
    assert loaded.stats().stale_priority_updates == 2
    batch = loaded.sample()
    q = {**{s: float(s) for s in range(3, 19)}, 19: 0.5, 20: 19.0, 21: 19.0, 22: 6.0}
    expected = [0.5 / q[s] for s in batch["index"].tolist()]
    np.testing.assert_allclose(batch["priority_weight"], expected, rtol=1e-6)
    # New rows get the largest priority ever set, which is 19.
    loaded.extend(episode(900, 1))
    batch = loaded.sample()
    weight = batch["priority_weight"][batch["index"] == 23]
    np.testing.assert_allclose(weight, 0.5 / 19, rtol=1e-6)


def test_priorities_of_rows_written_since_the_last_draw(tmp_path: Path) -> None:
    # The tree had not taken them in when the checkpoint was made.
    world = World(contig.LazyTensorStorage(20))
    world.extend(10)
    sampler = contig.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=300, seed=0)
    buffer.update_priority([4], [8.0])
    world.extend(3)
    buffer.save(tmp_path / "a")
    other = contig.PrioritizedSampler(alpha=1.0, beta=1.0, eps=0.0)
    loaded = ReplayBuffer(contig.LazyTensorStorage(20), other, batch_size=300, seed=1)
    loaded.load(tmp_path / "a")
    assert images(loaded, 3) == images(buffer, 3)


def test_limiter_goes_on(tmp_path: Path) -> None:
    def limited() -> ReplayBuffer:
        limiter = RateLimiter(2.0, min_size=4, error_buffer=8, block=False)
        return ReplayBuffer(contig.LazyTensorStorage(100), batch_size=2, limiter=limiter, seed=0)

    buffer = limited()
    buffer.extend(episode(0, 6))
    for _ in range(3):
        buffer.sample()
    buffer.save(tmp_path / "a")
    loaded = limited()
    loaded.load(tmp_path / "a")
    tape = loaded.storage.tape
    assert (tape.inserted, tape.sampled) == (6, 6)
    for b in (buffer, loaded):
        allowed = 0
        with pytest.raises(RateLimitError, match="6 rows inserted"):
            while True:
                b.sample()
                allowed += 1
        # 2 * 6 - s - 2 * 4 >= -8
        assert allowed == 3


def test_limiter_does_not_count_batches_that_will_come_again(tmp_path: Path) -> None:
    limiter = RateLimiter(2.0, min_size=1, error_buffer=1000)
    world = filled()
    buffer = ReplayBuffer(world.storage, batch_size=4, limiter=limiter, prefetch=4, seed=0)
    for _ in range(3):
        buffer.sample()
    until(lambda: world.storage.tape.sampled == 7 * 4, "four batches drawn ahead")
    buffer.save(tmp_path / "a")
    loaded = ReplayBuffer(contig.LazyTensorStorage(150), batch_size=4, limiter=limiter, seed=1)
    loaded.load(tmp_path / "a")
    assert loaded.storage.tape.sampled == 3 * 4
    buffer.close()


# -- a writer at work while it is saved -----------------------------------------------------------


def _write(storage: Any, stop: Any) -> None:
    writer = storage.writer()
    n = 0
    while not stop.is_set():
        n += 1
        if n % 3:
            writer.extend(episode(n, 1 + n % 9))
        else:
            for t in range(4):
                writer.add(row(n, t, end="terminated" if t == 3 else None))


def test_save_while_another_process_writes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with contig.SharedStorage(400, example=row(0, 0)) as storage:
        stop = context.Event()
        process = context.Process(target=_write, args=(storage, stop), daemon=True)
        process.start()
        try:
            until(lambda: len(storage) == 400, "the ring is full")
            buffer = buffer_of(storage, "slices")
            heads = []
            for k in range(12):
                buffer.sample()
                buffer.save(tmp_path / "a")
                loaded = fresh("slices", 400)
                loaded.load(tmp_path / "a")
                check_table(loaded.storage)
                meta = read_meta(tmp_path / "a")
                heads.append(meta["head"])
                assert len(loaded) == meta["head"] - meta["tail"]
                assert len(loaded) <= 400
                if len(loaded):
                    images(loaded, 2)
                # It goes on from there.
                loaded.extend(episode(10_000 + k, 3))
                check_table(loaded.storage)
            assert heads == sorted(heads) and heads[-1] > heads[0]
        finally:
            stop.set()
            process.join(WAIT_S)
        assert process.exitcode == 0


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Makes something happen once, right after `save` has read the index."""

    def arrange(what: Callable[[], None]) -> None:
        read, todo = episodes.read_index, [what]

        def read_index(tape: Any) -> Any:
            table = read(tape)
            if todo:
                todo.pop()()
            return table

        monkeypatch.setattr(checkpoint, "read_index", read_index)

    return arrange


def test_counters_of_a_checkpoint_fit_its_rows(tmp_path: Path, meanwhile: Any) -> None:
    # Rows that came while it was being saved are not in it, so they do not count either.
    world = World(contig.LazyTensorStorage(1000))
    world.write(3)
    buffer = buffer_of(world.storage, "random")
    meanwhile(lambda: world.extend(7))
    buffer.save(tmp_path / "a")
    meta = read_meta(tmp_path / "a")
    assert meta["limiter"]["inserted"] == meta["head"]


@pytest.mark.parametrize("rows", [1, 40, 149, 150])
def test_rows_that_writers_overtake_are_left_out(tmp_path: Path, meanwhile: Any, rows: int) -> None:
    world = filled()
    buffer = buffer_of(world.storage, "slices")
    buffer.sample()
    meanwhile(lambda: world.extend(rows))
    buffer.save(tmp_path / "a")
    loaded = fresh("slices")
    loaded.load(tmp_path / "a")
    check_table(loaded.storage)
    # However fast they are, a full buffer is not saved as an empty one.
    assert len(loaded) > 0
    images(loaded, 2)
