"""Slices: contiguous pieces of trajectories, flat, one after another.

A slice's first row gets `is_init`, its last row `truncated` (and so `done`) unless the trajectory
really ended there; `("collector", "slice_end")` tells such cuts from stored truncations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from ..arguments import whole
from ..batch import Batch
from ..errors import NothingEligibleError
from ..keys import BURN_IN, DONE, FLAGS, MASK, SLICE_END, TRUNCATED
from ..tree import Path, as_path
from .base import Array, Draw, Index, Mass, Request, Rng, Sampler

__all__ = ["SliceSampler", "SliceSamplerWithoutReplacement", "SliceMarks"]


# Up to so many runs, a message says more about them: it is made for every write that a buffer
# waits for in vain.
_FEW_RUNS = 10_000

# Seqs of all rows; of each slice, its rows, its burn-in rows and how it ended (index flags).
Slices = tuple[Array, Array, Array, Array]
Span = bool | int | tuple[bool | int, bool | int]


class SliceMarks:
    """Writes the marks of slices into a gathered batch.

    Args:
        init_key: leaf for slice starts; None writes none.
        truncated_key: leaf for slice ends, beside `done` and `terminated`; None writes none.
        pad_output: whether short slices are padded.
        burn_in: whether slices carry a burn-in.
    """

    def __init__(
        self, init_key: Any, truncated_key: Any, pad_output: bool = False, burn_in: bool = False
    ) -> None:
        self.init: Path | None = None if init_key is None else as_path(init_key)
        self.truncated: Path | None = None if truncated_key is None else as_path(truncated_key)
        self.pad_output = pad_output
        self.burn_in = burn_in
        flags = () if self.truncated is None else (*self.truncated[:-1],)
        self._flags: tuple[Path, Path, Path] | None = None
        if self.truncated is not None:
            self._flags = ((*flags, FLAGS[0]), (*flags, FLAGS[1]), self.truncated)
        self._places: dict[Any, tuple[tuple[Any, ...], bool]] = {}
        self.columns: dict[Path, Any] = {SLICE_END: np.False_}
        if self.init is not None:
            self.columns[self.init] = np.False_
        if self._flags is not None:
            self.columns.update(dict.fromkeys(self._flags, np.False_))
        # Stored marks stay, and more are set.
        self._kept = frozenset(self.columns) - {SLICE_END}

    def draw(self, slices: Slices, length: int) -> Draw:
        """The Draw of some slices, which are padded to `length` if slices are."""
        seqs, lengths, burn, ends = slices
        columns = self.columns
        if self.pad_output:
            seqs, lengths, mask = _pad(seqs, lengths, length + burn)
            columns = {**columns, MASK: mask}
        if self.burn_in:
            columns = {**columns, BURN_IN: _burn_column(lengths, burn)}
        return Draw(seqs, lengths, columns, self.finish, ends, kept=self._kept)

    def finish(self, batch: Batch, draw: Draw) -> Batch:
        assert draw.lengths is not None and draw.ends is not None
        real = draw.lengths
        if self.pad_output:
            starts = np.cumsum(draw.lengths) - draw.lengths
            real = np.add.reduceat(batch[MASK].astype(np.int64), starts)
        if self._flags is not None:
            _adopt_root_flags(batch, self._flags)
        places, told = self._columns_of(batch)
        _native.mark_slices(batch.memory, draw.lengths, real, draw.ends, places, told)
        return batch

    def _columns_of(self, batch: Batch) -> tuple[tuple[Any, ...], bool]:
        """Where the marks go in a batch like this one: offset and "true" of each column; and
        whether ends are known from the index only, because the data has no done flags."""
        key = (batch.layout, len(batch))
        found = self._places.get(key)
        if found is None:
            layout, views = batch.layout, batch.layout.block_columns(len(batch)).views
            done, terminated, truncated = self._flags or (DONE, None, None)
            if done not in layout.by_path:
                done = DONE[1:]

            def place(path: Path | None) -> tuple[int, bytes] | None:
                leaf = layout.by_path.get(path) if path is not None else None
                if leaf is None or leaf.shape not in ((), (1,)):
                    return None  # flags of agents are ordinary leaves
                offset = views[layout.number[leaf.path]][2]
                return offset, np.ones(leaf.shape, leaf.dtype).tobytes()

            paths = (self.init, done, terminated, truncated, SLICE_END)
            stored = done in layout.by_path and done not in batch.extras
            told = not stored and DONE[1:] not in layout.by_path
            found = (tuple(place(p) for p in paths), told)
            if len(self._places) > 64:
                self._places.clear()
            self._places[key] = found
        return found


def _adopt_root_flags(batch: Batch, flags: tuple[Path, Path, Path]) -> None:
    """Flags stored at the root only start out as such in the leaves that were added below next."""
    if not batch.extras.intersection(flags):
        return
    for path in flags:
        root = (path[-1],)
        if path in batch.extras and root != path and root in batch.layout.by_path:
            batch[path][...] = batch[root].reshape(len(batch), -1).any(-1)


def _burn_column(lengths: Array, burn: Array) -> Array:
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    return np.asarray(place < np.repeat(burn, lengths))


def _pad(seqs: Array, lengths: Array, to: Array) -> tuple[Array, Array, Array]:
    """Slices with their last row repeated up to a length each; and which rows are real."""
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(to.sum())) - np.repeat(np.cumsum(to) - to, to)
    real = np.repeat(lengths, to)
    rows = np.repeat(starts, to) + np.minimum(place, real - 1)
    return seqs[rows], to, place < real


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
        trajectory_key: Any = None,
    ) -> None:
        if num_slices is None and slice_len is None:
            raise ValueError("SliceSampler needs num_slices, slice_len or both")
        if num_slices is not None:
            num_slices = whole("num_slices", num_slices, 1)
        if slice_len is not None:
            slice_len = whole("slice_len", slice_len, 1)
        if over not in ("trajectories", "steps"):
            raise ValueError(f'over: expected "trajectories" or "steps", got {over!r}')
        if pad_output and strict_length:
            raise ValueError("pad_output=True has nothing to pad with strict_length=True")
        burn_in = whole("burn_in", burn_in, 0, "a number of rows")
        if traj_key is not None and trajectory_key is not None and traj_key != trajectory_key:
            raise ValueError("traj_key and trajectory_key are two names of one thing; give one")
        self.num_slices = num_slices
        self.slice_len = slice_len
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
        self._specs: dict[int, Any] = {}
        self._told = False
        self._told_none = -1  # trajectories the storage had ever had when it was not

    def request(self, batch_size: int) -> Request:
        groups, length = self.num_slices, self.slice_len
        if groups is not None and length is not None:
            if groups * length != batch_size:
                raise ValueError(
                    f"batch_size {batch_size} is not num_slices {groups} x slice_len {length} = "
                    f"{groups * length}"
                )
            return Request(groups, length)
        name, given = ("num_slices", groups) if groups is not None else ("slice_len", length)
        assert given is not None
        if batch_size % given or batch_size < given:
            raise ValueError(f"batch_size {batch_size} is not a multiple of {name} {given}")
        other = batch_size // given
        return Request(given, other) if groups is not None else Request(other, given)

    def spec(self, length: int) -> Any:
        """The native form of what a valid slice is."""
        found = self._specs.get(length)
        if found is None:
            left, right = (length - 1 if n < 0 else min(n, length - 1) for n in self._sides)
            found = _native.SliceSpec(length, span_left=left, span_right=right, **self._options)
            self._specs[length] = found
        return found

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        self._need_boundaries(index)
        found = index.view.draw_slices(
            rng.words, index.window, self.spec(request.length), request.groups
        )
        return None if found is None else self._marks.draw(found, request.length)

    def mass(self, index: Index, request: Request) -> Mass:
        if not int(index.view.trajectories):  # nothing to look at yet
            return Mass(0)
        self._need_boundaries(index)
        return Mass(int(index.view.weigh_slices(index.window, self.spec(request.length))))

    def _need_boundaries(self, index: Index) -> None:
        schema = index.storage.schema
        if self._told or schema is None or schema.boundaries.any:
            return
        # Without marks in the data there may still be trajectories whose bounds were told; each of
        # those is a new one, so there is nothing to look for before there are more.
        begun = int(index.storage.tape.trajectories)
        if begun != self._told_none:
            table = index.storage.episodes()
            told = table["terminated"] | table["truncated"] | (table["traj_id"] != -1)
            self._told = bool(told.any()) or len(np.unique(table["writer"])) < len(table)
            self._told_none = begun
        if not self._told:
            raise NothingEligibleError(
                "slices need to know where trajectories end, and the data has none of "
                f"{schema.boundaries.looked_for}; add one of them, name one with traj_key= or "
                "end_key=, or write with extend_trajectory"
            )

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
        return text


class SliceSamplerWithoutReplacement(SliceSampler):
    """One slice of each trajectory per epoch, in random order, then reshuffled.

    Args:
        drop_last: an epoch ends before a batch it cannot fill; else its last batch is shorter.
        others: as in SliceSampler.
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
        return self.drop_last

    def reset(self) -> None:
        self._epoch: Array = np.empty(0, np.int64)
        self._at = 0

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        self._need_boundaries(index)
        spec = self.spec(request.length)
        for _ in range(2):
            left = len(self._epoch) - self._at
            if left > 0 and (left >= request.groups or not self.drop_last):
                slices, used = index.view.slices_of(
                    rng.words, index.window, spec, self._epoch[self._at :], request.groups
                )
                self._at += used
                enough = len(slices[1]) == request.groups or not self.drop_last
                if len(slices[1]) and enough:
                    return self._marks.draw(slices, request.length)
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
        self._epoch = alive[_native.permute(rng.key(), len(alive), 0, len(alive))]
        self._at = 0

    def divide(self, rank: int, world_size: int) -> None:
        if (rank, world_size) != (self._rank, self._ranks):
            self._rank, self._ranks = rank, world_size
            self.reset()

    def mass(self, index: Index, request: Request) -> Mass:
        self._length = request.length
        return Mass(len(self._epoch) - self._at)

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        places = self._epoch[self._at : self._at + request.groups]
        self._at += len(places)
        spec = self.spec(request.length)
        slices, _ = index.view.slices_of(rng.words, index.window, spec, places, len(places))
        return self._marks.draw(slices, request.length) if len(slices[1]) else None

    def begin_epoch(self, index: Index, rng: Rng) -> None:
        if int(index.view.trajectories):
            self._need_boundaries(index)
            self._begin(index, rng, self.spec(self._length))
        else:
            self.reset()

    def mark(self) -> Any:
        return (self._epoch, self._at)

    def rewind(self, mark: Any) -> None:
        self._epoch, self._at = mark

    def state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "at": self._at}

    def load(self, state: dict[str, Any]) -> None:
        self._epoch, self._at = np.array(state["epoch"], np.int64), int(state["at"])
