"""TorchRL's environments whose actions and observations are single numbers, in contig's collectors.

So it is with one environment and a categorical action: neither has a dim.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl import collectors as theirs
from torchrl import envs as trl
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.modules import QValueActor, RandomPolicy

from contig import Collector
from contig.adapters import torchrl as ours


class Numbers(trl.EnvBase):
    """Observations and actions are single numbers, ``[*lanes]``: a walk from 0 to 9 or beyond."""

    def __init__(self, lanes: int | None = None) -> None:
        shape = torch.Size([] if lanes is None else [lanes])
        super().__init__(batch_size=shape)
        self.observation_spec = Composite(at=Unbounded(shape, dtype=torch.int64), shape=shape)
        self.action_spec = Categorical(4, shape=shape, dtype=torch.int64)
        self.reward_spec = Unbounded((*shape, 1))
        self.at = torch.zeros(shape, dtype=torch.int64)

    def _reset(self, tensordict: Any, **kwargs: Any) -> Any:
        which = None if tensordict is None else tensordict.get("_reset", None)
        self.at = self.at * 0 if which is None else torch.where(which[..., 0], 0, self.at)
        return TensorDict({"at": self.at}, batch_size=self.batch_size)

    def _step(self, tensordict: Any) -> Any:
        assert tensordict["action"].shape == self.batch_size
        self.at = self.at + tensordict["action"]
        done = (self.at > 8)[..., None]
        out = {"at": self.at, "reward": self.at[..., None].float(), "done": done}
        return TensorDict(out, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("lanes", [None, 2])
def test_actions_that_are_single_numbers(lanes: int | None) -> None:
    with Collector(lambda: Numbers(lanes), frames_per_batch=60, total_frames=60, seed=1) as c:
        (batch,) = c
    for lane in [batch] if lanes is None else [batch[i] for i in range(lanes)]:
        assert lane["at"].shape == lane["action"].shape
        after, done = lane["next", "at"], lane["next", "done"].reshape(-1)
        np.testing.assert_array_equal(after, lane["at"] + lane["action"])
        np.testing.assert_array_equal(done, after > 8)
        np.testing.assert_array_equal(lane["at"][1:], np.where(done, 0, after)[:-1])
        assert done.any() and set(lane["action"].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("random", [False, True])
def test_an_environment_of_gymnasiums_with_numbers_for_actions(random: bool) -> None:
    """Rows of the shapes and dtypes that TorchRL's own collector gives them."""

    def make() -> Any:
        return trl.GymEnv("CartPole-v1", categorical_action_encoding=True)

    torch.manual_seed(0)
    net = QValueActor(torch.nn.Linear(4, 2), in_keys=["observation"], spec=make().action_spec)
    policy = None if random else net
    options: Any = {
        "frames_per_batch": 40,
        "total_frames": 40,
        "auto_register_policy_transforms": False,
    }
    with ours.Collector(make, policy, **options) as collector:
        (found,) = collector
    other = theirs.Collector(make, policy or RandomPolicy(make().action_spec), **options)
    (wanted,) = other
    other.shutdown()
    for key in ("action", "observation", ("next", "reward"), ("next", "done")):
        assert found[key].dtype == wanted[key].dtype and found[key].shape == wanted[key].shape
    if not random:
        best = net(found.select("observation"))["action"]
        assert torch.equal(found["action"], best)
    assert set(found["action"].tolist()) == {0, 1}
