"""SliceSampler and its kin: which rows, how they are marked, and how often each is drawn."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    NothingEligibleError,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from tests.tape.rows import row, rows

SLICE_END, MASK, BURN_IN = (
    ("collector", "slice_end"),
    ("collector", "mask"),
    ("collector", "burn_in"),
)


def buffer_of(data, sampler, capacity=100, **options):
    buffer = ReplayBuffer(LazyTensorStorage(capacity), sampler, seed=0, **options)
    for piece in data if isinstance(data, list) else [data]:
        buffer.extend(piece)
    return buffer


def slices(buffer, n, length, times=200):
    """The uids of many slices of one length."""
    return [tuple(s) for _ in range(times) for s in buffer.sample(n)["uid"].reshape(-1, length)]


# -- sizes -----------------------------------------------------------------------------------------


def test_num_slices_and_slice_len_follow_from_each_other():
    data = rows(range(40), ("." * 19 + "t") * 2)
    by_number = buffer_of(data, SliceSampler(num_slices=3, strict_length=True))
    by_length = buffer_of(data, SliceSampler(slice_len=4, strict_length=True))
    both = buffer_of(data, SliceSampler(num_slices=3, slice_len=4, strict_length=True))
    for buffer in (by_number, by_length, both):
        batch = buffer.sample(12)
        assert batch.shape == (12,)
        starts = np.flatnonzero(batch["is_init"])
        assert starts.tolist() == [0, 4, 8]
        assert (np.diff(batch["uid"].reshape(3, 4)) == 1).all()


@pytest.mark.parametrize(
    ("options", "size", "text"),
    [
        ({"num_slices": 3}, 10, "not a multiple of num_slices 3"),
        ({"num_slices": 3}, 2, "not a multiple of num_slices 3"),
        ({"slice_len": 4}, 10, "not a multiple of slice_len 4"),
        ({"num_slices": 3, "slice_len": 4}, 24, "num_slices 3 x slice_len 4 = 12"),
    ],
)
def test_sizes_that_disagree(options, size, text):
    buffer = buffer_of(rows(range(20), "." * 19 + "t"), SliceSampler(**options))
    with pytest.raises(ValueError, match=text):
        buffer.sample(size)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_slices": 0},
        {"slice_len": 0},
        {"slice_len": 2, "over": "rows"},
        {"slice_len": 2, "burn_in": -1},
        {"slice_len": 2, "traj_key": "a", "trajectory_key": "b"},
    ],
)
def test_options_that_make_no_sense(options):
    with pytest.raises(ValueError):
        SliceSampler(**options)


def test_padding_has_no_meaning_with_strict_length():
    with pytest.raises(ValueError, match=r"pad_output.*strict_length"):
        SliceSampler(slice_len=2, pad_output=True, strict_length=True)


# -- which rows ------------------------------------------------------------------------------------


def test_strict_length_leaves_short_trajectories_out():
    data = rows(range(9), "..t.....t")
    buffer = buffer_of(data, SliceSampler(slice_len=4, strict_length=True))
    assert set(slices(buffer, 8, 4)) == {(3, 4, 5, 6), (4, 5, 6, 7), (5, 6, 7, 8)}


def test_a_short_trajectory_gives_a_shorter_slice():
    buffer = buffer_of(rows(range(3), "..t"), SliceSampler(slice_len=5))
    batch = buffer.sample(10)
    assert batch["uid"].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch["is_init"].tolist() == [True, False, False] * 2


def test_no_trajectory_is_long_enough():
    buffer = buffer_of(rows(range(6), "..t..t"), SliceSampler(slice_len=4, strict_length=True))
    with pytest.raises(NothingEligibleError, match="slice_len"):
        buffer.sample(4)


def test_every_valid_start_and_no_other_is_drawn():
    data = rows(range(12), ".....t.....t")
    expected = {tuple(range(s, s + 4)) for base in (0, 6) for s in range(base, base + 3)}
    for over in ("trajectories", "steps"):
        buffer = buffer_of(data, SliceSampler(slice_len=4, over=over))
        assert set(slices(buffer, 8, 4)) == expected


def test_over_trajectories_is_uniform_over_trajectories():
    """A trajectory of 2 and one of 20: as often each, and each start of one as often."""
    data = rows(range(22), ".t" + "." * 19 + "t")
    buffer = buffer_of(data, SliceSampler(slice_len=2, over="trajectories"))
    counts = Counter(s[0] for s in slices(buffer, 200, 2))
    n = sum(counts.values())
    assert abs(counts[0] / n - 0.5) < 0.02
    assert set(counts) == {0, *range(2, 21)}
    for start in range(2, 21):
        assert abs(counts[start] / n - 0.5 / 19) < 0.01


def test_over_steps_is_uniform_over_valid_starts():
    data = rows(range(22), ".t" + "." * 19 + "t")
    buffer = buffer_of(data, SliceSampler(slice_len=2, over="steps"))
    counts = Counter(s[0] for s in slices(buffer, 200, 2))
    n = sum(counts.values())
    assert set(counts) == {0, *range(2, 21)}
    for count in counts.values():
        assert abs(count / n - 1 / 20) < 0.01


def test_over_steps_gives_a_short_trajectory_one_start():
    data = rows(range(9), ".t......t")
    buffer = buffer_of(data, SliceSampler(slice_len=3, over="steps", num_slices=1))
    counts = Counter(tuple(buffer.sample(3)["uid"].tolist()) for _ in range(3000))
    assert set(counts) == {(0, 1), *(tuple(range(s, s + 3)) for s in range(2, 7))}
    for count in counts.values():
        assert abs(count / 3000 - 1 / 6) < 0.03


def test_complete_only_leaves_out_open_trimmed_and_unbegun_trajectories():
    storage = LazyTensorStorage(8)
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=2, complete_only=True), seed=0)
    a, b = storage.writer(), storage.writer()
    a.extend(rows([0, 1, 2], "..t"))
    a.extend(rows([3, 4, 5], "..t"))
    b.extend(rows([10, 11], ".t"), continues=True)
    a.extend(rows([6, 7], ".."))  # evicts 0 and 1
    assert storage.episodes()["complete"].tolist() == [False, True, False, False]
    assert set(slices(buffer, 4, 2, 50)) == {(3, 4), (4, 5)}


def test_none_is_complete():
    buffer = buffer_of(rows(range(3), "..."), SliceSampler(slice_len=2, complete_only=True))
    with pytest.raises(NothingEligibleError, match="0 of them complete"):
        buffer.sample(2)


def test_a_slice_over_the_rings_seam():
    """Reference: capacity 10, episodes of 4, 14 rows: #1 (4-7), #2 (8-11, wrapping), #3 (12-13)."""
    buffer = buffer_of(
        [rows([u], "...t"[u % 4]) for u in range(14)],
        SliceSampler(slice_len=4, num_slices=1),
        capacity=10,
    )
    found = Counter(tuple(buffer.sample(4)["uid"].tolist()) for _ in range(300))
    assert set(found) == {(4, 5, 6, 7), (8, 9, 10, 11), (12, 13)}
    strict = buffer_of(
        [rows([u], "...t"[u % 4]) for u in range(14)],
        SliceSampler(slice_len=2, strict_length=True),
        capacity=10,
    )
    assert set(slices(strict, 4, 2)) == {
        (4, 5),
        (5, 6),
        (6, 7),
        (8, 9),
        (9, 10),
        (10, 11),
        (12, 13),
    }


