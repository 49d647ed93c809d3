"""A storage's fields as attributes, and which of its results belong to its rows.

storage.values              [T, N, ...], a view
storage.advantages = x      copied in, if it fits
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..errors import LayoutError
from .field import Field

__all__ = ["RESULTS", "Results", "Stored"]

#: What is made of the rows, and not brought by them.
RESULTS = ("returns", "advantages")


class Stored:
    """A field of a storage as an attribute, ``[T, N, ...]``; None while it is not stored.

    What is assigned is copied: it has that shape, and a dtype that the field's can hold.

    Args:
        name: the field's.
        otherwise: the field that is shown where the storage has no such one.
    """

    def __init__(self, name: str, otherwise: str | None = None) -> None:
        self._name, self._otherwise = name, otherwise

    def __get__(self, storage: Any, owner: Any = None) -> Any:
        if storage is None:
            return self
        field = storage.fields.get(self._name) or storage.fields.get(self._otherwise)
        return None if field is None else field.value(0, storage.num_rows)

    def __set__(self, storage: Any, value: Any) -> None:
        name = self._name
        if self._otherwise is not None and name not in storage.fields:
            raise LayoutError(
                f"{name}: this storage has none; assign {self._otherwise}, or give "
                "critic_obs_shape when the storage is made"
            )
        storage._assign(name, value)


class Results:
    """Whether `returns` and `advantages` were made of the rows that are there now.

    One that is written to in place (``storage.returns[t] = ...``) counts as made: torch counts the
    writes to a tensor.

    Args:
        fields: the storage's.
    """

    def __init__(self, fields: dict[str, Field]) -> None:
        self._fields = fields
        self._ever = False  # some were made, if not of these rows
        self._old: dict[str, int]  # of those that are not: writes to them by then
        self._only(set())

    def _writes(self, name: str) -> int:
        return int(self._fields[name].tensors[0]._version)

    def rows_came(self) -> None:
        """Nothing is of all rows any more."""
        if self.fresh():
            self._ever = True
            self._only(set())

    def made(self, *names: str) -> None:
        """These are of the rows that are there."""
        for name in names:
            self._old.pop(name, None)

    def fresh(self) -> set[str]:
        """Those that are of the rows that are there."""
        return {n for n in RESULTS if n not in self._old or self._writes(n) != self._old[n]}

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """While rows move: writes say nothing."""
        fresh = self.fresh()
        yield
        self._only(fresh)

    def _only(self, fresh: set[str]) -> None:
        self._old = {name: self._writes(name) for name in RESULTS if name not in fresh}

    def __getstate__(self) -> tuple[Any, ...]:
        return self._fields, self._ever, self.fresh()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._fields, self._ever, fresh = state
        self._only(fresh)  # a copy's tensors count anew

    def usable(self) -> set[str]:
        """Those that minibatches may carry.

        Raises:
            LayoutError: there are some, and none of them of these rows.
        """
        fresh = self.fresh()
        if not fresh and self._ever:
            raise LayoutError(
                "returns and advantages are those of earlier steps: call compute_returns after "
                "the last add_transitions, or assign storage.returns and storage.advantages"
            )
        return fresh
