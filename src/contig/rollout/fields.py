"""The fields of a rollout: which there are, and which of them its rows have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..errors import LayoutError
from .field import Field, example_of
from .repeat import Kept, Repeat
from .returns import gae, normalize
from .rows import FilledRows
from .stored import RESULTS, Results
from .transition import COLUMNS, FLAGS, STORED_AS, as_flags, column

__all__ = ["RolloutFields"]

Tensor = torch.Tensor


class RolloutFields:
    """Fields by name. One thread at a time.

    Args:
        num_envs, num_rewards, device: the storage's.
        rows: steps to hold.
        observations: descriptions of what is observed, by name.
        actions: the same of an action.
        more_observations: rows that observations have more than other fields.

    Attributes:
        by_name: all that were ever stored or described.
        results: whether returns and advantages are of these rows.
    """

    def __init__(
        self,
        num_envs: int,
        num_rewards: int,
        device: torch.device,
        rows: int,
        observations: Mapping[str, Any],
        actions: Any,
        more_observations: int,
    ) -> None:
        self.by_name: dict[str, Field] = {}
        self._num_envs, self._num_rewards, self._device = num_envs, num_rewards, device
        self._brought: frozenset[str] = frozenset()  # by this rollout's steps
        self._assigned: frozenset[str] = frozenset()  # to all of them since
        for name, shape in {**observations, "actions": actions}.items():
            example, known = example_of(shape, num_envs, name)
            more = more_observations if name in observations else 0
            self._declare(name, example, rows + more, open_dtype=not known)
        number = torch.empty(num_envs, num_rewards, device="meta")
        for name in ("rewards", "values", *RESULTS):
            self._declare(name, number, rows, open_dtype=name not in RESULTS)
        self._declare("dones", torch.empty(num_envs, 1, device="meta", dtype=torch.bool), rows)
        chance = torch.empty(num_envs, 1, device="meta")
        self._declare("actions_log_prob", chance, rows, open_dtype=True)
        action = self.by_name["actions"].tensors
        if len(action) == 1 and action[0].is_floating_point():
            mean = torch.empty(action[0].shape[1:], device="meta", dtype=action[0].dtype)
            for name in ("mu", "sigma"):
                self._declare(name, mean, rows, open_dtype=True)
        self.results = Results(self.by_name)

    def _declare(self, name: str, example: Any, rows: int, *, open_dtype: bool = False) -> None:
        self.by_name[name] = Field(name, example, rows, self._device, open_dtype=open_dtype)

    @property
    def present(self) -> frozenset[str]:
        """Those that the rows have."""
        return self._brought | self._assigned

    def cuts(self) -> Tensor:
        """Where episodes end, ``[T, N, 1]``."""
        done = self.by_name["dones"].tensors[0]
        return done | self.by_name["time_outs"].tensors[0] if "time_outs" in self.present else done

    def check_step(self, given: Mapping[str, Any], rows: int, first: bool) -> list[Any]:
        """A step's fields with their leaves, for `write`.

        Args:
            rows: of a field that is new.
            first: the step is a rollout's first, which may have other fields than the one before.

        Raises:
            LayoutError: something does not fit.
        """
        if not first and given.keys() != self._brought:
            odd = sorted(given.keys() ^ self._brought)[0]
            now, then = ("given", "missing") if odd in given else ("missing", "given")
            raise LayoutError(
                f"{odd}: {now} at this step, {then} at the rollout's first; every step of a "
                "rollout has the same fields"
            )
        checked = []
        for name, value in given.items():
            field = self._named(name, value, rows)
            checked.append((field, field.check(value)))
        return checked

    def repeat(self, transition: Any, names: Iterable[str], states: list[Kept]) -> Repeat | None:
        """What the step that was written last was like.

        Args:
            names: attributes of the transition that were looked at.
            states: where its hidden states went.
        """
        into: dict[str, Sequence[Kept]] = {
            name: [self.by_name[STORED_AS.get(name, name)].kept]
            for name in names
            if STORED_AS.get(name, name) in self._brought
        }
        return Repeat.of(transition, (*names, "hidden_states"), {**into, "hidden_states": states})

    def repeated(self) -> None:
        """A step like the last one was written."""
        self._assigned = frozenset()
        self.results.rows_came()

    def write(self, row: int, checked: list[Any]) -> None:
        """Writes what `check_step` let through."""
        self._brought, self._assigned = frozenset(field.name for field, _ in checked), frozenset()
        self.results.rows_came()
        for field, leaves in checked:
            self.by_name[field.name] = field
            field.write(row, leaves)

    @staticmethod
    def check_finite(checked: list[Any], step: int) -> None:
        """Raises ValueError if a value of a step is a NaN or an infinity."""
        for field, leaves in checked:
            found = field.first_not_finite(leaves)
            if found is not None:
                raise ValueError(
                    f"{found[0]}: not finite in env {found[1]} at step {step} of the rollout; the "
                    "step was not stored"
                )

    def assign(self, name: str, value: Any, rows: int) -> None:
        """Copies a field of all rows, ``[T, N, ...]``.

        Raises:
            LayoutError: it does not fit; nothing is written.
        """
        if name in FLAGS and isinstance(value, torch.Tensor):
            value = as_flags(name, value)
        field = self.by_name.get(name)
        if field is None:
            field = self._named(name, Field.first_row(name, value, self._num_envs), rows)
        field.assign(value, rows)
        self.by_name[name] = field
        if name in RESULTS:
            self.results.made(name)
        else:
            self._assigned |= {name}

    def _named(self, name: str, value: Any, rows: int) -> Field:
        """The field of this name, or a new one for such a value."""
        found = self.by_name.get(name)
        if found is not None:
            return found
        if name in ("mu", "sigma"):
            raise LayoutError(
                f"{name}: these actions have no mean and sigma; use distribution_params"
            )
        if name in COLUMNS:
            width = 1 if name in FLAGS else self._num_rewards
            value = torch.empty(self._num_envs, width, dtype=value.dtype, device="meta")
        return Field(name, value, rows, self._device)

    def compute_returns(
        self, window: FilledRows, last_values: Any, gamma: float, lam: float, normalized: bool
    ) -> None:
        """Fills `returns` and `advantages` of the rows that are filled.

        Raises:
            LayoutError: there are no values, or `last_values` does not fit.
        """
        if "values" not in self.present:
            raise LayoutError("values: the transitions have none; returns need them")
        last = column("last_values", last_values).to(self._device)
        values = self._ordered("values", window)
        if last.shape != values.shape[1:]:
            raise LayoutError(
                f"last_values: shape {list(last.shape)}, expected {list(values.shape[1:])}"
            )
        time_out = final = None
        if "time_outs" in self.present:
            time_out = self._ordered("time_outs", window)
            if "final_values" in self.present:
                final = self._ordered("final_values", window)
        rewards = self._ordered("rewards", window)
        dtype = torch.promote_types(rewards.dtype, values.dtype)
        for name in RESULTS:
            self.by_name[name].become(dtype)
        # A loop that goes around is computed aside, and its rows then go where they belong.
        aside = window.first != 0
        results = {
            name: torch.empty_like(rewards, dtype=dtype) if aside else self._ordered(name, window)
            for name in RESULTS
        }
        state = (rewards, values, last, self._ordered("dones", window), gamma, lam, time_out, final)
        gae(*state, advantages=results["advantages"], returns=results["returns"])
        if normalized:
            normalize(results["advantages"])
        if aside:
            for name, rows in results.items():
                window.scatter(self.by_name[name].tensors[0], rows)
        self.results.made(*RESULTS)

    def _ordered(self, name: str, window: FilledRows) -> Tensor:
        return window.ordered(self.by_name[name].tensors[0])

    def grow(self, rows: int) -> None:
        """Makes room for more rows; those there stay."""
        with self.results.moving():
            for field in self.by_name.values():
                field.grow(rows)

    def roll(self, first: int, rows: int) -> None:
        """Puts row `first` at 0, and the others of the first `rows` behind it, in a circle."""
        with self.results.moving():
            for field in self.by_name.values():
                field.roll(first, rows)