@pytest.mark.parametrize("capacity", [7, 8, 9, 10, 11])
def test_the_row_written_last_is_never_joined_with_the_one_after_it(capacity):
    """An endless episode in a ring: the newest row's neighbour in memory is the oldest."""
    buffer = ReplayBuffer(LazyTensorStorage(capacity), SliceSampler(slice_len=3), seed=0)
    for uid in range(3 * capacity):
        buffer.add(row(uid, "."))
        for got in buffer.sample(12)["uid"].reshape(-1, min(3, uid + 1)):
            assert (np.diff(got) == 1).all()


# -- marks -----------------------------------------------------------------------------------------


def one_slice(letters, first, length):
    """The slice of `length` rows that starts at row `first` of one trajectory."""
    n = len(letters)
    buffer = buffer_of(rows(range(n), letters), SliceSampler(slice_len=length))
    for _ in range(500):
        batch = buffer.sample(length)
        if batch["uid"][0] == first:
            return batch
    raise AssertionError("never drawn")


@pytest.mark.parametrize(
    ("letters", "terminated", "truncated", "done", "slice_end"),
    [
        ("......", "000", "001", "001", "001"),  # cut in the middle
        ("....t.", "001", "000", "001", "000"),  # a terminated end stays one
        ("....u.", "000", "001", "001", "000"),  # a stored truncation is no cut
        ("....b.", "001", "001", "001", "000"),  # both: stays both
    ],
)
def test_marks_at_a_slices_end(letters, terminated, truncated, done, slice_end):
    batch = one_slice(letters, 2, 3)
    assert batch["uid"].tolist() == [2, 3, 4]
    for path, expected in (
        (("next", "terminated"), terminated),
        (("next", "truncated"), truncated),
        (("next", "done"), done),
        (SLICE_END, slice_end),
    ):
        assert "".join(str(int(x)) for x in batch[path]) == expected, path
    assert batch["is_init"].tolist() == [True, False, False]


