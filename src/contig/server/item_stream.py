"""A connection's items: from its receiver into its table, and what of them may be acked.

    received   in whole frames here
    next       in the table
    committed  in the table for good: on disk that takes a while longer

Belongs to the core's thread.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from .. import wire
from ..errors import TapeBusy
from ..wire import Opening, Refused
from .statistics import Counters
from .tables import Sender, Table

__all__ = ["ItemStream"]

_BUSY_S = 0.25  # between attempts to get a lock that is held: the loop waits for it each time


class ItemStream:
    """Frames of items of one producer, in its order.

    Args:
        opening: what the client asked for.
        receiver: where frames come.
        seen: how many of the producer's items are in or on their way in.
        stats: counts them.

    Attributes:
        table, producer, ack: as it was asked for.
        version: of the protocol that is spoken.
        table_name, key: the table's name, and that with the producer.
        slot_bytes: of a step's observations, as frames have them once; 0: they have them whole.
        received: items of the producer that are in whole frames here or in the table.
        committed: those that are in the table for good.
        items, rows: added by this connection.
    """

    def __init__(self, opening: Opening[Table], receiver: Any, seen: int, stats: Counters) -> None:
        self.table, self.table_name = opening.table, opening.name
        self.producer, self.ack = opening.producer, opening.ack
        self.version = opening.version
        self.key = (opening.name, opening.producer)
        self.received = self.committed = seen
        self.items = self.rows = self.slot_bytes = 0
        self._receiver = receiver
        self._stats = stats
        self._acked = seen
        self._next = seen
        self._added = 0  # items of the frame at the front that are in
        self._unsettled: deque[tuple[int, int]] = deque()  # tickets, and what they stand for
        self._knows_shape = False
        self._learn_shape()

    def _learn_shape(self) -> None:
        """Tells the receiver what items look like, once the table knows its layout."""
        shape = self.table.item_shape()
        if shape is not None:
            shape.tell(self._receiver)
            self.slot_bytes = shape.slot_bytes
            self._knows_shape = True

    def take_frames(self, socket: int, patience_s: float) -> int:
        """Receives, and takes in what is ordinary, natively; how many bytes came."""
        if not self._knows_shape:
            self._learn_shape()
        sender = Sender(self.producer, self.received)
        taken = self.table.take_frames(self._receiver, socket, sender, patience_s)
        if taken.items:
            self.items += taken.items
            self.rows += taken.rows
            self._added = taken.partial
            self.received = self.committed = self._next = taken.seen
            self._stats.frames_in += taken.frames
            self._stats.items_in += taken.items
            self._stats.rows_in += taken.rows
        return taken.nbytes

    def take_front(self, must_wait: bool) -> bool:
        """Takes in the frame at the receiver's front; False: not all of it, the rest has to wait.

        Raises Refused.
        """
        table, receiver = self.table, self._receiver
        items = self._check()
        if must_wait or time.monotonic() < table.busy_until:
            return False
        try:
            outcome = table.accept(receiver, Sender(self.producer, self._next))
        except TapeBusy:  # whoever holds the lock is stopped: as if there were no room
            table.busy_until = time.monotonic() + _BUSY_S
            return False
        self.items += outcome.items
        self.rows += outcome.rows
        self._added += outcome.items
        self._stats.items_in += outcome.items
        self._stats.rows_in += outcome.rows
        if outcome.items or not outcome.full:
            self._note(outcome.seen)
        self._next = max(self._next, outcome.seen)
        if outcome.full:
            return False
        again = items - self._added  # had been seen before
        self._stats.frames_in += 1
        self._stats.duplicates_dropped += again
        self._stats.resent_frames += again > 0
        self._added = 0
        receiver.pop()
        return True

    def _check(self) -> int:
        """How many items the frame at the front has. Raises Refused."""
        table, receiver = self.table, self._receiver
        if not self._knows_shape:
            self._learn_shape()
        if not receiver.check_items(table.record_size, table.kind == "tape"):
            if receiver.refusal == "value":
                raise Refused(
                    "value",
                    "a bool is one byte, 0 or 1: some have another value; or text is not UTF-8, or "
                    "a leaf of any size has a part of an element",
                )
            raise Refused(
                "shape",
                "rows, runs, fields and bytes of a frame do not fit together, or a run has more "
                f"than {wire.MAX_LANES} lanes",
            )
        items = int(receiver.runs if table.kind == "tape" else receiver.rows)
        if receiver.number > self.received:
            raise Refused("gap", f"items from {receiver.number} on, expected {self.received}")
        self.received = max(self.received, receiver.number + items)
        return items

    def _note(self, seen: int) -> None:
        """Items up to here are in the table; they are committed when its ticket is settled."""
        ticket = self.table.ticket
        if ticket <= self.table.settled:
            self.committed = seen
        else:
            self._unsettled.append((ticket, seen))

    @property
    def unsettled(self) -> bool:
        """Whether a commit of its items is under way."""
        return bool(self._unsettled)

    def settle(self) -> None:
        """Its table may have committed more."""
        settled = self.table.settled
        while self._unsettled and self._unsettled[0][0] <= settled:
            self.committed = self._unsettled.popleft()[1]

    def to_ack(self) -> int | None:
        """How many items are to be acked now; None: no more than before."""
        safe = self.received if self.ack == "received" else self.committed
        if safe <= self._acked:
            return None
        self._acked = safe
        return safe

    @property
    def unsaved(self) -> int:
        """Items that were acked as received and are not in the table."""
        return max(self.received - self.committed, 0) if self.ack == "received" else 0

    def stats(self) -> dict[str, Any]:
        return {
            "table": self.table_name,
            "producer": self.producer,
            "rows": self.rows,
            "items": self.items,
        }
