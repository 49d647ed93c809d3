"""What a server's connections write to: a queue or a tape, each with the items it has seen.

    seen(producer, next)          ->  seen          at the handshake
    accept(receiver, sender)      ->  Outcome       for each ITEMS frame, one native call
    leave(producer)                                 when its connection is gone

Belongs to the one thread that runs the sockets.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import LayoutError, StorageFull
from ..layout import Layout
from ..replay import Ingress
from ..tape.fields import check_fields
from ..tape.queue import BatchQueue
from ..tape.schema import Schema
from ..tape.stacks import Stacks
from ..wire import Refused
from .item_shape import ItemShape

__all__ = ["Outcome", "QueueTable", "Sender", "Table", "Taken", "TapeTable"]

Array = np.ndarray[Any, Any]


class Outcome(NamedTuple):
    """What became of a frame.

    Attributes:
        seen: the producer's items that are in now, as far as is known.
        items, rows: added by this frame.
        full: the rest has to wait.
    """

    seen: int
    items: int
    rows: int
    full: bool


class Sender(NamedTuple):
    """Whose items come: a producer, and the number of its next one, as far as is known."""

    producer: int
    next: int


class Taken(NamedTuple):
    """What was received and taken in.

    Attributes:
        nbytes: received.
        frames: taken in whole.
        items, rows: taken in.
        partial: items of them, in the frame that is at the front now.
        seen: the producer's items that are in now, if any were taken in.
    """

    nbytes: int
    frames: int
    items: int
    rows: int
    partial: int
    seen: int


class Table(ABC):
    """One table of a server."""

    kind: str
    ndim = 1  # batch dims of plain trees that clients give to `extend`
    ack_levels: tuple[str, ...] = ("received", "committed")
    busy_until = 0.0  # its lock was not to be had: nobody asks again before
    open_bytes = 0  # of what it remembers of its producers' trajectories
    max_open_bytes = 1 << 62

    @property
    @abstractmethod
    def schema(self) -> dict[str, Any] | None:
        """Layout and boundary keys as JSON, or None while nothing is known."""

    @property
    @abstractmethod
    def record_size(self) -> int: ...

    def item_shape(self) -> ItemShape | None:
        """What frames of items are checked against; None while no layout is known."""
        return None if self.schema is None else ItemShape.of(self.schema)

    @property
    def max_row(self) -> int:
        """Bytes that a row may have in leaves of any size; 0: it has none such, or any number."""
        return 0

    @abstractmethod
    def fix(self, layout: Layout | None, fields: Layout | None, stacks: Stacks) -> None:
        """Checks a client's layouts of rows and of trajectories' fields, as far as it says them, or
        takes them as the table's own, with the stacks of frames that it knows of.

        Raises Refused, or StorageFull if there is no room for a table yet.
        """

    def ready_for(self, layout: Layout | None, fields: Layout | None, stacks: Stacks) -> bool:
        """Whether it takes a client's layouts and can say what it has. Raises Refused.

        On a full disk neither need be so; it is asked again.
        """
        try:
            if layout is not None or fields is not None:
                self.fix(layout, fields, stacks)
        except StorageFull:
            return False
        return self.settle()  # what is only in memory would not come again

    @abstractmethod
    def seen(self, producer: int, next_item: int) -> int:
        """Items of a producer that are in; `next_item` if it is not known.

        It is connected now: if it is known, it stays so until it leaves.
        """

    @abstractmethod
    def skip(self, producer: int, next_item: int) -> None:
        """Items below a number will not come."""

    def may_miss(self, producer: int) -> None:  # noqa: B027 (a queue has no trajectories)
        """Acked items of a producer may be missing: what was open before them cannot go on, or it
        would seem whole."""

    @abstractmethod
    def leave(self, producer: int) -> None:
        """A producer's connection is gone: it may be forgotten in favour of another one."""

    @abstractmethod
    def leave_all(self) -> None:
        """Nobody is connected: this process begins to serve the table."""

    @abstractmethod
    def accept(self, receiver: Any, sender: Sender) -> Outcome:
        """Takes the checked frame at a receiver's front in, as far as there is room."""

    def take_frames(self, receiver: Any, socket: int, sender: Sender, patience_s: float) -> Taken:
        """Receives, and takes frames in for as long as that needs no further thought.

        Waits for room, but no longer than told.
        """
        return Taken(int(receiver.receive(socket)), 0, 0, 0, 0, 0)

    @abstractmethod
    def word(self) -> int:
        """Changes when there may be more room than before."""

    @abstractmethod
    def wait(self, word: int, timeout_s: float) -> None:
        """Waits until `word` differs; called from a thread of its own."""

    @abstractmethod
    def rows_in(self) -> int: ...

    # What is in a table in memory is committed at once; on disk that takes a while.

    @property
    def ticket(self) -> int:
        """Stands for everything accepted so far."""
        return 0

    @property
    def settled(self) -> int:
        """The newest ticket of which everything is committed."""
        return 0

    def settle(self) -> bool:
        """Commits what was accepted, without waiting for anything; whether all of it is."""
        return True

    def on_settled(self, call: Callable[[], None]) -> None:  # noqa: B027
        """Has something called, in any thread, whenever `settled` grows."""


