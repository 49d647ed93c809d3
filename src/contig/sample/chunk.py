"""Chunks: rows with what is done from each of them on, for policies that act several steps at once.

    row      t                    action      [k, ...] of t, t + 1 ... t + k - 1
    near the trajectory's end     the last action again, and the mask is False

Chunks are read when rows are drawn: of a row that is still there when it is gathered, all that
comes after it was there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arguments import whole
from ..convert import as_array
from ..errors import NothingEligibleError
from ..keys import CHUNK_MASK
from ..tape.one_leaf import read_leaves
from ..tree import Path, as_path, show_path
from .base import Array, Draw, Index, Mass, OuterSampler, Request, Rng, Sampler
from .bounds import KnownBounds
from .fields import FieldLeaves
from .predicate import Predicate, Where, left_out
from .uniform import RandomSampler

__all__ = ["ChunkSampler"]


class ChunkSampler(OuterSampler):
    """Rows with the next k actions of their trajectory, ``[B, k, ...]``, in place of one.

    ``("collector", "chunk_mask")``, bool ``[B, k]``, is True for actions that are there. After a
    done, or where the trajectory stops or still goes on, the last action is repeated and the mask
    is False; the first is always there.

    Args:
        chunk: k, actions of a row. It may be changed between samples.
        sampler: what draws the rows; RandomSampler if None. Any sampler; of slices, every row gets
            its chunk, which goes on beyond the slice. `NStepSampler(k, gamma)` makes the transition
            that belongs to the chunk.
        keys: leaves that become chunks, or what they are below: names, or tuples for nested ones.
        where: only rows of trajectories that it holds for; see `Predicate`.
        fields: fields of its trajectory that each row gets, below `fields`.
    """

    def __init__(
        self,
        chunk: int,
        sampler: Sampler | None = None,
        *,
        keys: Sequence[Any] = ("action",),
        where: Where | None = None,
        fields: Sequence[Any] = (),
    ) -> None:
        super().__init__(RandomSampler() if sampler is None else sampler)
        self.chunk = whole("chunk", chunk, 1, "a number of actions")
        if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
            raise TypeError(f'keys: expected a sequence such as ("action",), got {keys!r}')
        self.keys: tuple[Path, ...] = tuple(dict.fromkeys(as_path(key) for key in keys))
        self._where, self._fields = Predicate.of(where), FieldLeaves(fields)
        self._bounds = KnownBounds()
        self._known: tuple[Any, tuple[Path, ...], Path | None] | None = None

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self._chunks(index, self.sampler.draw(self._eligible(index), rng, request))

    def take(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return self._chunks(index, self.sampler.take(self._eligible(index), rng, request))

    def mass(self, index: Index, request: Request) -> Mass:
        return self.sampler.mass(self._eligible(index), request)

    def begin_epoch(self, index: Index, rng: Rng) -> None:
        self.sampler.begin_epoch(self._eligible(index), rng)

    def missing(self, index: Index) -> str:
        return self.sampler.missing(index) + left_out(index.filters, self._where)

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        inner = self.sampler.agree(surveys) or [None] * len(surveys)
        return [(self.chunk, i) for i in inner]

    def adopt(self, told: Any) -> None:
        self.chunk, inner = told
        if inner is not None:
            self.sampler.adopt(inner)

    def _eligible(self, index: Index) -> Index:
        """The index with those trajectories only that `where` holds for."""
        self._bounds.need(index, "chunks")
        self._fields.check(index)
        return index.where(self._where)

    def _chunks(self, index: Index, inner: Draw | None) -> Draw | None:
        if inner is None:
            return None
        storage, k = index.storage, self.chunk
        paths, done = self._leaves(index)
        rows, lengths = index.view.follow(np.ascontiguousarray(inner.seqs), k)
        step, n = np.arange(k), len(lengths)
        real = step < lengths[:, None]
        if len(rows) < n * k:  # the last one is read again, as often as some are missing
            last = np.minimum(step, lengths[:, None] - 1)
            rows = rows[(last + (np.cumsum(lengths) - lengths)[:, None]).reshape(-1)]
        read = paths if done is None or done in paths else (*paths, done)
        columns, lost = read_leaves(storage, rows, read)
        if storage.device is not None:  # they become columns that the sampler adds
            columns = [as_array(column) for column in columns]
        over = None if done is None else columns[read.index(done)].reshape(n, k)[:, :-1] != 0
        if lost is not None or (over is not None and (over & real[:, 1:]).any()):
            cut = np.zeros((n, k), np.bool_)  # what comes from there on is of no use
            if over is not None:
                cut[:, 1:] = over
            if lost is not None:
                cut |= _still_lost(storage, rows, lost, columns, read).reshape(n, k)
            real &= ~np.logical_or.accumulate(cut, axis=1)
            last = np.minimum(step, np.maximum(real.sum(1)[:, None] - 1, 0))
            places = (last + np.arange(n)[:, None] * k).reshape(-1)
            columns = [column[places] for column in columns]
        chunks = {p: c.reshape(n, k, *c.shape[1:]) for p, c in zip(paths, columns)}
        added = {**inner.columns, **chunks, CHUNK_MASK: real}
        return self._fields.add(index, inner._replace(columns=added))

    def _leaves(self, index: Index) -> tuple[tuple[Path, ...], Path | None]:
        """The leaves that become chunks; and the one that says where episodes end, if any does."""
        schema = index.storage.schema
        assert schema is not None, "a storage without a schema has no rows to draw"
        layout = schema.layout
        if self._known is not None and self._known[0] is layout:
            return self._known[1:]
        found: list[Path] = []
        for key in self.keys:
            below = [leaf for leaf in layout.leaves if leaf.path[: len(key)] == key]
            if not below:
                there = ", ".join(show_path(p) for p in layout.by_path)
                raise NothingEligibleError(
                    f"chunks need a leaf {show_path(key)}; the data has {there}. Name yours with "
                    "keys="
                )
            for leaf in below:
                if leaf.ragged:
                    raise ValueError(
                        f"{show_path(leaf.path)}: {leaf.describe()}, but what is in a chunk has a "
                        "fixed shape; store it padded, or name other leaves with keys="
                    )
            found += [leaf.path for leaf in below]
        done = schema.boundaries.done
        if done is not None and done not in layout.by_path:
            done = None
        self._known = (layout, tuple(dict.fromkeys(found)), done)
        return self._known[1:]


def _still_lost(
    storage: Any, rows: Array, lost: Array, columns: list[Array], paths: tuple[Path, ...]
) -> Array:
    """Which rows of chunks could not be read, after another look at those that are stored.

    What was evicted took the chunk's own row with it. A row that is damaged is set aside by this
    look with its trajectory, and so is the chunk's own. One that cannot be decoded ends the chunk.
    """
    places = np.flatnonzero(lost & (rows >= int(storage.tape.snapshot()[1])))
    if len(places):
        again = rows[places]
        batch, gone = storage.gather(again, aside=True)
        for column, path in zip(columns, paths):
            column[places] = as_array(batch[path])
        lost[places] = gone if np.ndim(gone) else again < gone
    return lost
