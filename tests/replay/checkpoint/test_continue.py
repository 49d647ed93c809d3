"""Save, load, go on: the same batches, byte by byte, as without the interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import ReplayBuffer
from contig.testing import World
from tests.replay.checkpoint.buffers import (
    CAPACITY,
    PRIORITIZED,
    SAMPLERS,
    buffer_of,
    filled,
    fresh,
    image,
    images,
)
from tests.waiting import until

names = pytest.mark.parametrize("name", SAMPLERS)
prefetches = pytest.mark.parametrize("prefetch", [0, 3])


def prepared(name: str, prefetch: int) -> tuple[World, ReplayBuffer]:
    world = filled()
    buffer = buffer_of(world.storage, name, prefetch=prefetch)
    if name in PRIORITIZED:
        rows = np.array(sorted(world.stored()))
        buffer.update_priority(rows, 1.0 + rows % 5)
    return world, buffer


@names
@prefetches
def test_loaded_buffer_goes_on(tmp_path: Path, name: str, prefetch: int) -> None:
    _, never_saved = prepared(name, prefetch)
    expected = images(never_saved, 9)
    _, buffer = prepared(name, prefetch)
    assert images(buffer, 4) == expected[:4]
    buffer.save(tmp_path / "a")
    loaded = fresh(name, prefetch=prefetch)
    loaded.load(tmp_path / "a")
    assert images(loaded, 5) == expected[4:]
    # And saving disturbed nothing.
    assert images(buffer, 5) == expected[4:]
    for b in (never_saved, buffer, loaded):
        b.close()


@names
def test_goes_on_alike_after_further_writes(tmp_path: Path, name: str) -> None:
    world, buffer = prepared(name, 0)
    images(buffer, 2)
    buffer.save(tmp_path / "a")
    loaded = fresh(name)
    loaded.load(tmp_path / "a")
    other = World(loaded.storage)
    other.version = world.version
    for number in range(500, 560):
        for w in (world, other):
            w.extend(1 + number % 5, number=number)
        if number % 6 == 0:
            assert images(loaded, 1) == images(buffer, 1)


@names
def test_saved_twice_in_a_row(tmp_path: Path, name: str) -> None:
    # A checkpoint of a loaded buffer is as good as the first.
    _, buffer = prepared(name, 0)
    images(buffer, 3)
    buffer.save(tmp_path / "a")
    second = fresh(name)
    second.load(tmp_path / "a")
    second.save(tmp_path / "b")
    third = fresh(name)
    third.load(tmp_path / "b")
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    assert images(third, 4) == images(buffer, 4)


@names
@prefetches
def test_loading_into_a_buffer_in_use(tmp_path: Path, name: str, prefetch: int) -> None:
    # What it held, what its sampler knew and what it drew ahead are all replaced.
    _, buffer = prepared(name, 0)
    images(buffer, 3)
    buffer.save(tmp_path / "a")
    other = World(contig.LazyTensorStorage(CAPACITY))
    other.write(4)
    used = buffer_of(other.storage, name, seed=5, prefetch=prefetch)
    images(used, 3)
    used.load(tmp_path / "a")
    assert images(used, 4) == images(buffer, 4)
    used.close()


@names
def test_going_back_within_one_buffer(tmp_path: Path, name: str) -> None:
    world, buffer = prepared(name, 0)
    images(buffer, 2)
    buffer.save(tmp_path / "a")
    expected = images(buffer, 4)
    for _ in range(3):
        world.write(3)
        images(buffer, 3)
        buffer.load(tmp_path / "a")
        assert images(buffer, 4) == expected


# -- prefetch -------------------------------------------------------------------------------------


class Counting:
    """Counts the batches that were drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def on_sample(self, batch: Any) -> Any:
        self.drawn += 1
        return batch


