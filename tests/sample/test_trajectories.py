"""TrajectorySampler: whole trajectories, groups of them, each once, and what waits."""

from __future__ import annotations

import copy
import itertools
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    NothingEligibleError,
    ReplayBuffer,
    TrajectorySampler,
    WindowSampler,
)
from contig.replay.shards import ShardReader, read_shards
from contig.sample import Rng
from contig.sample.shards import decode
from tests.sample.drawing import uniform

FIELDS = {"group": np.int64(0), "task": np.int32(0)}


def rows(number: int, steps: int) -> dict[str, Any]:
    reward = np.full(steps, number, np.float32)
    return {"x": 100 * number + np.arange(steps), "next": {"reward": reward}}


def make(sampler: TrajectorySampler | WindowSampler, capacity: int = 1000, **options: Any) -> Any:
    storage = LazyTensorStorage(capacity, fields=FIELDS)
    return ReplayBuffer(storage, sampler, seed=0, **options)


def write(buffer: ReplayBuffer, number: int, group: int = 0, steps: int | None = None) -> None:
    steps = 1 + number % 4 if steps is None else steps
    fields = {"group": group, "task": number}
    buffer.extend_trajectory(rows(number, steps), terminated=True, fields=fields)


def numbers(batch: Any) -> list[int]:
    """Which trajectories a batch has, each of them whole."""
    number, step = np.divmod(batch["x"], 100)
    firsts = np.flatnonzero(batch["is_init"])
    for a, b in zip(firsts, [*firsts[1:], len(batch)]):
        assert step[a:b].tolist() == list(range(b - a)) and len(set(number[a:b])) == 1
        assert (batch["collector", "traj_length"][a:b] == b - a).all()
    assert (batch["fields", "task"] == number).all()
    return [int(n) for n in number[firsts]]


def groups(batch: Any, size: int = 2) -> list[int]:
    """Which groups a batch has, each of `size` members side by side."""
    of = batch["fields", "group"][batch["is_init"]].reshape(-1, size)
    assert (of == of[:, :1]).all()
    return [int(g) for g in of[:, 0]]


def test_flat_with_lengths() -> None:
    with make(TrajectorySampler(5, fields=("task",))) as buffer:
        for number in range(6):
            write(buffer, number)
        batch, info = buffer.sample(return_info=True)
        drawn = numbers(batch)
        assert len(drawn) == 5
        assert info["lengths"].tolist() == [1 + n % 4 for n in drawn]
        assert info["lengths"].sum() == len(batch)
        # The ends are real ones: nothing was cut.
        assert not batch["collector", "slice_end"].any()
        ends = np.cumsum(info["lengths"]) - 1
        assert np.flatnonzero(batch["next", "terminated"]).tolist() == ends.tolist()
        assert np.flatnonzero(batch["next", "done"]).tolist() == ends.tolist()
        assert buffer.sampler.stats().ready == 6


def test_batch_size_counts_trajectories() -> None:
    assert make(TrajectorySampler(5)).batch_size == 5
    assert make(WindowSampler(TrajectorySampler(5), last_rows=9)).batch_size == 5
    with pytest.raises(ValueError, match="counts trajectories.*num_trajectories is 5"):
        make(TrajectorySampler(5), batch_size=4)


