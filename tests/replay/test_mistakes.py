"""Everyday mistakes with a buffer are refused, and at once; what is obviously meant works."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contig import (
    ClosedError,
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RateLimiter,
    RateLimitError,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
)
from contig.testing import episode, identity, row
from tests.waiting import Task


def filled(rows: int = 5, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(10), **options)
    buffer.extend(episode(0, rows))
    return buffer


# -- after close ----------------------------------------------------------------------------------


WRITES = {
    "add": lambda b: b.add({"x": 1.0}),
    "add with a transform": lambda b: b.add({"x": 1.0}),
    "add_step": lambda b: b.add_step(episode(1, 2)),
    "extend": lambda b: b.extend(episode(1, 3)),
    "extend_trajectory": lambda b: b.extend_trajectory(episode(1, 3)),
    "set_fields": lambda b: b.set_fields([0], {}),
    "update_priority": lambda b: b.update_priority([0], [1.0]),
    "empty": lambda b: b.empty(),
}


@pytest.mark.parametrize("verb", WRITES)
def test_a_closed_buffer_refuses_writes(verb: str) -> None:
    transform = (lambda batch: batch) if "transform" in verb else None
    buffer = filled(sampler=PrioritizedSampler(), transform=transform)
    buffer.close()
    with pytest.raises(ClosedError, match="this buffer is closed"):
        WRITES[verb](buffer)
    assert len(buffer.storage) == 5  # which stays open, and as it was
    assert len(ReplayBuffer(buffer.storage, batch_size=3).sample()) == 3


def test_members_of_a_closed_ensemble_refuse_writes() -> None:
    ensemble = ReplayBufferEnsemble(filled(), filled(), batch_size=4)
    ensemble.close()
    with pytest.raises(ClosedError):
        ensemble.extend(episode(1, 3))
    with pytest.raises(ClosedError):
        ensemble.add_step(episode(1, 2))


def test_a_writer_that_waits_for_room_hears_that_the_buffer_was_closed() -> None:
    buffer = filled(3, limiter=RateLimiter(1.0))  # no more fits: nobody samples
    waiting = Task(buffer.add, row(1, 0))
    assert not waiting.ends(0.2)
    buffer.close()
    with pytest.raises(ClosedError):
        waiting.result()


# -- priorities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [[5.0], 5.0, torch.tensor([5.0, 1.0]), []])
@pytest.mark.parametrize("kind", [PrioritizedSampler, PrioritizedSliceSampler])
def test_priorities_are_never_broadcast(kind: Any, priority: Any) -> None:
    sampler = kind() if kind is PrioritizedSampler else kind(slice_len=2)
    buffer = filled(sampler=sampler, batch_size=4)
    before = sampler.state()
    with pytest.raises(
        ValueError, match=rf"{len(np.atleast_1d(priority))} priorit.* for 3 rows: give one"
    ):
        buffer.update_priority([0, 1, 2], priority)
    assert str(sampler.state()) == str(before)


def test_one_priority_for_one_row() -> None:
    buffer = filled(sampler=PrioritizedSampler(alpha=1.0), batch_size=200)
    buffer.update_priority(np.arange(5), [0, 0, 0, 0, 0])
    buffer.update_priority(3, 2.0)
    assert {t for _, t in identity(buffer.sample())} == {3}


# -- leaves ---------------------------------------------------------------------------------------


def with_reward(reward: Any) -> dict[str, Any]:
    return {"obs": np.zeros(2, np.float32), "next": {"reward": reward, "done": False}}


@pytest.mark.parametrize("transform", [None, lambda batch: batch], ids=["plain", "transform"])
def test_a_first_reward_of_0_does_not_make_rewards_integers(transform: Any) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), transform=transform)
    for reward in (0, 1, 0.5):
        buffer.add(with_reward(reward))
    rewards = buffer[:]["next", "reward"]
    assert rewards.dtype == np.float32 and rewards.tolist() == [0, 1, 0.5]


@pytest.mark.parametrize("example", [{"reward": 0}, {"rewards": 0}, {"a": {"reward": 0}}])
def test_rewards_of_examples(example: Any) -> None:
    layout = LazyTensorStorage(3, example=example).layout
    assert layout is not None and layout.leaves[0].dtype == np.float32


def test_rewards_that_are_given_as_integer_arrays_stay_so() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.add(with_reward(np.int64(0)) | {"count": 0})
    assert buffer[:]["next", "reward"].dtype == buffer[:]["count"].dtype == np.int64


@pytest.mark.parametrize("known", [False, True], ids=["first row", "later row"])
def test_a_list_as_a_leaf(known: bool) -> None:
    step = {"obs": np.zeros(3, np.float32), "action": 0}
    buffer = ReplayBuffer(LazyTensorStorage(10))
    if known:
        buffer.add(step)
    with pytest.raises(LayoutError, match=r'"obs".*a list is a subtree: use np\.asarray'):
        buffer.add({**step, "obs": [0.0, 1.0, 2.0]})
    rows = {"obs": np.zeros((2, 3), np.float32), "action": np.zeros(2, np.int64)}
    for lists in ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [[[0]], [[1]]]):
        with pytest.raises(LayoutError, match=r'"obs".*a list is a subtree: use np\.asarray'):
            buffer.extend({**rows, "obs": lists})
    with pytest.raises(LayoutError, match=r'"action".*a list is a subtree: use np\.asarray'):
        buffer.extend({**rows, "action": [0, 1]})
    assert len(buffer) == int(known)
    buffer.add(step)


def test_lists_of_arrays_are_subtrees() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.add({"obs": [np.zeros(3), np.ones(2)]})
    assert [x.shape for x in buffer[:].tree()["obs"]] == [(1, 3), (1, 2)]


@pytest.mark.parametrize("known", [False, True], ids=["first row", "later row"])
def test_none_as_a_reward(known: bool) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    if known:
        buffer.add(with_reward(1.0))
    with pytest.raises(LayoutError, match=r'\("next", "reward"\): None.*give a (number|value)'):
        buffer.add(with_reward(None))
    with pytest.raises(LayoutError, match=r'\("next", "reward"\): None.*give a (number|value)'):
        buffer.extend({"obs": np.zeros((2, 2)), "next": {"reward": None, "done": np.zeros(2)}})
    buffer.add(with_reward(1.0))


def test_none_in_a_place_of_another_leaf_is_said_too() -> None:
    buffer = filled()
    with pytest.raises(LayoutError, match='"action".*None'):
        buffer.extend(episode(1, 2) | {"action": None})


MASKED = np.ma.masked_array(np.arange(3, dtype=np.float32), [False, True, False])


@pytest.mark.parametrize("known", [False, True], ids=["first row", "later row"])
@pytest.mark.parametrize("value", [MASKED, np.ma.masked, np.ma.masked_array(np.arange(3.0))])
def test_masked_arrays_are_refused(known: bool, value: Any) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    if known:
        buffer.add({"obs": np.zeros(np.shape(value), np.float32)})
    with pytest.raises(ValueError, match=r'"obs": a masked array.*\.filled\('):
        buffer.add({"obs": value})
    with pytest.raises(ValueError, match=r'"obs": a masked array.*\.filled\('):
        buffer.extend({"obs": np.ma.stack([value, value])})
    assert len(buffer) == int(known)


# -- sizes and places -----------------------------------------------------------------------------


def test_a_batch_size_that_does_not_fit_is_found_at_construction() -> None:
    text = "batch_size 100 is not a multiple of slice_len 32"
    for kind in (ReplayBuffer, TensorDictReplayBuffer):
        with pytest.raises(ValueError, match=text):
            kind(LazyTensorStorage(10), SliceSampler(slice_len=32), batch_size=100)
    member = ReplayBuffer(LazyTensorStorage(10), SliceSampler(slice_len=32))
    with pytest.raises(ValueError, match=text):
        ReplayBufferEnsemble(member, member, batch_size=100)
    with pytest.raises(ValueError, match="batch_size 9 is not a multiple of 2 members"):
        ReplayBufferEnsemble(filled(), filled(), batch_size=9, sample_from_all=True)


def test_minus_one_is_the_newest_row() -> None:
    buffer = filled(5)
    assert identity(buffer[-1]) == [(0, 4)] and identity(buffer[-5]) == [(0, 0)]
    assert identity(buffer[np.int64(-2)]) == [(0, 3)]
    buffer.extend(episode(1, 8))  # seqs 0 to 12, of which 3 to 12 are stored
    assert identity(buffer[-1]) == [(1, 7)] and identity(buffer[-10]) == [(0, 3)]
    for place in (-11, -100):
        with pytest.raises(IndexError, match=r"rows 3 to 12 are stored, asked for -1"):
            buffer[place]
    with pytest.raises(IndexError):
        buffer[[-1]]  # of arrays of seqs, which have no negative ones
    with pytest.raises(IndexError):
        ReplayBuffer(LazyTensorStorage(10))[-1]


# -- waiting --------------------------------------------------------------------------------------


def test_sample_timeout_holds_with_a_limiter() -> None:
    buffer = filled(limiter=RateLimiter(1.0, min_size=1000), sample_timeout_s=0.2, batch_size=4)
    started = time.monotonic()
    with pytest.raises(RateLimitError, match=r"within 0\.2 s"):
        buffer.sample()
    assert time.monotonic() - started < 30  # the limiter's own timeout is 60 s
    slow = filled(limiter=RateLimiter(1.0, min_size=1000, timeout_s=0.1), batch_size=4)
    with pytest.raises(RateLimitError, match=r"within 0\.1 s"):
        slow.sample()


def test_all_of_a_full_ring_under_writers() -> None:
    """Rows are evicted while they are read, by writers that go round the ring."""
    code = """
        import threading
        import numpy as np
        from contig import LazyTensorStorage, ReplayBuffer

        buffer = ReplayBuffer(LazyTensorStorage(64))
        row = {"at": np.arange(48, dtype=np.int64), "x": np.zeros((48, 4096), np.uint8)}
        buffer.extend(row)
        buffer.extend(row | {"at": row["at"] + 48})
        ends, round = threading.Event(), 0

        def write():
            at = 96
            while not ends.is_set():
                buffer.extend(row | {"at": row["at"] + at})
                at += 48

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        for _ in range(400):
            for part in (slice(None), slice(0, 8), slice(-8, None)):
                at = buffer[part]["at"]
                assert len(at) == len(range(64)[part]), len(at)
                assert (np.diff(at) == 1).all()
            assert len(buffer[-1]) == 1
        ends.set()
        thread.join()
        print("read")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=False, capture_output=True, text=True
    )
    assert done.stdout == "read\n", done.stderr


def test_all_of_a_full_ring_on_disk_under_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were evicted while they were read are not called damaged."""
    with DiskStorage(tmp_path / "runs", 1000) as storage:
        buffer = ReplayBuffer(storage)

        def write(first: int) -> None:
            at = np.arange(first, first + 500)
            buffer.extend({"at": at, "x": np.zeros((500, 16), np.uint8)})
            storage.flush()

        for first in range(2000, 4000, 500):
            write(first)
        gather, calls = storage.gather, []

        def overtaken(seqs: Any, **options: Any) -> Any:
            calls.append(len(calls))
            if len(calls) <= 3:  # between the choice of the rows and their reading
                for part in range(8):  # their files are gone
                    write(4000 * len(calls) + 500 * part)
            batch, lost = gather(seqs, **options)
            return batch, seqs < lost if lost else 0  # the form in which damaged rows are told

        monkeypatch.setattr(storage, "gather", overtaken)
        assert buffer[:]["at"].tolist() == list(range(15000, 16000))
        assert len(calls) == 4
        calls.clear()
        with pytest.raises(IndexError, match="evicted while they were read"):
            buffer[[13000]]
