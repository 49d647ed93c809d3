"""A table whose rows are on disk: an item counts as committed when its transaction is through."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from ..errors import StorageFull
from ..layout import Layout
from ..replay import Ingress
from ..tape.disk import DiskStorage
from ..tape.stacks import Stacks
from .tables import Outcome, Sender, Table, Taken, TapeTable

__all__ = ["DiskTable"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_STAGED = 64 << 20  # bytes that rows of one append would have whole


class DiskTable(TapeTable):
    """Items go to a storage on disk that this process writes to."""

    def __init__(self, ingress: Ingress, disk: DiskStorage) -> None:
        super().__init__(ingress)
        self._disk = disk
        if disk.durability == "durable":
            self.ack_levels = ("received", "committed", "durable")

    def fix(self, layout: Layout | None, fields: Layout | None, stacks: Stacks) -> None:
        try:
            super().fix(layout, fields, stacks)
        except OSError as error:
            if error.errno in _FULL:
                raise StorageFull(error.errno, f"no room for the table's files: {error}") from error
            raise

    def accept(self, receiver: Any, sender: Sender) -> Outcome:
        try:
            return super().accept(receiver, sender)
        except StorageFull:  # tried again until there is room
            return Outcome(sender.next, 0, 0, True)

    def take_frames(self, receiver: Any, socket: int, sender: Sender, patience_s: float) -> Taken:
        # Each append is staged, and written by the storage's committer: which is Python.
        return Table.take_frames(self, receiver, socket, sender, patience_s)

    def _append(self, writer: Any, receiver: Any, sender: Sender, most: int) -> Any:
        """A frame in one append, or, if its rows come with observations once and would be more
        than a frame has whole, in several: those that share nothing here take that much."""
        at_once = max(_MOST_STAGED // self.record_size, 1)
        seen, items, rows, gap = writer.accept(
            receiver, sender.producer, min(most, at_once), sender.next
        )
        added = items
        while added and seen < receiver.number + receiver.runs and rows < most:
            seen, added, more, gap = writer.accept(
                receiver, sender.producer, min(most - rows, at_once), sender.next
            )
            items, rows = items + added, rows + more
        return seen, items, rows, gap

    @property
    def ticket(self) -> int:
        return self._disk.ticket

    @property
    def settled(self) -> int:
        return self._disk.settled

    def settle(self) -> bool:
        try:
            self._disk.flush(0.0)
        except (StorageFull, TimeoutError):  # tried again until there is room
            return False
        return True

    def on_settled(self, call: Callable[[], None]) -> None:
        self._disk.on_commit(call)
