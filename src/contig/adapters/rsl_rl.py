"""rsl_rl's RolloutStorage, kept by contig: its arguments, its attributes, its batches.

    import rsl_rl.storage
    rsl_rl.storage.RolloutStorage = contig.adapters.rsl_rl.RolloutStorage   before its algorithms
    contig.adapters.rsl_rl.install()                                        at any time

Same seeds, same parameters: PPO, distillation and the runners of rsl_rl 5.x train bit by bit as on
their own storage. Random numbers are therefore torch's global ones, which rsl_rl seeds. Only what
is lost there is kept here: rows and envs that do not fill a minibatch are in one all the same, and
states of a network that has not run are zeros, not those of an earlier rollout.

rsl_rl itself is imported by `install` and `uninstall` alone. One thread at a time.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from ..lazy import requires_extra

with requires_extra("contig.adapters.rsl_rl", "rsl-rl"):
    import torch

from ..errors import LayoutError
from ..rollout import RolloutStorage as Rollout

__all__ = ["Batch", "RolloutStorage", "Transition", "install", "uninstall"]

Tensor = torch.Tensor

_ALWAYS = ("observations", "actions", "rewards", "dones")
# What every transition has, by the training.
_NEEDED = {
    "rl": (*_ALWAYS, "values", "actions_log_prob", "distribution_params"),
    "distillation": (*_ALWAYS, "privileged_actions"),
}
# Columns are float32, whatever an env or a policy under autocast gives.
_FLOATS = ("rewards", "actions", "values", "actions_log_prob", "privileged_actions")
# Where rsl_rl's own class is looked up, besides the modules that its users have loaded.
_HOLDERS = ("rsl_rl.storage", "rsl_rl.algorithms", "rsl_rl.extensions.symmetry")
_ITS_OWN = "rsl_rl.storage.rollout_storage"


@dataclasses.dataclass(eq=False)
class Transition:
    """One step of N envs, filled in while it happens.

    Attributes:
        observations: a TensorDict of tensors ``[N, ...]``.
        actions: ``[N, ...]``.
        rewards, dones, actions_log_prob: ``[N]`` or ``[N, 1]``.
        values: ``[N, 1]``.
        distribution_params: tensors ``[N, ...]``.
        privileged_actions: a teacher's; of distillation.
        hidden_states: (actor, critic), each None, ``[layers, N, hidden]`` or a tuple of two such.
    """

    observations: Any = None
    actions: Any = None
    rewards: Any = None
    dones: Any = None
    values: Any = None
    actions_log_prob: Any = None
    distribution_params: Any = None
    privileged_actions: Any = None
    hidden_states: tuple[Any, Any] = (None, None)

    def clear(self) -> None:
        """As new."""
        vars(self).update({field.name: field.default for field in dataclasses.fields(self)})


@dataclasses.dataclass(eq=False)
class Batch:
    """Rows to learn from; what a kind of training does not have is None.

    Attributes:
        observations: a TensorDict, ``[rows]``, ``[T, trajectories]`` with `masks`, or ``[N]`` of a
            step in distillation.
        actions, values, advantages, returns, dones: of the same rows.
        old_actions_log_prob, old_distribution_params: of the policy that acted.
        privileged_actions: a teacher's; of distillation.
        masks: ``[T, trajectories]``, False behind a trajectory's end.
        hidden_states: (actor, critic) at the trajectories' first steps.
    """

    observations: Any = None
    actions: Any = None
    values: Any = None
    advantages: Any = None
    returns: Any = None
    old_actions_log_prob: Any = None
    old_distribution_params: Any = None
    hidden_states: tuple[Any, Any] = (None, None)
    masks: Any = None
    privileged_actions: Any = None
    dones: Any = None


class _Kept:
    """A field of the rollout as an attribute, ``[T, N, ...]``; what is assigned is copied.

    Args:
        kind: the training that alone has it; None: both.
    """

    def __init__(self, kind: str | None = None) -> None:
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _check(self, storage: RolloutStorage) -> None:
        if self._kind not in (None, storage.training_type):
            raise AttributeError(
                f"{self._name}: a storage for {storage.training_type!r} has none, only one for "
                f"{self._kind!r}"
            )

    def __get__(self, storage: RolloutStorage | None, owner: Any = None) -> Any:
        if storage is None:
            return self
        self._check(storage)
        return getattr(storage.rollout, self._name)

    def __set__(self, storage: RolloutStorage, value: Any) -> None:
        self._check(storage)
        setattr(storage.rollout, self._name, value)


class _Rollout(Rollout):
    """Takes of a transition what rsl_rl's own storage takes."""

    training_type = "rl"

    def _looked_at(self) -> tuple[str, ...]:
        return _NEEDED[self.training_type]

    def _given(self, transition: Any) -> dict[str, Any]:
        needed = self._looked_at()
        given = Rollout.Transition()
        for name in needed:
            value: Any = getattr(transition, name, None)
            if value is None:
                raise LayoutError(
                    f"{name}: the transition has none; every step for {self.training_type!r} has "
                    f"{', '.join(needed)}"
                )
            if name == "distribution_params":
                setattr(given, name, tuple(one.to(torch.float32) for one in value))
            else:
                setattr(given, name, value.to(torch.float32) if name in _FLOATS else value)
        return super()._given(given)

    def _states(self, transition: Any) -> Any:
        """Zeros for a network that was reset within the rollout."""
        given = super()._states(transition)
        pair = (None, None) if given is None else given
        if self.step == 0:
            return pair
        return tuple(self.hidden.zeros(who) if one is None else one for who, one in enumerate(pair))


