"""RolloutStorage: T steps of N envs on any torch device, and minibatches of them.

    add_transitions  x T  ->  compute_returns  ->  mini_batch_generator  ->  clear

Nothing leaves the device. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..arguments import whole
from ..errors import EmptyBufferError
from . import minibatches
from .field import Field, FieldView
from .fields import RolloutFields
from .hidden import HiddenStates
from .repeat import Repeat
from .rows import FilledRows
from .stored import Stored
from .to_replay import leaves_of, write_trajectories
from .transition import (
    DistillationBatch,
    MiniBatch,
    Statistics,
    Transition,
    fields_of,
    names_of,
)

__all__ = ["RolloutStorage"]

# What minibatches carry: their name of a field, and the storage's.
_CARRIED_AS = {
    "obs": "observations",
    "critic_obs": "critic_observations",
    "actions": "actions",
    "values": "values",
    "advantages": "advantages",
    "returns": "returns",
    "old_actions_log_prob": "actions_log_prob",
    "old_mu": "mu",
    "old_sigma": "sigma",
}

_MiniBatches = Iterator[MiniBatch]  # the class has another MiniBatch: its attribute


class RolloutStorage:
    """A rollout of N envs, T steps each.

    Args:
        num_envs: N.
        num_transitions_per_env: T.
        obs_shape: shape of a row, nested dicts of shapes, or an example step ``[N, ...]``: a
            tensor, nested dicts or a TensorDict of tensors. Shapes alone leave the dtype to the
            first step.
        critic_obs_shape: the same of privileged observations; None or [None]: the critic sees what
            the actor sees.
        actions_shape: shape of an action.
        num_rewards: kinds of reward, R.
        device: of all tensors.
        check_finite: refuse steps with a NaN or an infinity; it names the env and the step.
        seed: of the permutations; None: a fresh one.
    """

    Transition = Transition
    MiniBatch = MiniBatch

    observations = Stored("observations")
    critic_observations = Stored("critic_observations", "observations")
    privileged_observations = critic_observations
    actions = Stored("actions")
    rewards = Stored("rewards")
    dones = Stored("dones")
    values = Stored("values")
    returns = Stored("returns")
    advantages = Stored("advantages")
    actions_log_prob = Stored("actions_log_prob")
    mu = Stored("mu")
    sigma = Stored("sigma")
    action_mean, action_sigma = mu, sigma
    time_outs = Stored("time_outs")
    final_values = Stored("final_values")
    distribution_params = Stored("distribution_params")
    privileged_actions = Stored("privileged_actions")

    #: Fields that every transition has.
    _needed: tuple[str, ...] = ("observations", "actions", "rewards", "dones")
    #: Rows that observations have more than other fields.
    _more_observations = 0
    #: Fields of a transition that are kept if they are given.
    _optional: tuple[str, ...] = (
        "time_outs",
        "final_values",
        "distribution_params",
        "privileged_actions",
    )
    #: Those among the stored ones that minibatches carry behind the usual fields.
    _carried: tuple[str, ...] = ("distribution_params", "privileged_actions")

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        obs_shape: Any,
        critic_obs_shape: Any = None,
        actions_shape: Any = (),
        num_rewards: int = 1,
        device: Any = "cpu",
        *,
        check_finite: bool = False,
        seed: int | None = None,
    ) -> None:
        num_envs = whole("num_envs", num_envs, 1)
        steps = whole("num_transitions_per_env", num_transitions_per_env, 1)
        num_rewards = whole("num_rewards", num_rewards, 1)
        self.num_envs = num_envs
        self.num_transitions_per_env = steps
        self.num_rewards = num_rewards
        self.device = torch.device(device)
        self.num_rows = steps
        self.step = 0
        self.check_finite = check_finite
        self.hidden = HiddenStates(num_envs)
        self._repeat: Repeat | None = None  # what the last step was like
        self._random = torch.Generator(self.device)
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(whole("seed", seed, 0, "None or a whole number"))
        seen = {"observations": obs_shape}
        has_none = isinstance(critic_obs_shape, (list, tuple)) and [*critic_obs_shape] == [None]
        if critic_obs_shape is not None and not has_none:
            seen["critic_observations"] = critic_obs_shape
        sizes = (num_envs, num_rewards, self.device, self.num_rows)
        self._fields = RolloutFields(*sizes, seen, actions_shape, self._more_observations)
        self.fields: dict[str, Field] = self._fields.by_name

    def __repr__(self) -> str:
        steps = f"{self.window.rows} of {self.num_rows} steps of {self.num_envs} envs"
        return f"<{type(self).__name__}: {steps}, on {self.device}>"

    @property
    def _critic(self) -> str:
        """What the critic sees."""
        return "critic_observations" if "critic_observations" in self.fields else "observations"

    # -- writing ------------------------------------------------------------------------------

    def add_transitions(self, transition: Any) -> None:
        """Stores one step of all envs.

        Args:
            transition: a `Transition`, or anything with such attributes.

        Raises:
            OverflowError: T steps are stored; nothing is written.
            LayoutError: a field is missing or does not fit; nothing is written.
            ValueError: a value is not finite (`check_finite`); nothing is written.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._add(transition)
        else:
            self._add(transition)

    def _add(self, transition: Any) -> None:
        row = self._next_row()
        again = None if self.check_finite else self._repeat
        if again is not None and again.write(row, transition):
            self._fields.repeated()
        else:
            self._add_checked(row, transition)
        self._written(row, transition)

    def _add_checked(self, row: int, transition: Any) -> None:
        """Writes a step after looking at each field."""
        fresh = self.window.rows == 0
        checked = self._fields.check_step(self._given(transition), self.num_rows, fresh)
        hidden = self._states(transition)
        states = self.hidden.check(hidden, fresh)
        if self.check_finite:
            self._fields.check_finite(checked, self.step)
        self._fields.write(row, checked)
        self.hidden.write(row, self.num_rows, states, hidden)
        self._repeat = self._like(transition)

    def _like(self, transition: Any) -> Repeat | None:
        """What the step just written was like, if steps like it need no other look."""
        return self._fields.repeat(transition, self._looked_at(), self.hidden.places)

    def _looked_at(self) -> tuple[str, ...]:
        """Attributes of a transition that `_given` looks at."""
        needed = dict.fromkeys((*self._needed, self._critic))
        return names_of(needed, self._optional)

    add_transition = add_transitions

    def _given(self, transition: Any) -> dict[str, Any]:
        """Fields of a transition that are to be stored, by their names here."""
        needed = dict.fromkeys((*self._needed, self._critic))
        return fields_of(transition, tuple(needed), self._optional)

    def _states(self, transition: Any) -> Any:
        """Hidden states of a transition."""
        return getattr(transition, "hidden_states", None)

    @torch.no_grad()
    def _assign(self, name: str, value: Any) -> None:
        """Copies a field of all rows; what `Stored` does."""
        self._fields.assign(name, value, self.num_rows)

    def _next_row(self) -> int:
        if self.step >= self.num_rows:
            raise OverflowError(
                f"the rollout's {self.num_rows} steps are full; call clear() before adding more"
            )
        return self.step

    def _written(self, row: int, transition: Any) -> None:
        self.step += 1

    def clear(self) -> None:
        """Begins a new rollout."""
        self.step = 0

    # -- returns ------------------------------------------------------------------------------

    @property
    def window(self) -> FilledRows:
        """The rows that are filled."""
        return FilledRows(0, self.step)

    def _filled(self) -> FilledRows:
        window = self.window
        if window.rows == 0:
            raise EmptyBufferError("the rollout is empty: add_transitions comes first")
        return window

    @torch.no_grad()
    def compute_returns(
        self, last_values: Any, gamma: float, lam: float, normalize_advantage: bool = True
    ) -> None:
        """Fills `returns` and `advantages` of the rows stored so far.

        Args:
            last_values: of the states after the last step, ``[N]`` or ``[N, R]``.
            normalize_advantage: to mean 0 and deviation 1, each kind of reward by itself.

        An episode that timed out goes on with `final_values` if transitions have them, else with
        the value of its last stored state. Rewards stay as they are.
        """
        self._fields.compute_returns(self._filled(), last_values, gamma, lam, normalize_advantage)

    # -- minibatches --------------------------------------------------------------------------

    def _views(self) -> dict[str, FieldView]:
        """What minibatches carry, by the name there, as rows of storage."""
        rows = self._filled().rows
        named = {**_CARRIED_AS, **{name: name for name in self._carried}}
        there = self._fields.present | self._fields.results.usable()
        return {k: self.fields[v].view(rows) for k, v in named.items() if v in there}

    def mini_batch_generator(
        self, num_mini_batches: int, num_epochs: int = 8, *, order: torch.Tensor | None = None
    ) -> _MiniBatches:
        """Rows in random order, ``[rows, ...]``: all of them in every epoch, each epoch in an
        order of its own; minibatches differ by one row at most. `returns` and `advantages` are
        None if there never were any.

        Args:
            order: numbers of rows, ``step * num_envs + env``, to take in every epoch instead.

        Raises:
            LayoutError: steps came since returns and advantages were made.
            ValueError: `order` has a number that no row has, or is no vector of whole numbers.
        """
        chosen = self._random if order is None else order
        return minibatches.flat(self._views(), self.num_envs, num_mini_batches, num_epochs, chosen)

    def recurrent_mini_batch_generator(
        self, num_mini_batches: int, num_epochs: int = 8, *, packed: bool = False
    ) -> _MiniBatches:
        """Envs in their order, all of them in every epoch, cut into trajectories at dones.

        Observations, `masks` and `hidden_states` are by trajectory: ``[T, trajectories, ...]``,
        zeros behind a trajectory's end, where the mask is False; states ``[layers, trajectories,
        hidden]``. Everything else is ``[T, envs, ...]``.

        Args:
            packed: everything is ``[envs * T, ...]`` instead, without padding, env by env;
                `is_init` marks the first row of each trajectory, and `masks` is None.
        """
        window = self._filled()
        views = {
            name: FieldView([window.ordered(t) for t in view.tensors], view.build)
            for name, view in self._views().items()
        }
        make = minibatches.packed if packed else minibatches.padded
        return make(
            views,
            window.ordered(self._fields.cuts())[..., 0],
            self.hidden.ordered(window.ordered),
            num_mini_batches,
            num_epochs,
        )

    reccurent_mini_batch_generator = recurrent_mini_batch_generator

    def generator(self) -> Iterator[DistillationBatch]:
        """Steps in time order, ``[N, ...]`` each, for distillation."""
        names = ("observations", self._critic, "actions", "privileged_actions", "dones")
        present = self._fields.present
        fields = [self.fields[name] if name in present else None for name in names]
        yield from minibatches.steps(fields, self._filled())

    @torch.no_grad()
    def get_statistics(self) -> Statistics:
        """Averages of the rows stored so far. Changes nothing."""
        window = self._filled()
        starts = minibatches.starts(window.ordered(self._fields.cuts())[..., 0])
        length = starts.numel() / starts.sum()
        rewards = window.ordered(self.rewards)
        return Statistics(length, rewards.mean() if self.num_rewards == 1 else rewards.mean((0, 1)))

    # -- elsewhere ----------------------------------------------------------------------------

    def to_replay(self, buffer: Any, *, continues: bool = False) -> Any:
        """Appends the rollout to a `contig.ReplayBuffer`, as a trajectory per env and episode.

        Leaves: observation, critic_observation, action, value, action_log_prob, and under
        ``"next"`` reward, done, terminated, truncated.

        Args:
            continues: episodes that were open at the end of the rollout appended before go on.

        Returns:
            seqs, env by env.
        """
        window = self._filled()
        return write_trajectories(self._replay_leaves(window), buffer, continues)

    def _replay_leaves(self, window: FilledRows) -> dict[str, Any]:
        """Trees of ``[T, N, ...]`` tensors in time order."""
        present = {name: self.fields[name] for name in self._fields.present}
        return leaves_of(present, self._fields.cuts(), window)