def test_flags_inside_a_slice_stay():
    """A trajectory with dones inside, which an explicit traj_key allows."""
    data = rows(range(4), ".tu.", chunk=np.zeros(4, int))
    batch = buffer_of(data, SliceSampler(slice_len=4, traj_key="chunk")).sample(4)
    assert batch["next", "terminated"].tolist() == [False, True, False, False]
    assert batch["next", "truncated"].tolist() == [False, False, True, True]
    assert batch["next", "done"].tolist() == [False, True, True, True]
    assert batch[SLICE_END].tolist() == [False, False, False, True]


def test_is_init_is_ored_with_the_stored_one():
    data = rows(range(4), "....", is_init=np.array([1, 0, 1, 0], bool), chunk=np.zeros(4, int))
    buffer = buffer_of(data, SliceSampler(slice_len=3, traj_key="chunk", strict_length=True))
    seen = {}
    for _ in range(50):
        batch = buffer.sample(3)
        seen[int(batch["uid"][0])] = batch["is_init"].tolist()
    assert seen == {0: [True, False, True], 1: [True, True, False]}


@pytest.mark.parametrize("trailing", [(), (1,)])
def test_marks_take_the_stored_shape(trailing):
    done = np.array([0, 0, 0, 1], bool).reshape(4, *trailing)
    data = rows(range(4), next={"done": done}, is_init=np.zeros((4, *trailing), bool))
    batch = buffer_of(data, SliceSampler(slice_len=2)).sample(4)
    for path in (("is_init",), ("next", "done"), ("next", "truncated")):
        assert batch[path].shape == (4, *trailing)
    assert batch[SLICE_END].shape == (4,)


def test_keys_of_none_write_nothing():
    data = rows(range(4), "...t")
    batch = buffer_of(
        data, SliceSampler(slice_len=2, strict_length=True, truncated_key=None, init_key=None)
    ).sample(8)
    assert "is_init" not in batch
    np.testing.assert_array_equal(batch["next", "done"], batch["uid"] == 3)
    assert not batch["next", "truncated"].any()
    at_end = batch["uid"][1::2]
    np.testing.assert_array_equal(batch[SLICE_END][1::2], at_end != 3)
    assert not batch[SLICE_END][0::2].any()


