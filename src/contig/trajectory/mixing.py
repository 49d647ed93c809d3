"""Batches of two buffers as one: rows of the first, then rows of the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..batch import Batch
from ..errors import LayoutError
from ..replay import ReplayBuffer
from ..sample import Rng
from ..tree import Path, show_path
from .record import IS_DEMO, MASK, Record

__all__ = ["Demos", "MixedRows", "join_batches", "share"]


class MixedRows(ReplayBuffer):
    """A ReplayBuffer that draws a part of each batch from another. Thread-safe.

    Args:
        arguments: of a ReplayBuffer.
        demos: the other one at present, None without one; and its part.
        options: of a ReplayBuffer.

    Attributes:
        record: what a row is, once that is known.
    """

    def __init__(self, *arguments: Any, demos: Demos = lambda: (None, 0.0), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.record: Record | None = None
        self._demos = demos
        self._taking = threading.Lock()

    def take(self, n: int) -> Batch:
        """A batch of n rows, drawn ahead if that was asked for; of another size than the last one,
        what was drawn ahead is thrown away."""
        if self._prefetcher is None:
            return self.draw(n)
        with self._taking:
            if n != self.batch_size:
                self._drain()
                self.batch_size = n
            batch: Batch = self.sample()
            return batch

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Throws away what was drawn ahead, and lets nobody draw."""
        self._drain()
        with self._turn:
            yield

    def draw(self, batch_size: int | None = None, *, of: int | None = None) -> Batch:
        demos, ratio = self._demos()
        size = batch_size or self.batch_size or 1
        if demos is None:
            return self.draw_own(size)
        with self._turn:
            before = self._rng.words.copy()
            try:
                count = share(size, ratio, self._rng)
                mine = self.draw_own(size - count) if count < size else None
                theirs = demos.draw_own(count) if count else None
                return join_batches(mine, self.record, theirs, demos.record)
            except BaseException:
                self._rng.words[:] = before  # a draw that failed uses no random numbers up
                raise

    def draw_own(self, n: int) -> Batch:
        """Rows of this buffer."""
        return super().draw(n)

    def _mark(self) -> Any:
        demos, _ = self._demos()
        return (*super()._mark(), None if demos is None else demos._rng.state())

    def _rewind(self, mark: Any) -> None:
        super()._rewind(mark)
        demos, _ = self._demos()
        if demos is not None:
            demos._rng.load(mark[2])


Demos = Callable[[], tuple[MixedRows | None, float]]


def share(n: int, ratio: float, rng: Rng) -> int:
    """How many of n rows are demos; `n * ratio` on average, also where that is no whole number."""
    exact = n * ratio
    whole = int(exact + 1e-9)
    part = exact - whole
    if part > 1e-9 and rng.key() < part * 2.0**63:
        whole += 1
    return whole


def join_batches(
    online: Batch | None, record: Record | None, demo: Batch | None, demo_record: Record | None
) -> Batch:
    """Rows of both, with the first one's fields, and a leaf that marks demos. What demos lack must
    be optional, and is masked.

    Raises:
        LayoutError: a field of one that the other lacks or has in another form.
    """
    record = record or demo_record
    assert record is not None
    if demo is not None:
        assert demo_record is not None
        _check(record, demo_record)
    n = 0 if online is None else len(online)
    out = Batch.empty(record.marked, (n + (0 if demo is None else len(demo)),))
    out[IS_DEMO][:n], out[IS_DEMO][n:] = False, True
    for path in record.layout.by_path:
        column = out[path]
        if online is not None:
            column[:n] = online[path]
        if demo is None or demo_record is None:
            continue
        if path in demo_record.layout.by_path:
            column[n:] = demo[path]
        elif path[0] == MASK:  # all demos have it, or none has
            column[n:] = all(p in demo_record.fields for p in record.optional[path[1:]])
        else:
            column[n:] = 0
    return out


def _check(online: Record, demo: Record) -> None:
    for path in {*online.fields, *demo.fields}:
        mine = online.layout.by_path.get(online.place(path))
        theirs = demo.layout.by_path.get(demo.place(path))
        may_lack = _optional(online, path)
        if mine is None:
            raise LayoutError(
                f"{show_path(path)}: the demo buffer has it and this buffer does not; leave it out "
                f"there, or declare it here: optional={{{show_path(path)}: ShapeDtype(...)}}"
            )
        if theirs is None:
            if not may_lack:
                raise LayoutError(
                    f"{show_path(path)}: the demo buffer does not have it; if that is right, "
                    f"declare it here: optional=[{show_path(path)}]"
                )
        elif (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            raise LayoutError(
                f"{show_path(path)}: {theirs.describe()} in the demo buffer, {mine.describe()} here"
            )
        elif _optional(demo, path) != may_lack and _optional(demo, path) is not None:
            raise LayoutError(
                f"{show_path(path)}: optional in the demo buffer; declare it the same here"
            )


def _optional(record: Record, path: Path) -> Path | None:
    """The optional field that a leaf is part of."""
    return next((p for p, leaves in record.optional.items() if path in leaves), None)
