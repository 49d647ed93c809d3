"""Hindsight: rows as if what came later had been the goal.

    row      achieved -> next achieved      desired                   reward
    becomes  the same                       goal, drawn from next     reward_fn(next achieved, goal)
                                            achieved of its trajectory

    future   any row from this one on (of a slice: from its last row on)
    final    the last row there is
    episode  any row there is

Of k + 1 rows, k are relabelled on average, and as nearly so in each batch as whole numbers allow. A
slice has one goal, so that a recurrent policy sees one. Goals are drawn among rows that are stored
now: of an open trajectory those up to its newest, of a trimmed one those that are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import _native
from ..arguments import whole
from ..batch import Batch
from ..convert import Places, as_array, is_tensor
from ..errors import NothingEligibleError
from ..keys import FLAGS, MASK, NEXT, RELABELED, REWARD, TERMINATED
from ..layout import Layout
from ..tape.one_leaf import read_leaf
from ..tree import Path, as_path, show_path
from .base import Array, Draw, Index, OuterSampler, Request, Rng, Sampler
from .bounds import KnownBounds
from .uniform import RandomSampler

__all__ = ["HindsightRelabel", "RelabeledRows", "relabels"]

_KIN = {"future": _native.Kin.FUTURE, "final": _native.Kin.LAST, "episode": _native.Kin.ANY}
_GOAL = "goal"
_TRIES = 8  # that lose goals to writers, before rows keep what they have achieved themselves


class RelabeledRows:
    """Those rows of a batch that are relabelled. ``rows["observation"]`` is a copy of a column.

    `HindsightRelabel` hands it to its functions, in the place of a GoalEnv's `info`.

    Args:
        batch: all that was drawn.
        rows: the places in it of those that are relabelled.
    """

    def __init__(self, batch: Batch, rows: Array) -> None:
        self._batch, self._rows = batch, rows

    def __getitem__(self, key: Any) -> Any:
        return self._batch.take(self._batch[key], self._rows)

    def __len__(self) -> int:
        return len(self._rows)


Judge = Callable[[Array, Array, Any], Any]


class HindsightRelabel(OuterSampler):
    """Replaces the goals of rows by what their trajectory has achieved, when they are sampled.

    Goals, the reward, and with `terminated_fn` the flags of relabelled rows are replaced, below
    `next` too; what is stored stays as it is. Reward and flags may be at the root.
    ``("collector", "relabeled")`` says which rows.

    Args:
        strategy: "future", "final" or "episode": see above.
        k: relabelled rows for each row that is left as it is.
        reward_fn: ``(achieved [n, ...], goal [n, ...], rows) -> reward [n]``, for all rows at once;
            `achieved` is what the row led to. A GoalEnv's `compute_reward` will do. Of a
            DeviceStorage they are tensors of its device, and so may the reward be.
        terminated_fn: likewise, whether that ends the episode; None: flags stay as stored.
        achieved, desired: leaves, which are below `next`, too.
        sampler: what draws; RandomSampler if None. Any sampler of rows or slices.
    """

    def __init__(
        self,
        strategy: str = "future",
        k: int = 4,
        *,
        reward_fn: Judge,
        terminated_fn: Judge | None = None,
        achieved: Any = "achieved_goal",
        desired: Any = "desired_goal",
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(RandomSampler() if sampler is None else sampler)
        if strategy not in _KIN:
            raise ValueError(f"strategy: expected one of {', '.join(_KIN)}, got {strategy!r}")
        for name, given in (("reward_fn", reward_fn), ("terminated_fn", terminated_fn)):
            if not callable(given) and (given is not None or name == "reward_fn"):
                raise TypeError(
                    f"{name}: expected a function of (achieved, goal, rows), got {given!r}"
                )
        self.strategy = strategy
        self.k = whole("k", k, 0, "relabelled rows for each that is not")
        self.reward_fn, self.terminated_fn = reward_fn, terminated_fn
        self.achieved, self.desired = as_path(achieved), as_path(desired)
        self._bounds = KnownBounds()

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self._relabel(index, rng, self.sampler.draw(index, rng, request))

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self._relabel(index, rng, self.sampler.take(index, rng, request))

    def _relabel(self, index: Index, rng: Rng, inner: Draw | None) -> Draw | None:
        if inner is None:
            return None
        if inner.steps is not None or inner.aside:
            raise ValueError(
                "HindsightRelabel needs a sampler of stored rows: rows folded by NStepSampler, or "
                "relabelled already, have no goals of their own"
            )
        self._bounds.need(index, "goals of the same trajectory")
        lasts, chosen = inner.seqs, self._choose(rng, inner.groups)
        if inner.lengths is not None:
            lasts = inner.seqs[np.cumsum(inner.lengths) - 1]
        goals = self._goals(index, rng, lasts)
        if inner.lengths is not None:
            each = np.repeat(np.arange(inner.groups), inner.lengths)
            chosen, goals = chosen[each], Places(each).of(goals)
        return inner._replace(
            columns={**inner.columns, RELABELED: chosen},
            aside={_GOAL: goals},
            finish=partial(self._finish, inner.finish),
        )

    def _choose(self, rng: Rng, groups: int) -> Array:
        """Which groups are relabelled: k of k + 1; where that is no whole number, one more or
        less, so that it is so on average."""
        among = 2**53
        spare = int(_native.uniform_below(rng.words, 0, among, 1)[0]) / among
        count = min(int(groups * self.k / (self.k + 1) + spare), groups)
        chosen = np.zeros(groups, np.bool_)
        chosen[_native.permute(rng.key(), groups, 0, count)] = True
        return chosen

    def _goals(self, index: Index, rng: Rng, seqs: Array) -> Array:
        """What some row of each row's trajectory has achieved.

        They are read now, while it is known which of them a writer has evicted: those are drawn
        again.
        """
        storage, path = index.storage, (*NEXT, *self.achieved)
        if storage.layout is None or path not in storage.layout.by_path:
            raise _missing(path, storage.layout)
        for leaf in map(storage.layout.by_path.get, (path, self.desired, (*NEXT, *self.desired))):
            if leaf is not None and leaf.ragged:
                raise ValueError(
                    f"{show_path(leaf.path)}: {leaf.describe()}, but goals have a fixed shape; "
                    "store them padded, or name other leaves with achieved= and desired="
                )
        which = _KIN[self.strategy]
        kin = index.view.draw_kin(rng.words, seqs, index.bounds, which)
        goals, lost = read_leaf(storage, kin, path)
        for _ in range(_TRIES):
            if lost is None:
                break
            index.refresh()
            places = np.flatnonzero(lost)
            kin = index.view.draw_kin(rng.words, seqs[places], index.bounds, which)
            goals[places], gone = read_leaf(storage, kin, path)
            lost[places] = False if gone is None else gone
            lost = lost if gone is not None else None
        if lost is not None:  # if these are lost, too, so are the rows that they are for
            goals[lost] = read_leaf(storage, seqs[lost], path)[0]
        return goals

    def _finish(
        self, inner: Callable[[Batch, Draw], Batch] | None, batch: Batch, draw: Draw
    ) -> Batch:
        if inner is not None:
            batch = inner(batch, draw)
        layout = batch.layout
        reward = REWARD if REWARD in layout.by_path else REWARD[1:]
        if self.desired not in layout.by_path:
            raise _missing(self.desired, layout)
        if reward not in layout.by_path:
            raise _missing(REWARD, layout, _NO_REWARD)
        places = np.flatnonzero(batch[RELABELED])
        if not len(places):
            return batch
        goals = batch.take(draw.aside[_GOAL], places)
        # Before anything is replaced.
        achieved = batch.take(batch[(*NEXT, *self.achieved)], places)
        for path in (self.desired, (*NEXT, *self.desired)):
            if path in layout.by_path:
                _put(batch, path, places, goals)
        rows = RelabeledRows(batch, places)
        _put(batch, reward, places, _judged("reward_fn", self.reward_fn, achieved, goals, rows))
        if self.terminated_fn is not None:
            ends = as_array(_judged("terminated_fn", self.terminated_fn, achieved, goals, rows))
            _end(batch, places, ends != 0, draw.lengths)
        return batch


def relabels(sampler: Any) -> bool:
    """Whether a sampler's rows have ``("collector", "relabeled")``: it, or one inside it, is
    HindsightRelabel."""
    while sampler is not None and not isinstance(sampler, HindsightRelabel):
        sampler = getattr(sampler, "sampler", None)
    return sampler is not None


_NO_GOALS = "Name yours with achieved= and desired="
_NO_REWARD = (
    'It, or a leaf "reward", is what reward_fn replaces: store one, of zeros if there is none'
)
_NO_FLAGS = 'It, or a leaf "terminated", is what terminated_fn replaces: store one, or "done"'


def _missing(path: Path, layout: Layout | None, hint: str = _NO_GOALS) -> NothingEligibleError:
    known = "nothing yet" if layout is None else ", ".join(show_path(p) for p in layout.by_path)
    return NothingEligibleError(
        f"hindsight needs a leaf {show_path(path)}; the data has {known}. {hint}"
    )


def _judged(name: str, judge: Judge, achieved: Array, goals: Array, rows: RelabeledRows) -> Any:
    out = judge(achieved, goals, rows)
    out = out if is_tensor(out) else np.asarray(out)  # of a device, it may stay there
    if math.prod(out.shape) != len(rows):
        raise ValueError(
            f"{name}: returned shape {list(out.shape)}, expected [{len(rows)}]: one value for each "
            "row; it gets all rows at once"
        )
    return out.reshape(-1)


def _put(batch: Batch, path: Path, places: Array, values: Any) -> None:
    shape = (len(places), *batch.layout.by_path[path].shape)
    if tuple(values.shape) != shape:
        if math.prod(values.shape) != math.prod(shape):
            raise ValueError(
                f"{show_path(path)}: a row has shape {list(shape[1:])}, and what takes its place "
                f"has {list(values.shape[1:])}"
            )
        values = values.reshape(shape)
    batch.put(path, places, values)


def _end(batch: Batch, places: Array, ends: Array, lengths: Array | None) -> None:
    """Writes how rows end: below `next`, and at the root if flags are stored there only."""
    known, below = batch.layout.by_path, TERMINATED in batch.layout.by_path
    at_root = TERMINATED[1:] in known and (not below or TERMINATED in batch.extras)
    if not below and not at_root:
        raise _missing(TERMINATED, batch.layout, _NO_FLAGS)
    if MASK in known:  # padding ends nothing
        real = batch[MASK][places]
        places, ends = places[real], ends[real]
    if below:
        stops = None if lengths is None else _stops(batch, lengths)[places]
        _end_at(batch, NEXT, places, ends, stops)
    if at_root:
        _end_at(batch, (), places, ends, None)  # where slices stop is marked below `next`


def _end_at(batch: Batch, parent: Path, places: Array, ends: Array, stops: Array | None) -> None:
    """Flags at one place. Where a slice stops, that is a truncation unless it is an end."""
    done, terminated, truncated = ((*parent, flag) for flag in FLAGS)
    _put(batch, terminated, places, ends)
    cut: Any = False
    if truncated in batch.layout.by_path:
        cut = batch[truncated][places].reshape(-1) != 0
        if stops is not None:
            cut = (cut | stops) & ~ends
            _put(batch, truncated, places, cut)
    if done in batch.layout.by_path:
        _put(batch, done, places, ends | cut)


def _stops(batch: Batch, lengths: Array) -> Array:
    """The last row of each slice, without its padding: a mask."""
    last = np.zeros(len(batch), np.bool_)
    last[np.cumsum(lengths) - 1] = True
    if MASK not in batch.layout.by_path:
        return last
    real = batch[MASK]
    return np.asarray(real & (last | ~np.append(real[1:], False)))
