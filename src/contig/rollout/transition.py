"""What goes into a rollout storage, and what comes out of it."""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from ..errors import LayoutError

__all__ = [
    "COLUMNS",
    "FLAGS",
    "STORED_AS",
    "DistillationBatch",
    "Hidden",
    "MiniBatch",
    "Statistics",
    "Transition",
    "as_flags",
    "column",
    "fields_of",
    "mini_batch_type",
    "names_of",
]

#: Fields with one number, or one per kind of reward, in each row.
COLUMNS = ("rewards", "dones", "values", "actions_log_prob", "time_outs", "final_values")
FLAGS = ("dones", "time_outs")

#: Of an actor or a critic: none, ``[layers, N, hidden]``, or a tuple of such (an LSTM's two).
Hidden = torch.Tensor | tuple[torch.Tensor, ...] | None

# Fields that are called otherwise in the storage.
STORED_AS = {"action_mean": "mu", "action_sigma": "sigma"}


@dataclasses.dataclass(eq=False)
class Transition:
    """One step of N envs. Fields that stay None are not stored.

    Attributes:
        observations: ``[N, ...]``, nested dicts of such tensors, or a TensorDict.
        critic_observations: what only the critic sees.
        actions: ``[N, ...]``.
        actions_log_prob, action_mean, action_sigma: of the policy that acted.
        rewards: ``[N]`` or ``[N, num_rewards]``.
        dones, time_outs: ``[N]`` or ``[N, 1]``, bool or 0 and 1; a time-out is also a done.
        values: ``[N]`` or ``[N, num_rewards]``.
        final_values: values of the states in which episodes timed out, shaped as `values`.
        distribution_params: tensors ``[N, ...]`` in a tuple or a dict, beside or in place of
            `action_mean` and `action_sigma`.
        hidden_states: (actor, critic), each None, ``[layers, N, hidden]`` or a tuple of two such;
            or one tensor. Minibatches have them in what they come in, a named tuple for one.
        privileged_actions: a teacher's, for distillation.
        action_labels: see `ActionLabelRollout`.
        next_observations, next_critic_observations: see `SarsaRolloutStorage`.
    """

    observations: Any = None
    critic_observations: Any = None
    actions: Any = None
    rewards: Any = None
    dones: Any = None
    values: Any = None
    actions_log_prob: Any = None
    action_mean: Any = None
    action_sigma: Any = None
    hidden_states: Any = None
    time_outs: Any = None
    final_values: Any = None
    distribution_params: Any = None
    privileged_actions: Any = None
    action_labels: Any = None
    next_observations: Any = None
    next_critic_observations: Any = None

    def clear(self) -> None:
        """Sets every field to None."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, None)


def column(name: str, value: Any) -> torch.Tensor:
    """``[N]`` as ``[N, 1]``; flags as bool, and integers as float32, where arithmetic follows."""
    if not isinstance(value, torch.Tensor):
        raise LayoutError(f"{name}: expected a tensor, got {type(value).__name__}")
    made = value.unsqueeze(-1) if value.ndim == 1 else value
    if name in FLAGS:
        return as_flags(name, made)
    return made if made.is_floating_point() else made.to(torch.float32)


def as_flags(name: str, value: torch.Tensor) -> torch.Tensor:
    """Flags ``[..., N, 1]`` of any dtype as bool.

    Raises:
        LayoutError: a value other than 0 and 1. Not on other devices than the CPU: to look there
            would wait for the device at every step, so all but 0 is True.
    """
    if value.dtype == torch.bool:
        return value
    truth = value != 0
    if value.device.type == "cpu" and not torch.equal(truth.to(value.dtype), value):
        at = (truth.to(value.dtype) != value).nonzero()[0]
        env = f" in env {int(at[-2])}" if len(at) > 1 else ""
        raise LayoutError(
            f"{name}: {value[tuple(at)].item()}{env}, expected 0 or 1; make flags of it first, for "
            f"example {name} > 0"
        )
    return truth


def names_of(needed: Iterable[str], optional: Iterable[str]) -> tuple[str, ...]:
    """Attributes of a transition that are looked at."""
    return (*needed, "values", "actions_log_prob", *STORED_AS, *optional)


def fields_of(
    transition: Any, needed: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, Any]:
    """What of a transition is to be stored, by the names in the storage.

    Raises:
        LayoutError: a field that is needed is None.
    """
    given = {}
    for name in names_of(needed, optional):
        value = getattr(transition, name, None)
        if value is not None:
            given[STORED_AS.get(name, name)] = column(name, value) if name in COLUMNS else value
        elif name in needed:
            raise LayoutError(
                f"{name}: the transition has none; every step needs "
                f"{', '.join(n for n in needed if n != 'critic_observations')}, and "
                "critic_observations if they have a shape"
            )
    return given


class MiniBatch(NamedTuple):
    """Rows to learn from. A storage that holds more has these fields first and then its own.

    Attributes:
        obs, critic_obs: what actor and critic saw: ``[rows, ...]``, or of recurrent minibatches
            ``[T, trajectories, ...]``.
        actions, values, advantages, returns: of the rows, ``[rows, ...]``.
        old_actions_log_prob, old_mu, old_sigma: of the policy that acted.
        hidden_states: (actor, critic) at the trajectories' first steps.
        masks: ``[T, trajectories]``, False behind a trajectory's end; None where nothing is padded.

    What the storage was never given is None, and observations in nested dicts or a TensorDict come
    as those, whatever the type says.
    """

    obs: torch.Tensor
    critic_obs: torch.Tensor
    actions: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    old_actions_log_prob: torch.Tensor
    old_mu: torch.Tensor
    old_sigma: torch.Tensor
    hidden_states: tuple[Hidden, Hidden] = (None, None)
    masks: torch.Tensor | None = None


class DistillationBatch(NamedTuple):
    """One step of all envs, for distillation.

    Attributes:
        obs, critic_obs: what student and teacher saw, ``[N, ...]``.
        actions, privileged_actions: the student's and the teacher's.
        dones: ``[N, 1]``.
    """

    obs: torch.Tensor
    critic_obs: torch.Tensor
    actions: torch.Tensor
    privileged_actions: torch.Tensor
    dones: torch.Tensor


class Statistics(NamedTuple):
    """From `get_statistics`: steps per trajectory, where the rollout's end ends one, and reward
    per step (one for each kind of reward), on average.

    Attributes:
        trajectory_length, reward: as above.
    """

    trajectory_length: torch.Tensor
    reward: torch.Tensor


@functools.lru_cache(maxsize=64)
def mini_batch_type(extra: tuple[str, ...]) -> Any:
    """MiniBatch, or one with more fields behind its own."""
    return namedtuple("MiniBatch", (*MiniBatch._fields, *extra)) if extra else MiniBatch