def test_complete_only() -> None:
    storage = LazyTensorStorage(10, fields=FIELDS)
    writer = storage.writer()
    for number in (1, 2):
        fields = {"task": number}
        writer.extend_trajectory(rows(number, 4), terminated=True, fields=fields)
    writer.extend(rows(3, 4), fields={"task": 3})  # open; of trajectory 1, two rows are left
    whole = ReplayBuffer(storage, TrajectorySampler(400, fields=("task",)), seed=0)
    assert set(numbers(whole.sample())) == {2}
    rest = TrajectorySampler(400, complete_only=False, fields=("task",))
    batch = ReplayBuffer(storage, rest, seed=0).sample()
    of = (batch["x"] // 100)[batch["is_init"]]
    uniform(of.tolist(), [1, 2, 3])
    lengths = batch["collector", "traj_length"][batch["is_init"]]
    assert set(zip(of.tolist(), lengths.tolist())) == {(1, 2), (2, 4), (3, 4)}
    assert set((batch["x"] // 100)[batch["collector", "slice_end"]].tolist()) == {3}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group_size": 2}, "group_size is of groups"),
        ({"timeout_s": 2.0}, "timeout_s is of groups"),
        ({"group": "group", "group_size": 3}, "4 is not a multiple of group_size 3"),
        ({"group": "group", "group_size": 0}, "at least 1"),
        ({"group": "group", "timeout_s": -1}, "expected seconds"),
        ({"on_timeout": "wait"}, '"release" or "drop"'),
    ],
)
def test_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TrajectorySampler(4, **options)


def test_unknown_group() -> None:
    with make(TrajectorySampler(2, group="grupo", group_size=2)) as buffer:
        write(buffer, 0)
        with pytest.raises(ValueError, match='no field "grupo"'):
            buffer.sample()


# -- each once ------------------------------------------------------------------------------------


def test_each_once_in_any_order() -> None:
    firsts = []
    for seed in range(300):
        storage = LazyTensorStorage(100, fields=FIELDS)
        sampler = TrajectorySampler(2, consume=True, fields=("task",))
        with ReplayBuffer(storage, sampler, seed=seed) as buffer:
            for number in range(7):
                write(buffer, number)
            drawn = [numbers(buffer.sample()) for _ in range(3)]
            assert len({n for batch in drawn for n in batch}) == 6
            with pytest.raises(NothingEligibleError, match="1 trajectories are ready, 2 "):
                buffer.sample()
            write(buffer, 7)
            last = numbers(buffer.sample())
            assert sorted([n for batch in (*drawn, last) for n in batch]) == list(range(8))
            assert buffer.sampler.stats()[:4] == (0, 0, 0, 8)
            firsts += drawn[0]
    uniform(firsts, range(7))


def test_what_was_consumed_stays_so(tmp_path: Path) -> None:
    sampler = TrajectorySampler(2, consume=True, fields=("task",))
    with make(sampler, 30) as buffer:
        for number in range(8):
            write(buffer, number, steps=3)
        first = [numbers(buffer.sample()) for _ in range(2)]
        buffer.save(tmp_path / "then")
        rest = [numbers(buffer.sample()) for _ in range(2)]
        assert sorted(itertools.chain(*first, *rest)) == list(range(8))
        other = make(TrajectorySampler(2, consume=True, fields=("task",)), 30)
        for loaded in (buffer, other):
            loaded.load(tmp_path / "then")
            assert [numbers(loaded.sample()) for _ in range(2)] == rest
            with pytest.raises(NothingEligibleError):
                loaded.sample()
        for number in range(8, 18):  # all that was consumed is evicted
            write(buffer, number, steps=3)
        drawn = [numbers(buffer.sample()) for _ in range(5)]
        assert sorted(itertools.chain(*drawn)) == list(range(8, 18))
        assert len(sampler.state()["done"]) == 10  # nobody remembers the others
        buffer.empty()
        write(buffer, 20)
        write(buffer, 21)
        assert sorted(numbers(buffer.sample())) == [20, 21]


def test_prefetched_batches_that_are_not_taken_come_again(tmp_path: Path) -> None:
    def fill(buffer: ReplayBuffer) -> None:
        for number in range(40):
            write(buffer, number, number // 2)

    options = {"group": "group", "group_size": 2, "consume": True, "fields": ("task",)}
    with make(TrajectorySampler(4, **options)) as plain:  # type: ignore[arg-type]
        fill(plain)
        expected = [numbers(plain.sample()) for _ in range(10)]
    with make(TrajectorySampler(4, **options), prefetch=3) as buffer:  # type: ignore[arg-type]
        fill(buffer)
        got = []
        for turn in range(10):
            got.append(numbers(buffer.sample()))
            if turn % 3 == 1:
                buffer.save(tmp_path / str(turn))  # what was drawn ahead is thrown away
        assert got == expected
        assert buffer.sampler.stats().consumed == 40


# -- groups ---------------------------------------------------------------------------------------


def test_only_complete_groups() -> None:
    sampler = TrajectorySampler(4, group="group", group_size=2, fields=("task",))
    with make(sampler) as buffer:
        for number, group in enumerate([1, 2, 3, 1, 4, 2, 2, 1, 1]):
            write(buffer, number, group)
        open_one = buffer.storage.writer()
        open_one.extend(rows(9, 2), fields={"group": 3, "task": 9})
        batch = buffer.sample()
        assert sampler.stats() == (3, 3, 4, 0, 0, 0, 0)  # 1 twice, 2; of 2, 3 and 4 the rest waits
        assert set(groups(batch)) <= {1, 2}
        open_one.extend_trajectory(rows(10, 1), terminated=True, fields={"group": 4, "task": 10})
        found = Counter[tuple[int, ...]]()
        for _ in range(400):
            drawn = numbers(buffer.sample())
            found.update([tuple(drawn[:2]), tuple(drawn[2:])])
        # The first two of a value are a group, the next two another.
        uniform(found.elements(), [(0, 3), (7, 8), (1, 5), (4, 10)])


def test_groups_of_no_known_size() -> None:
    sampler = TrajectorySampler(3, group="group", consume=True, fields=("task",))
    with make(sampler) as buffer:
        for number, group in enumerate([1, 1, 2]):
            write(buffer, number, group)
        writer = buffer.storage.writer()
        writer.extend(rows(3, 2), fields={"group": 1, "task": 3})
        with pytest.raises(NothingEligibleError, match="1 groups are ready.*1 wait"):
            buffer.sample()
        write(buffer, 5, 2)
        write(buffer, 6, 7)
        drawn = numbers(buffer.sample())
        assert sorted(drawn) == [2, 5, 6]  # two groups, whole
        assert drawn.index(5) == drawn.index(2) + 1


def test_members_that_change_their_group_or_do_not_count() -> None:
    sampler = TrajectorySampler(
        2, group="group", group_size=2, where=("task", "<", 50), fields=("task",)
    )
    with make(sampler) as buffer:
        for number, group in ((0, 1), (1, 2), (60, 1)):
            write(buffer, number, group)
        with pytest.raises(NothingEligibleError, match="leaves 2; 0 groups are ready, 2 wait"):
            buffer.sample()
        buffer.set_fields(1, {"group": 1})
        assert numbers(buffer.sample()) == [0, 1]
        buffer.set_fields(0, {"task": 70})
        with pytest.raises(NothingEligibleError, match="leaves 1; 0 groups are ready, 1 wait"):
            buffer.sample()


def test_groups_give_way_as_a_whole() -> None:
    # Capacity for four of them: the oldest member's eviction takes its group away.
    sampler = TrajectorySampler(2, group="group", group_size=2, fields=("task",))
    with make(sampler, 12) as buffer:
        for number in range(4):
            write(buffer, number, number // 2, steps=3)
        assert set(groups(buffer.sample()) + groups(buffer.sample())) <= {0, 1}
        write(buffer, 4, 2, steps=1)
        for _ in range(20):
            assert groups(buffer.sample()) == [1]
        assert sampler.stats().waiting == 2


def test_groups_within_a_window() -> None:
    for consume in (False, True):
        inner = TrajectorySampler(2, group="group", group_size=2, consume=consume, fields=("task",))
        with make(WindowSampler(inner, last_trajectories=4)) as buffer:
            for number, group in enumerate([0, 0, 1, 2, 1, 2, 3, 3, 5]):
                write(buffer, number, group)
            assert groups(buffer.sample()) == [3]  # the last four are of 2, 3, 3 and 5
            if consume:
                with pytest.raises(NothingEligibleError):
                    buffer.sample()
            write(buffer, 9, 5)
            assert groups(buffer.sample()) in ([[5]] if consume else [[3], [5]])


# -- what is evicted while it is read -------------------------------------------------------------


def evicting(buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The next gather comes too late for the oldest rows."""
    gather = buffer.storage.gather

    def late(*args: Any) -> Any:
        monkeypatch.undo()
        buffer.storage.writer().extend(rows(99, steps))  # a trajectory that stays open
        return gather(*args)

    monkeypatch.setattr(buffer.storage, "gather", late)


def test_the_rest_of_a_batch_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = TrajectorySampler(3, consume=True, fields=("task",))
    with make(sampler, 12) as buffer:
        for number in range(3):
            write(buffer, number, steps=4)
        evicting(buffer, monkeypatch, 2)
        assert sorted(numbers(buffer.sample())) == [1, 2]
        with pytest.raises(NothingEligibleError):
            buffer.sample()
        assert sampler.stats().consumed == 2


def test_what_is_left_of_a_trajectory_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = TrajectorySampler(3, consume=True, complete_only=False)
    with make(sampler, 12) as buffer:
        for number, steps in enumerate((6, 3, 3)):
            write(buffer, number, steps=steps)
        evicting(buffer, monkeypatch, 2)
        drawn = set(buffer.sample()["x"].tolist())
        assert {100, 101, 102, 200, 201, 202} < drawn and sampler.stats().consumed == 3
        for number in (3, 4):
            write(buffer, number, steps=1)
        drawn |= set(buffer.sample()["x"].tolist())  # the rest of 0, and the one that is open
        assert {4, 5, 300, 400, 9900, 9901} < drawn and sampler.stats().consumed == 6


def test_a_group_is_lost_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = TrajectorySampler(4, group="group", group_size=2, consume=True, fields=("task",))
    with make(sampler, 16) as buffer:
        for number, group in enumerate([1, 2, 1, 2]):
            write(buffer, number, group, steps=4)
        mark = sampler.mark()
        evicting(buffer, monkeypatch, 2)
        assert numbers(buffer.sample()) == [1, 3]
        # What is left of it waits, as if nobody had drawn it; and so does the one that is open.
        found = sampler.stats()
        assert (found.consumed, found.waiting, found.waiting_trajectories) == (2, 2, 3)
        write(buffer, 4, 1, steps=1)
        write(buffer, 5, 3, steps=1)
        write(buffer, 6, 3, steps=1)
        taken = sampler.taken(mark)
        assert numbers(buffer.sample()) in ([2, 4, 5, 6], [5, 6, 2, 4])
        found = sampler.stats()
        assert (found.consumed, found.waiting, found.evicted) == (6, 1, 1)
        sampler.give_back(taken)  # of what was lost, nothing: it was nobody's
        with pytest.raises(NothingEligibleError):
            buffer.sample()
        assert sampler.stats().consumed == 4


# -- waiting --------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def waiting(on_timeout: str, consume: bool = True) -> tuple[Any, TrajectorySampler, Clock]:
    sampler = TrajectorySampler(
        2,
        group="group",
        group_size=2,
        consume=consume,
        timeout_s=1000.0,
        on_timeout=on_timeout,
        fields=("task",),
    )
    clock = sampler.clock = Clock()
    return make(sampler), sampler, clock


def test_release() -> None:
    buffer, sampler, clock = waiting("release")
    write(buffer, 0, 1)
    buffer.storage.writer().extend(rows(1, 2), fields={"group": 2, "task": 1})  # stays open
    with pytest.raises(NothingEligibleError, match="2 wait"):
        buffer.sample()
    clock.ahead = 500.0
    with pytest.raises(NothingEligibleError, match="2 wait"):
        buffer.sample()
    clock.ahead = 1001.0
    assert numbers(buffer.sample()) == [0]
    assert sampler.stats() == (0, 1, 1, 1, 1, 0, 0)
    with pytest.raises(NothingEligibleError):
        buffer.sample()
    write(buffer, 2, 1)  # too late: it begins a group of its own
    clock.ahead = 0.0
    with pytest.raises(NothingEligibleError):
        buffer.sample()
    write(buffer, 3, 1)
    assert numbers(buffer.sample()) == [2, 3]
    assert sampler.stats().released == 1


def test_zero_is_one_group_whatever_its_sign() -> None:
    storage = LazyTensorStorage(99, fields={"group": np.float32(0), "task": np.int32(0)})
    sampler = TrajectorySampler(2, group="group", group_size=2, fields=("task",))
    buffer = ReplayBuffer(storage, sampler, seed=0)
    for number, group in enumerate((0.0, -0.0, 1.0)):
        fields = {"group": group, "task": number}
        buffer.extend_trajectory(rows(number, 2), terminated=True, fields=fields)
    assert numbers(buffer.sample()) == [0, 1]


def test_released_groups_wait_again_for_those_that_come() -> None:
    buffer, sampler, clock = waiting("release", consume=False)
    write(buffer, 0, 1)
    clock.ahead = 1001.0
    for _ in range(3):
        assert numbers(buffer.sample()) == [0]
    assert sampler.stats().released == 1  # however often it is drawn
    write(buffer, 1, 1)
    assert numbers(buffer.sample()) == [0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_a_group_is_counted_as_released_once(seed: int, tmp_path: Path) -> None:
    """Whether or not another one of its value goes first, or it is given back."""
    _, sampler, clock = waiting("release")
    buffer = ReplayBuffer(LazyTensorStorage(99, fields=FIELDS), sampler, seed=seed)
    for number in (0, 1, 2):
        write(buffer, number, 1)
    clock.ahead = 1001.0
    mark = sampler.mark()
    orders = []
    for _ in range(3):
        orders.append([numbers(buffer.sample()), numbers(buffer.sample())])
        assert sampler.stats()[3:5] == (3, 1)
        sampler.rewind(mark)
    assert [0, 1] in orders[0] and [2] in orders[0]
    with pytest.raises(NothingEligibleError):
        for _ in range(3):
            buffer.sample()
    assert sampler.stats().released == 1


def test_a_checkpoint_knows_which_groups_were_released(tmp_path: Path) -> None:
    buffer, _, clock = waiting("release", consume=False)
    write(buffer, 0, 1)
    clock.ahead = 1001.0
    buffer.sample()
    buffer.save(tmp_path / "then")
    other, sampler, clock = waiting("release", consume=False)
    other.load(tmp_path / "then")
    clock.ahead = 1001.0
    assert numbers(other.sample()) == [0] and sampler.stats().released == 1


def test_drop(tmp_path: Path) -> None:
    buffer, sampler, clock = waiting("drop")
    write(buffer, 0, 1)
    write(buffer, 1, 2)
    write(buffer, 2, 2)
    clock.ahead = 1001.0
    assert numbers(buffer.sample()) == [1, 2]
    assert sampler.stats() == (0, 0, 0, 2, 0, 1, 0)
    buffer.save(tmp_path / "then")
    clock.ahead = 0.0
    for _ in range(2):
        write(buffer, 3, 1)  # the group that was dropped does not come back with it
        with pytest.raises(NothingEligibleError, match="1 wait"):
            buffer.sample()
        write(buffer, 4, 1)
        assert numbers(buffer.sample()) == [3, 4]
        buffer.load(tmp_path / "then")


# -- several tapes, several learners --------------------------------------------------------------


class Shards:
    def __init__(self, sampler: TrajectorySampler, sizes: list[int]) -> None:
        self.sampler, self.rng = sampler, Rng(3)
        self.readers = []
        for shard, size in enumerate(sizes):
            storage = LazyTensorStorage(1000, fields=FIELDS)
            for n in range(size):
                number = 10 * shard + n
                fields = {"task": number, "group": number}
                data = rows(number, 1 + n % 3)
                storage.default_writer.extend_trajectory(data, terminated=True, fields=fields)
            self.readers.append(ShardReader(storage, copy.deepcopy(sampler), shard))

    def sample(self) -> Any:
        request = self.sampler.request(self.sampler.num_trajectories)

        def lost(source: Any) -> None:
            raise AssertionError("no shard is lost here")

        batch = read_shards(self.sampler, self.rng, self.readers, request, lost)
        assert (decode(batch["index"])[0] == batch["x"] // 1000).all()
        return batch


def test_over_shards() -> None:
    shards = Shards(TrajectorySampler(50, where=("task", "!=", 12), fields=("task",)), [5, 3, 0, 1])
    drawn: list[int] = []
    for _ in range(40):
        drawn += numbers(shards.sample())
    uniform(drawn, [0, 1, 2, 3, 4, 10, 11, 30])


def test_each_once_over_shards() -> None:
    shards = Shards(TrajectorySampler(3, consume=True, fields=("task",)), [5, 3, 0, 1])
    drawn = [numbers(shards.sample()) for _ in range(3)]
    assert sorted(itertools.chain(*drawn)) == [0, 1, 2, 3, 4, 10, 11, 12, 30]
    with pytest.raises(NothingEligibleError):
        shards.sample()


def test_each_learner_has_its_part() -> None:
    for options in ({}, {"group": "group", "group_size": 2}):
        storage = LazyTensorStorage(1000, fields=FIELDS)
        drawn: list[int] = []
        for rank in range(3):
            sampler = TrajectorySampler(2, consume=True, fields=("task",), **options)  # type: ignore[arg-type]
            buffer = ReplayBuffer(storage, sampler, seed=1, rank=rank, world_size=3)
            if rank == 0:
                for number in range(24):
                    write(buffer, number, number // 2)
            mine = []
            while True:
                try:
                    mine += numbers(buffer.sample())
                except NothingEligibleError:
                    break
            assert 0 < len(mine) < 24
            drawn += mine
        assert sorted(drawn) == list(range(24))


def test_samplers_can_be_sent() -> None:
    sampler = TrajectorySampler(2, group="group", group_size=2, consume=True, fields=("task",))
    with make(sampler) as buffer:
        for number in range(6):
            write(buffer, number, number // 2)
        first = numbers(buffer.sample())
        for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
            with ReplayBuffer(buffer.storage, other, seed=0) as copied:
                rest = numbers(copied.sample()) + numbers(copied.sample())
            assert sorted(first + rest) == list(range(6))
