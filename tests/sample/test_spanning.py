"""Groups of trajectories whose members lie on several tapes: complete, each once, and counted.

A trajectory's values say its number and step, so that rows of another one show.
"""

from __future__ import annotations

import copy
import itertools
import json
import time
from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from contig import (
    ChunkSampler,
    EmptyBufferError,
    LazyTensorStorage,
    NothingEligibleError,
    ReplayBuffer,
    TrajectorySampler,
    WindowSampler,
)
from contig.replay.shards import ShardReader, read_shards
from contig.sample import Rng, Sampler
from contig.sample.report import Report
from contig.sample.shards import base_of, decode
from contig.sample.spanning import Spanning
from tests.sample.drawing import uniform
from tests.sample.elsewhere import Elsewhere

FIELDS = {"group": np.int64(0), "task": np.int32(0)}


def rows(number: int, steps: int) -> dict[str, Any]:
    reward = np.full(steps, number, np.float32)
    return {"x": 100 * number + np.arange(steps), "next": {"reward": reward}}


def grouped(n: int, size: int | None = 2, **options: Any) -> TrajectorySampler:
    return TrajectorySampler(n, group="group", group_size=size, fields=("task",), **options)


def inner(sampler: Any) -> TrajectorySampler:
    found = sampler.sampler if isinstance(sampler, WindowSampler | ChunkSampler) else sampler
    assert isinstance(found, TrajectorySampler)
    return found


class Shards:
    """Tapes of this process, every other one asked as if it were elsewhere."""

    def __init__(
        self, sampler: Sampler, tapes: int = 3, capacity: int = 1000, seed: int = 3
    ) -> None:
        self.sampler, self.rng = sampler, Rng(seed)
        self.storages = [LazyTensorStorage(capacity, fields=FIELDS) for _ in range(tapes)]
        self.sources: list[Any] = [self.reader(s, i) for i, s in enumerate(self.storages)]
        self.lost: list[Any] = []

    def reader(self, storage: LazyTensorStorage, number: int) -> Any:
        made = ShardReader(storage, copy.deepcopy(self.sampler), number)
        return Elsewhere(made) if number % 2 else made

    def write(self, tape: int, number: int, group: int, steps: int | None = None) -> None:
        steps = 1 + number % 4 if steps is None else steps
        fields = {"group": group, "task": number}
        writer = self.storages[tape].default_writer
        writer.extend_trajectory(rows(number, steps), terminated=True, fields=fields)

    def begin(self, tape: int, number: int, group: int) -> Any:
        writer = self.storages[tape].writer()
        writer.extend(rows(number, 2), fields={"group": group, "task": number})
        return writer

    def sample(self) -> Any:
        request = self.sampler.request(inner(self.sampler).num_trajectories)
        return read_shards(self.sampler, self.rng, self.sources, request, self.leave_out)

    def leave_out(self, source: Any) -> None:
        self.lost.append(source)
        self.sources = [s for s in self.sources if s is not source]

    def all(self) -> list[list[int]]:
        """Batches until nothing is left."""
        found = []
        while True:
            try:
                found.append(numbers(self.sample()))
            except NothingEligibleError:
                return found

    @property
    def readers(self) -> list[ShardReader]:
        return [s.reader if isinstance(s, Elsewhere) else s for s in self.sources]

    @property
    def stats(self) -> Any:
        return inner(self.sampler).stats()


def numbers(batch: Any) -> list[int]:
    """Which trajectories a batch has, each of them whole."""
    number, step = np.divmod(batch["x"], 100)
    firsts = np.flatnonzero(batch["is_init"])
    for a, b in zip(firsts, [*firsts[1:], len(batch)]):
        assert step[a:b].tolist() == list(range(b - a)) and len(set(number[a:b])) == 1
        assert (batch["collector", "traj_length"][a:b] == b - a).all()
        assert batch["next", "done"][a:b].tolist() == [False] * (b - a - 1) + [True]
        assert len(set(decode(batch["index"][a:b])[0])) == 1
        assert (np.diff(batch["index"][a:b]) > 0).all()
    assert (batch["fields", "task"] == number).all()
    assert (batch["next", "reward"] == number).all()
    return [int(n) for n in number[firsts]]