def test_keys_of_none_add_no_flags_where_there_are_none():
    data = rows(range(4), episode=np.zeros(4, int))
    batch = buffer_of(data, SliceSampler(slice_len=2, truncated_key=None, init_key=None)).sample(4)
    assert set(batch.keys()) - {SLICE_END} == {
        ("uid",),
        ("obs",),
        ("next", "obs"),
        ("episode",),
        ("index",),
    }


def test_root_flags_are_seen_without_a_truncated_key():
    """A real end is no slice end, wherever the flags are."""
    data = rows(range(4), done=np.array([0, 0, 0, 1], bool))
    batch = buffer_of(
        data, SliceSampler(slice_len=2, truncated_key=None, strict_length=True)
    ).sample(16)
    ends = batch["uid"][1::2]
    assert set(ends.tolist()) == {1, 2, 3}
    np.testing.assert_array_equal(batch[SLICE_END][1::2], ends != 3)


def test_root_flags_are_carried_below_next():
    data = rows(range(4), done=np.array([0, 0, 0, 1], bool))
    batch = buffer_of(data, SliceSampler(slice_len=4)).sample(4)
    assert batch["next", "terminated"].tolist() == [False, False, False, True]
    assert not batch["next", "truncated"].any()
    assert batch["next", "done"].tolist() == [False, False, False, True]
    assert not batch[SLICE_END].any()


def test_a_truncated_key_at_the_root():
    data = rows(range(6), done=np.array([0, 0, 0, 0, 0, 1], bool))
    sampler = SliceSampler(slice_len=3, truncated_key="truncated", init_key="start")
    batch = buffer_of(data, sampler).sample(3)
    assert batch["start"].tolist() == [True, False, False]
    assert batch["done"].tolist() == [False, False, True]
    assert batch["truncated"][2] == (batch["uid"][2] != 5)
    assert ("next", "truncated") not in batch


@pytest.mark.parametrize("told", [{"terminated": True}, {"truncated": True}, {}])
def test_an_end_that_was_told_is_marked_as_told(told):
    """No flags in the data: extend_trajectory says how it ended, and so does the sample."""
    buffer = ReplayBuffer(LazyTensorStorage(20), SliceSampler(slice_len=3), seed=0)
    buffer.extend_trajectory(rows(range(3)), **told)
    batch = buffer.sample(3)
    terminated = told.get("terminated", False)
    assert batch["next", "terminated"].tolist() == [False, False, terminated]
    assert batch["next", "truncated"].tolist() == [False, False, not terminated]
    assert batch["next", "done"].tolist() == [False, False, True]
    assert not batch[SLICE_END].any(), "a real end is no cut"


def test_flags_of_agents_come_out_as_stored():
    """[N, A] flags are ordinary leaves: a slice's end is not written into them."""
    agents = np.array([[0, 0], [0, 1], [0, 1], [0, 0]], bool)
    data = rows(range(4), next={"done": agents}, episode=np.zeros(4, int))
    buffer = buffer_of(data, SliceSampler(slice_len=2, strict_length=True))
    for _ in range(10):
        batch = buffer.sample(4)
        np.testing.assert_array_equal(batch["next", "done"], agents[batch["uid"]])
        assert batch[SLICE_END].tolist() == [False, True] * 2, "no agent's done ends a trajectory"


# -- padding, burn-in, span ------------------------------------------------------------------------


def test_padding_repeats_the_last_real_row_without_marks():
    data = rows(range(3), "..t", next={"reward": np.array([1.0, 2, 3])})
    batch = buffer_of(data, SliceSampler(slice_len=5, pad_output=True)).sample(10)
    assert batch["uid"].tolist() == [0, 1, 2, 2, 2] * 2
    assert batch["next", "reward"].tolist() == [1, 2, 3, 3, 3] * 2
    assert batch[MASK].tolist() == [True, True, True, False, False] * 2
    assert batch["is_init"].tolist() == [True, False, False, False, False] * 2
    for path in (("next", "done"), ("next", "terminated")):
        assert batch[path].tolist() == [False, False, True, False, False] * 2
    assert not batch["next", "truncated"].any() and not batch[SLICE_END].any()


