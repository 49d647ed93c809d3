"""CleanRL's ReplayBuffer with rows on a tape: another import in its scripts, and nothing else.

    from contig.adapters.cleanrl import ReplayBuffer    instead of cleanrl_utils.buffers

The same arguments, the same random numbers (numpy's, which the scripts seed): training gives the
same weights. Needs torch and gymnasium, but neither CleanRL nor stable-baselines3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..lazy import requires_extra

with requires_extra("contig.adapters.cleanrl", "cleanrl"):
    import torch

    from .steps.buffer import StepBuffer
    from .steps.spaces import action_size, observation_shape

__all__ = ["ReplayBuffer", "ReplayBufferSamples"]

# Where gymnasium's vector envs say which of them have just ended: 0.29's, 1.x's with
# AutoresetMode.SAME_STEP, and RecordEpisodeStatistics, whatever the mode.
_ENDED = ("_final_observation", "_final_obs", "_final_info", "_episode")


class ReplayBufferSamples(NamedTuple):
    """Tensors of n rows. `dones` [n, 1] is 1 where an episode was terminated, not where it was cut;
    `rewards` [n, 1].

    Attributes:
        observations, actions, next_observations: ``[n, ...]``.
        dones, rewards: as above.
    """

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayBuffer(StepBuffer):
    """Steps of `n_envs` envs, sampled uniformly.

    `observations`, `actions`, `rewards` and so on can be read as arrays
    ``[buffer_size, n_envs, ...]``.

    Attributes:
        storage: where the rows are, as trajectories; `storage.episodes()` lists them. Where an
            episode was cut is known from the infos of gymnasium's vector envs.

    Args:
        buffer_size: rows.
        observation_space, action_space: of one env.
        device: where samples go; "auto": a GPU if there is one.
        n_envs: envs that are stepped together.
        optimize_memory_usage: next observations are exact in any case; with it, and without
            `handle_timeout_termination`, the oldest step of a full buffer is not drawn, as there.
        handle_timeout_termination: whether infos are those of each env, with
            "TimeLimit.truncated". False: `add` gets terminations, as in CleanRL's scripts.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        if device == "auto" or (
            torch.device(device).type == "cuda" and not torch.cuda.is_available()
        ):
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_shape = observation_shape(observation_space)
        self.action_dim = action_size(action_space)
        self.device = torch.device(device)
        self.n_envs = n_envs
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.pos, self.full = 0, False
        self._open()

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """A step of all envs.

        Args:
            next_obs: what the step led to: an episode's last observation at its end.
            done: with `handle_timeout_termination` whether an episode ended, else whether it was
                terminated.
            infos: of a vector env, a mapping; or one of each env.

        Raises:
            TypeError: infos are a mapping, and time limits are to be found in infos of each env.
        """
        # The first of both is ten times faster.
        if type(infos) is not dict and not isinstance(infos, Mapping):
            super().add(obs, next_obs, action, reward, done, infos)
            return
        if self.handle_timeout_termination:
            raise TypeError(
                "infos: expected a list with one of each env, where handle_timeout_termination "
                "looks for time limits, got a vector env's; give handle_timeout_termination=False, "
                "and terminations as done"
            )
        cut = self._rows.none
        for key in _ENDED:
            if key in infos:
                terminated = self._rows.flags(done)
                cut = self._rows.flags(infos[key]) & ~terminated
                done = terminated | cut
                break
        self._add(obs, next_obs, action, reward, done, cut)

    @property
    def _samples_type(self) -> Any:
        return ReplayBufferSamples
