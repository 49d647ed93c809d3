"""TorchRL's own transforms in contig's buffers, beside TorchRL's own buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl import data as theirs
from torchrl import envs as trl
from torchrl.envs.transforms.rb_transforms import MultiStepTransform

from contig.adapters import torchrl as ours
from tests.adapters.test_torchrl_buffers import same
from tests.adapters.torchrl_side import counted, steps


def images(n: int) -> Any:
    data = steps(n)
    data["pixels"] = torch.arange(n * 48).reshape(n, 4, 4, 3).to(torch.uint8)
    return data


def both(**options: Any) -> tuple[Any, Any]:
    return (
        ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(max_size=50), **options),
        theirs.TensorDictReplayBuffer(storage=theirs.LazyTensorStorage(max_size=50), **options),
    )


def scaled() -> Any:
    return trl.RewardScaling(loc=1.0, scale=2.0, in_keys=[("next", "reward")])


def doubled(td: Any) -> Any:
    td["next", "reward"] = td["next", "reward"] * 2
    return td


CHAINS: dict[str, Any] = {
    "one": lambda b: b.append_transform(scaled()),
    "two": lambda b: b.append_transform(scaled()).append_transform(
        trl.ToTensorImage(in_keys=["pixels"])
    ),
    "a function before": lambda b: b.append_transform(scaled()).insert_transform(
        0, trl.Compose(trl.RewardScaling(loc=0.0, scale=5.0, in_keys=[("next", "reward")]))
    ),
    "a function after": lambda b: b.append_transform(scaled()).append_transform(doubled),
    "compose": lambda b: b.append_transform(
        trl.Compose(
            trl.ToTensorImage(in_keys=["pixels"]),
            trl.FlattenObservation(-3, -1, in_keys=["pixels"]),
        )
    ),
    "renamed and left out": lambda b: b.append_transform(
        trl.Compose(trl.RenameTransform(["observation"], ["state"]), trl.ExcludeTransform("action"))
    ),
    "inverted": lambda b: b.append_transform(scaled(), invert=True),
    "inverted function": lambda b: b.append_transform(doubled, invert=True),
}


@pytest.mark.parametrize("chain", list(CHAINS))
def test_samples_are_theirs(chain: str) -> None:
    mine, other = both(batch_size=8)
    for buffer in (mine, other):
        assert CHAINS[chain](buffer) is buffer
        buffer.extend(images(20))
    same(mine[:], other[:])
    sample = mine.sample()
    assert len(sample) == 8
    same(sample, other[sample["index"]])
    assert len(mine.transform) == len(other.transform)


def test_what_is_stored() -> None:
    """A transform changes samples, an inverted one rows."""
    mine, _ = both(batch_size=8)
    mine.append_transform(scaled())
    mine.extend(steps(5))
    assert mine.storage.read_episode(0)["next", "reward"].tolist() == [0, 1, 2, 3, 4]
    mine, _ = both(batch_size=8)
    mine.append_transform(doubled, invert=True)
    mine.extend(steps(5))
    assert mine.storage.read_episode(0)["next", "reward"].tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    "given",
    [
        lambda: {"transform": scaled()},
        lambda: {"transform": trl.Compose(scaled(), scaled())},
        lambda: {"transform": doubled},
        lambda: {"transform_factory": scaled},
    ],
)
def test_transform_argument_and_factory(given: Any) -> None:
    mine = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(50), **given())
    other = theirs.TensorDictReplayBuffer(storage=theirs.LazyTensorStorage(50), **given())
    for buffer in (mine, other):
        buffer.extend(steps(20))
    same(mine[:], other[:])


def test_transforms_run_ahead_and_are_exchanged() -> None:
    """What was drawn ahead before a transform was added is thrown away."""
    mine, _ = both(batch_size=8, prefetch=3)
    mine.extend(steps(20))
    sample = mine.sample()
    assert torch.equal(sample["next", "reward"][:, 0], sample["uid"].float())
    mine.append_transform(scaled())
    for _ in range(6):
        sample = mine.sample()
        assert torch.equal(sample["next", "reward"][:, 0], sample["uid"].float() * 2 + 1)
    mine.empty()
    mine.extend(steps(5, uid=40))
    assert mine.sample()["uid"].min() >= 40
    mine.close()


def test_slices_take_their_shape() -> None:
    buffer = ours.TensorDictReplayBuffer(
        storage=ours.LazyTensorStorage(50),
        sampler=ours.SliceSampler(slice_len=5),
        batch_size=20,
        transform=lambda td: td.reshape(-1, 5),
    )
    buffer.extend(steps(30))
    sample = buffer.sample()
    assert sample.batch_size == (4, 5) and sample["index"].shape == (4, 5)
    sample["td_error"] = torch.rand(4, 5)
    buffer.update_tensordict_priority(sample)


def test_n_steps_of_torchrl() -> None:
    """A transform that keeps rows back until it has seen what follows them."""
    mine, other = both(batch_size=4)
    for buffer in (mine, other):
        buffer.append_transform(MultiStepTransform(n_steps=3, gamma=0.5))
        assert len(buffer.extend(steps(2))) == 0 and len(buffer) == 0
        for first in (2, 9, 16):
            buffer.extend(steps(25)[first : first + 7])
    assert len(mine) == len(other) > 15
    same(mine[:], other[:])


@pytest.mark.parametrize("chain", ["samples", "rows", "n steps"])
def test_collectors_feed_transformed_buffers(chain: str) -> None:
    buffer = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(100), batch_size=8)
    if chain == "n steps":
        buffer.append_transform(MultiStepTransform(n_steps=2, gamma=0.5))
    else:
        buffer.append_transform(doubled, invert=chain == "rows")
    with ours.Collector(counted, frames_per_batch=10, total_frames=40, replay_buffer=buffer) as c:
        assert list(c) == [None] * 4
    rows = buffer[:]
    obs = rows["observation"]
    first = 100 * obs[:, 1] + obs[:, 2] + 1
    if chain == "n steps":
        assert len(rows) == 38
        assert torch.equal(rows["next", "original_reward"].reshape(-1), first)
        summed = rows["steps_to_next_obs"].reshape(-1) == 2
        assert summed.sum() > 20
        assert torch.equal(rows["next", "reward"][summed, 0], (first + 0.5 * (first + 1))[summed])
        assert torch.equal(rows["next", "reward"][~summed, 0], first[~summed])
    else:
        assert torch.equal(rows["next", "reward"][:, 0], 2 * first)
        stored = buffer.storage.read_episode(0)["next", "reward"]
        assert stored.tolist() == [(1 + (chain == "rows")) * x for x in (1, 2, 3)]


def test_state_of_transforms_is_saved(tmp_path: Path) -> None:
    buffers = [both(batch_size=4)[0] for _ in range(2)]
    for buffer, loc, scale in zip(buffers, (2.0, 0.0), (4.0, 1.0)):
        buffer.append_transform(trl.ObservationNorm(loc, scale, in_keys=["observation"]))
    buffers[0].extend(steps(10))
    buffers[0].dumps(tmp_path / "kept")
    buffers[1].loads(tmp_path / "kept")
    same(buffers[0][:], buffers[1][:])
    assert not torch.equal(buffers[1][:]["observation"], steps(10)["observation"])
