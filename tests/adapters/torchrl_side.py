"""An environment of TorchRL's whose values say which lane, episode and step they are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import Compose, EnvBase, RewardSum, StepCounter, TransformedEnv


def length(episode: int) -> int:
    """Steps of an episode. Odd ones are cut off, even ones terminate."""
    return 3 + episode % 3


class Counting(EnvBase):
    """Observes (lane, episode, step); the reward of step t is t, of episode e 100 e more."""

    def __init__(self, lanes: int | None = None, first: int = 0) -> None:
        shape = torch.Size([] if lanes is None else [lanes])
        super().__init__(batch_size=shape)
        self.first = first
        self.observation_spec = Composite(
            observation=Unbounded((*shape, 3), dtype=torch.float32), shape=shape
        )
        self.action_spec = Categorical(5, shape=(*shape, 1), dtype=torch.int64)
        self.reward_spec = Unbounded((*shape, 1))
        self.done_spec = Composite(
            {k: Categorical(2, (*shape, 1), dtype=torch.bool) for k in ("terminated", "truncated")},
            shape=shape,
        )
        n = 1 if lanes is None else lanes
        self.episode, self.at = np.full(n, first - 1), np.zeros(n, int)
        self.seeds: list[Any] = []

    def _observed(self) -> dict[str, Any]:
        rows = np.stack([np.arange(len(self.at)), self.episode, self.at], -1)
        flags = self._ended()
        return {
            "observation": torch.tensor(rows, dtype=torch.float32).reshape(*self.batch_size, 3),
            **{k: torch.tensor(v).reshape(*self.batch_size, 1) for k, v in flags.items()},
        }

    def _ended(self) -> dict[str, Any]:
        over = np.array([t == length(e) for e, t in zip(self.episode, self.at)])
        return {
            "terminated": over & (self.episode % 2 == 0),
            "truncated": over & (self.episode % 2 == 1),
        }

    def _reset(self, tensordict: Any, **kwargs: Any) -> Any:
        which = np.ones(len(self.at), bool)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is not None:
            which = mask.reshape(-1).numpy()
        self.episode = self.episode + which
        self.at = np.where(which, 0, self.at)
        return TensorDict(self._observed(), batch_size=self.batch_size)

    def _step(self, tensordict: Any) -> Any:
        assert tensordict["action"].shape == (*self.batch_size, 1)
        self.at = self.at + 1
        reward = torch.tensor(100.0 * self.episode + self.at, dtype=torch.float32)
        out = {**self._observed(), "reward": reward.reshape(*self.batch_size, 1)}
        return TensorDict(out, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self.seeds.append(seed)


def counted(lanes: int | None = None) -> Any:
    """The same with transforms that keep something from step to step."""
    return TransformedEnv(Counting(lanes), Compose(StepCounter(), RewardSum()))


def check_rows(observation: Any, batch: Any) -> None:
    """Each row of one lane in time order: what it leads to, what it got and how it ended."""
    lane, episode, t = np.asarray(observation).T
    after = np.asarray(batch["next", "observation"]).reshape(len(t), 3)
    np.testing.assert_array_equal(after, np.stack([lane, episode, t + 1], -1))
    flat = {
        k: np.asarray(batch["next", k]).reshape(-1)
        for k in ("reward", "terminated", "truncated", "done")
    }
    np.testing.assert_array_equal(flat["reward"], 100 * episode + t + 1)
    over = t + 1 == np.array([length(int(e)) for e in episode])
    np.testing.assert_array_equal(flat["terminated"], over & (episode % 2 == 0))
    np.testing.assert_array_equal(flat["truncated"], over & (episode % 2 == 1))
    np.testing.assert_array_equal(flat["done"], over)


def steps(n: int, first: int = 0, uid: int = 0, **more: Any) -> Any:
    """Rows of one trajectory after another, of five steps each, as a TensorDict ``[n]``."""
    at = torch.arange(n)
    done = ((at + 1) % 5 == 0)[:, None]
    return TensorDict(
        {
            "uid": at + uid,
            "observation": torch.stack([at + uid, -at - uid], -1).float(),
            "action": at[:, None] % 3,
            "collector": {"traj_ids": first + at // 5},
            "next": {
                "observation": torch.stack([at + uid + 1, -at - uid - 1], -1).float(),
                "reward": (at + uid)[:, None].float(),
                "done": done,
                "terminated": done.clone(),
                "truncated": torch.zeros_like(done),
            },
            **more,
        },
        batch_size=[n],
    )
