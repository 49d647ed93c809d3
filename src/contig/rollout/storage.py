"""RolloutStorage: T steps of N envs on any torch device, and minibatches of them.

    add_transitions  x T  ->  compute_returns  ->  mini_batch_generator  ->  clear

Nothing leaves the device. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..arguments import whole
from ..errors import EmptyBufferError, LayoutError
from . import minibatches
from .field import Field, View, example_of
from .filled import FilledRows
from .hidden import HiddenStates
from .returns import gae, normalize
from .stored import RESULTS, Results, Stored
from .to_replay import leaves_of, write_trajectories
from .transition import (
    COLUMNS,
    FLAGS,
    DistillationBatch,
    MiniBatch,
    Statistics,
    Transition,
    as_flags,
    column,
)

__all__ = ["RolloutStorage"]

Tensor = torch.Tensor

# Field names of a transition that are called otherwise in the storage.
_STORED_AS = {"action_mean": "mu", "action_sigma": "sigma"}


class RolloutStorage:
    """A rollout of N envs, T steps each.

    Args:
        num_envs: N.
        num_transitions_per_env: T.
        obs_shape: shape of a row, nested dicts of shapes, or an example step ``[N, ...]``: a
            tensor, nested dicts or a TensorDict of tensors. Shapes alone leave the dtype to the
            first step.
        critic_obs_shape: the same of privileged observations; None: the critic sees what the
            actor sees.
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
        self.fields: dict[str, Field] = {}
        self.hidden = HiddenStates(num_envs)
        self._brought: frozenset[str] = frozenset()  # fields that this rollout's steps have
        self._assigned: frozenset[str] = frozenset()  # and those given to all of them since
        self._random = torch.Generator(self.device)
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(whole("seed", seed, 0, "None or a whole number"))
        described = [("observations", obs_shape), ("actions", actions_shape)]
        if critic_obs_shape is not None:
            described.insert(1, ("critic_observations", critic_obs_shape))
        for name, shape in described:
            example, known = example_of(shape, num_envs, name)
            self._declare(name, example, open_dtype=not known)
        flag, scalar = torch.empty(num_envs, 1, device="meta", dtype=torch.bool), (num_envs, 1)
        number = torch.empty(num_envs, num_rewards, device="meta")
        for name in ("rewards", "values", "returns", "advantages"):
            self._declare(name, number, open_dtype=name in ("rewards", "values"))
        self._declare("dones", flag)
        self._declare("actions_log_prob", torch.empty(scalar, device="meta"), open_dtype=True)
        action = self.fields["actions"].tensors
        if len(action) == 1 and action[0].is_floating_point():
            for name in ("mu", "sigma"):
                example = torch.empty(action[0].shape[1:], device="meta", dtype=action[0].dtype)
                self._declare(name, example, open_dtype=True)
        self._results = Results(self.fields)

    @property
    def _present(self) -> frozenset[str]:
        """Fields that the rows have."""
        return self._brought | self._assigned

    def _declare(self, name: str, example: Any, *, open_dtype: bool = False) -> Field:
        more = self._more_observations if name.endswith("observations") else 0
        field = Field(name, example, self.num_rows + more, self.device, open_dtype=open_dtype)
        self.fields[name] = field
        return field

    # -- writing ------------------------------------------------------------------------------

    @torch.no_grad()
    def add_transitions(self, transition: Any) -> None:
        """Stores one step of all envs.

        Args:
            transition: a `Transition`, or anything with such attributes.

        Raises:
            OverflowError: T steps are stored; nothing is written.
            LayoutError: a field is missing or does not fit; nothing is written.
            ValueError: a value is not finite (`check_finite`); nothing is written.
        """
        row = self._next_row()
        given = self._given(transition)
        checked = []
        for name, value in given.items():
            field = self._field_of(name, value)
            checked.append((field, field.check(value)))
        fresh = self.window.rows == 0
        states = self.hidden.check(getattr(transition, "hidden_states", None), fresh)
        if self.check_finite:
            for field, leaves in checked:
                found = field.first_not_finite(leaves)
                if found is not None:
                    raise ValueError(
                        f"{found[0]}: not finite in env {found[1]} at step {self.step} of the "
                        "rollout; the step was not stored"
                    )
        self._brought, self._assigned = frozenset(given), frozenset()
        self._results.rows_came()
        for field, leaves in checked:
            self.fields[field.name] = field
            field.write(row, leaves)
        self.hidden.write(row, self.num_rows, states)
        self._written(row, transition)

    add_transition = add_transitions

    def _given(self, transition: Any) -> dict[str, Any]:
        """Fields of a transition that are to be stored, by their names here."""
        wanted = [*self._needed, "values", "actions_log_prob", *_STORED_AS, *self._optional]
        if "critic_observations" in self.fields:
            wanted.append("critic_observations")
        values = {name: getattr(transition, name, None) for name in wanted}
        for name in (*self._needed, "critic_observations"):
            if name in values and values[name] is None:
                raise LayoutError(
                    f"{name}: the transition has none; every step needs "
                    f"{', '.join(self._needed)}, and critic_observations if they have a shape"
                )
        given = {
            _STORED_AS.get(name, name): column(name, value) if name in COLUMNS else value
            for name, value in values.items()
            if value is not None
        }
        if self.window.rows and given.keys() != self._brought:
            odd = sorted(given.keys() ^ self._brought)[0]
            now, then = ("given", "missing") if odd in given else ("missing", "given")
            raise LayoutError(
                f"{odd}: {now} at this step, {then} at the rollout's first; every step of a "
                "rollout has the same fields"
            )
        return given

    def _field_of(self, name: str, value: Any) -> Field:
        found = self.fields.get(name)
        if found is not None:
            return found
        if name in ("mu", "sigma"):
            raise LayoutError(
                f"{name}: these actions have no mean and sigma; use distribution_params"
            )
        if name in COLUMNS:
            width = 1 if name in FLAGS else self.num_rewards
            value = torch.empty(self.num_envs, width, dtype=value.dtype, device="meta")
        return Field(name, value, self.num_rows, self.device)

    @torch.no_grad()
    def _assign(self, name: str, value: Any) -> None:
        """Copies a field of all rows, ``[T, N, ...]``.

        Raises:
            LayoutError: it does not fit; nothing is written.
        """
        if name in FLAGS and isinstance(value, torch.Tensor):
            value = as_flags(name, value)
        field = self.fields.get(name)
        if field is None:
            field = self._field_of(name, Field.first_row(name, value, self.num_envs))
        field.assign(value, self.num_rows)
        self.fields[name] = field
        if name in RESULTS:
            self._results.made(name)
        else:
            self._assigned |= {name}

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
        window = self._filled()
        if "values" not in self._present:
            raise LayoutError("values: the transitions have none; returns need them")
        last = column("last_values", last_values).to(self.device)
        values = window.ordered(self.values)
        if last.shape != values.shape[1:]:
            raise LayoutError(
                f"last_values: shape {list(last.shape)}, expected {list(values.shape[1:])}"
            )
        done = window.ordered(self.dones)
        time_out = final = None
        if "time_outs" in self._present:
            time_out = window.ordered(self.time_outs)
            if "final_values" in self._present:
                final = window.ordered(self.final_values)
        rewards = window.ordered(self.rewards)
        dtype = torch.promote_types(rewards.dtype, values.dtype)
        rewards, values, last = rewards.to(dtype), values.to(dtype), last.to(dtype)
        final = None if final is None else final.to(dtype)
        for name in ("returns", "advantages"):
            self.fields[name].become(dtype)
        # A loop that goes around is computed aside, and its rows then go where they belong.
        aside = window.first != 0
        returns = torch.empty_like(rewards) if aside else window.ordered(self.returns)
        advantages = torch.empty_like(rewards) if aside else window.ordered(self.advantages)
        gae(
            rewards,
            values,
            last,
            done,
            gamma,
            lam,
            time_out,
            final,
            advantages=advantages,
            returns=returns,
        )
        if normalize_advantage:
            normalize(advantages)
        if aside:
            window.scatter(self.returns, returns)
            window.scatter(self.advantages, advantages)
        self._results.made(*RESULTS)

    # -- minibatches --------------------------------------------------------------------------

    def _views(self) -> dict[str, View]:
        """What minibatches carry, by the name there, as rows of storage."""
        rows = self._filled().rows
        named = {
            "obs": "observations",
            "critic_obs": "critic_observations",
            "actions": "actions",
            "values": "values",
            "advantages": "advantages",
            "returns": "returns",
            "old_actions_log_prob": "actions_log_prob",
            "old_mu": "mu",
            "old_sigma": "sigma",
            **{name: name for name in self._carried},
        }
        there = self._present | self._results.usable()
        return {k: self.fields[v].view(rows) for k, v in named.items() if v in there}

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Any]:
        """Rows in random order, ``[rows, ...]``: all of them in every epoch, each epoch in an
        order of its own; minibatches differ by one row at most. `returns` and `advantages` are
        None if there never were any.

        Raises:
            LayoutError: steps came since returns and advantages were made.
        """
        return minibatches.flat(
            self._views(), self.num_envs, num_mini_batches, num_epochs, self._random
        )

    def recurrent_mini_batch_generator(
        self, num_mini_batches: int, num_epochs: int = 8, *, packed: bool = False
    ) -> Iterator[Any]:
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
            name: View([window.ordered(t) for t in view.tensors], view.build)
            for name, view in self._views().items()
        }
        make = minibatches.packed if packed else minibatches.padded
        return make(
            views,
            window.ordered(self._cuts())[..., 0],
            self.hidden.ordered(window.ordered),
            num_mini_batches,
            num_epochs,
        )

    reccurent_mini_batch_generator = recurrent_mini_batch_generator

    def _cuts(self) -> Tensor:
        dones: Tensor = self.dones
        return dones | self.time_outs if "time_outs" in self._present else dones

    def generator(self) -> Iterator[DistillationBatch]:
        """Steps in time order, ``[N, ...]`` each, for distillation."""
        window = self._filled()
        for i in range(window.rows):
            row = (window.first + i) % window.rows
            yield DistillationBatch(
                *(
                    None
                    if name not in self._present
                    else self.fields[name].build([t[row] for t in self.fields[name].tensors], 1)
                    for name in self._distilled()
                )
            )

    def _distilled(self) -> tuple[str, ...]:
        critic = "critic_observations" if "critic_observations" in self.fields else "observations"
        return ("observations", critic, "actions", "privileged_actions", "dones")

    @torch.no_grad()
    def get_statistics(self) -> Statistics:
        """Averages of the rows stored so far. Changes nothing."""
        window = self._filled()
        starts = minibatches.starts(window.ordered(self._cuts())[..., 0])
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
        present = {name: self.fields[name] for name in self._present}
        return leaves_of(present, self._cuts(), window)
