"""`where=`: which trajectories a sampler may draw from."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arguments import whole
from .filters import Array, Columns, Filters, Judge

__all__ = ["Comparison", "Predicate", "Where", "left_out"]

Comparison = tuple[Any, str, Any]  # column, operator, value

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": np.isin,
    "not in": lambda column, values: ~np.isin(column, values),
}
_MOST_AGE = 2**62


class _Compared(NamedTuple):
    column: Any
    symbol: str
    value: Any

    def __str__(self) -> str:
        return f"{self.column!r} {self.symbol} {self.value!r}"


class Predicate:
    """A `where=`, checked. Immutable; what is known of trajectories is kept by the index.

    Args:
        where: `("return", ">=", 10.0)`, a list of such, which all must hold, or a function that
            gets a mapping of columns, one value per trajectory, and returns a bool array. It must
            depend on the columns only: it is asked again about trajectories that have changed.
        ages: of a function that reads `age`: what it says of a trajectory that has not changed may
            change only when its age reaches one of these. Then every sampler asks it about what
            has changed or got there, and never about all. None: nobody knows.

    Raises:
        ValueError, TypeError: it is none of these, or `ages` are not numbers of rows.
    """

    def __init__(self, where: Written, *, ages: Sequence[int] | None = None) -> None:
        self._function = where if callable(where) else None
        self._compared = () if callable(where) else _comparisons(where)
        self.ages = None if ages is None else _declared(ages)
        if self._function is None:
            if ages is not None:
                raise ValueError(
                    f"ages={ages!r} is for a function: comparisons, such as {self}, say by "
                    "themselves at which ages they change; leave it out"
                )
            found = {a for c in self._compared if c.column == "age" for a in _crossings(c)}
            self.ages = tuple(sorted(found))

    @staticmethod
    def of(where: Where | None) -> Predicate | None:
        """The predicate of a `where=` argument; None of None."""
        return where if where is None or isinstance(where, Predicate) else Predicate(where)

    def __repr__(self) -> str:
        declared = self._function is not None and self.ages is not None
        return f"Predicate({self}, ages={self.ages})" if declared else str(self)

    def __str__(self) -> str:
        if self._function is not None:
            return getattr(self._function, "__name__", repr(self._function))
        return " and ".join(map(str, self._compared))

    def judge(self, columns: Columns) -> Array:
        """For each trajectory, whether it holds: bools, one a row of `columns`."""
        n = len(columns.ids)
        if not n:
            return np.empty(0, np.bool_)
        if self._function is None:
            return self._compare(columns, n)
        try:
            found = np.asarray(self._function(columns))
        except Exception as error:
            raise ValueError(f"where={self} raised {type(error).__name__}: {error}") from error
        if found.dtype != np.bool_ or found.shape != (n,):
            raise ValueError(
                f"where={self} returned {found.dtype} {list(found.shape)} for {n} trajectories: "
                f"expected bool [{n}]; compare whole columns, and join with & and |"
            )
        return np.ascontiguousarray(found)

    def _compare(self, columns: Columns, n: int) -> Array:
        out: Array | None = None
        for compared in self._compared:
            try:
                column = columns[compared.column]
            except KeyError as error:
                raise ValueError(f"where {compared}: {error.args[0]}") from None
            if column.shape != (n,):
                raise ValueError(
                    f"where {compared}: the field has shape {list(column.shape[1:])} per "
                    "trajectory, and comparisons are of single values; give a function instead"
                )
            holds = np.asarray(_OPERATORS[compared.symbol](column, compared.value))
            out = holds if out is None else out & holds
        assert out is not None
        return out


# A function of columns, a comparison, or several, all of which must hold.
Written = Callable[[Columns], Any] | Comparison | Sequence[Comparison]
Where = Written | Predicate


def _declared(ages: Any) -> tuple[int, ...]:
    if isinstance(ages, (str, bytes)) or not isinstance(ages, (Sequence, np.ndarray)):
        raise TypeError(f"ages: expected numbers of rows, such as (20, 100), got {ages!r}")
    found = {whole("ages", age, 1, "numbers of rows") for age in ages}
    return tuple(sorted(age for age in found if age < _MOST_AGE))


def _comparisons(where: Any) -> tuple[_Compared, ...]:
    if isinstance(where, tuple) and len(where) == 3 and isinstance(where[1], str):
        where = [where]
    if not isinstance(where, (list, tuple)) or not where:
        raise TypeError(
            f'where: expected a function of columns, a comparison such as ("return", ">=", 10.0), '
            f"or a list of comparisons, got {where!r}"
        )
    return tuple(map(_comparison, where))


def _comparison(given: Any) -> _Compared:
    if not isinstance(given, (list, tuple)) or len(given) != 3:
        raise TypeError(f'where: expected (column, "==", value), got {given!r}')
    column, symbol, value = given
    if isinstance(column, list):
        column = tuple(column)
    if not isinstance(symbol, str) or symbol not in _OPERATORS:
        raise ValueError(f"where: {symbol!r} is none of {', '.join(_OPERATORS)}")
    array = np.asarray(value)
    dims = 1 if symbol in ("in", "not in") else 0
    if array.ndim != dims or array.dtype.kind not in "biuf":
        what = "a list of numbers" if dims else "a number or bool"
        raise ValueError(f"where {column!r} {symbol}: expected {what}, got {value!r}")
    return _Compared(column, symbol, array if dims else value)


def _crossings(compared: _Compared) -> list[int]:
    """Ages (whole numbers, from 1 on) at which the comparison may change."""
    found = []
    for value in np.atleast_1d(np.asarray(compared.value, float)).tolist():
        if abs(value) < _MOST_AGE:
            found += [math.ceil(value), math.floor(value) + 1]
    return [a for a in found if a >= 1]


def left_out(filters: Filters, where: Judge | None) -> str:
    """For an error message: how many trajectories a predicate holds for."""
    if where is None:
        return ""
    there = int(filters.view.trajectories)
    return f"; where={where} holds for {filters.passing(where)} of {there} trajectories"
