"""Reading one episode costs its own length, and what was written since the last one; counted."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from contig import LazyTensorStorage
from contig.testing import World, identity
from contig.testing.steps import episode


def filled(episodes: int, capacity: int | None = None) -> World:
    world = World(LazyTensorStorage(capacity or 3 * episodes))
    for _ in range(episodes):
        world.extend(3)
    return world


def index_work(world: World, ids: list[int]) -> int:
    """Entries of the index that reading some episodes looks at."""
    storage = world.storage
    storage.read_episode(ids[0])  # the first one reads everything, once
    before = int(storage._episodes.mirror.work)
    for number in ids:
        storage.read_episode(number)
    return int(storage._episodes.mirror.work) - before


def test_work_does_not_grow_with_the_episodes_stored() -> None:
    works = []
    for episodes in (200, 6_400):
        world = filled(episodes)
        ids = world.storage.episodes()["id"]
        works.append(index_work(world, ids[:: len(ids) // 100].tolist()[:100]))
        world.storage.close()
    assert works[1] <= works[0] + 100, f"{works[0] / 100} entries an episode, then {works[1] / 100}"


def test_work_after_writes_is_that_of_what_was_written() -> None:
    world = filled(3_000)
    number = int(world.storage.episodes()["id"][-1])
    world.storage.read_episode(number)
    for _ in range(20):
        before = int(world.storage._episodes.mirror.work)
        world.extend(3)
        assert identity(world.storage.read_episode(number)) == [(3_000, t) for t in range(3)]
        assert int(world.storage._episodes.mirror.work) - before < 20


@pytest.mark.parametrize("capacity", [60, 61, 1_000])
def test_every_episode_while_the_ring_turns(capacity: int) -> None:
    world = filled(0, capacity)
    for _ in range(12):
        world.write()
        found = []
        for line in world.storage.episodes():
            batch = world.storage.read_episode(int(line["id"]))
            assert len(batch) == line["steps"]
            found += identity(batch)
        assert sorted(found) == sorted(world.step_at[s] for s in world.stored())


def test_from_several_threads_while_another_writes() -> None:
    world = filled(40, 120)
    stop, wrong = threading.Event(), []

    def read() -> None:
        rng = np.random.default_rng(threading.get_ident() % 1000)
        while not stop.is_set():
            ids = world.storage.episodes()["id"]
            try:
                steps = identity(world.storage.read_episode(int(rng.choice(ids))))
            except KeyError:
                continue  # evicted meanwhile
            number, first = steps[0]
            if steps != [(number, first + t) for t in range(len(steps))]:
                wrong.append(steps)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1_000, 1_400):
        world.writer.extend(episode(number, 3))
    stop.set()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    assert not wrong
