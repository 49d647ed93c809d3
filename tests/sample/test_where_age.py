"""`where=` with functions of `age`: asked about what is drawn, or at the ages that they name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contig import (
    ChunkSampler,
    HindsightRelabel,
    LazyTensorStorage,
    NothingEligibleError,
    NStepSampler,
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
from contig.sample import Draw, Index, Rng, Sampler
from contig.tape.entry import ends_of, read_entries
from tests.sample.drawing import uniform

Array = np.ndarray[Any, Any]
FIELDS = {"task": np.int32(0)}
ANY = TrajectorySampler(1, complete_only=False)._spec


def write(storage: LazyTensorStorage, number: int, steps: int) -> None:
    """A trajectory whose rows and field say which it is."""
    rows = {"x": 100 * number + np.arange(steps), "next": {"reward": np.ones(steps, np.float32)}}
    writer = storage.default_writer
    writer.extend_trajectory(rows, terminated=True, fields={"task": number})


def filled(stored: int, capacity: int | None = None) -> LazyTensorStorage:
    """Trajectories of 2 to 4 rows."""
    storage = LazyTensorStorage(capacity or 4 * stored, fields=FIELDS)
    for number in range(stored):
        write(storage, number, 2 + number % 3)
    return storage


class Young:
    """Holds for trajectories younger than so many rows, but for every seventh; counts questions."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.asked = 0

    def __call__(self, columns: Any) -> Any:
        self.asked += len(columns["age"])
        return self.says(columns["age"], columns["task"])

    def says(self, age: Array, task: Array) -> Any:
        return (age < self.rows) & (task % 7 != 3)

    def numbers(self, index: Index) -> list[int]:
        """The trajectories that it holds for, as the storage says it."""
        table = index.storage.episodes()
        age = index.head - table["first"] - table["steps"]
        return [int(n) for n in table["task"][self.says(age, table["task"])]]


BATCH = 16
# By name: a sampler with a predicate, and whether it draws rows, each alike; else trajectories.
DRAWN: dict[str, tuple[Callable[[Any], Sampler], bool]] = {
    "rows": (lambda w: WindowSampler(where=w), True),
    "rows of a window": (lambda w: WindowSampler(where=w, last_rows=10**6), True),
    "n steps": (lambda w: WindowSampler(NStepSampler(2, 0.9), where=w), True),
    "chunks": (lambda w: ChunkSampler(2, keys=("x",), where=w), True),
    "chunks in a window": (lambda w: WindowSampler(ChunkSampler(2, keys=("x",)), where=w), True),
    "slices": (lambda w: SliceSampler(slice_len=2, where=w), False),
    "slices in a window": (lambda w: WindowSampler(SliceSampler(slice_len=2), where=w), False),
    "trajectories": (lambda w: TrajectorySampler(16, where=w), False),
    "trajectories in a window": (lambda w: WindowSampler(TrajectorySampler(16), where=w), False),
}
drawn = pytest.mark.parametrize(("make", "rows"), DRAWN.values(), ids=list(DRAWN))


def firsts(index: Index, draw: Draw | None) -> Array:
    """`x` of the first row of each group."""
    assert draw is not None
    seqs = draw.seqs
    if draw.lengths is not None:
        seqs = seqs[np.cumsum(draw.lengths) - draw.lengths]
    found, lost = index.storage.gather(seqs)
    assert not np.any(lost)
    return np.asarray(found["x"])


