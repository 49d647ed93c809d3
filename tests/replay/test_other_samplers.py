"""Rows: uniform, once per epoch, by priority, in order, in a window, n steps at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from contig import (
    FifoSampler,
    LazyTensorStorage,
    LifoSampler,
    NothingEligibleError,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    WindowSampler,
)
from tests.tape.rows import row, rows


def buffer_of(data, sampler, capacity=100, **options):
    buffer = ReplayBuffer(LazyTensorStorage(capacity), sampler, seed=0, **options)
    for piece in data if isinstance(data, list) else [data]:
        buffer.extend(piece)
    return buffer


def uids(buffer, n):
    return buffer.sample(n)["uid"].tolist()


# -- uniform ---------------------------------------------------------------------------------------


def test_uniform_over_rows():
    buffer = buffer_of(rows(range(15), ".....t" + "." * 9), RandomSampler(), capacity=10)
    counts = Counter(uids(buffer, 20000))
    assert set(counts) == set(range(5, 15))
    for count in counts.values():
        assert abs(count / 20000 - 0.1) < 0.01


def test_rows_retire_after_so_many_draws():
    buffer = buffer_of(rows(range(6), "." * 6), RandomSampler(max_times_sampled=2))
    assert Counter(uids(buffer, 5) + uids(buffer, 99)) == dict.fromkeys(range(6), 2)
    with pytest.raises(NothingEligibleError, match="sampled 2 times"):
        buffer.sample(1)
    buffer.add(row(6, "."))
    assert uids(buffer, 10) == [6, 6]


def test_a_retired_row_gives_its_place_to_a_fresh_one():
    buffer = buffer_of(rows(range(4), "...."), RandomSampler(max_times_sampled=1), capacity=4)
    buffer.sample(4)
    buffer.extend(rows([4, 5], ".."))
    assert sorted(uids(buffer, 9)) == [4, 5]


def test_max_times_sampled_is_checked():
    for make in (RandomSampler, FifoSampler, LifoSampler):
        with pytest.raises(ValueError, match="max_times_sampled"):
            make(max_times_sampled=0)


# -- without replacement ---------------------------------------------------------------------------


def test_each_row_once_per_epoch_then_reshuffled():
    buffer = buffer_of(rows(range(10), "." * 10), SamplerWithoutReplacement())
    orders = set()
    for _ in range(20):
        parts = [uids(buffer, 4) for _ in range(3)]
        assert [len(p) for p in parts] == [4, 4, 2], "the last batch is shorter"
        epoch = [u for part in parts for u in part]
        assert sorted(epoch) == list(range(10))
        orders.add(tuple(epoch))
    assert len(orders) == 20


def test_drop_last_ends_an_epoch_before_a_batch_it_cannot_fill():
    buffer = buffer_of(rows(range(10), "." * 10), SamplerWithoutReplacement(drop_last=True))
    for _ in range(20):
        assert len(set(uids(buffer, 4) + uids(buffer, 4))) == 8


def test_drop_last_with_too_few_rows():
    buffer = buffer_of(rows(range(3), "..."), SamplerWithoutReplacement(drop_last=True))
    with pytest.raises(NothingEligibleError, match="3 rows cannot fill one batch"):
        buffer.sample(4)


def test_an_epoch_is_what_was_there_when_it_began():
    buffer = buffer_of(rows(range(4), "...."), SamplerWithoutReplacement())
    first = uids(buffer, 2)
    buffer.extend(rows(range(4, 8), "...."))
    assert sorted(first + uids(buffer, 2)) == [0, 1, 2, 3]
    assert sorted(uids(buffer, 8)) == list(range(8))


def test_drop_last_fills_every_batch_even_while_rows_are_evicted():
    buffer = buffer_of(
        rows(range(40), "." * 40), SamplerWithoutReplacement(drop_last=True), capacity=40
    )
    for step in range(30):
        assert len(uids(buffer, 4)) == 4, "40 rows are there, and a batch has fewer than 4"
        buffer.extend(rows(range(40 + 4 * step, 44 + 4 * step), "...."))


def test_only_the_last_batch_of_an_epoch_is_shorter():
    buffer = buffer_of(rows(range(40), "." * 40), SamplerWithoutReplacement(), capacity=40)
    for step in range(5):
        assert len(uids(buffer, 4)) == 4
        buffer.extend(rows(range(40 + 4 * step, 44 + 4 * step), "...."))


# -- by priority -----------------------------------------------------------------------------------


def test_the_formula():
    alpha, beta, eps = 0.7, 0.3, 0.01
    buffer = buffer_of(rows(range(5), "....."), PrioritizedSampler(alpha=alpha, beta=beta, eps=eps))
    p = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    buffer.update_priority(np.arange(5), p)
    q = np.where(p > 0, (p + eps) ** alpha, 0)
    batch = buffer.sample(40000)
    counts = np.bincount(batch["uid"], minlength=5) / 40000
    np.testing.assert_allclose(counts, q / q.sum(), atol=0.01)
    assert counts[0] == 0, "a priority of 0 is never drawn"
    expected = (q[batch["uid"]] / q[1:].min()) ** -beta
    np.testing.assert_allclose(batch["priority_weight"], expected, rtol=1e-5)
    assert batch["priority_weight"].max() == 1.0


def test_the_defaults():
    sampler = PrioritizedSampler()
    assert (sampler.priorities.alpha, sampler.beta, sampler.priorities.eps) == (0.6, 0.4, 1e-8)


def test_the_smallest_weight_is_of_the_buffer_not_of_the_batch():
    buffer = buffer_of(rows(range(100), "." * 100), PrioritizedSampler(alpha=1, beta=1, eps=0))
    buffer.update_priority(np.arange(100), [0.001] + [1.0] * 99)
    batch = buffer.sample(8)
    drawn = batch["priority_weight"][batch["uid"] != 0]
    np.testing.assert_allclose(drawn, 0.001, rtol=1e-4)


def test_the_smallest_weight_forgets_evicted_rows():
    buffer = buffer_of(rows(range(4), "...."), PrioritizedSampler(alpha=1, beta=1), capacity=4)
    buffer.update_priority([0], [0.001])
    buffer.extend(rows([4], "."))
    np.testing.assert_allclose(buffer.sample(8)["priority_weight"], 1.0)


def test_the_smallest_weight_forgets_rows_that_another_buffer_emptied():
    buffer = buffer_of(rows(range(8), "." * 8), PrioritizedSampler(alpha=1, beta=1), capacity=8)
    buffer.update_priority([5], [0.001])
    buffer.storage.empty()
    buffer.extend(rows([8, 9], ".."))
    batch = buffer.sample(20)
    np.testing.assert_allclose(batch["priority_weight"], 1.0)
    assert set(batch["uid"].tolist()) == {8, 9}


def test_new_rows_get_the_largest_priority_ever_set():
    buffer = buffer_of(rows(range(2), ".."), PrioritizedSampler(alpha=1, eps=0))
    np.testing.assert_allclose(buffer.sample(4)["priority_weight"], 1.0)
    buffer.update_priority([0, 1], [9.0, 1.0])
    buffer.update_priority([0], [1.0])  # the largest ever, not the largest now
    buffer.extend(rows([2], "."))
    counts = Counter(uids(buffer, 22000))
    for uid, p in ((0, 1), (1, 1), (2, 9)):
        assert abs(counts[uid] / 22000 - p / 11) < 0.02


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_bad_priorities_are_refused_and_set_nothing(bad):
    buffer = buffer_of(rows(range(3), "..."), PrioritizedSampler())
    buffer.update_priority([0, 1, 2], [0, 0, 1.0])
    with pytest.raises(ValueError, match=r"priority\[1\]"):
        buffer.update_priority([0, 1], [5.0, bad])
    assert set(uids(buffer, 50)) == {2}


def test_priorities_of_another_number_are_refused():
    buffer = buffer_of(rows(range(3), "..."), PrioritizedSampler())
    with pytest.raises(ValueError, match="2 priorities for 3 rows"):
        buffer.update_priority([0, 1, 2], [1.0, 2.0])


def test_all_priorities_zero_is_said():
    buffer = buffer_of(rows(range(3), "..."), PrioritizedSampler())
    buffer.update_priority([0, 1, 2], [0.0] * 3)
    with pytest.raises(NothingEligibleError, match="priority is 0"):
        buffer.sample(1)


def test_beta_may_be_annealed():
    buffer = buffer_of(rows(range(3), "..."), PrioritizedSampler(alpha=1, beta=0, eps=0))
    buffer.update_priority([0, 1, 2], [1.0, 2.0, 4.0])
    assert set(buffer.sample(20)["priority_weight"].tolist()) == {1.0}
    buffer.sampler.beta = 1.0
    batch = buffer.sample(40)
    np.testing.assert_allclose(batch["priority_weight"], 0.5 ** batch["uid"])


# -- in order --------------------------------------------------------------------------------------


def test_fifo_and_lifo_of_rows():
    fifo = buffer_of(rows(range(5), "....."), FifoSampler())
    assert [uids(fifo, 2), uids(fifo, 2), uids(fifo, 2)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(NothingEligibleError, match="delivered 1 time"):
        fifo.sample(1)
    lifo = buffer_of(rows(range(5), "....."), LifoSampler())
    assert [uids(lifo, 2), uids(lifo, 2), uids(lifo, 2)] == [[4, 3], [2, 1], [0]]


def test_fifo_delivers_each_so_many_times():
    fifo = buffer_of(rows(range(3), "..."), FifoSampler(max_times_sampled=2))
    assert [uids(fifo, 3), uids(fifo, 5)] == [[0, 0, 1], [1, 2, 2]]


def test_lifo_takes_newer_rows_first_and_comes_back():
    lifo = buffer_of(rows(range(4), "...."), LifoSampler())
    assert uids(lifo, 2) == [3, 2]
    lifo.extend(rows([4, 5], ".."))
    assert uids(lifo, 3) == [5, 4, 1]
    assert uids(lifo, 3) == [0]


def test_lifo_delivers_no_row_more_often_than_asked_when_newer_rows_come_between():
    lifo = buffer_of(rows(range(2), ".."), LifoSampler(max_times_sampled=2))
    got = uids(lifo, 1)
    lifo.extend(rows([2], "."))
    for _ in range(5):
        try:
            got += uids(lifo, 2)
        except NothingEligibleError:
            break
    assert Counter(got) == {0: 2, 1: 2, 2: 2}


def test_fifo_counts_what_was_evicted_before_its_turn():
    fifo = buffer_of(rows(range(4), "...."), FifoSampler(), capacity=4)
    assert uids(fifo, 1) == [0]
    fifo.extend(rows([4, 5, 6], "..."))
    assert uids(fifo, 2) == [3, 4]
    assert fifo.sampler.skipped == 2


def test_fifo_skipped_nothing_that_was_delivered_before_empty():
    fifo = buffer_of(rows(range(4), "...."), FifoSampler())
    fifo.sample(4)
    fifo.empty()
    fifo.extend(rows([4], "."))
    assert uids(fifo, 1) == [4]
    assert fifo.sampler.skipped == 0


def test_fifo_and_lifo_of_trajectories():
    data = rows(range(8), "..t.t..t")
    fifo = buffer_of(data, FifoSampler(per="trajectories"))
    batch = fifo.sample(2)
    assert batch["uid"].tolist() == [0, 1, 2, 3, 4]
    assert batch["is_init"].tolist() == [True, False, False, True, False]
    assert not batch["collector", "slice_end"].any() and not batch["next", "truncated"].any()
    assert fifo.sample(2)["uid"].tolist() == [5, 6, 7]
    lifo = buffer_of(data, LifoSampler(per="trajectories"))
    assert lifo.sample(2)["uid"].tolist() == [5, 6, 7, 3, 4]


def test_a_trajectory_is_delivered_when_it_is_complete():
    storage = LazyTensorStorage(50)
    fifo = ReplayBuffer(storage, FifoSampler(per="trajectories"))
    a, b = storage.writer(), storage.writer()
    a.extend(rows([0, 1], ".."))
    b.extend(rows([10, 11], ".t"))
    assert uids(fifo, 5) == [10, 11]
    with pytest.raises(NothingEligibleError, match="complete trajectory"):
        fifo.sample(1)
    a.extend(rows([2], "t"))  # it began before the other
    assert uids(fifo, 5) == [0, 1, 2]


def test_order_of_what():
    with pytest.raises(ValueError, match="per"):
        FifoSampler(per="steps")


# -- windows ---------------------------------------------------------------------------------------

VERSIONS = {"collector": {"policy_version": np.array([1] * 4 + [2] * 4 + [3] * 4)}}
INNER = {
    "random": RandomSampler,
    "retiring": lambda: RandomSampler(max_times_sampled=3),
    "once": SamplerWithoutReplacement,
    "priority": PrioritizedSampler,
    "fifo": FifoSampler,
    "lifo": LifoSampler,
    "nstep": lambda: NStepSampler(1, 0.9),
    "slices": lambda: SliceSampler(slice_len=2),
    "slices over steps": lambda: SliceSampler(slice_len=2, over="steps"),
    "slices once": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "slices by priority": lambda: PrioritizedSliceSampler(slice_len=2),
    "fifo of trajectories": lambda: FifoSampler(per="trajectories"),
}


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(
    ("window", "allowed"),
    [
        ({"last_rows": 4}, range(8, 12)),
        ({"last_trajectories": 1}, range(8, 12)),
        ({"last_trajectories": 2}, range(4, 12)),
        ({"max_staleness": 0}, range(8, 12)),
        ({"max_staleness": 1}, range(4, 12)),
        ({"max_staleness": 5}, range(12)),
        ({"last_rows": 8, "max_staleness": 0}, range(8, 12)),
    ],
)
def test_a_window_holds_for_every_sampler(inner, window, allowed):
    data = rows(range(12), "...t" * 3, next={"reward": np.ones(12)}, **VERSIONS)
    buffer = buffer_of(data, WindowSampler(INNER[inner](), **window))
    seen = set()
    for _ in range(60):
        try:
            seen |= set(uids(buffer, 2))
        except NothingEligibleError:
            break
    assert seen == set(allowed)


def test_a_window_of_two_bounds_is_uniform_over_all_its_rows():
    """Trajectory a began before the policy changed and went on after; b was written between."""
    storage = LazyTensorStorage(50)
    buffer = ReplayBuffer(storage, WindowSampler(last_trajectories=2, max_staleness=0), seed=0)
    a, b, older = (storage.writer() for _ in range(3))

    def write(writer, first, n, version):
        data = {"policy_version": np.full(n, version)}
        writer.extend(rows(range(first, first + n), "." * n, collector=data))

    write(older, 50, 3, 1)
    write(a, 0, 4, 1)
    write(b, 10, 6, 2)
    write(a, 4, 4, 2)
    counts = Counter(uids(buffer, 10000))
    assert set(counts) == {4, 5, 6, 7, *range(10, 16)}
    for count in counts.values():
        assert abs(count / 10000 - 0.1) < 0.02


def test_a_window_moves_with_the_head():
    buffer = buffer_of(rows(range(4), "...."), WindowSampler(last_rows=2))
    assert set(uids(buffer, 30)) == {2, 3}
    buffer.add(row(4, "."))
    assert set(uids(buffer, 30)) == {3, 4}


@pytest.mark.parametrize(
    "bounds", [{}, {"last_rows": 0}, {"last_trajectories": 0}, {"max_staleness": -1}]
)
def test_window_bounds_are_checked(bounds):
    with pytest.raises(ValueError):
        WindowSampler(**bounds)


# -- n steps ---------------------------------------------------------------------------------------


def nstep_of(letters, n, gamma, reward=None, sampler=None, **more):
    k = len(letters)
    reward = np.arange(1, k + 1, dtype=np.float32) if reward is None else reward
    data = rows(range(k), letters, next={"reward": reward}, **more)
    return buffer_of(data, NStepSampler(n, gamma, sampler))


@pytest.mark.parametrize("trailing", [(), (1,), (2,)])
def test_n_steps(trailing):
    """reward = sum gamma^i r_i; next and its flags from row k; shorter at a done and the end."""
    reward = np.arange(1.0, 8.0).reshape(7, *[1] * len(trailing)) * np.ones((7, *trailing))
    buffer = nstep_of("...t..u..."[:7], 3, 0.5, reward)
    batch = buffer.sample(300)
    assert set(batch["uid"].tolist()) == set(range(7))
    for i, uid in enumerate(batch["uid"].tolist()):
        stop = 4 if uid < 4 else 7
        k = min(3, stop - uid)
        expected = sum(0.5**j * (uid + j + 1) for j in range(k))
        np.testing.assert_allclose(batch["next", "reward"][i], np.full(trailing, expected))
        assert batch["steps_to_next_obs"][i] == k
        assert batch["next", "obs"][i].tolist() == [uid + k - 1, uid + k - 1 + 0.75]
        assert batch["obs"][i, 0] == uid and batch["index"][i] == uid
        last = uid + k - 1
        assert batch["next", "terminated"][i] == (last == 3)
        assert batch["next", "truncated"][i] == (last == 6)
        assert batch["next", "done"][i] == (last in (3, 6))


def test_the_open_end_is_shorter_and_not_done():
    batch = nstep_of("....", 3, 0.9).sample(60)
    np.testing.assert_array_equal(batch["steps_to_next_obs"], np.minimum(3, 4 - batch["uid"]))
    assert not batch["next", "done"].any()


def test_n_steps_stop_at_a_done_inside_a_trajectory():
    """An explicit traj_key allows it."""
    sampler = NStepSampler(3, 1.0)
    sampler.traj_key = "chunk"
    data = rows(range(5), ".t...", chunk=np.zeros(5, int), next={"reward": np.ones(5)})
    batch = buffer_of(data, sampler).sample(60)
    expected = np.array([2, 1, 3, 2, 1])
    np.testing.assert_array_equal(batch["steps_to_next_obs"], expected[batch["uid"]])


def test_one_step_changes_nothing_but_the_count():
    batch = nstep_of("..t..", 1, 0.9).sample(30)
    np.testing.assert_array_equal(batch["next", "reward"], batch["uid"] + 1)
    assert (batch["steps_to_next_obs"] == 1).all()


def test_n_steps_by_priority():
    buffer = nstep_of("......", 3, 0.5, sampler=PrioritizedSampler())
    buffer.update_priority(np.arange(6), [0, 0, 1, 0, 3, 0])
    batch = buffer.sample(40)
    assert set(batch["uid"].tolist()) == {2, 4}
    q = np.array([1.0, 3.0]) ** 0.6
    weight = np.where(batch["uid"] == 2, 1.0, (q[1] / q[0]) ** -0.4)
    np.testing.assert_allclose(batch["priority_weight"], weight, rtol=1e-5)
    np.testing.assert_array_equal(batch["next", "obs"][:, 0], np.minimum(batch["uid"] + 2, 5))


def test_n_step_returns_of_integer_rewards_are_not_cut_off():
    """1 + 0.5 is not 1."""
    batch = nstep_of("....", 2, 0.5, np.ones(4, np.int64)).sample(20)
    expected = np.where(batch["uid"] == 3, 1.0, 1.5)
    np.testing.assert_allclose(batch["next", "reward"], expected)


def test_flags_of_agents_do_not_end_n_steps():
    """[N, A] flags are ordinary leaves."""
    agents = np.array([[0, 1], [0, 1], [0, 0], [0, 0]], bool)
    data = rows(
        range(4), next={"done": agents, "reward": np.ones(4, np.float32)}, episode=np.zeros(4, int)
    )
    batch = buffer_of(data, NStepSampler(2, 1.0)).sample(30)
    np.testing.assert_array_equal(batch["steps_to_next_obs"], np.minimum(2, 4 - batch["uid"]))


@pytest.mark.parametrize(("n", "gamma"), [(0, 0.9), (1, -0.1), (1, 1.1)])
def test_n_step_arguments_are_checked(n, gamma):
    with pytest.raises(ValueError):
        NStepSampler(n, gamma)


def test_n_steps_need_rewards_and_rows():
    with pytest.raises(ValueError, match="reward"):
        buffer_of(rows(range(3), "..."), NStepSampler(2, 0.9)).sample(2)
    with pytest.raises(ValueError, match="single rows"):
        nstep_of("....", 2, 0.9, sampler=SliceSampler(slice_len=2)).sample(2)