def spanning_of(shards: Shards) -> Spanning:
    found = shards.sampler.spanning
    assert found is not None
    return found


def groups(batch: Any, size: int = 2) -> list[int]:
    """Which groups a batch has, each of `size` members side by side."""
    numbers(batch)
    of = batch["fields", "group"][batch["is_init"]].reshape(-1, size)
    assert (of == of[:, :1]).all()
    return [int(g) for g in of[:, 0]]


# Tape, number and group of trajectories: groups 0 to 5 of two on all pairs of tapes, and one alone.
SPREAD = [
    *((0, 0, 0), (1, 1, 0), (2, 2, 1), (0, 3, 1), (1, 4, 2), (2, 5, 2), (0, 6, 3), (0, 7, 3)),
    *((2, 8, 4), (1, 9, 4), (1, 10, 5), (1, 11, 5), (2, 12, 6)),
]
PAIRS = [(0, 1), (3, 2), (4, 5), (6, 7), (9, 8), (10, 11)]  # by tape, then in order


def spread(shards: Shards) -> Shards:
    for tape, number, group in SPREAD:
        shards.write(tape, number, group)
    return shards


def pairs(drawn: list[int]) -> list[tuple[int, ...]]:
    return [tuple(drawn[i : i + 2]) for i in range(0, len(drawn), 2)]


def test_members_lie_on_different_tapes() -> None:
    shards = spread(Shards(grouped(4)))
    found = [pair for _ in range(300) for pair in pairs(numbers(shards.sample()))]
    uniform(found, PAIRS)
    assert shards.stats == (6, 1, 1, 0, 0, 0, 0)
    assert not shards.lost


def test_each_once() -> None:
    firsts: list[int] = []
    for seed in range(200):
        shards = spread(Shards(grouped(4, consume=True), seed=seed))
        drawn = [groups(shards.sample()) for _ in range(3)]
        assert sorted(itertools.chain(*drawn)) == [0, 1, 2, 3, 4, 5]
        with pytest.raises(NothingEligibleError, match="0 groups are ready, 4 trajectories are on"):
            shards.sample()
        assert shards.stats == (0, 1, 1, 12, 0, 0, 0)
        shards.write(0, 13, 6)
        with pytest.raises(NothingEligibleError, match="1 groups are ready.* 0 wait"):
            shards.sample()  # a batch is whole or none
        shards.write(1, 14, 7)
        shards.write(0, 15, 7)
        assert sorted(groups(shards.sample())) == [6, 7]
        assert shards.stats == (0, 0, 0, 16, 0, 0, 0)
        firsts += drawn[0]
    uniform(firsts, range(6))


def test_as_from_a_single_tape() -> None:
    """Each group as likely, by itself and beside another, with and without consuming."""
    for consume in (False, True):
        beside: dict[str, Counter[frozenset[int]]] = {"one": Counter(), "several": Counter()}
        for seed in range(300 if consume else 1):
            shards = spread(Shards(grouped(4, consume=consume), seed=seed))
            storage = LazyTensorStorage(1000, fields=FIELDS)
            one = ReplayBuffer(storage, grouped(4, consume=consume), seed=seed)
            for _, number, group in SPREAD:
                fields = {"group": group, "task": number}
                one.extend_trajectory(rows(number, 1 + number % 4), terminated=True, fields=fields)
            for _ in range(1 if consume else 600):
                beside["several"][frozenset(groups(shards.sample()))] += 1
                beside["one"][frozenset(groups(one.sample()))] += 1
        two = [frozenset(pair) for pair in itertools.combinations(range(6), 2)]
        for found in beside.values():
            if consume:
                uniform(found.elements(), two)
            else:  # the same twice: half as likely
                assert len(found) == 21
                uniform([k for k in found.elements() if len(k) == 2], two)
                uniform(
                    [k for k in found.elements() if len(k) == 1], [frozenset([g]) for g in range(6)]
                )