class RolloutStorage:
    """T steps of N envs, for rsl_rl's algorithms.

    Args:
        training_type: "rl" or "distillation".
        num_envs: N.
        num_transitions_per_env: T.
        obs: one step, a TensorDict of tensors ``[N, ...]``: names, shapes and dtypes.
        actions_shape: of one env's action.
        device: of all tensors.

    Attributes:
        rollout: the `contig.RolloutStorage` that holds everything; it has more than rsl_rl asks
            for, such as `get_statistics` and `to_replay`.

    Raises:
        ValueError: another training type.
    """

    Transition = Transition
    Batch = Batch

    observations = _Kept()
    actions = _Kept()
    rewards = _Kept()
    values = _Kept("rl")
    actions_log_prob = _Kept("rl")
    distribution_params = _Kept("rl")
    returns = _Kept("rl")
    advantages = _Kept("rl")
    privileged_actions = _Kept("distillation")

    def __init__(
        self,
        training_type: str,
        num_envs: int,
        num_transitions_per_env: int,
        obs: Any,
        actions_shape: tuple[int, ...] | list[int],
        device: str = "cpu",
    ) -> None:
        if training_type not in _NEEDED:
            raise ValueError(f"training_type={training_type!r}: expected one of {list(_NEEDED)}")
        self.training_type = training_type
        self.device = device
        self.num_envs = num_envs
        self.num_transitions_per_env = num_transitions_per_env
        self.actions_shape = actions_shape
        action = torch.empty(num_envs, *actions_shape, device="meta")
        self.rollout = _Rollout(num_envs, num_transitions_per_env, obs, None, action, device=device)
        self.rollout.training_type = training_type
        if training_type == "distillation":
            # The attribute is there before the first step, as the others are.
            self.rollout.privileged_actions = torch.zeros_like(self.rollout.actions)

    @property
    def step(self) -> int:
        """Steps stored so far."""
        return self.rollout.step

    @property
    def dones(self) -> Tensor:
        """``[T, N, 1]``, of bytes; a view."""
        flags: Tensor = self.rollout.dones
        return flags.view(torch.uint8)

    @dones.setter
    def dones(self, value: Tensor) -> None:
        self.rollout.dones = value

    @property
    def saved_hidden_state_a(self) -> list[Tensor] | None:
        """The actor's states before each step, ``[T, layers, N, hidden]``."""
        return self._saved(0)

    @property
    def saved_hidden_state_c(self) -> list[Tensor] | None:
        """The critic's states before each step, ``[T, layers, N, hidden]``."""
        return self._saved(1)

    def _saved(self, who: int) -> list[Tensor] | None:
        kept = self.rollout.hidden.kept[who]
        return None if kept is None else list(kept.tensors)

    # -- writing ------------------------------------------------------------------------------

    def add_transition(self, transition: Any) -> None:
        """Stores one step of all envs.

        Raises:
            OverflowError: T steps are stored.
            LayoutError: a field is missing or does not fit; nothing is written.
        """
        self.rollout.add_transitions(transition)

    def clear(self) -> None:
        """Begins a new rollout."""
        self.rollout.clear()

    # -- batches ------------------------------------------------------------------------------

    def _only(self, kind: str) -> None:
        if self.training_type != kind:
            raise ValueError(
                f"these batches are for training_type={kind!r}, the storage is for "
                f"{self.training_type!r}"
            )

    def generator(self) -> Iterator[Any]:
        """Steps in time order, all envs of each, for distillation."""
        self._only("distillation")
        for step in self.rollout.generator():
            yield Batch(
                step.obs,
                privileged_actions=step.privileged_actions,
                dones=step.dones.view(torch.uint8),
            )

    def mini_batch_generator(self, num_mini_batches: int, num_epochs: int = 8) -> Iterator[Any]:
        """All rows in random order, the same in every epoch; minibatches differ by one row at most.

        Each batch is memory of its own: what is done to it in place stays there.
        """
        self._only("rl")
        order = torch.randperm(self.num_envs * self.step, device=self.device)
        yield from map(
            _batch, self.rollout.mini_batch_generator(num_mini_batches, num_epochs, order=order)
        )

    def recurrent_mini_batch_generator(
        self, num_mini_batches: int, num_epochs: int = 8
    ) -> Iterator[Any]:
        """Envs in their order, cut into trajectories at dones; observations, masks and states are
        by trajectory, all else ``[T, envs, ...]``, views."""
        self._only("rl")
        yield from map(
            _batch, self.rollout.recurrent_mini_batch_generator(num_mini_batches, num_epochs)
        )


