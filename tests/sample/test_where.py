"""`where=` and `fields=` of samplers: what they draw, what they refuse, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    NothingEligibleError,
    NStepSampler,
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
from contig.sample import Index, Rng, Sampler
from tests.sample.drawing import agrees, per_step, per_trajectory, uniform

FIELDS = {"task": np.int32(0), "meta": {"liked": False, "at": np.zeros(2, np.float32)}}
LENGTHS = (5, 1, 8, 3, 6, 2, 7, 4)


def episode(number: int, steps: int) -> dict[str, Any]:
    """Rows that say whose they are."""
    reward = np.full(steps, number, np.float32)
    return {"x": 100 * number + np.arange(steps), "next": {"reward": reward}}


def filled(capacity: int = 1000) -> LazyTensorStorage:
    storage = LazyTensorStorage(capacity, fields=FIELDS)
    for number, steps in enumerate(LENGTHS):
        storage.default_writer.extend_trajectory(
            episode(number, steps),
            terminated=number % 3 != 0,
            truncated=number % 3 == 0,
            policy_version=number,
            fields={"task": number % 3, "meta": {"liked": number % 2 == 0}},
        )
    return storage


def starts(length: int, numbers: list[int]) -> dict[int, list[int]]:
    return {n: [100 * n + t for t in range(max(LENGTHS[n] - length, 0) + 1)] for n in numbers}


def rows_of(numbers: list[int]) -> list[int]:
    return [100 * n + t for n in numbers for t in range(LENGTHS[n])]


WHERES: dict[str, tuple[Any, list[int]]] = {
    "field": (("task", "==", 1), [1, 4, 7]),
    "nested field": ([("meta.liked", "==", True), ("task", "!=", 0)], [2, 4]),
    "path": ((("meta", "liked"), "==", False), [1, 3, 5, 7]),
    "return": (("return", ">=", 20.0), [4, 6, 7]),
    "flags and versions": ([("truncated", "==", True), ("policy_version", ">", 0)], [3, 6]),
    "age": (("age", "<", 13), [5, 6, 7]),
    "function": (lambda c: (c["steps"] > 4) & (c["task"] < 2) & ~c["truncated"], [4]),
}
wheres = pytest.mark.parametrize(("where", "numbers"), WHERES.values(), ids=list(WHERES))


def sampled(sampler: Sampler, batch_size: int | None, batches: int, seed: int = 0) -> list[Any]:
    with ReplayBuffer(filled(), sampler, batch_size=batch_size, seed=seed) as buffer:
        return [buffer.sample() for _ in range(batches)]


@wheres
def test_rows(where: Any, numbers: list[int]) -> None:
    batch = sampled(WindowSampler(where=where), 4000, 1)[0]
    uniform(batch["x"].tolist(), rows_of(numbers))


@wheres
@pytest.mark.parametrize("over", ["trajectories", "steps"])
def test_slices(where: Any, numbers: list[int], over: str) -> None:
    sampler = SliceSampler(slice_len=3, over=over, where=where)
    batch = sampled(sampler, 9000, 1)[0]
    expected = starts(3, numbers)
    likely = per_step(expected) if over == "steps" else per_trajectory(expected)
    agrees(batch["x"][batch["is_init"]].tolist(), likely)


@wheres
def test_prioritized_slices(where: Any, numbers: list[int]) -> None:
    batch = sampled(PrioritizedSliceSampler(slice_len=3, where=where), 9000, 1)[0]
    agrees(batch["x"][batch["is_init"]].tolist(), per_step(starts(3, numbers)))


@wheres
def test_each_once(where: Any, numbers: list[int]) -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=2, where=where)
    epoch: list[int] = []
    for batch in sampled(sampler, 2, len(numbers)):
        epoch.append(int(batch["x"][0]) // 100)
    assert sorted(epoch) == numbers
    rows = rows_of(numbers)
    once = sampled(WindowSampler(SamplerWithoutReplacement(), where=where), len(rows), 1)[0]
    assert sorted(once["x"].tolist()) == rows


@wheres
def test_whole_trajectories(where: Any, numbers: list[int]) -> None:
    drawn: list[int] = []
    for batch in sampled(TrajectorySampler(200, where=where), None, 5):
        number, step = np.divmod(batch["x"], 100)
        drawn += number[batch["is_init"]].tolist()
        assert (step == 0).tolist() == batch["is_init"].tolist()
    uniform(drawn, numbers)


@wheres
def test_any_sampler_in_a_window(where: Any, numbers: list[int]) -> None:
    for inner in (PrioritizedSampler(), NStepSampler(2, 0.9), RandomSampler(10**6)):
        batch = sampled(WindowSampler(inner, where=where), 64, 1)[0]
        assert set((batch["x"] // 100).tolist()) <= set(numbers)


def test_several_all_hold() -> None:
    inner = SliceSampler(slice_len=2, where=("task", "==", 1))
    outer = WindowSampler(inner, last_trajectories=5, where=lambda c: c["steps"] > 4)
    batch = sampled(outer, 64, 1)[0]
    assert set((batch["x"] // 100).tolist()) == {4}  # of 1, 4 and 7; of 3 to 7; of 0, 2, 4 and 6


# -- fields in samples ----------------------------------------------------------------------------

SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "rows": lambda fields: RandomSampler(fields=fields),
    "retiring rows": lambda fields: RandomSampler(4, fields=fields),
    "slices": lambda fields: SliceSampler(slice_len=3, fields=fields),
    "padded": lambda fields: SliceSampler(slice_len=3, pad_output=True, fields=fields),
    "once": lambda fields: SliceSamplerWithoutReplacement(slice_len=3, fields=fields),
    "prioritized": lambda fields: PrioritizedSliceSampler(slice_len=3, fields=fields),
    "window": lambda fields: WindowSampler(NStepSampler(2, 0.9), last_rows=20, fields=fields),
    "trajectories": lambda fields: TrajectorySampler(24, fields=fields),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=list(SAMPLERS))
def test_fields_of_each_row(make: Callable[[Any], Sampler]) -> None:
    with ReplayBuffer(filled(), make(("task", ("meta", "at"))), batch_size=24, seed=1) as buffer:
        buffer.storage.set_fields(2, {"meta": {"at": [7.0, 8.0]}})
        for _ in range(5):
            batch = buffer.sample()
            number = batch["x"] // 100
            assert (batch["fields", "task"] == number % 3).all()
            assert batch["fields", "task"].dtype == np.int32
            at = np.where((number == 2)[:, None], [7.0, 8.0], 0.0)
            assert np.array_equal(batch["fields", "meta", "at"], at)
            assert ("fields", "meta", "liked") not in batch


def test_stored_leaves_give_way() -> None:
    storage = LazyTensorStorage(100, fields=FIELDS)
    data = {"fields": {"task": np.full(4, 9), "other": np.arange(4)}, "x": np.arange(4)}
    storage.default_writer.extend_trajectory(data, terminated=True, fields={"task": 2})
    with ReplayBuffer(storage, RandomSampler(fields=("task",)), batch_size=8) as buffer:
        batch = buffer.sample()
    assert (batch["fields", "task"] == 2).all()
    assert (batch["fields", "other"] == batch["x"]).all()


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=list(SAMPLERS))
def test_unknown_fields(make: Callable[[Any], Sampler]) -> None:
    sampler = make(("nothing",))
    with ReplayBuffer(filled(), sampler, batch_size=24, seed=1) as buffer:
        before = repr(sampler.state())
        with pytest.raises(ValueError, match='no field "nothing".*"task"'):
            buffer.sample()
        assert repr(sampler.state()) == before
    with pytest.raises(TypeError, match='such as \\("task",\\)'):
        make("task")


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("task", "expected a function"),
        (7, "expected a function"),
        ([], "expected a function"),
        ({"task": 1}, "expected a function"),
        ([("task", 1)], r'expected \(column, "==", value\)'),
        ([("task", "=", 1)], "none of ==, !="),
        (("task", "=", 1), "'=' is none of ==, !="),
        (("task", "==", [1, 2]), "a number or bool"),
        (("task", "==", "a"), "a number or bool"),
        (("task", "in", 3), "a list of numbers"),
    ],
)
def test_no_predicates(where: Any, text: str) -> None:
    for make in (
        lambda: SliceSampler(slice_len=2, where=where),
        lambda: WindowSampler(where=where),
        lambda: TrajectorySampler(2, where=where),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            make()


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (("tusk", "==", 1), "no column 'tusk': there are steps, return, .*task"),
        (("meta.at", "==", 1), r"shape \[2\].*give a function"),
        (lambda c: c["tusk"] > 1, "raised KeyError.*no column 'tusk'"),
        (lambda c: 1 / 0, "raised ZeroDivisionError"),
        (lambda c: c["steps"], r"int64 \[8\].*expected bool \[8\]"),
        (lambda c: c["steps"][:2] > 1, r"bool \[2\].*expected bool \[8\]"),
        (lambda c: True, r"bool \[\].*expected bool \[8\]"),
    ],
)
def test_predicates_that_fail(where: Any, text: str) -> None:
    samplers = (
        SliceSampler(slice_len=2, where=where),
        SliceSamplerWithoutReplacement(slice_len=2, where=where),
        WindowSampler(RandomSampler(3), where=where),
        TrajectorySampler(8, where=where, consume=True),
    )
    for sampler in samplers:
        with ReplayBuffer(filled(), sampler, batch_size=8, seed=0) as buffer:
            before = repr(buffer.state())
            for _ in range(2):
                with pytest.raises(ValueError, match=text):
                    buffer.sample()
            assert repr(buffer.state()) == before


def test_a_failure_passes() -> None:
    bad = [True]

    def where(columns: Any) -> Any:
        if bad[0]:
            raise RuntimeError("not yet")
        return columns["task"] == 1

    with ReplayBuffer(filled(), SliceSampler(slice_len=2, where=where), batch_size=64) as buffer:
        with pytest.raises(ValueError, match="RuntimeError: not yet"):
            buffer.sample()
        bad[0] = False
        assert set((buffer.sample()["x"] // 100).tolist()) == {1, 4, 7}
        bad[0] = True
        assert set((buffer.sample()["x"] // 100).tolist()) == {1, 4, 7}  # nothing has changed
        buffer.extend_trajectory(episode(8, 3), terminated=True, fields={"task": 1})
        with pytest.raises(ValueError, match="RuntimeError: not yet"):
            buffer.sample()
        bad[0] = False
        assert set((buffer.sample()["x"] // 100).tolist()) == {1, 4, 7, 8}


def test_nothing_eligible_says_what_was_left_out() -> None:
    for sampler in (
        SliceSampler(slice_len=2, where=("task", ">", 5)),
        WindowSampler(where=("task", ">", 5)),
        TrajectorySampler(2, where=("task", ">", 5)),
    ):
        with (
            ReplayBuffer(filled(), sampler, batch_size=2) as buffer,
            pytest.raises(NothingEligibleError, match="'task' > 5 holds for 0 of 8 trajectories"),
        ):
            buffer.sample()
    sampler = TrajectorySampler(4, where=("task", "==", 1), consume=True)
    with (
        ReplayBuffer(filled(), sampler) as buffer,
        pytest.raises(NothingEligibleError, match="'task' == 1 leaves 3; 3 trajectories are ready"),
    ):
        buffer.sample()


# -- what it costs --------------------------------------------------------------------------------


def test_functions_see_what_has_changed() -> None:
    seen: list[int] = []

    def where(columns: Any) -> Any:
        seen.append(len(columns["steps"]))
        return columns["steps"] > 0

    storage = filled()
    index, sampler, rng = Index(storage), SliceSampler(slice_len=2, where=where), Rng(0)
    for write in (None, 3, 1, None):
        for number in range(write or 0):
            storage.default_writer.extend_trajectory(episode(number, 2), terminated=True)
        index.refresh()
        assert sampler.draw(index, rng, sampler.request(4)) is not None
    storage.set_fields([2, 3], {"task": 8})
    storage.set_fields([4], {"task": 4 % 3})  # what it was
    index.refresh()
    sampler.draw(index, rng, sampler.request(4))
    assert seen == [8, 3, 1, 2]


def aged(stored: int, of: float) -> tuple[Index, list[int], Any]:
    """Trajectories of 2 to 4 rows, the newest `of` of which are young enough."""
    storage = LazyTensorStorage(4 * stored, fields=FIELDS)
    for number in range(stored):
        data = episode(number, 2 + number % 3)
        storage.default_writer.extend_trajectory(data, terminated=True, fields={"task": number})
    asked: list[int] = []
    young = int(len(storage) * of)

    def where(columns: Any) -> Any:
        asked.append(len(columns["age"]))
        return (columns["age"] < young) & (columns["task"] % 7 != 3)

    return Index(storage), asked, where


@pytest.mark.parametrize("over", ["trajectories", "steps"])
@pytest.mark.parametrize("of", [0.5, 0.01])
def test_functions_of_age_are_asked_about_candidates(over: str, of: float) -> None:
    """Each slice that they hold for is as likely as any other, whether or not they reject most."""
    index, _, where = aged(1000, of)
    sampler, rng = SliceSampler(slice_len=2, over=over, where=where, fields=("task",)), Rng(1)
    index.refresh()
    table = index.storage.episodes()
    ends = table["first"] + table["steps"]
    young = (index.head - ends < int(len(index.storage) * of)) & (table["task"] % 7 != 3)
    starts: list[tuple[int, int]] = []
    for _ in range(200):
        index.refresh()
        draw = sampler.draw(index, rng, sampler.request(64))
        assert draw is not None and draw.lengths is not None and (draw.lengths == 2).all()
        assert (np.diff(draw.seqs.reshape(-1, 2), axis=1) == 1).all()
        tasks = draw.columns["fields", "task"].reshape(-1, 2)
        assert (tasks[:, 0] == tasks[:, 1]).all() and young[tasks].all()
        starts += zip(tasks[:, 0].tolist(), draw.seqs[::2].tolist())
    if over == "trajectories":
        uniform([task for task, _ in starts], np.flatnonzero(young).tolist())
    else:
        pairs = zip(table["first"][young].tolist(), table["steps"][young].tolist())
        uniform([at for _, at in starts], [at for a, n in pairs for at in range(a, a + n - 1)])


def test_functions_of_age_cost_what_is_drawn() -> None:
    most = []
    for stored in (500, 4000):
        index, asked, where = aged(stored, 0.5)
        sampler, rng = SliceSampler(slice_len=2, where=where), Rng(1)
        for turn in range(20):
            data = episode(turn, 2)
            index.storage.default_writer.extend_trajectory(data, terminated=True)
            index.refresh()
            before = index.view.work
            assert sampler.draw(index, rng, sampler.request(32)) is not None
            if turn == 0:  # all, to see what it reads
                assert asked[0] == stored + 1
                asked.clear()
        most.append((max(asked), index.view.work - before))
    assert most[1][0] <= 8 * 16 and most[1][1] < 2 * most[0][1] + 64, most


def test_functions_of_age_draw_the_same_however_they_got_there() -> None:
    index, _, where = aged(300, 0.3)
    old = SliceSampler(slice_len=2, where=where)
    index.refresh()
    old.draw(index, Rng(5), old.request(8))
    for turn in range(5):
        index.storage.default_writer.extend_trajectory(episode(turn, 3), terminated=True)
        fresh = Index(index.storage)
        for one in (index, fresh):
            one.refresh()
        new = SliceSampler(slice_len=2, where=where)
        found = [
            sampler.draw(i, Rng(turn), sampler.request(32))
            for sampler, i in ((old, index), (new, fresh))
        ]
        assert found[0] is not None and found[1] is not None
        assert np.array_equal(found[0].seqs, found[1].seqs)


def test_functions_of_age_that_hold_for_none() -> None:
    index, _, _ = aged(50, 0.5)
    sampler = SliceSampler(slice_len=2, where=lambda columns: columns["age"] < 0)
    with ReplayBuffer(index.storage, sampler, batch_size=8) as buffer:
        with pytest.raises(NothingEligibleError, match="holds for 0 of 50 trajectories"):
            buffer.sample()


def test_more_changes_of_fields_than_are_noted() -> None:
    storage = filled()
    index, sampler, rng = Index(storage), WindowSampler(where=("task", "==", 70)), Rng(0)
    for turn in range(2):
        for k in range(2000):
            storage.set_fields(k % 5, {"task": k})
        storage.set_fields(3 + turn, {"task": 70})
        index.refresh()
        draw = sampler.draw(index, rng, sampler.request(500))
        assert draw is not None
        numbers = storage.episodes()["task"] == 70
        assert numbers.nonzero()[0].tolist() == [3 + turn]
        first = sum(LENGTHS[: 3 + turn])
        assert set(draw.seqs.tolist()) == set(range(first, first + LENGTHS[3 + turn]))


def test_changes_of_fields_cost_what_was_changed() -> None:
    """However many: the log of them is as long as the index is large."""
    storage = LazyTensorStorage(40_000, fields=FIELDS)
    for number in range(6000):
        storage.default_writer.extend_trajectory(episode(number, 1), terminated=True)
    asked: list[int] = []

    def where(columns: Any) -> Any:
        asked.append(len(columns["task"]))
        return columns["task"] == 7

    index, sampler, rng = Index(storage), WindowSampler(where=where), Rng(0)
    index.refresh()
    assert sampler.draw(index, rng, sampler.request(4)) is None
    for turn in range(3):
        some = np.arange(turn, 300 + turn)
        for k in range(13):  # 3,900 changes of 300 trajectories
            storage.set_fields(some, {"task": 7 + (k + 1) % 13})
        index.refresh()
        draw = sampler.draw(index, rng, sampler.request(9000))
        assert draw is not None
        task = storage.episodes()["task"]
        assert set(draw.seqs.tolist()) == set(np.flatnonzero(task == 7).tolist())
    assert asked == [6000, 300, 300, 300]


def test_places_of_predicates_are_free_again() -> None:
    storage = filled()
    index, rng = Index(storage), Rng(0)
    for turn in range(200):  # many more than one view has room for
        sampler = SliceSampler(slice_len=2, where=("steps", "==", 1 + turn % 8))
        index.refresh()
        draw = sampler.draw(index, rng, sampler.request(2))
        assert draw is not None and draw.lengths is not None
        assert storage.gather(draw.seqs)[0]["x"][0] // 100 == LENGTHS.index(1 + turn % 8)
