"""Rows never leave their device, and little goes there: leaves of these storages have no values, so
that whoever takes one to the host fails; and every copy in the other direction is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    FifoSampler,
    HindsightRelabel,
    LifoSampler,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)
from contig.testing import episode, interleaved, row

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from tests.tape.device.rows import Valueless, goals, marks_apart, rollout  # noqa: E402


class Sent(TorchDispatchMode):
    """Counts operations that bring something from the host to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        here = any(x.device.type == "cpu" and x.numel() for x in given)
        there = [x for x in (*given, *tree_leaves(out)) if isinstance(x, torch.Tensor)]
        self.count += here and any(x.is_meta for x in there)
        return out


def step() -> Any:
    return marks_apart(next(iter(interleaved([1, 2, 3], 1))))


def stored(late: bool = False) -> Valueless:
    storage = Valueless(60, late=late)
    writer = storage.writer()
    for n in range(5):
        writer.extend(marks_apart(goals(n, 8)))
    storage.flush()
    assert len(storage) == 40
    return storage


def tensordicts(*trees: Any, dims: Any = ()) -> Any:
    TensorDict = pytest.importorskip("tensordict").TensorDict
    return [TensorDict(marks_apart(tree), batch_size=dims) for tree in trees]


WRITES: dict[str, Any] = {
    "add": lambda b: b.add(marks_apart(row(0, 0))),
    "add_step": lambda b: b.add_step(step()),
    "add_step, some": lambda b: b.add_step(step(), mask=np.array([True, False, True])),
    "add_step, ids": lambda b: b.add_step(step(), env_ids=[3, 4, 5]),
    "extend": lambda b: b.extend(marks_apart(episode(0, 4))),
    "extend, a TensorDict": lambda b: b.extend(tensordicts(episode(0, 4), dims=[4])[0]),
    "extend, a list": lambda b: b.extend(tensordicts(*(row(0, t, end=None) for t in range(3)))),
    "extend_trajectory": lambda b: b.extend_trajectory(marks_apart(episode(0, 4)), terminated=True),
}


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_rows_that_are_written_stay(name, late, limited):
    limiter = RateLimiter(1.0, min_size=1, error_buffer=100) if limited else None
    buffer = ReplayBuffer(Valueless(60, late=late), limiter=limiter)
    for _ in range(2):
        WRITES[name](buffer)
    buffer.storage.flush()
    assert len(buffer) >= 2


def test_rows_of_a_batch_stay():
    storage = stored()
    batch, _ = storage.gather(np.arange(4))
    storage.writer().extend(batch)
    storage.writer().extend([batch[0], batch[1]])
    assert len(storage) == 46


def test_casts_stay():
    with Valueless(9, example={"x": np.complex64(0), "done": False}) as storage:
        done = torch.zeros(3) > 0
        for dtype in (torch.float16, torch.int64, torch.bool):
            x = torch.zeros(3, dtype=dtype, device="meta")
            storage.writer().extend({"x": x, "done": done})
        with pytest.raises(ValueError, match='"x".*may change values'):
            x = torch.zeros(3, dtype=torch.complex128, device="meta")
            storage.writer().extend({"x": x, "done": done})
        assert len(storage) == 9


def zeros(achieved: Any, goal: Any, rows: Any) -> Any:
    assert achieved.is_meta and goal.is_meta and rows["observation"].is_meta
    return torch.zeros(len(rows), device="meta")


SAMPLERS: dict[str, Any] = {
    "rows": RandomSampler,
    "n steps": lambda: NStepSampler(3, 0.9),
    "priorities": PrioritizedSampler,
    "slices": lambda: SliceSampler(slice_len=3, strict_length=False),
    "padded slices": lambda: SliceSampler(slice_len=3, pad_output=True, burn_in=1),
    "slices by priority": lambda: PrioritizedSliceSampler(slice_len=3),
    "trajectories": lambda: TrajectorySampler(2),
    "window": lambda: WindowSampler(last_rows=20),
    "without replacement": SamplerWithoutReplacement,
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=3),
    "fifo": FifoSampler,
    "lifo": LifoSampler,
    "hindsight": lambda: HindsightRelabel(reward_fn=zeros),
    "hindsight of slices": lambda: HindsightRelabel(
        reward_fn=zeros, sampler=SliceSampler(slice_len=3)
    ),
    "hindsight, rewards of the host": lambda: HindsightRelabel(
        reward_fn=lambda a, g, rows: np.zeros(len(rows))
    ),
    "hindsight, tensors of the host": lambda: HindsightRelabel(
        reward_fn=lambda a, g, rows: torch.zeros(len(rows))
    ),
}


