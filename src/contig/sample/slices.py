"""Slices: contiguous pieces of trajectories, flat, one after another, and marked as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native
from ..arguments import whole
from ..keys import TRUNCATED
from .at_once import UniformSlices
from .base import Array, Draw, Index, Mass, Request, Rng, Sampler, request_of
from .bounds import KnownBounds
from .candidates import uniform_slices
from .fields import FieldLeaves
from .predicate import Predicate, Where, left_out
from .slice_marks import SliceMarks, Slices
from .undo import Change, UndoLog

__all__ = ["SliceSampler", "SliceSamplerWithoutReplacement"]


# Up to so many runs, a message says more about them: it is made for every write that a buffer
# waits for in vain.
_FEW_RUNS = 10_000

Span = bool | int | tuple[bool | int, bool | int]


def _sides(span: Span) -> tuple[int, ...]:
    """Rows on the left and on the right; -1: all but one."""
    sides = tuple(span) if isinstance(span, (tuple, list)) else (span, span)
    if len(sides) != 2:
        raise ValueError(f"span: expected one number of rows or (left, right), got {span!r}")
    return tuple(
        -int(side)
        if isinstance(side, (bool, np.bool_))
        else whole("span", side, 0, "bools or rows")
        for side in sides
    )


def _size(num_slices: Any, slice_len: Any) -> tuple[int | None, int | None]:
    if num_slices is None and slice_len is None:
        raise ValueError("SliceSampler needs num_slices, slice_len or both")
    return (
        None if num_slices is None else whole("num_slices", num_slices, 1),
        None if slice_len is None else whole("slice_len", slice_len, 1),
    )


class SliceSampler(Sampler):
    """Contiguous slices of trajectories, flat ``[<= batch_size]``.

    Args:
        num_slices, slice_len: one of them, the other follows from the batch size; or both.
        traj_key, end_key: leaf with trajectory ids, or with ends; found by itself if not given.
        strict_length: only trajectories with at least `slice_len` rows; else short ones give
            shorter slices.
        pad_output: repeat a short slice's last row up to `slice_len`, and mark real rows.
        truncated_key, init_key: where slice ends and starts are marked; None: nowhere.
        over: "trajectories" (each alike, then its starts) or "steps" (each start alike).
        complete_only: only trajectories that are whole, from their first row to their end.
        burn_in: up to so many earlier rows before each slice, not counted in its length.
        span: how many rows of a slice may lie outside its trajectory, on either side.
        where: only trajectories that it holds for: a comparison such as `("return", ">=", 10.0)`, a
            list of them, or a function of columns; see `Predicate`.
        fields: fields of its trajectory that each row gets, below `fields`.
        trajectory_key: another name of `traj_key`.
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        traj_key: Any = None,
        end_key: Any = None,
        strict_length: bool = False,
        pad_output: bool = False,
        truncated_key: Any = TRUNCATED,
        init_key: Any = "is_init",
        over: str = "trajectories",
        complete_only: bool = False,
        burn_in: int = 0,
        span: Span = False,
        where: Where | None = None,
        fields: Sequence[Any] = (),
        trajectory_key: Any = None,
    ) -> None:
        self.num_slices, self.slice_len = _size(num_slices, slice_len)
        if over not in ("trajectories", "steps"):
            raise ValueError(f'over: expected "trajectories" or "steps", got {over!r}')
        if pad_output and strict_length:
            raise ValueError("pad_output=True has nothing to pad with strict_length=True")
        burn_in = whole("burn_in", burn_in, 0, "a number of rows")
        if traj_key is not None and trajectory_key is not None and traj_key != trajectory_key:
            raise ValueError("traj_key and trajectory_key are two names of one thing; give one")
        self.traj_key = traj_key if traj_key is not None else trajectory_key
        self.end_key = end_key
        self._options: dict[str, Any] = {
            "strict": strict_length,
            "complete_only": complete_only,
            "over_steps": over == "steps",
            "burn_in": burn_in,
        }
        self._sides = _sides(span)
        self._marks = SliceMarks(init_key, truncated_key, pad_output, burn_in > 0)
        self._where, self._fields = Predicate.of(where), FieldLeaves(fields)
        self._specs: dict[int, Any] = {}
        self._bounds = KnownBounds()
        self._at_once: UniformSlices | None = None
        if not pad_output and burn_in == 0:  # what these add differs from batch to batch
            self._at_once = UniformSlices(
                self._marks.form, self._need_bounds, self.spec, self._marks.columns_in
            )

    def _shown(self) -> dict[str, Any]:
        options = {"strict_length": self._options["strict"], **self._options}
        over = "steps" if self._options["over_steps"] else "trajectories"
        return {**super()._shown(), **options, "over": over, "pad_output": self._marks.pad_output}

    def request(self, batch_size: int) -> Request:
        groups, length = self.num_slices, self.slice_len
        if groups is not None and length is not None:
            if groups * length != batch_size:
                raise ValueError(
                    f"batch_size {batch_size} is not num_slices {groups} x slice_len {length} = "
                    f"{groups * length}"
                )
            return request_of(groups, length)
        name, given = ("num_slices", groups) if groups is not None else ("slice_len", length)
        assert given is not None
        if batch_size % given or batch_size < given:
            raise ValueError(f"batch_size {batch_size} is not a multiple of {name} {given}")
        other = batch_size // given
        return request_of(given, other) if groups is not None else request_of(other, given)

    def spec(self, length: int) -> Any:
        """The native form of what a valid slice is."""
        found = self._specs.get(length)
        if found is None:
            left, right = (length - 1 if n < 0 else min(n, length - 1) for n in self._sides)
            found = _native.SliceSpec(length, span_left=left, span_right=right, **self._options)
            self._specs[length] = found
        return found

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        index = self._eligible(index)
        found = uniform_slices(index, rng, self.spec(request.length), request.groups)
        return None if found is None else self._marked(index, found, request)

    def at_once(self) -> UniformSlices | None:
        # Whoever draws in another way, by a subclass, is asked.
        plain = type(self).draw is SliceSampler.draw and self._where is None
        return self._at_once if plain and not self._fields.paths else None

    def mass(self, index: Index, request: Request) -> Mass:
        if not int(index.view.trajectories):  # nothing to look at yet
            return Mass(0)
        index = self._eligible(index)
        return Mass(int(index.view.weigh_slices(index.window, self.spec(request.length))))

    def _eligible(self, index: Index) -> Index:
        """The index with those trajectories only that `where` holds for.

        Raises:
            NothingEligibleError: nobody knows where trajectories end.
            ValueError: `where` fails.
        """
        self._need_bounds(index)
        self._fields.check(index)
        return index.where(self._where)

    def _need_bounds(self, index: Index) -> None:
        self._bounds.need(index, "slices")

    def _marked(self, index: Index, slices: Slices, request: Request) -> Draw:
        return self._fields.add(index, self._marks.draw(slices, request.length))

    def missing(self, index: Index) -> str:
        text = f"{index.view.trajectories} trajectories"
        _, _, index_head, index_tail = index.storage.tape.snapshot()
        if index_head - index_tail <= _FEW_RUNS:
            table = index.storage.episodes()
            longest = int(table["steps"].max()) if len(table) else 0
            text += f", the longest with {longest} steps"
            if self._options["complete_only"]:
                text += f", {int(table['complete'].sum())} of them complete"
        if self._options["strict"]:
            text += (
                "; strict_length=True needs slice_len steps: use strict_length=False or shorter "
                "slices"
            )
        return text + left_out(index.filters, self._where)


