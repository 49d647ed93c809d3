"""The fields of a rollout: which there are, and which of them its rows have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import LayoutError
from .field import Field, example_of
from .stored import RESULTS, Results
from .transition import COLUMNS, FLAGS, as_flags

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
