"""Batches for a buffer: of its own rows, with a share of another's, ahead of time in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..batch import Batch
from ..errors import EmptyBufferError, NothingEligibleError
from ..replay.prefetch import Prefetcher
from ..sample import Rng
from .mixing import join_batches, share
from .store import Store

__all__ = ["Drawing"]

_TRIES = 100  # before adding is stopped for a moment
_PASSING = (EmptyBufferError, NothingEligibleError)


class Drawing:
    """Draws rows of a buffer's store. Thread-safe.

    Args:
        store: what to draw from at present; raises if that is closed.
        adding: held while something is added.
        demos: what another buffer's rows are drawn with, None without one; and their part.
        seed: of the random numbers; None: fresh ones.
        prefetch: batches drawn ahead in a thread.

    Attributes:
        turn: held while something is drawn.
        rng: the random numbers.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        adding: Any,
        demos: Callable[[], tuple[Drawing | None, float]],
        seed: int | None,
        prefetch: int,
    ) -> None:
        self.turn = threading.RLock()
        self.rng = Rng(seed)
        self._store, self._adding, self._demos = store, adding, demos
        self._taking = threading.Lock()
        self._ahead = 0  # rows of the batches that are drawn ahead
        self._prefetcher = Prefetcher(self._draw_ahead, self._mark, prefetch) if prefetch else None

    def take(self, n: int) -> tuple[Batch, int]:
        """A batch of n rows, and how many of them are demos, which come last."""
        if self._prefetcher is None:
            return self._draw(n)
        with self._taking:
            if n != self._ahead:
                self.drain()
                self._ahead = n
            drawn: tuple[Batch, int] = self._prefetcher.take(_PASSING)
            return drawn

    def _draw_ahead(self) -> tuple[Batch, int]:
        return self._draw(self._ahead)

    def _draw(self, n: int) -> tuple[Batch, int]:
        with self.turn:
            before = self.rng.words.copy()
            try:
                return self._draw_both(n)
            except BaseException:
                self.rng.words[:] = before  # a draw that failed uses no random numbers up
                raise

    def _draw_both(self, n: int) -> tuple[Batch, int]:
        demos, ratio = self._demos()
        if demos is None:
            return self.draw_own(n), 0
        count = share(n, ratio, self.rng)
        mine = self.draw_own(n - count) if count < n else None
        if count == 0:
            assert mine is not None
            return mine, 0
        theirs = demos.draw_own(count)
        own, other = self._store().record, demos._store().record
        if own is None:  # there are demos only
            return theirs, count
        assert other is not None
        return join_batches(mine, own, theirs, other), count

    def draw_own(self, n: int) -> Batch:
        """Rows of this buffer's own trajectories."""
        with self.turn:
            store = self._store()
            for _ in range(_TRIES):
                batch = store.try_draw(self.rng, n)
                if batch is not None:
                    return batch
            with self._adding:  # others added faster than we could read
                batch = store.try_draw(self.rng, n)
            if batch is None:
                raise NothingEligibleError("the rows that could be sampled are damaged")
            return batch

    def _mark(self) -> Any:
        demos = self._demos()[0]
        return self.rng.state(), None if demos is None else demos.rng.state()

    def drain(self) -> None:
        """Throws away what was drawn ahead, and takes its random numbers back."""
        if self._prefetcher is None:
            return
        mark, _ = self._prefetcher.drain()
        if mark is not None:
            self.rng.load(mark[0])
            demos = self._demos()[0]
            if demos is not None:
                demos.rng.load(mark[1])

    def close(self) -> None:
        """Ends the prefetching."""
        if self._prefetcher is not None:
            self._prefetcher.close()
