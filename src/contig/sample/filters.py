"""Predicates over trajectories, evaluated only where something has changed.

    view.refresh ──▶ changed trajectories ──Columns──▶ predicate ──bools──▶ view: what may be drawn

The view keeps one bit for each trajectory and predicate (native/tape/filter.h).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from .. import _native
from .._native import RunFlag
from ..layout import Leaf
from ..tape import Storage
from ..tape.episodes import field_column

__all__ = ["Columns", "Filters", "Judge", "field_values"]

Array = np.ndarray[Any, Any]

# Rows of the view's table of changed trajectories.
_ORDINAL, _STEPS, _FLAGS, _VERSION, _RETURN, _AGE, _LAST, _TIME, _COLUMNS = range(9)


_numbers = itertools.count()


class Columns(Mapping[str, Array]):
    """Trajectories that have changed, as columns by name.

    A mapping of what a predicate may read: `steps` (stored rows), `return`, `terminated`,
    `truncated`, `policy_version` (of the newest run), `age` (rows written since the newest row),
    and fields, by their name in `episodes()` or by path.

    Attributes:
        everything: these are all trajectories there are.
        gone: ids of trajectories that are no more.
        ids: the trajectories' own, as `episodes()` has them.
        flags: how they ended (index flags), and whether they are stored from their beginning on.
        times: when the newest run of each was appended, in nanoseconds of the wall clock.
        read: the names that were asked for.
    """

    def __init__(self, storage: Storage, everything: bool, table: Array, gone: Array) -> None:
        self.everything, self.gone = everything, gone
        self._storage = storage
        self._rows: list[Array] = list(table)
        self.ids, self.flags, self.times = (self._rows[i] for i in (_ORDINAL, _FLAGS, _TIME))
        self._records: Array | None = None  # the trajectories' fields
        self.read: set[Any] = set()

    def __getitem__(self, name: Any) -> Array:
        column = self._built_in(name)
        if column is None:
            leaf = self._leaves().get(name)
            if leaf is None:
                raise KeyError(f"no column {name!r}: there are {', '.join(self)}")
            column = self.field(leaf)
        self.read.add(name)
        return column

    def field(self, leaf: Leaf) -> Array:
        """The values of a field, as the newest run of each trajectory has it: ``[n, ...]``."""
        if self._records is None:
            self._records = self._storage.tape.fields_of(self._rows[_LAST])
        return field_values(leaf, self._records)

    def _leaves(self) -> dict[Any, Leaf]:
        fields = self._storage.fields
        leaves = () if fields is None else fields.leaves
        return {name: x for x in leaves for name in (x.path, field_column(x.path))}

    def _built_in(self, name: Any) -> Array | None:
        rows = self._rows
        if name == "steps":
            return rows[_STEPS]
        if name == "return":
            return rows[_RETURN].view(np.float64)
        if name == "terminated":
            return np.asarray(self.flags & RunFlag.TERMINATED != 0)
        if name == "truncated":
            return np.asarray(self.flags & RunFlag.TRUNCATED != 0)
        if name == "policy_version":
            return rows[_VERSION]
        return rows[_AGE] if name == "age" else None

    def __iter__(self) -> Iterator[str]:
        yield from ("steps", "return", "terminated", "truncated", "policy_version", "age")
        yield from (name for name in self._leaves() if isinstance(name, str))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def field_values(leaf: Leaf, records: Array) -> Array:
    """One field of records ``[n, size]``."""
    values = np.ascontiguousarray(records[:, leaf.offset : leaf.offset + leaf.nbytes])
    return values.view(leaf.dtype).reshape(len(records), *leaf.shape)


class Judge(Protocol):
    """Says which trajectories may be drawn."""

    @property
    def ages(self) -> tuple[int, ...] | None:
        """Ages at which a trajectory is to be looked at again, whether or not it has changed.
        None: nobody knows, so all are whenever something was written, if it reads ages at all."""

    def judge(self, columns: Columns) -> Array:
        """A bool for each trajectory. A failure changes nothing: the same come again."""


class _Known:
    """A judge, its number in the view, and what is known of it."""

    def __init__(self, owner: Any, number: int) -> None:
        self.owner, self.number = weakref.ref(owner), number
        self.reads_age = False
        self.head = -1  # when it was evaluated last


class Filters:
    """Those of one view. Belongs to the one thread that samples.

    Args:
        storage: what the view is of.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.number = next(_numbers)  # of all there ever are in this process
        self.view = _native.View(storage.tape)
        self._known: dict[int, _Known] = {}  # by id of the owner

    def judged(self, judge: Judge) -> int:
        """The number of a judge's filter, which holds for the view as it is now."""
        known = self._of(judge, True)
        view, number = self.view, known.number
        if known.reads_age and known.head != view.head:
            view.look_again(number)
        changed = view.changed_trajectories(number)
        if changed is None:
            return number
        everything, flat, gone = changed
        columns = Columns(self.storage, everything, flat.reshape(_COLUMNS, -1), gone)
        view.judge(number, judge.judge(columns))
        known.reads_age = known.reads_age or (judge.ages is None and "age" in columns.read)
        known.head = view.head
        return number

    def followed(self, judge: Judge) -> int | None:
        """As `judged`; None: verdicts change by themselves, at no ages that are known, as those of
        a function of `age` do."""
        known = self._of(judge, True)
        if not known.reads_age:
            self.judged(judge)
        return None if known.reads_age else known.number

    def judged_now(self, judge: Judge, ordinals: Array) -> Array | None:
        """What a judge says of some trajectories, whatever it said before; None: nothing can be
        said about one of them just now."""
        table = self.view.describe_trajectories(ordinals)
        if table is None:
            return None
        none = np.empty(0, np.int64)
        return judge.judge(Columns(self.storage, False, table.reshape(_COLUMNS, -1), none))

    def own(self, owner: Any) -> int:
        """The number of a filter that its owner sets by himself (`view.set_passes`)."""
        return self._of(owner, False).number

    def look_again(self, judge: Judge) -> None:
        """Has everything judged anew."""
        self.view.look_again(self._of(judge, True).number)

    def passing(self, judge: Judge) -> int:
        """How many trajectories a judge let pass when it was last asked."""
        return int(self.view.passing(self._of(judge, True).number))

    def _of(self, owner: Any, follows: bool) -> _Known:
        known = self._known.get(id(owner))
        if known is not None and known.owner() is owner:
            return known
        for key, other in list(self._known.items()):
            if other.owner() is None:  # its sampler is no more
                self.view.drop_filter(other.number)
                del self._known[key]
        ages = list(owner.ages or ()) if follows else []
        known = _Known(owner, int(self.view.add_filter(follows, ages)))
        self._known[id(owner)] = known
        return known
