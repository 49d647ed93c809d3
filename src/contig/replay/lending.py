"""Batches that are drawn for somebody who may be gone before they reach him.

    lend -> batch, Lent -> sent -> taken: the Lent is dropped
                             |
                             +-> nobody got it: take_back, and its rows may be drawn again

Of several batches that were lent, any can be given back: what others were given stays theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from ..batch import Batch
from ..sample import Change
from .prefetch import Cancelled

__all__ = ["Lending", "Lent"]


class Lent(NamedTuple):
    """What a batch took that will not come again by itself.

    Attributes:
        taken: for the sampler; empty if it draws again and again anyway.
        rows: of the batch, as they were counted.
    """

    taken: list[Change]
    rows: int


class Lending(threading.local):
    """What the calling thread lends, if it does.

    Attributes:
        wanted: whether somebody still waits for the batch; None: it is not lent.
        taken, rows: by its draws so far.
    """

    def __init__(self) -> None:
        self.wanted: Callable[[], bool] | None = None
        self.taken: list[Change] = []
        self.rows = 0

    def check(self) -> None:
        """Raises Cancelled if nobody waits any more."""
        if self.wanted is not None and not self.wanted():
            raise Cancelled("who asked for this batch is gone")

    def lend(
        self,
        draw: Callable[[], Batch],
        take_back: Callable[[Lent], None],
        wanted: Callable[[], bool],
    ) -> tuple[Batch, Lent]:
        """What `draw` draws, while it is wanted; if that fails, what it took is taken back."""
        self.wanted, self.taken, self.rows = wanted, [], 0
        try:
            self.check()
            batch = draw()
            return batch, Lent(self.taken, self.rows)
        except BaseException:
            if self.taken:  # a transform failed, for example: nobody gets it
                take_back(Lent(self.taken, self.rows))
            raise
        finally:
            self.wanted, self.taken = None, []