@names
def test_batches_drawn_ahead_come_again(tmp_path: Path, name: str) -> None:
    _, plain = prepared(name, 0)
    expected = images(plain, 8)
    counting = Counting()
    world = filled()
    ahead = buffer_of(world.storage, name, prefetch=4, transform=counting)
    if name in PRIORITIZED:
        rows = np.array(sorted(world.stored()))
        ahead.update_priority(rows, 1.0 + rows % 5)
    assert images(ahead, 2) == expected[:2]
    until(lambda: counting.drawn == 6, "four batches drawn ahead")
    ahead.save(tmp_path / "a")
    loaded = fresh(name, prefetch=4)
    loaded.load(tmp_path / "a")
    assert images(loaded, 6) == expected[2:]
    assert images(ahead, 6) == expected[2:]
    for b in (ahead, loaded):
        b.close()


@names
def test_any_prefetch_gives_the_same_batches(name: str) -> None:
    got = []
    for prefetch in (0, 1, 4):
        _, buffer = prepared(name, prefetch)
        got.append(images(buffer, 10))
        buffer.close()
    assert got[0] == got[1] == got[2]


# -- other capacities -----------------------------------------------------------------------------


@names
@pytest.mark.parametrize("capacity", [40, CAPACITY - 1, CAPACITY + 1, 4 * CAPACITY])
def test_other_capacity(tmp_path: Path, name: str, capacity: int) -> None:
    world, buffer = prepared(name, 0)
    images(buffer, 3)
    buffer.save(tmp_path / "a")
    loaded = fresh(name, capacity)
    loaded.load(tmp_path / "a")
    kept = sorted(world.stored())[-capacity:]
    assert len(loaded) == len(kept)
    for seq in (kept[0], kept[-1]):
        row = loaded[seq]
        assert tuple(row["observation"][0].astype(int).tolist()) == world.step_at[seq]
    for batch in [loaded.sample() for _ in range(3)]:
        steps = [tuple(s) for s in batch["observation"].astype(int).tolist()]
        assert steps == [world.step_at[s] for s in batch["index"].tolist()]
        assert set(batch["index"].tolist()) <= set(kept)
    # And the ring turns on.
    after = World(loaded.storage)
    after.version = world.version
    after.step_at = {s: world.step_at[s] for s in kept}
    for number in range(500, 700):
        after.extend(1 + number % 5, number=number)
        if number % 20 == 0:
            batch = loaded.sample()
            steps = [tuple(s) for s in batch["observation"].astype(int).tolist()]
            assert steps == [after.step_at[s] for s in batch["index"].tolist()]
            assert set(batch["index"].tolist()) <= after.stored()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("capacity", [CAPACITY // 2, CAPACITY * 2])
def test_retired_rows_stay_retired_in_another_capacity(tmp_path: Path, capacity: int) -> None:
    world = filled()
    sampler = contig.RandomSampler(max_times_sampled=1)
    buffer = ReplayBuffer(world.storage, sampler, batch_size=20, seed=0)
    seen = {s for _ in range(3) for s in buffer.sample()["index"].tolist()}
    buffer.save(tmp_path / "a")
    loaded = ReplayBuffer(
        contig.LazyTensorStorage(capacity), contig.RandomSampler(1), batch_size=20, seed=1
    )
    loaded.load(tmp_path / "a")
    rest: list[int] = []
    with pytest.raises(contig.NothingEligibleError):
        while True:
            rest += loaded.sample()["index"].tolist()
    kept = set(sorted(world.stored())[-capacity:])
    assert sorted(rest) == sorted(kept - seen)


@pytest.mark.parametrize("capacity", [60, 600])
def test_priorities_move_to_another_capacity(tmp_path: Path, capacity: int) -> None:
    world, buffer = prepared("prioritized", 0)
    buffer.save(tmp_path / "a")
    loaded = fresh("prioritized", capacity)
    loaded.load(tmp_path / "a")
    batch = loaded.sample(500)
    kept = np.array(sorted(world.stored())[-capacity:])
    q = (1.0 + kept % 5 + 1e-8) ** 0.6
    expected = dict(zip(kept.tolist(), (q / q.min()) ** -0.4))
    np.testing.assert_allclose(
        batch["priority_weight"], [expected[s] for s in batch["index"].tolist()], rtol=1e-6
    )


def test_image_sees_a_difference() -> None:
    # The comparison above can fail.
    _, buffer = prepared("random", 0)
    a, b = buffer.sample(), buffer.sample()
    assert image(a) != image(b)
