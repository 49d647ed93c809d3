"""Draws that are given back, any of them, in any order: each comes as often as it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import (
    EmptyBufferError,
    FifoSampler,
    LazyTensorStorage,
    LifoSampler,
    NothingEligibleError,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)

ONCE: dict[str, tuple[Callable[[], Any], int]] = {
    "trajectories": (lambda: TrajectorySampler(2, consume=True), 1),
    "groups": (lambda: TrajectorySampler(2, group="g", group_size=2, consume=True), 1),
    "queue": (FifoSampler, 1),
    "queue, 3 times": (lambda: FifoSampler(max_times_sampled=3), 3),
    "queue of trajectories": (lambda: FifoSampler(per="trajectories", max_times_sampled=2), 2),
    "queue of a window": (lambda: WindowSampler(FifoSampler(), last_trajectories=999), 1),
    "stack": (LifoSampler, 1),
    "stack, 3 times": (lambda: LifoSampler(max_times_sampled=3), 3),
    "stack of trajectories": (lambda: LifoSampler(per="trajectories"), 1),
    "retiring": (lambda: RandomSampler(max_times_sampled=2), 2),
}
EPOCHS: dict[str, Callable[[], Any]] = {
    "rows": SamplerWithoutReplacement,
    "slices": lambda: SliceSamplerWithoutReplacement(slice_len=1),
}
# What happens: rows are written, a batch is drawn, or the n-th of those drawn is given back; or the
# sampler's state goes into another one.
EVENTS = st.lists(st.sampled_from(["write", "draw", "draw", "back", "restart"]), max_size=40)


def made(sampler: Any, capacity: int = 1000) -> ReplayBuffer:
    storage = LazyTensorStorage(capacity, fields={"g": np.int64(0)}, example={"uid": np.int64(0)})
    size = None if isinstance(sampler, TrajectorySampler) else 3
    return ReplayBuffer(storage, sampler, batch_size=size, seed=1)


def write(buffer: ReplayBuffer, first: int, n: int) -> None:
    """Trajectories of one row."""
    for uid in range(first, first + n):
        fields = {"g": uid // 2}
        buffer.extend_trajectory({"uid": np.array([uid])}, terminated=True, fields=fields)


def drawn(buffer: ReplayBuffer) -> tuple[Counter[int], Any] | None:
    try:
        batch, lent = buffer.lend(None, lambda: True)
    except (EmptyBufferError, NothingEligibleError):
        return None
    return Counter(batch["uid"].tolist()), lent


@pytest.mark.parametrize("name", ONCE)
@settings(max_examples=60, deadline=None)
@given(events=EVENTS, choose=st.randoms(use_true_random=False))
def test_each_so_many_times(name: str, events: list[str], choose: Any) -> None:
    make, times = ONCE[name]
    buffer = made(make())
    held: list[tuple[Counter[int], Any]] = []
    kept: Counter[int] = Counter()
    written = 0
    for event in events:
        if event == "write":
            write(buffer, written, 4)
            written += 4
        elif event == "draw" and (found := drawn(buffer)) is not None:
            held.append(found)
        elif event == "back" and held:
            buffer.take_back(held.pop(choose.randrange(len(held)))[1])
        elif event == "restart":  # what was lent before is not given back after
            while held:
                kept.update(held.pop()[0])
            state = buffer.state()
            buffer = ReplayBuffer(buffer.storage, make(), batch_size=buffer.batch_size)
            buffer.load_state(state)
        assert buffer.storage.tape.sampled == (sum(kept.values()) + sum(len_(b) for b, _ in held))
    for batch, _ in held:
        kept.update(batch)
    while (found := drawn(buffer)) is not None:
        kept.update(found[0])
    assert kept == Counter({uid: times for uid in range(written)})


def len_(batch: Counter[int]) -> int:
    return sum(batch.values())


@pytest.mark.parametrize("name", EPOCHS)
@settings(max_examples=60, deadline=None)
@given(events=st.lists(st.sampled_from(["draw", "draw", "back"]), max_size=30), seed=st.integers(0))
def test_each_once_per_epoch(name: str, events: list[str], seed: int) -> None:
    """What was given back comes before the epoch's end, so that whole epochs have come by then."""
    choose = np.random.default_rng(seed)
    buffer = made(EPOCHS[name]())
    write(buffer, 0, 9)
    held: list[tuple[Counter[int], Any]] = []
    for event in events:
        if event == "draw":
            held.append(drawn(buffer) or (Counter(), None))
        elif held:
            buffer.take_back(held.pop(int(choose.integers(len(held))))[1])
    total = sum((batch for batch, _ in held), Counter({uid: 0 for uid in range(9)}))
    most = max(total.values(), default=0) + 1
    for _ in range(len(events) + 3):
        if len(total) == 9 and len(set(total.values())) == 1:
            break
        total += (drawn(buffer) or (Counter(), None))[0]
    assert len(total) == 9 and len(set(total.values())) == 1 and total[0] <= most


@pytest.mark.parametrize("name", ONCE)
def test_what_was_evicted_does_not_come_again(name: str) -> None:
    buffer = made(ONCE[name][0](), capacity=8)
    write(buffer, 0, 8)
    first = drawn(buffer)
    assert first is not None
    write(buffer, 8, 8)
    buffer.take_back(first[1])
    while (found := drawn(buffer)) is not None:
        assert min(found[0]) >= 8


@pytest.mark.parametrize("name", ONCE)
def test_what_is_from_before_a_reset_is_ignored(name: str) -> None:
    buffer = made(ONCE[name][0]())
    write(buffer, 0, 8)
    first = drawn(buffer)
    assert first is not None
    buffer.empty()
    buffer.take_back(first[1])
    assert drawn(buffer) is None


def test_a_batch_that_is_not_wanted_is_not_drawn() -> None:
    from contig.replay.prefetch import Cancelled

    buffer = made(FifoSampler())
    write(buffer, 0, 3)
    with pytest.raises(Cancelled, match="who asked for this batch is gone"):
        buffer.lend(None, lambda: False)
    assert buffer.draw()["uid"].tolist() == [0, 1, 2]


def test_a_batch_whose_transform_fails_is_not_lost() -> None:
    buffer = made(FifoSampler())
    write(buffer, 0, 3)
    buffer._on_sample = lambda batch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        buffer.lend(None, lambda: True)
    buffer._on_sample = None
    assert buffer.draw()["uid"].tolist() == [0, 1, 2]
    assert buffer.storage.tape.sampled == 3


def test_orders_are_kept() -> None:
    for sampler, expected in (
        (FifoSampler(), [0, 1, 2, 6, 7, 8]),
        (LifoSampler(), [8, 7, 6, 2, 1, 0]),
    ):
        buffer = made(sampler)
        write(buffer, 0, 9)
        lent = [drawn(buffer) for _ in range(3)]
        for i in (2, 0):
            buffer.take_back(lent[i][1])  # type: ignore[index]
        assert [x for _ in range(2) for x in buffer.draw()["uid"].tolist()] == expected
