"""Groups of which rows are evicted while they are gathered: what is delivered comes once and as a
whole, and what is left is ready or waits, on one tape as on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import (
    EmptyBufferError,
    LazyTensorStorage,
    NothingEligibleError,
    ReplayBuffer,
    TrajectorySampler,
)
from contig.replay.shards import ShardReader, read_shards
from contig.sample import Rng
from tests.sample.drawing import Array

FIELDS = {"group": np.int64(0), "number": np.int64(0)}
CAPACITY, BATCH = 60, 6


class Overtaken:
    """Tapes whose writers sometimes come between a draw and its gather."""

    def __init__(self, tapes: int, make: Callable[[], TrajectorySampler], size: int) -> None:
        self.storages = [LazyTensorStorage(CAPACITY, fields=FIELDS) for _ in range(tapes)]
        self.sampler, self.size = make(), size
        self.rng, self.draws = np.random.default_rng(size), Rng(size)
        self.readers = [ShardReader(s, make(), i) for i, s in enumerate(self.storages)]
        self.buffer = ReplayBuffer(self.storages[0], self.sampler, seed=0) if tapes == 1 else None
        self.written = 0
        self.interrupted = False
        for storage in self.storages:
            self.interrupt(storage)

    def interrupt(self, storage: LazyTensorStorage) -> None:
        gather = storage.gather

        def late(*args: Any, **options: Any) -> Any:
            if self.interrupted and self.rng.random() < 0.3:
                self.write(int(self.rng.integers(1, 7)), storage)
            return gather(*args, **options)

        storage.gather = late  # type: ignore[method-assign]

    def write(self, many: int, to: LazyTensorStorage | None = None) -> None:
        for _ in range(many):
            steps, number = int(self.rng.integers(1, 5)), self.written
            rows = {"x": 10 * number + np.arange(steps), "next": {"reward": np.ones(steps)}}
            storage = to or self.storages[int(self.rng.integers(len(self.storages)))]
            storage.default_writer.extend_trajectory(
                rows,
                terminated=True,
                fields={"group": number // self.size, "number": number},
            )
            self.written += 1

    def sample(self) -> list[int]:
        """Numbers of the trajectories of a batch, each of them whole."""
        if self.buffer is not None:
            batch = self.buffer.sample()
        else:
            request = self.sampler.request(BATCH)
            batch = read_shards(
                self.sampler, self.draws, self.readers, request, lambda source: None
            )
        number, step = np.divmod(batch["x"], 10)
        firsts = np.flatnonzero(batch["is_init"])
        for a, b in zip(firsts, [*firsts[1:], len(number)]):
            assert (number[a:b] == number[a]).all() and step[a:b].tolist() == list(range(b - a))
            assert (batch["collector", "traj_length"][a:b] == b - a).all()
            assert batch["next", "done"][b - 1]
        return [int(n) for n in number[firsts]]

    def stored(self) -> set[int]:
        tables: list[Array] = [s.episodes() for s in self.storages]
        return {int(n) for table in tables for n in table["number"]}


@pytest.mark.parametrize("tapes", [1, 3])
@pytest.mark.parametrize("size", [2, 3, None])
def test_nothing_comes_twice_or_vanishes(tapes: int, size: int | None) -> None:
    def make() -> TrajectorySampler:
        return TrajectorySampler(BATCH, group="group", group_size=size, consume=True)

    tapes_of = Overtaken(tapes, make, size or 2)
    seen: list[int] = []
    for _ in range(300):
        tapes_of.interrupted = False
        tapes_of.write(int(tapes_of.rng.integers(1, 8)))
        tapes_of.interrupted = True
        try:
            drawn = tapes_of.sample()
        except (EmptyBufferError, NothingEligibleError):
            continue
        seen += drawn
        assert tapes_of.sampler.stats().consumed == len(seen)
        if size is not None:
            of = np.array(drawn).reshape(-1, size) // size
            assert (of == of[:, :1]).all()
    tapes_of.interrupted = False
    while True:
        try:
            seen += tapes_of.sample()
        except NothingEligibleError:
            break
    assert len(set(seen)) == len(seen) > 300
    found = tapes_of.sampler.stats()
    assert found.consumed == len(seen) and found.evicted > 0
    left = tapes_of.stored() - set(seen)
    of_groups = np.bincount([n // tapes_of.size for n in left]) if left else np.zeros(1, int)
    ready = int((of_groups >= (size or 1)).sum())  # too few for a batch
    assert found.ready == ready and found.waiting == int((of_groups > 0).sum()) - ready
    assert found.waiting_trajectories == sum(of_groups[of_groups < (size or 1)])