@pytest.mark.parametrize("output", ["torch", "tensordict"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_rows_that_are_sampled_stay(name, output):
    size = None if name == "trajectories" else 6
    buffer = ReplayBuffer(stored(), SAMPLERS[name](), batch_size=size, output=output, seed=0)
    for device in (None, "meta"):
        buffer = ReplayBuffer(
            buffer.storage, SAMPLERS[name](), batch_size=size, output=output, device=device
        )
        batch = buffer.sample()
        assert batch["observation"].is_meta and batch["next", "reward"].is_meta


def test_rewards_of_the_host_are_those_of_the_sample():
    """They go with the other marks, which have values until they are sent."""
    relabel = HindsightRelabel(k=9, reward_fn=lambda a, g, rows: torch.full((len(rows),), -7.0))
    batch = ReplayBuffer(stored(), relabel, batch_size=20, seed=0).draw()
    chosen = batch["collector", "relabeled"]
    assert chosen.any()
    assert (batch["next", "reward"][chosen] == -7).all()


def test_what_a_transform_adds_stays():
    class Twice:
        def on_sample(self, batch: Any) -> Any:
            return batch.with_leaves({"twice": batch["observation"] * 2, "t": np.arange(4)})

    buffer = ReplayBuffer(stored(), batch_size=4, transform=Twice())
    batch = buffer.sample()
    assert batch["twice"].is_meta and batch["t"].is_meta
    assert buffer.draw()["t"].tolist() == [0, 1, 2, 3]


def test_an_ensemble_stays():
    relabel = HindsightRelabel(reward_fn=zeros)
    buffers = [ReplayBuffer(stored(), relabel) for _ in range(2)]
    batch = ReplayBufferEnsemble(*buffers, sample_from_all=True).sample(8)
    assert batch["observation"].is_meta and batch["next", "reward"].is_meta


def test_a_rollout_stays():
    from contig.rollout.to_replay import write_trajectories

    window = rollout()
    leaves = marks_apart(window._replay_leaves(window._filled()))
    buffer = ReplayBuffer(Valueless(60))
    assert len(write_trajectories(leaves, buffer, False)) == 12
    assert buffer.storage.episodes()["steps"].tolist() == [3, 1, 4, 4]


def test_marks_of_a_rollout_in_host_memory_stay_there():
    buffer = ReplayBuffer(Valueless(60))
    with Sent() as sent:
        rollout().to_replay(buffer)
    assert sent.count == 4  # observation, action, value and log prob; no reward, no flag
    assert len(buffer) == 12


@pytest.mark.parametrize(
    ("name", "count"),
    [("rows", 2), ("slices", 2), ("n steps", 2), ("hindsight", 4), ("hindsight of slices", 5)],
)
def test_what_goes_to_the_device_with_a_sample(name, count):
    """Which rows, and one block of marks; of hindsight also the rows of goals, which rows of each
    slice share one, and which rows get them."""
    buffer = ReplayBuffer(stored(), SAMPLERS[name](), batch_size=6, seed=0)
    buffer.sample()
    with Sent() as sent:
        buffer.sample()
    assert sent.count == count


def test_which_envs_are_stored_goes_to_the_device_once():
    buffer = ReplayBuffer(Valueless(60))
    rows = step()
    buffer.add_step(rows)
    with Sent() as sent:
        buffer.add_step(rows, mask=np.array([True, False, True]))
    assert sent.count == 1
    with Sent() as sent:
        buffer.add_step(rows)
    assert sent.count == 0