def test_where_and_fields() -> None:
    shards = spread(Shards(grouped(2, where=lambda c: (c["task"] != 1) & (c["group"] < 5))))
    assert {g for _ in range(60) for g in groups(shards.sample())} == {1, 2, 3, 4}
    assert shards.stats.waiting == 1  # what is left of group 0
    ids = shards.storages[1].episodes()["id"]
    assert shards.storages[1].set_fields(ids[0], {"task": 90}) == 1  # it counts now
    batches = [shards.sample() for _ in range(80)]
    seen = {tuple(b["fields", "task"][b["is_init"]].tolist()) for b in batches}
    assert seen == {(0, 90), (3, 2), (4, 5), (6, 7), (9, 8)}


def test_groups_of_no_known_size() -> None:
    shards = Shards(grouped(3, None, consume=True))
    for tape, number, group in ((0, 0, 1), (1, 1, 1), (2, 2, 2)):
        shards.write(tape, number, group)
    writer = shards.begin(1, 3, 1)
    with pytest.raises(NothingEligibleError, match="1 groups are ready.*1 wait"):
        shards.sample()
    shards.write(0, 5, 2)
    shards.write(1, 6, 7)
    drawn = numbers(shards.sample())
    assert sorted(drawn) == [2, 5, 6] and drawn.index(2) == drawn.index(5) + 1
    writer.extend_trajectory(rows(8, 1), terminated=True, fields={"group": 8, "task": 8})
    assert shards.stats.waiting == 1


def test_what_waits_is_counted() -> None:
    shards = Shards(grouped(2))
    shards.write(0, 0, 1)
    shards.begin(2, 1, 1)
    shards.write(1, 2, 2)
    with pytest.raises(NothingEligibleError, match="rows are stored in 3 shards.*0 groups are rea"):
        shards.sample()
    assert shards.stats == (0, 2, 3, 0, 0, 0, 0)
    shards.write(2, 3, 2)
    assert groups(shards.sample()) == [2]
    assert shards.stats == (1, 1, 2, 0, 0, 0, 0)


def test_tapes_without_rows_or_fields() -> None:
    shards = Shards(grouped(2))
    with pytest.raises(EmptyBufferError, match="its 3 shards have no rows"):
        shards.sample()
    shards.write(2, 0, 1)
    shards.write(2, 1, 1)
    assert groups(shards.sample()) == [1]
    wrong = TrajectorySampler(2, group="grupo", group_size=2)
    shards = Shards(wrong)
    shards.write(1, 0, 1)
    with pytest.raises(ValueError, match='group="grupo"'):
        shards.sample()


# -- waiting --------------------------------------------------------------------------------------


def late(on_timeout: str, consume: bool = True) -> tuple[Shards, Any]:
    sampler = grouped(2, consume=consume, timeout_s=1000.0, on_timeout=on_timeout)
    ahead = [0.0]
    sampler.clock = lambda: time.time() + ahead[0]
    return Shards(sampler), ahead


def test_release() -> None:
    shards, ahead = late("release")
    shards.write(0, 0, 1)
    shards.begin(1, 1, 2)
    shards.write(2, 2, 2)
    for ahead[0] in (0.0, 500.0):
        with pytest.raises(NothingEligibleError, match="2 wait"):
            shards.sample()
    ahead[0] = 1001.0
    assert sorted(numbers(shards.sample()) + numbers(shards.sample())) == [0, 2]
    assert shards.stats == (0, 1, 1, 2, 2, 0, 0)
    shards.write(1, 3, 1)  # too late: it begins a group of its own
    ahead[0] = 0.0
    with pytest.raises(NothingEligibleError):
        shards.sample()
    shards.write(0, 4, 1)
    assert numbers(shards.sample()) == [4, 3]
    assert shards.stats.released == 2