@drawn
def test_it_costs_what_is_drawn(make: Callable[[Any], Sampler], rows: bool) -> None:
    asked, work = [], []
    for stored in (200, 5000):
        storage = filled(stored)
        where = Young(len(storage) // 2)
        index, sampler, rng = Index(storage), make(where), Rng(1)
        most = 0
        for turn in range(12):
            write(storage, stored + turn, 2)
            index.refresh()
            before, where.asked = index.view.work, 0
            draw = sampler.draw(index, rng, sampler.request(BATCH))
            assert draw is not None
            if turn == 0:  # once, to see what it reads
                assert where.asked >= stored + 1
            else:
                most = max(most, where.asked)
        asked.append(most)
        work.append(index.view.work - before)
    assert asked[1] <= 15 * 16 and work[1] < 2 * work[0] + 256, (asked, work)


@drawn
@pytest.mark.parametrize("of", [0.5, 0.02])
def test_each_that_it_holds_for_alike(
    make: Callable[[Any], Sampler], rows: bool, of: float
) -> None:
    storage = filled(300)
    where = Young(int(len(storage) * of))
    index, sampler, rng = Index(storage), make(where), Rng(3)
    index.refresh()
    numbers = where.numbers(index)
    found: list[int] = []
    for _ in range(300):
        index.refresh()
        found += firsts(index, sampler.draw(index, rng, sampler.request(BATCH))).tolist()
    if rows:
        uniform(found, [100 * n + step for n in numbers for step in range(2 + n % 3)])
    else:
        uniform([x // 100 for x in found], numbers)


@drawn
def test_it_holds_for_what_is_drawn_while_others_go(
    make: Callable[[Any], Sampler], rows: bool
) -> None:
    storage = filled(40, capacity=120)
    where = Young(37)
    index, sampler, rng = Index(storage), make(where), Rng(5)
    for turn in range(60):
        write(storage, 40 + turn, 1 + turn % 5)
        if turn % 4 == 0:
            storage.set_fields(storage.episodes()["id"][-2:], {"task": 40 + turn - turn % 7 + 3})
        index.refresh()
        table = index.storage.episodes()
        age = index.head - table["first"] - table["steps"]
        good = where.says(age, table["task"])
        ends = table["first"] + table["steps"]
        draw = sampler.draw(index, rng, sampler.request(BATCH))
        assert draw is not None
        at = np.searchsorted(ends, draw.seqs, side="right")
        assert good[at].all()


def test_a_window_and_its_sampler_both_ask() -> None:
    storage = filled(300)
    young, old = Young(400), Young(100)
    inner = SliceSampler(slice_len=2, where=lambda c: ~old(c))
    sampler = WindowSampler(inner, where=young)
    index, rng = Index(storage), Rng(2)
    index.refresh()
    numbers = sorted(set(young.numbers(index)) - set(old.numbers(index)))
    found: list[int] = []
    for _ in range(100):
        index.refresh()
        draw = sampler.draw(index, rng, sampler.request(64))
        found += (firsts(index, draw) // 100).tolist()
    uniform(found, numbers)


def test_goals_are_of_the_rows_that_it_holds_for() -> None:
    storage = LazyTensorStorage(4000, fields=FIELDS)

    def add(number: int) -> None:
        goal = 100 * number + np.arange(4)
        next_row = {"achieved_goal": goal, "reward": np.zeros(4, np.float32)}
        rows = {"x": goal, "desired_goal": goal, "next": next_row}
        storage.default_writer.extend_trajectory(rows, terminated=True, fields={"task": number})

    for number in range(500):
        add(number)
    where = Young(1000)
    relabel = HindsightRelabel("future", 8, reward_fn=lambda a, g, rows: np.float32(a == g))
    with ReplayBuffer(
        storage, WindowSampler(relabel, where=where), batch_size=32, seed=0
    ) as buffer:
        for turn in range(10):
            add(500 + turn)
            where.asked = 0
            batch = buffer.sample()
            number = batch["x"] // 100
            assert (number > 200).all() and (number % 7 != 3).all()
            assert (batch["desired_goal"] // 100 == number).all()
            assert (batch["desired_goal"] >= batch["x"]).all()
            assert turn == 0 or where.asked <= 15 * 32


def test_it_holds_for_none() -> None:
    for make, _ in DRAWN.values():
        with (
            ReplayBuffer(filled(50), make(lambda c: c["age"] < 0), batch_size=BATCH) as buffer,
            pytest.raises(NothingEligibleError, match="holds for 0 of 50 trajectories"),
        ):
            buffer.sample()


def test_what_is_ready_is_known_or_not() -> None:
    storage = filled(50)
    plain = TrajectorySampler(4, where=Predicate(Young(60), ages=(60,)))
    asked = TrajectorySampler(4, where=Young(60))
    index, rng = Index(storage), Rng(0)
    index.refresh()
    for sampler in (plain, asked):
        assert sampler.draw(index, rng, sampler.request(4)) is not None
    assert plain.stats().ready == len(Young(60).numbers(index))
    assert asked.stats().ready is None


# -- those that must know how much there is -------------------------------------------------------

COUNTING: dict[str, Callable[[Any], Sampler]] = {
    "epochs of rows": lambda w: WindowSampler(SamplerWithoutReplacement(), where=w),
    "retiring rows": lambda w: WindowSampler(RandomSampler(10**6), where=w),
    "priorities": lambda w: WindowSampler(PrioritizedSampler(), where=w),
    "slices by priority": lambda w: PrioritizedSliceSampler(slice_len=2, where=w),
    "epochs of slices": lambda w: SliceSamplerWithoutReplacement(slice_len=2, where=w),
    "each trajectory once": lambda w: TrajectorySampler(2, where=w, consume=True),
    "groups": lambda w: TrajectorySampler(2, where=w, group="task", group_size=1),
    "groups in a window": lambda w: WindowSampler(
        TrajectorySampler(2, group="task", group_size=1), where=w
    ),
}
counting = pytest.mark.parametrize("make", COUNTING.values(), ids=list(COUNTING))


def batch_of(sampler: Sampler) -> int:
    return sampler.batch_size or 4


@counting
def test_functions_of_unknown_ages_are_asked_about_everything(
    make: Callable[[Any], Sampler],
) -> None:
    storage, where = filled(60, capacity=1000), Young(50)
    index, sampler, rng = Index(storage), make(where), Rng(0)
    for turn, write_one in enumerate((True, True, False)):
        if write_one:
            write(storage, 60 + turn, 2)
        index.refresh()
        numbers, where.asked = where.numbers(index), 0
        draw = sampler.draw(index, rng, sampler.request(batch_of(sampler)))
        assert set((firsts(index, draw) // 100).tolist()) <= set(numbers)
        assert (where.asked >= 61 + turn) == write_one


@counting
def test_functions_of_known_ages_cost_what_was_written(make: Callable[[Any], Sampler]) -> None:
    for stored in (200, 5000):
        storage = filled(stored)
        where = Young(300)
        index, rng = Index(storage), Rng(0)
        sampler = make(Predicate(where, ages=(300,)))
        for turn in range(20):
            write(storage, stored + turn, 2 + turn % 3)
            index.refresh()
            numbers, where.asked = where.numbers(index), 0
            draw = sampler.draw(index, rng, sampler.request(batch_of(sampler)))
            assert set((firsts(index, draw) // 100).tolist()) <= set(numbers)
            assert turn == 0 or where.asked <= 5, (stored, turn)


# -- ages that are named --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_named_ages_beside_judging_everything(data: st.DataObject) -> None:
    ages = tuple(sorted(data.draw(st.sets(st.integers(1, 40), max_size=4), "ages")))

    def says(age: Array, task: Array, steps: Array) -> Any:
        return (np.searchsorted(np.array(ages), age, side="right") + task + steps) % 2 == 0

    predicate = Predicate(lambda c: says(c["age"], c["task"], c["steps"]), ages=ages[::-1])
    storage = LazyTensorStorage(60, fields=FIELDS)
    writers = [storage.writer() for _ in range(2)]  # trajectories that grow side by side
    index = Index(storage)
    steps = st.tuples(st.sampled_from(["whole", "row", "fields", "look"]), st.integers(0, 9))
    for kind, n in data.draw(st.lists(steps, min_size=1, max_size=40), "steps"):
        if kind == "whole":
            write(storage, n, 1 + n)
        elif kind == "row":
            row = {"x": np.int64(n), "next": {"reward": np.float32(1)}}
            writers[n % 2].add(row, {"task": n // 2})
            if n > 7:
                writers[n % 2] = storage.writer()  # another trajectory
        elif kind == "fields":
            storage.set_fields(storage.episodes()["id"][n:][:1], {"task": n})
        if kind != "look" and n % 3 == 0:
            continue
        index.refresh()
        window = index.where(predicate).window
        assert index.where(predicate).put_off == ()
        table = storage.episodes()
        ages_now = index.view.head - _ends(storage, table)
        good = says(ages_now, table["task"], table["steps"])
        found = index.view.ordinals(window, ANY)
        assert sorted(found.tolist()) == sorted(table["id"][good].tolist())


def _ends(storage: LazyTensorStorage, table: Any) -> Array:
    """The row behind each trajectory's newest."""
    entries = read_entries(storage.tape)
    return np.array([ends_of(entries)[entries["ordinal"] == n].max() for n in table["id"]])


@pytest.mark.parametrize("ages", [(0,), (-3,), (2.5,), ("a",), (True,), (float("inf"),)])
def test_no_ages(ages: Any) -> None:
    with pytest.raises(ValueError, match="ages: expected numbers of rows, at least 1"):
        Predicate(lambda c: c["age"] < 3, ages=ages)


def test_what_ages_are_not_for() -> None:
    for ages in (20, "20", {20}):
        with pytest.raises(TypeError, match=r"such as \(20, 100\)"):
            Predicate(lambda c: c["age"] < 3, ages=ages)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is for a function.*leave it out"):
        Predicate(("age", "<", 20), ages=(20,))
    with pytest.raises(ValueError, match="none of ==, !="):
        Predicate(("age", "=", 20))


def _fresh(columns: Any) -> Any:
    return columns["age"] < 20


def test_how_it_shows_itself() -> None:
    predicate = Predicate(_fresh, ages=(20.0, 1e300, 5, 20))
    assert predicate.ages == (5, 20)  # no storage gets that old
    sampler = SliceSampler(slice_len=2, where=predicate)
    assert repr(sampler) == "SliceSampler(slice_len=2, where=Predicate(_fresh, ages=(5, 20)))"
    assert repr(pickle.loads(pickle.dumps(sampler))) == repr(sampler)
    assert Predicate.of(predicate) is predicate
    assert str(Predicate(("age", "<", 3))) == "'age' < 3"