class SliceSamplerWithoutReplacement(SliceSampler):
    """One slice of each trajectory per epoch, in random order, then reshuffled.

    Args:
        drop_last: an epoch ends before a batch it cannot fill; else its last batch is shorter.
        slices: arguments of SliceSampler.
    """

    def __init__(self, *, drop_last: bool = False, **slices: Any) -> None:
        super().__init__(**slices)
        if self._options["over_steps"]:
            raise ValueError('each trajectory once: over="steps" has no meaning here')
        self.drop_last = drop_last
        self._rank, self._ranks = 0, 1
        self._length = 1  # of the slices asked for last
        self.reset()

    @property
    def drops_last(self) -> bool | None:  # type: ignore[override]
        """Whether an epoch ends before a batch it cannot fill; None: there are no epochs."""
        return self.drop_last

    def reset(self) -> None:
        self._epoch: Array = np.empty(0, np.int64)
        self._at = 0
        self._undo = UndoLog()

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        index = self._eligible(index)
        spec = self.spec(request.length)
        for _ in range(2):
            left = len(self._epoch) - self._at
            if left > 0 and (left >= request.groups or not self.drop_last):
                slices, used = index.view.slices_of(
                    rng.words, index.window, spec, self._epoch[self._at :], request.groups
                )
                places = self._epoch[self._at : self._at + used]
                self._at += used
                enough = len(slices[1]) == request.groups or not self.drop_last
                if len(slices[1]) and enough:
                    self._undo.note(places)
                    return self._marked(index, slices, request)
            least = request.groups if self.drop_last else 1
            if self._ranks == 1 and index.view.count(index.window, spec) < least:
                return None
            self._begin(index, rng, spec)
            if len(self._epoch) < least:
                return None
        return None

    def _begin(self, index: Index, rng: Rng, spec: Any) -> None:
        alive = index.view.ordinals(index.window, spec)
        if self._ranks > 1:
            alive = alive[alive % self._ranks == self._rank]
        self._epoch = alive.take(_native.permute(rng.key(), len(alive), 0, len(alive)))
        self._at = 0

    def divide(self, rank: int, world_size: int) -> None:
        if (rank, world_size) != (self._rank, self._ranks):
            self._rank, self._ranks = rank, world_size
            self.reset()

    def mass(self, index: Index, request: Request) -> Mass:
        self._length = request.length
        return Mass(len(self._epoch) - self._at)

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        index = self._eligible(index)
        places = self._epoch[self._at : self._at + request.groups]
        self._at += len(places)
        spec = self.spec(request.length)
        slices, _ = index.view.slices_of(rng.words, index.window, spec, places, len(places))
        return self._marked(index, slices, request) if len(slices[1]) else None

    def begin_epoch(self, index: Index, rng: Rng) -> None:
        if int(index.view.trajectories):
            self._begin(self._eligible(index), rng, self.spec(self._length))
        else:
            self.reset()

    def mark(self) -> Any:
        return (self._epoch, self._at, self._undo.mark())

    def rewind(self, mark: Any) -> None:
        self._epoch, self._at, point = mark
        self._undo.since(point)

    def taken(self, mark: Any) -> list[Change]:
        return self._undo.changes(mark[-1])

    def give_back(self, taken: list[Change]) -> None:
        # They come next, also those of an epoch that is over: it is not, for whoever gets them.
        self._epoch = np.concatenate([*self._undo.undo(taken), self._epoch[self._at :]])
        self._at = 0

    def progress(self, mark: Any) -> Any:
        return {"at": self._at} if mark[0] is self._epoch else self.state()

    def advance(self, index: Index, progress: Any) -> None:
        if "epoch" in progress:  # another one than before
            self.load(progress)
        else:
            self._at = int(progress["at"])

    def state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "at": self._at}

    def load(self, state: dict[str, Any]) -> None:
        self.reset()
        self._epoch, self._at = np.array(state["epoch"], np.int64), int(state["at"])
