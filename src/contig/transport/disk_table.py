"""A table whose rows are on disk: an item counts as committed when its transaction is through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import StorageFull
from ..sample import RateLimiter
from ..tape.disk import DiskStorage
from .tables import Outcome, TapeTable

__all__ = ["DiskTable"]

_FLUSH_S = 10.0


class DiskTable(TapeTable):
    """Items go to a storage on disk that this process writes to."""

    def __init__(self, storage: DiskStorage, limiter: RateLimiter | None = None) -> None:
        super().__init__(storage, limiter)
        self._disk = storage
        if storage.durability == "durable":
            self.ack_levels = ("received", "committed", "durable")

    def seen(self, producer: int, next_item: int) -> int:
        self.settle()  # what is only in memory would not come again
        return super().seen(producer, next_item)

    def accept(self, receiver: Any, producer: int) -> Outcome:
        try:
            return super().accept(receiver, producer)
        except StorageFull:  # tried again until there is room
            return Outcome(int(self.storage.tape.seen(producer, receiver.number)), 0, 0, True)

    def _append(self, writer: Any, receiver: Any, producer: int, most: int) -> Any:
        return writer.accept(receiver, producer, most)

    @property
    def ticket(self) -> int:
        return self._disk.ticket

    @property
    def settled(self) -> int:
        return self._disk.settled

    def settle(self) -> None:
        self._disk.flush(_FLUSH_S)

    def on_settled(self, call: Callable[[], None]) -> None:
        self._disk.on_commit(call)
