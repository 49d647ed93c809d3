"""What a predicate holds for while other threads write, set fields and evict.

Each trajectory's level only rises, and so does its age: whoever notes them before and after a draw
knows between what they were at that time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import (
    EmptyBufferError,
    LazyTensorStorage,
    NothingEligibleError,
    Predicate,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)
from contig.sample import Sampler

FIELDS = {"level": np.int64(0), "minus": np.int64(0), "number": np.int64(0)}
CAPACITY, YOUNG = 300, 120
SHOWN = tuple(FIELDS)


def even_and_young(columns: Any) -> Any:
    assert (columns["level"] == -columns["minus"]).all()  # of one record
    return (columns["level"] % 2 == 0) & (columns["age"] < YOUNG)


WHERE: dict[str, Any] = {
    "function": even_and_young,
    "ages": Predicate(even_and_young, ages=(YOUNG,)),
    "comparisons": [("level", "in", range(0, 10**5, 2)), ("age", "<", YOUNG)],
}
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "slices": lambda w: SliceSampler(slice_len=2, where=w, fields=SHOWN),
    "slices once": lambda w: SliceSamplerWithoutReplacement(slice_len=2, where=w, fields=SHOWN),
    "slices by priority": lambda w: PrioritizedSliceSampler(slice_len=2, where=w, fields=SHOWN),
    "rows": lambda w: WindowSampler(where=w, fields=SHOWN),
    "rows once": lambda w: WindowSampler(SamplerWithoutReplacement(), where=w, fields=SHOWN),
    "rows by priority": lambda w: WindowSampler(PrioritizedSampler(), where=w, fields=SHOWN),
    "rows that retire": lambda w: WindowSampler(RandomSampler(2), where=w, fields=SHOWN),
    "trajectories": lambda w: TrajectorySampler(8, where=w, fields=SHOWN),
    "trajectories once": lambda w: TrajectorySampler(8, where=w, fields=SHOWN, consume=True),
}


class World:
    """A storage that threads write to and change until they are stopped."""

    def __init__(self) -> None:
        self.storage = LazyTensorStorage(CAPACITY, fields=FIELDS)
        self.begun: dict[int, int] = {}  # levels that somebody began to set, by number
        self.set: dict[int, int] = {}  # and those that are set
        self.ends: dict[int, int] = {}
        self.failed: list[BaseException] = []
        self.stop = threading.Event()
        self.write(np.random.default_rng(0), 0)
        self.threads = [
            threading.Thread(target=self.run, args=(f,)) for f in (self.write_on, self.change)
        ]

    def run(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            self.failed.append(error)

    def write(self, rng: np.random.Generator, number: int) -> None:
        steps = int(rng.integers(1, 6))
        rows = {"x": 10 * number + np.arange(steps), "next": {"reward": np.ones(steps)}}
        self.begun[number] = self.set[number] = 0
        seqs = self.storage.default_writer.extend_trajectory(
            rows, terminated=True, fields={"number": number}
        )
        self.ends[number] = int(seqs[-1]) + 1

    def write_on(self) -> None:
        rng = np.random.default_rng(1)
        for number in itertools.count(1):
            self.write(rng, number)
            if self.stop.wait(0.0005):
                return

    def change(self) -> None:
        rng = np.random.default_rng(2)
        while not self.stop.wait(0.0005):
            table = self.storage.episodes()
            for i in rng.integers(0, len(table), 4):
                number = int(table["number"][i])
                level = self.set[number] + 1
                self.begun[number] = level
                self.storage.set_fields(table["id"][i], {"level": level, "minus": -level})
                self.set[number] = level

    def __enter__(self) -> World:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=list(SAMPLERS))
def test_it_held_when_it_was_drawn(make: Callable[[Any], Sampler]) -> None:
    with World() as world:
        storage = world.storage
        buffers = []
        for where in WHERE.values():
            sampler = make(where)
            size = None if isinstance(sampler, TrajectorySampler) else 16
            buffers.append(ReplayBuffer(storage, sampler, batch_size=size, seed=0))
        drawn = 0
        while drawn < 60 or storage.tape.snapshot()[0] < 4 * CAPACITY:
            assert not world.failed, world.failed
            for buffer in buffers:
                ends, head = dict(world.ends), storage.tape.snapshot()[0]
                before = dict(world.set)
                try:
                    batch = buffer.sample()
                except (EmptyBufferError, NothingEligibleError):
                    continue
                after = dict(world.begun)
                drawn += 1
                level, minus, number = (batch["fields", name] for name in SHOWN)
                assert (level == -minus).all() and (number == batch["x"] // 10).all()
                for of in np.unique(number).tolist():
                    low, high = before.get(of, 0), after[of]
                    assert low < high or low % 2 == 0, (of, low)
                    assert head - ends.get(of, head) < YOUNG, (of, head, ends[of])
    assert not world.failed, world.failed
