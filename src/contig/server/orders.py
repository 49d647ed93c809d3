"""What clients have asked the sampling service to draw, and what was drawn for them.

Kept from the request until it is known who got the batch. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from ..replay import Lent, ReplayBuffer

__all__ = ["Order", "Orders"]


class Order:
    """A request to sample.

    Attributes:
        wanted: whether who asked is there.
        lent: what was drawn for it and can be given back.
    """

    __slots__ = ("buffer", "lent", "wanted")

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self.wanted = True
        self.lent: Lent | None = None

    @property
    def rows(self) -> int:
        """How many can be given back."""
        return 0 if self.lent is None else self.lent.rows

    def give_back(self) -> None:
        """Nobody got it."""
        if self.lent is not None:
            self.buffer.take_back(self.lent)


class Orders:
    """Orders by the line they came over and their token.

    Attributes:
        unconfirmed_rows: of lines that broke: whether anybody got them is not known.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[tuple[Hashable, int], Order] = {}
        self.unconfirmed_rows = 0

    def new(self, line: Hashable, token: int, buffer: ReplayBuffer) -> Order:
        with self._lock:
            order = self._all[line, token] = Order(buffer)
            return order

    def unwanted(self, line: Hashable, token: int) -> None:
        """Who asked is gone: it is not drawn, if it has not been yet."""
        with self._lock:
            order = self._all.get((line, token))
            if order is not None:
                order.wanted = False

    def close(self, line: Hashable, token: int) -> Order | None:
        """Its end, and what it was; None: it had ended."""
        with self._lock:
            return self._all.pop((line, token), None)

    def broken(self, line: Hashable) -> None:
        """Nothing more comes over a line, nor goes."""
        with self._lock:
            for key in [k for k in self._all if k[0] is line]:
                order = self._all.pop(key)
                order.wanted = False
                self.unconfirmed_rows += order.rows