def _refuse_gap(first: int, seen: int) -> None:
    raise Refused("gap", f"items from {first} on, but {seen} is the next one: some are missing")


class QueueTable(Table):
    """Items go to a batch queue."""

    kind = "queue"

    def __init__(self, queue: BatchQueue) -> None:
        self.queue = queue
        self._schema = {"layout": queue.layout.to_json(), "keys": None}

    @property
    def schema(self) -> dict[str, Any]:
        return self._schema

    @property
    def record_size(self) -> int:
        return int(self.queue.record_size)

    def fix(self, layout: Layout | None, fields: Layout | None, stacks: Stacks) -> None:
        if fields is not None:
            raise Refused(
                "layout",
                "fields: a queue of single items has no trajectories; use a table "
                "(Server(tables={name: ReplayBuffer(...)}))",
            )
        if layout is not None and layout != self.queue.layout:
            diff = self.queue.layout.diff(layout)
            raise Refused("layout", f"the client's layout differs from the server's:\n{diff}")

    def seen(self, producer: int, next_item: int) -> int:
        return int(self.queue.native.seen(producer, next_item))

    def skip(self, producer: int, next_item: int) -> None:
        self.queue.native.skip(producer, next_item)

    def leave(self, producer: int) -> None:
        self.queue.native.leave(producer)

    def leave_all(self) -> None:
        self.queue.native.leave_all()

    def accept(self, receiver: Any, sender: Sender) -> Outcome:
        seen, added, gap, full = self.queue.native.accept_frame(receiver, *sender)
        if gap:
            _refuse_gap(receiver.number, seen)
        return Outcome(seen, added, added, full)

    def take_frames(self, receiver: Any, socket: int, sender: Sender, patience_s: float) -> Taken:
        return Taken(*self.queue.native.take_frames(receiver, socket, *sender, patience_s))

    def word(self) -> int:
        return int(self.queue.native.space_word)

    def wait(self, word: int, timeout_s: float) -> None:
        self.queue.native.wait_space(word, timeout_s)

    def rows_in(self) -> int:
        return int(self.queue.native.counters()["items"])