def test_released_groups_wait_again_for_those_that_come() -> None:
    shards, ahead = late("release", consume=False)
    shards.write(1, 0, 1)
    ahead[0] = 1001.0
    for _ in range(3):
        assert numbers(shards.sample()) == [0]
    assert shards.stats.released == 1  # however often it is drawn
    shards.write(2, 1, 1)
    assert numbers(shards.sample()) == [0, 1]


def test_drop() -> None:
    shards, ahead = late("drop")
    shards.write(0, 0, 1)
    shards.write(1, 1, 2)
    shards.write(2, 2, 2)
    ahead[0] = 1001.0
    assert numbers(shards.sample()) == [1, 2]
    assert shards.stats == (0, 0, 0, 2, 0, 1, 0)
    ahead[0] = 0.0
    shards.write(1, 3, 1)  # the group that was dropped does not come back with it
    with pytest.raises(NothingEligibleError, match="1 wait"):
        shards.sample()
    shards.write(2, 4, 1)
    assert numbers(shards.sample()) == [3, 4]


# -- what is evicted or lost ----------------------------------------------------------------------


@pytest.mark.parametrize("consume", [False, True])
def test_a_member_that_was_evicted(consume: bool) -> None:
    shards = Shards(grouped(2, consume=consume), capacity=12)
    for number in range(4):  # groups 0 and 1, on tapes 0 and 1
        shards.write(number % 2, number, number // 2, steps=4)
    shards.write(0, 4, 2, steps=2)
    shards.write(2, 8, 9)
    shards.write(2, 9, 9)
    asked = spanning_of(shards).ask([0, 1, 2])
    heard = [s.report(a) for s, a in zip(shards.readers, asked)]
    spanning_of(shards).hear([0, 1, 2], heard)
    assert shards.stats[:3] == (3, 1, 1)
    shards.write(0, 5, 3, steps=4)  # of the first one of tape 0, two rows are left
    assert 0 not in groups(shards.sample()) + groups(shards.sample())
    assert shards.stats[:3] == (0 if consume else 2, 3, 4) and shards.stats.evicted == 0
    shards.write(0, 6, 4, steps=2)  # none is
    with pytest.raises(NothingEligibleError) if consume else nullcontext():
        assert 0 not in groups(shards.sample())
    assert shards.stats[:3] == (0 if consume else 2, 4, 4) and shards.stats.evicted == 1
    shards.write(2, 7, 0)  # in its place
    assert 0 in {g for _ in range(1 if consume else 40) for g in groups(shards.sample())}


class Evicts:
    """A tape whose next gather comes too late for the oldest rows."""

    def __init__(self, storage: LazyTensorStorage, patch: pytest.MonkeyPatch, steps: int) -> None:
        gather = storage.gather

        def late(*args: Any, **options: Any) -> Any:
            patch.undo()
            storage.writer().extend(rows(99, steps))  # a trajectory that stays open
            return gather(*args, **options)

        patch.setattr(storage, "gather", late)


def test_evicted_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is delivered of its group, and nothing of it is consumed; another group comes."""
    shards = Shards(grouped(4, consume=True), capacity=8)
    for number, (tape, group) in enumerate([(0, 1), (1, 1), (0, 2), (1, 2)]):
        shards.write(tape, number, group, steps=4)
    Evicts(shards.storages[0], monkeypatch, 2)
    assert numbers(shards.sample()) == [2, 3]  # shorter: there is no other
    assert shards.stats == (0, 2, 3, 2, 0, 0, 0)  # 0 is trimmed, 1 waits, so does 99
    shards.write(2, 4, 1)
    shards.write(2, 5, 5)
    shards.write(2, 6, 5)
    shards.storages[0].empty()
    drawn = numbers(shards.sample())
    assert sorted(pairs(drawn)) == [(1, 4), (5, 6)]
    assert shards.stats.evicted == 2


def test_trimmed_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is left of a trajectory will do, the group comes with that."""
    sampler = grouped(2, consume=True, complete_only=False)
    shards = Shards(sampler, capacity=8)
    for number, (tape, group) in enumerate([(0, 1), (1, 1), (0, 2)]):
        shards.write(tape, number, group, steps=4)
    Evicts(shards.storages[0], monkeypatch, 2)
    batch = shards.sample()
    assert batch["x"].tolist() == [2, 3, 100, 101, 102, 103]
    assert shards.stats.consumed == 2


@pytest.mark.parametrize("consume", [False, True])
def test_damaged_rows(consume: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that can never be gathered keep nobody from the others."""
    shards = spread(Shards(grouped(2, consume=consume)))
    gather = shards.storages[0].gather

    def damaged(seqs: Any, *args: Any, **options: Any) -> Any:
        batch, lost = gather(seqs, *args, **options)
        bad = np.isin(batch["x"] // 100, (0, 3))  # of groups 0 and 1
        assert not lost
        return batch, bad if bad.any() else 0

    monkeypatch.setattr(shards.storages[0], "gather", damaged)
    drawn = [groups(shards.sample())[0] for _ in range(4 if consume else 40)]
    assert set(drawn) == {2, 3, 4, 5}
    if consume:
        with pytest.raises(NothingEligibleError, match="2 groups are ready"):
            shards.sample()
        assert shards.stats.consumed == 8


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_lost_tape(size: int | None, comes_back: bool) -> None:
    """Its groups wait for it, and are never given out in part; if another is in its place, its
    members are as if they had been evicted."""
    shards = spread(Shards(grouped(2, size, consume=True, where=("group", "<", 6))))
    first = numbers(shards.sample())
    left = [p for p in PAIRS if p != tuple(first)]
    gone = shards.sources[1]
    gone.dead = True
    with pytest.raises(NothingEligibleError):
        while True:
            left.remove(tuple(numbers(shards.sample())))  # type: ignore[arg-type]
    assert shards.lost == [gone]
    assert left and all({SPREAD[n][0] for n in pair} & {1} for pair in left)
    assert shards.stats[:3] == (0, len(left), 2 * len(left))
    if comes_back:  # with what it had, and a copy of the sampler that knows nothing
        shards.sources.insert(1, shards.reader(shards.storages[1], 1))
        assert sorted(map(tuple, shards.all())) == sorted(left)
        assert shards.stats == (0, 0, 0, 12, 0, 0, 0)
        return
    shards.storages[1] = LazyTensorStorage(1000, fields=FIELDS)
    shards.sources.insert(1, shards.reader(shards.storages[1], 3))
    alone = [n for pair in left for n in pair if SPREAD[n][0] != 1]
    if size is None:  # all that there are of them have ended
        drawn = list(itertools.chain(*shards.all()))
        assert len(drawn) == len(alone) // 2 * 2 and set(drawn) <= set(alone)
        return
    with pytest.raises(NothingEligibleError, match=f"{len(alone)} wait"):
        shards.sample()
    assert shards.stats.evicted == sum(SPREAD[n][0] == 1 for pair in left for n in pair)
    for number in alone:  # again, for those that were lost
        shards.write(1, 100 + number, SPREAD[number][2])
    again = [set(batch) for batch in shards.all()]
    assert all({n, 100 + n} in again for n in alone) and len(again) == len(alone)


def test_a_tape_that_dies_while_members_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = spread(Shards(grouped(12)))
    far = shards.sources[1]
    fetch = far.reader.fetch

    def dies(*given: Any) -> Any:
        far.dead = True
        return fetch(*given)

    monkeypatch.setattr(far.reader, "fetch", dies)
    assert set(pairs(numbers(shards.sample()))) == {(3, 2), (6, 7)}
    assert shards.lost == [far] and shards.stats.ready == 2


def test_reports_that_got_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one tape fails, what others said is asked again."""
    shards = Shards(grouped(2, consume=True))
    shards.write(0, 0, 1)
    shards.write(1, 1, 2)
    with pytest.raises(NothingEligibleError):
        shards.sample()

    def fails(*given: Any) -> Any:
        raise OSError("no way")

    shards.write(0, 2, 2)
    shards.write(2, 3, 1)
    with monkeypatch.context() as patch:
        patch.setattr(shards.sources[2], "report", fails)
        with pytest.raises(OSError, match="no way"):
            shards.sample()
    assert sorted(map(sorted, shards.all())) == [[0, 3], [1, 2]]


# -- going back, state, several learners ----------------------------------------------------------


def test_the_same_wherever_tapes_are() -> None:
    here, there = spread(Shards(grouped(4, consume=True))), spread(Shards(grouped(4, consume=True)))
    here.sources = list(here.readers)
    for _ in range(3):
        one, two = here.sample(), there.sample()
        assert np.array_equal(one["index"], two["index"]) and np.array_equal(one["x"], two["x"])


def test_how_it_came_does_not_matter() -> None:
    """What was asked before, and in which order tapes were filled, changes no draw."""
    early, late = Shards(grouped(4, consume=True)), Shards(grouped(4, consume=True))
    for tape, number, group in SPREAD:
        early.write(tape, number, group)
        asked = spanning_of(early).ask(range(3))
        found = [reader.report(a) for reader, a in zip(early.readers, asked)]
        spanning_of(early).hear([0, 1, 2], found)
    for tape in (2, 0, 1):
        for at, number, group in SPREAD:
            if at == tape:
                late.write(tape, number, group)
    for _ in range(3):
        assert numbers(early.sample()) == numbers(late.sample())


def test_rewound_and_given_back() -> None:
    shards = spread(Shards(grouped(4, consume=True)))
    start, words = shards.sampler.mark(), shards.rng.state()
    batches, taken = [], []
    for _ in range(3):
        mark = shards.sampler.mark()
        batches.append(numbers(shards.sample()))
        taken.append(shards.sampler.taken(mark))
    shards.sampler.give_back(taken[1])
    assert shards.stats.consumed == 8
    assert sorted(numbers(shards.sample())) == sorted(batches[1])
    shards.sampler.give_back(taken[1])  # it was, already
    with pytest.raises(NothingEligibleError):
        shards.sample()
    shards.sampler.rewind(start)
    shards.rng.load(words)
    assert shards.all() == batches
    assert shards.stats.consumed == 12


def test_given_back_when_a_member_is_gone() -> None:
    shards = Shards(grouped(2, consume=True))
    shards.write(0, 0, 1)
    shards.write(1, 1, 1)
    mark = shards.sampler.mark()
    assert numbers(shards.sample()) == [0, 1]
    shards.storages[0].empty()
    shards.sampler.give_back(shards.sampler.taken(mark))
    with pytest.raises(NothingEligibleError, match="1 wait"):
        shards.sample()
    shards.write(2, 2, 1)
    assert numbers(shards.sample()) == [1, 2]


def test_state_goes_to_other_numbers() -> None:
    """After a restart, shards in the same places have other numbers."""
    shards = spread(Shards(grouped(4, consume=True, on_timeout="drop", timeout_s=1e6)))
    first = numbers(shards.sample())
    state = json.loads(
        json.dumps({k: np.asarray(v).tolist() for k, v in shards.sampler.state().items()})
    )
    words = shards.rng.state()
    rest = shards.all()
    other = Shards(grouped(4, consume=True, on_timeout="drop", timeout_s=1e6))
    other.storages = shards.storages
    other.sources = [other.reader(s, 10 + i) for i, s in enumerate(other.storages)]
    other.sampler.load(other.sampler.moved(state, {0: 10, 1: 11, 2: 12}))
    other.rng.load(words)
    assert other.all() == rest
    assert sorted(itertools.chain(first, *rest)) == list(range(12))
    assert other.stats == shards.stats
    anew = WindowSampler(grouped(4, consume=True), last_rows=99)
    anew.load(anew.moved({"inner": state}, {}))  # dealt out anew: who knows which is which
    assert len(inner(anew).state()["done"]) == 0 and inner(anew).stats().consumed == 4


def test_what_was_emptied_is_forgotten() -> None:
    shards = spread(Shards(grouped(4, consume=True)))
    shards.all()
    for storage in shards.storages:
        storage.empty()
    shards.sampler.reset()
    spread(shards)
    assert sorted(itertools.chain(*shards.all())) == list(range(12))
    assert shards.stats.evicted == 0


def test_each_learner_has_its_part() -> None:
    found: list[int] = []
    for rank in range(3):
        sampler = grouped(2, consume=True)
        sampler.divide(rank, 3)
        shards = Shards(sampler)
        for number in range(48):
            shards.write(number % 3, number, number // 2)
        mine = list(itertools.chain(*shards.all()))
        assert 0 < len(mine) < 48
        found += mine
    assert sorted(found) == list(range(48))


def test_what_is_done_with_is_let_go() -> None:
    shards = Shards(grouped(2, consume=True), capacity=12)
    for number in range(200):
        shards.write(number % 3, number, number // 2, steps=2)
        if number % 2:
            assert numbers(shards.sample())
    assert shards.stats.consumed == 200
    assert len(shards.sampler.state()["done"]) <= 18 + 3
    done = decode(shards.sampler.state()["done"])[0]
    assert set(done.tolist()) == {0, 1, 2}


# -- windows and other samplers -------------------------------------------------------------------


@pytest.mark.parametrize("consume", [False, True])
def test_groups_within_a_window(consume: bool) -> None:
    sampler = WindowSampler(grouped(2, consume=consume), last_trajectories=6)
    shards = Shards(sampler)
    for number in range(40):  # groups of neighbours: two of each tape are in the window
        shards.write(number % 3, number, number // 2)
    found = [g for _ in range(2 if consume else 300) for g in groups(shards.sample())]
    if consume:
        assert len(set(found)) == 2
        with pytest.raises(NothingEligibleError):
            while True:
                found += groups(shards.sample())
        assert set(found) == {17, 18, 19}
        assert shards.stats.ready == 17  # they stay: the window may become larger
    else:
        uniform(found, [17, 18, 19])


def test_windows_by_version() -> None:
    sampler = WindowSampler(grouped(2), max_staleness=1)
    shards = Shards(sampler)
    for number, version in enumerate([3, 4, 4, 5, 5, 5, 5, 3]):
        fields = {"group": number // 2, "task": number}
        writer = shards.storages[number % 3].default_writer
        data = rows(number, 2)
        writer.extend_trajectory(data, terminated=True, fields=fields, policy_version=version)
    assert {g for _ in range(40) for g in groups(shards.sample())} == {1, 2}


def test_chunks_of_groups() -> None:
    shards = spread(Shards(ChunkSampler(3, grouped(4), keys=("x",))))
    for _ in range(20):
        batch = shards.sample()
        x, real = batch["x"], batch["collector", "chunk_mask"]
        assert (real.sum(1) == np.minimum(3, (x[:, 0] // 100) % 4 + 1 - x[:, 0] % 100)).all()
        of = batch["fields", "group"][batch["is_init"]].reshape(-1, 2)
        assert (of[:, 0] == of[:, 1]).all()


def test_reports_are_of_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is stored."""
    told: list[int] = []
    sampler = grouped(2, consume=True)
    shards = Shards(sampler, capacity=100_000)
    spanning = spanning_of(shards)
    hear = spanning.hear

    def count(tapes: list[int], reports: list[Report | None]) -> None:
        told.append(sum(len(r.ids) + len(r.gone) for r in reports if r is not None))
        hear(tapes, reports)

    monkeypatch.setattr(spanning, "hear", count)
    for number in range(3000):
        shards.write(number % 3, number, number // 2, steps=1)
    shards.sample()
    for number in range(3000, 3040):
        shards.write(number % 3, number, number // 2, steps=1)
        shards.sample()
    assert told[0] == 3000 and set(told[1:]) == {1}


def test_ids_are_of_shard_and_number() -> None:
    shards = spread(Shards(grouped(4, consume=True)))
    shards.sample()
    done = shards.sampler.state()["done"]
    assert len(done) == 4 and done.min() >= 0 and done.max() < base_of(3)