def test_padding_of_an_open_trajectory_marks_the_last_real_row():
    batch = buffer_of(rows(range(3), "..."), SliceSampler(slice_len=4, pad_output=True)).sample(4)
    assert batch["next", "truncated"].tolist() == [False, False, True, False]
    assert batch[SLICE_END].tolist() == [False, False, True, False]


def test_the_mask_is_there_even_when_nothing_was_padded():
    batch = buffer_of(rows(range(9), "." * 9), SliceSampler(slice_len=3, pad_output=True)).sample(6)
    assert batch[MASK].dtype == np.bool_ and batch[MASK].all()


@pytest.mark.parametrize("burn", [1, 2, 50])
def test_burn_in_precedes_the_slice(burn):
    buffer = buffer_of(rows(range(8), "." * 7 + "t"), SliceSampler(slice_len=3, burn_in=burn))
    seen = set()
    for _ in range(200):
        batch = buffer.sample(3)
        start = int(batch["uid"][~batch[BURN_IN]][0])
        before = min(burn, start)
        assert batch["uid"].tolist() == list(range(start - before, start + 3))
        assert batch[BURN_IN].tolist() == [True] * before + [False] * 3
        assert batch["is_init"].tolist() == [True] + [False] * (before + 2)
        assert batch["next", "truncated"].tolist() == [False] * (before + 2) + [start != 5]
        seen.add(start)
    assert seen == set(range(6)), "burn-in does not change the valid starts"


def test_burn_in_never_reaches_into_another_trajectory():
    buffer = buffer_of(rows(range(6), "..t..t"), SliceSampler(slice_len=2, burn_in=5))
    for _ in range(100):
        uids = buffer.sample(2)["uid"]
        assert len({u // 3 for u in uids.tolist()}) == 1


def test_no_burn_in_no_column():
    batch = buffer_of(rows(range(6), "..t..t"), SliceSampler(slice_len=2)).sample(2)
    assert BURN_IN not in batch and MASK not in batch


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (False, {(0, 1, 2), (1, 2, 3), (2, 3, 4)}),
        (1, {(0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4)}),
        (True, {(0,), (0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4), (4,)}),
        (9, {(0,), (0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4), (4,)}),
        ((1, 0), {(0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4)}),
        ((False, True), {(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4), (4,)}),
    ],
)
@pytest.mark.parametrize("over", ["trajectories", "steps"])
def test_span(span, expected, over):
    data = rows(range(10), "....t....t")
    buffer = buffer_of(data, SliceSampler(slice_len=3, num_slices=1, span=span, over=over))
    found = {tuple(buffer.sample(3)["uid"].tolist()) for _ in range(600)}
    assert found == expected | {tuple(u + 5 for u in s) for s in expected}


@pytest.mark.parametrize("over", ["trajectories", "steps"])
def test_span_is_uniform_over_its_starts(over):
    data = rows(range(5), "....t")
    buffer = buffer_of(data, SliceSampler(slice_len=3, num_slices=1, span=True, over=over))
    counts = Counter(tuple(buffer.sample(3)["uid"].tolist()) for _ in range(3500))
    assert len(counts) == 7
    for count in counts.values():
        assert abs(count / 3500 - 1 / 7) < 0.03


def test_a_negative_span():
    with pytest.raises(ValueError, match="span"):
        buffer_of(rows(range(5), "....t"), SliceSampler(slice_len=3, span=-1)).sample(3)


# -- boundaries ------------------------------------------------------------------------------------