class TapeTable(Table):
    """Items go to a storage, those of each producer through a writer of its own."""

    kind = "tape"

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress
        self.storage = ingress.storage
        self.ndim = self.storage.ndim
        self._writers: OrderedDict[int, Any] = OrderedDict()
        self._here: set[int] = set()  # connected, of those with a writer
        self._open: dict[int, int] = {}  # bytes of each writer
        self._last_runs: dict[int, Array] | None = None  # entries, of producers from before

    @property
    def schema(self) -> dict[str, Any] | None:
        schema = self.storage.schema
        if schema is None:
            return None
        return dict(json.loads(schema.to_bytes()))

    @property
    def record_size(self) -> int:
        schema = self.storage.schema
        return 0 if schema is None else schema.layout.record_size

    def fix(self, layout: Layout | None, fields: Layout | None, stacks: Stacks) -> None:
        before = self.storage.asked
        try:
            if layout is not None:
                if self.storage.schema is None:
                    self.storage.asked = before.with_stacks(layout, stacks)
                self.storage.publish(layout, fields)
            elif self.storage.schema is not None:
                check_fields(self.storage.schema.fields, fields)
        except LayoutError as error:
            raise Refused("layout", str(error)) from None
        finally:
            if self.storage.schema is None:
                self.storage.asked = before

    @property
    def max_row(self) -> int:
        layout = self.storage.layout
        if layout is None or not layout.variable:
            return 0
        return int(self.storage.tape.blob_most)

    def seen(self, producer: int, next_item: int) -> int:
        return int(self.storage.tape.seen(producer, next_item))

    def skip(self, producer: int, next_item: int) -> None:
        self.storage.tape.skip(producer, next_item)
        if producer in self._writers:
            self._forget(producer)
        self.may_miss(producer)

    def may_miss(self, producer: int) -> None:
        if producer not in self._writers and self.storage.schema is not None:
            self._make_writer(producer, self.storage.schema).miss_items()

    def leave(self, producer: int) -> None:
        self.storage.tape.leave(producer)
        self._here.discard(producer)
        self._bound_open()

    def leave_all(self) -> None:
        self.storage.tape.leave_all()

    def accept(self, receiver: Any, sender: Sender) -> Outcome:
        most = self._ingress.room()
        if most < 1:
            return Outcome(sender.next, 0, 0, True)
        writer = self._writer(sender)
        self._check_open(sender.producer)
        try:
            seen, items, rows, gap = self._append(writer, receiver, sender, most)
        except ValueError as error:  # one of its rows is larger than all that is kept of them
            raise Refused("size", str(error)) from None
        self._count_open(sender.producer, int(writer.open_bytes))
        if gap:
            _refuse_gap(receiver.number, seen)
        return Outcome(seen, items, rows, seen < receiver.number + receiver.runs)

    def take_frames(self, receiver: Any, socket: int, sender: Sender, patience_s: float) -> Taken:
        writer = self._writers.get(sender.producer)
        spare = self.max_open_bytes - self.open_bytes
        if writer is None or spare < 0 or time.monotonic() < self.busy_until:
            return super().take_frames(receiver, socket, sender, patience_s)
        # Before the room: if that is of more rows, it is void.
        inserted = self.storage.tape.inserted
        most = self._ingress.room()
        self._here.add(sender.producer)
        self._writers.move_to_end(sender.producer)
        most_open = self._open.get(sender.producer, 0) + spare
        taken = Taken(*writer.take_frames(receiver, socket, *sender, most, inserted, most_open))
        if taken.items:
            self._count_open(sender.producer, int(writer.open_bytes))
        return taken

    def _append(self, writer: Any, receiver: Any, sender: Sender, most: int) -> Any:
        return _native.accept_runs(writer, receiver, sender.producer, most, sender.next)

    def _writer(self, sender: Sender) -> Any:
        producer = sender.producer
        writer = self._writers.get(producer)
        if writer is None:
            schema = self.storage.schema
            assert schema is not None  # the handshake fixed it
            writer = self._make_writer(producer, schema)
            sent_here = int(self.storage.tape.seen(producer, 0))  # to another process
            if sent_here or sender.next:
                writer.miss_items()
            entries = self._runs_before().get(producer) if sent_here else None
            if entries is not None:
                writer.take_up(entries)
        self._here.add(producer)
        self._writers.move_to_end(producer)
        return writer

    def _make_writer(self, producer: int, schema: Schema) -> Any:
        writer = self._writers[producer] = self.storage.native_writer(schema, producer)
        if len(self._writers) > _native.PRODUCERS:
            # As the tape does: whoever is connected goes on with its trajectories.
            others = (p for p in self._writers if p not in self._here and p != producer)
            self._forget(next(others))
        return writer

    def _runs_before(self) -> dict[int, Array]:
        """Entries of the last run of each lane of producers whose writers are not here."""
        if self._last_runs is None:
            assert self.storage.schema is not None
            marks = self.storage.schema.boundaries
            by_id, alone = marks.id is not None, marks.traj_key is not None
            writers, entries = self.storage.tape.last_runs(by_id, alone)
            order = np.argsort(writers, kind="stable")
            found, starts = np.unique(writers[order], return_index=True)
            parts = np.split(entries[order], starts[1:])
            self._last_runs = {int(writer): part for writer, part in zip(found, parts)}
        return self._last_runs

    def _forget(self, producer: int) -> None:
        self._last_runs = None  # the index knows where it goes on
        del self._writers[producer]
        self.open_bytes -= self._open.pop(producer, 0)

    def _count_open(self, producer: int, nbytes: int) -> None:
        self.open_bytes += nbytes - self._open.get(producer, 0)
        self._open[producer] = nbytes
        self._bound_open()

    def _bound_open(self) -> None:
        """Whoever left, the longest ago first, is forgotten if there is too much to remember."""
        if self.open_bytes <= self.max_open_bytes:
            return
        for producer in [p for p in self._writers if p not in self._here]:
            if self.open_bytes <= self.max_open_bytes:
                return
            self._forget(producer)

    def _check_open(self, producer: int) -> None:
        """Refuses who has more trajectories open than its share, if there is too much of them."""
        own = self._open.get(producer, 0)
        if self.open_bytes <= self.max_open_bytes or own * len(self._here) < self.open_bytes:
            return
        raise Refused(
            "open",
            f"its open trajectories take {own} bytes, and all together {self.open_bytes} of at "
            f"most {self.max_open_bytes}: end them (done, truncated, end_episode), or raise "
            "TcpTransport(max_bytes=)",
        )

    def word(self) -> int:
        return int(self.storage.tape.wake_word)

    def wait(self, word: int, timeout_s: float) -> None:
        self.storage.tape.wait(word, timeout_s)

    def rows_in(self) -> int:
        return int(self.storage.tape.snapshot()[0])
