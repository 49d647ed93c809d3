"""HerReplayBuffer of stable-baselines3: `HindsightRelabel` over rows of finished episodes."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
from stable_baselines3.her import her_replay_buffer as sb3
from stable_baselines3.her.goal_selection_strategy import (
    KEY_TO_GOAL_STRATEGY,
    GoalSelectionStrategy,
)

from ...errors import EmptyBufferError, NothingEligibleError
from ...sample import HindsightRelabel, Sampler, SliceSampler
from ..steps.rows import OBSERVATION
from .replay import DictReplayBuffer

__all__ = ["HerReplayBuffer"]

Array = np.ndarray[Any, Any]


class HerReplayBuffer(DictReplayBuffer, sb3.HerReplayBuffer):  # type: ignore[override]
    """SB3's HerReplayBuffer. Of n_sampled_goal + 1 rows, n_sampled_goal get a goal that their
    episode has achieved, and the reward for it; rows of episodes that go on, or have lost rows, are
    not drawn.

    Args:
        buffer_size, observation_space, action_space, env, device, n_envs, optimize_memory_usage,
            handle_timeout_termination, n_sampled_goal, goal_selection_strategy, copy_info_dict: as
            SB3's.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        env: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
    ) -> None:
        if isinstance(goal_selection_strategy, str):
            goal_selection_strategy = KEY_TO_GOAL_STRATEGY[goal_selection_strategy.lower()]
        assert isinstance(goal_selection_strategy, GoalSelectionStrategy), (
            f"Invalid goal selection strategy, please use one of {list(GoalSelectionStrategy)}"
        )
        self.goal_selection_strategy = goal_selection_strategy
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - (1.0 / (n_sampled_goal + 1))
        self.copy_info_dict = copy_info_dict
        self.env = env
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
        )
        if copy_info_dict:
            self.infos = np.empty((self.buffer_size, n_envs), object)

    def _make_sampler(self) -> Sampler:
        rows = SliceSampler(
            slice_len=1, over="steps", complete_only=True, init_key=None, truncated_key=None
        )
        return HindsightRelabel(
            self.goal_selection_strategy.name.lower(),
            self.n_sampled_goal,
            reward_fn=self._compute_reward,
            achieved=(*OBSERVATION, "achieved_goal"),
            desired=(*OBSERVATION, "desired_goal"),
            sampler=rows,
        )

    def _compute_reward(self, achieved: Array, goals: Array, rows: Any) -> Array:
        assert self.env is not None, (
            "You must initialize HerReplayBuffer with a VecEnv so it can compute rewards for "
            "virtual transitions"
        )
        infos: Any = [{} for _ in range(len(rows))]
        if self.copy_info_dict:
            slots = self._tracks.slots(rows["index"]) % self.infos.size
            infos = copy.deepcopy(self.infos.reshape(-1)[slots])
        # All envs are alike: the first one's function does.
        rewards = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])
        return np.asarray(rewards[0], np.float32)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        if self.copy_info_dict:
            self.infos[self.pos] = infos
        super().add(obs, next_obs, action, reward, done, infos)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        try:
            return self._samples(self._buffer.draw(batch_size), env)
        except (EmptyBufferError, NothingEligibleError) as error:
            raise RuntimeError(
                "Unable to sample before the end of the first episode. We recommend choosing a "
                "value for learning_starts that is greater than the maximum number of timesteps "
                "in the environment."
            ) from error

    def truncate_last_trajectory(self) -> None:
        """Ends every episode that goes on, so that it can be drawn: call it before envs are reset
        in the middle of one."""
        going = self._tracks.open
        if not going.any():
            return
        warnings.warn(
            "The last trajectory in the replay buffer will be truncated.\n"
            "If you are in the same episode as when the replay buffer was saved,\n"
            "you should use `truncate_last_trajectory=False` to avoid that issue.",
            stacklevel=2,
        )
        last = self.pos - 1
        timeouts = self.timeouts[last] != 0
        if self.handle_timeout_termination:
            timeouts |= going
        self._tracks.end((self.dones[last] != 0) | going, timeouts)

    # -- SB3's arrays -------------------------------------------------------------------------

    @property
    def _current_ep_start(self) -> Array:  # type: ignore[override]
        return self._tracks.begun % self.buffer_size

    @property
    def ep_length(self) -> Array:  # type: ignore[override]
        """Steps of the episode that each row is of; 0 where it cannot be drawn."""
        return self._of_episodes()[1]

    @property
    def ep_start(self) -> Array:  # type: ignore[override]
        """Where the episode of each row begins."""
        return self._of_episodes()[0]

    def _of_episodes(self) -> tuple[Array, Array]:
        starts = np.zeros(self.buffer_size * self.n_envs, np.int64)
        lengths = np.zeros_like(starts)
        table = self.storage.episodes()
        for episode in table[table["complete"]]:
            first = int(self._tracks.slots(episode["first"]))
            rows = first + np.arange(int(episode["steps"])) * self.n_envs
            starts[rows % len(starts)] = first // self.n_envs % self.buffer_size
            lengths[rows % len(starts)] = episode["steps"]
        shape = (self.buffer_size, self.n_envs)
        return starts.reshape(shape), lengths.reshape(shape)

    # -- saving -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["env"]  # in general, envs cannot be pickled
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """`set_env` comes next."""
        self.env = None
        super().__setstate__(state)