def test_data_without_any_boundary_raises_and_lists_what_was_looked_for():
    buffer = buffer_of({"uid": np.arange(5)}, SliceSampler(slice_len=2))
    with pytest.raises(ValueError) as caught:
        buffer.sample(2)
    for key in ('("collector", "traj_ids")', '"episode"', '("next", "done")', '"done"'):
        assert key in str(caught.value)


def test_data_without_marks_whose_trajectories_were_told():
    buffer = ReplayBuffer(LazyTensorStorage(20), SliceSampler(slice_len=2, strict_length=True))
    for first in (0, 10):
        buffer.extend_trajectory({"uid": np.arange(first, first + 3)})
    assert set(slices(buffer, 4, 2, 50)) == {(0, 1), (1, 2), (10, 11), (11, 12)}


# -- without replacement ---------------------------------------------------------------------------


def test_each_trajectory_once_per_epoch_then_reshuffled():
    data = rows(range(20), "...t" * 5)
    buffer = buffer_of(data, SliceSamplerWithoutReplacement(slice_len=2))
    orders = set()
    for _ in range(20):
        epoch = []
        for expected in (2, 2, 1):  # the last batch is shorter
            batch = buffer.sample(4)
            assert len(batch) == 2 * expected
            epoch += (batch["uid"][::2] // 4).tolist()
        assert sorted(epoch) == [0, 1, 2, 3, 4]
        orders.add(tuple(epoch))
    assert len(orders) > 10


def test_drop_last_ends_an_epoch_before_a_batch_it_cannot_fill():
    data = rows(range(20), "...t" * 5)
    buffer = buffer_of(data, SliceSamplerWithoutReplacement(slice_len=2, drop_last=True))
    for _ in range(20):
        epoch = [u for _ in range(2) for u in (buffer.sample(4)["uid"][::2] // 4).tolist()]
        assert len(set(epoch)) == 4


def test_drop_last_with_too_few_trajectories():
    data = rows(range(4), "...t")
    buffer = buffer_of(data, SliceSamplerWithoutReplacement(slice_len=2, drop_last=True))
    with pytest.raises(NothingEligibleError):
        buffer.sample(4)


def test_over_steps_has_no_meaning_without_replacement():
    with pytest.raises(ValueError, match="steps"):
        SliceSamplerWithoutReplacement(slice_len=2, over="steps")


def test_trajectories_evicted_during_an_epoch_are_left_out():
    buffer = buffer_of(
        rows(range(20), "...t" * 5), SliceSamplerWithoutReplacement(slice_len=4), capacity=20
    )
    buffer.sample(4)
    buffer.extend(rows(range(20, 32), "...t" * 3))
    seen = [u // 4 for _ in range(2) for u in buffer.sample(4)["uid"][::4].tolist()]
    assert set(seen) <= {3, 4, 5, 6, 7}


# -- by priority -----------------------------------------------------------------------------------


def test_starts_are_drawn_by_priority_among_valid_ones():
    buffer = buffer_of(rows(range(12), ".....t.....t"), PrioritizedSliceSampler(slice_len=3))
    p = np.zeros(12)
    p[[1, 5, 8]] = [1.0, 100.0, 3.0]  # 5 is no valid start: it has no row after it
    buffer.update_priority(np.arange(12), p)
    counts = Counter(slices(buffer, 60, 3))
    assert set(counts) == {(1, 2, 3), (8, 9, 10)}
    share = counts[(8, 9, 10)] / sum(counts.values())
    assert abs(share - 3**0.6 / (1 + 3**0.6)) < 0.03


def test_priority_slices_have_no_over_or_span():
    for option in ({"over": "steps"}, {"span": True}):
        with pytest.raises(ValueError):
            PrioritizedSliceSampler(slice_len=3, **option)


def test_all_priorities_zero():
    buffer = buffer_of(rows(range(6), ".....t"), PrioritizedSliceSampler(slice_len=3))
    buffer.update_priority(np.arange(6), np.zeros(6))
    with pytest.raises(NothingEligibleError):
        buffer.sample(3)