def _batch(rows: Any) -> Batch:
    """A minibatch as rsl_rl names it; returns that nobody has computed are zeros there."""
    return Batch(
        rows.obs,
        rows.actions,
        rows.values,
        torch.zeros_like(rows.values) if rows.advantages is None else rows.advantages,
        torch.zeros_like(rows.values) if rows.returns is None else rows.returns,
        rows.old_actions_log_prob,
        rows.distribution_params,
        rows.hidden_states,
        rows.masks,
    )


def install() -> list[str]:
    """Puts `RolloutStorage` in the place of rsl_rl's own, for algorithms and runners made from now
    on. Returns the modules that have it now."""
    theirs = importlib.import_module(_ITS_OWN).RolloutStorage
    return _replace(theirs, RolloutStorage)


def uninstall() -> list[str]:
    """Undoes `install`. Returns the modules that have rsl_rl's own class again."""
    theirs = importlib.import_module(_ITS_OWN).RolloutStorage
    return _replace(RolloutStorage, theirs)


def _replace(old: type, new: type) -> list[str]:
    for name in _HOLDERS:
        importlib.import_module(name)
    found = [
        name
        for name, module in sys.modules.items()
        # Its own module keeps it: the class's methods look their batches up there.
        if name.startswith("rsl_rl.")
        and name != _ITS_OWN
        and getattr(module, "RolloutStorage", None) is old
    ]
    for name in found:
        sys.modules[name].RolloutStorage = new  # type: ignore[attr-defined]
    return sorted(found)
