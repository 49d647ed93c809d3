"""What a server's connections write to: a queue or a tape, each with the items it has seen.

    open(producer, next, layout)  ->  seen          at the handshake
    accept(receiver, producer)    ->  Outcome       for each ITEMS frame, one native call

Belongs to the one thread that runs the sockets.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _native
from ..errors import LayoutError
from ..layout import Layout
from ..sample import RateLimiter
from ..tape import Storage
from ..tape.queue import BatchQueue
from .wire import Refused

__all__ = ["Outcome", "QueueTable", "Sender", "Table", "Taken", "TapeTable"]

_PRODUCERS = 4096  # as many as a tape remembers


class Outcome(NamedTuple):
    """What became of a frame.

    Attributes:
        seen: the producer's items that are in now.
        items, rows: added by this frame.
        full: the rest has to wait.
    """

    seen: int
    items: int
    rows: int
    full: bool


class Sender(NamedTuple):
    """Whose items come: a producer, and the number of its next one."""

    producer: int
    next: int


class Taken(NamedTuple):
    """What was received and taken in.

    Attributes:
        nbytes: received.
        frames: taken in whole.
        items: taken in.
        partial: of them, in the frame that is at the front now.
        seen: the producer's items that are in now, if any were taken in.
    """

    nbytes: int
    frames: int
    items: int
    partial: int
    seen: int


class Table(ABC):
    """One table of a server."""

    kind: str
    ndim = 1  # batch dims of plain trees that clients give to `extend`
    ack_levels: tuple[str, ...] = ("received", "committed")
    busy_until = 0.0  # its lock was not to be had: nobody asks again before

    @property
    @abstractmethod
    def schema(self) -> dict[str, Any] | None:
        """Layout and boundary keys as JSON, or None while nothing is known."""

    @property
    @abstractmethod
    def record_size(self) -> int: ...

    @abstractmethod
    def fix(self, layout: Layout) -> None:
        """Checks a client's layout, or takes it as the table's own. Raises Refused."""

    @abstractmethod
    def seen(self, producer: int, next_item: int) -> int:
        """Items of a producer that are in; `next_item` if it is not known."""

    @abstractmethod
    def skip(self, producer: int, next_item: int) -> None:
        """Items below a number will not come."""

    @abstractmethod
    def accept(self, receiver: Any, producer: int) -> Outcome:
        """Takes the checked frame at a receiver's front in, as far as there is room."""

    def take_frames(self, receiver: Any, socket: int, sender: Sender, patience_s: float) -> Taken:
        """Receives, and takes frames in for as long as that needs no further thought.

        Waits for room, but no longer than told.
        """
        return Taken(int(receiver.receive(socket)), 0, 0, 0, 0)

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

    def settle(self) -> None:  # noqa: B027
        """Returns when everything accepted is committed."""

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

    def fix(self, layout: Layout) -> None:
        if layout != self.queue.layout:
            diff = self.queue.layout.diff(layout)
            raise Refused("layout", f"the client's layout differs from the server's:\n{diff}")

    def seen(self, producer: int, next_item: int) -> int:
        return int(self.queue.native.seen(producer, next_item))

    def skip(self, producer: int, next_item: int) -> None:
        self.queue.native.skip(producer, next_item)

    def accept(self, receiver: Any, producer: int) -> Outcome:
        seen, added, gap, full = self.queue.native.accept_frame(receiver, producer)
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

    def __init__(self, storage: Storage, limiter: RateLimiter | None = None) -> None:
        self.storage = storage
        self.ndim = storage.ndim
        self.limiter = limiter
        self._writers: OrderedDict[int, Any] = OrderedDict()

    @property
    def schema(self) -> dict[str, Any] | None:
        schema = self.storage.schema
        return None if schema is None else dict(json.loads(schema.to_bytes()))

    @property
    def record_size(self) -> int:
        schema = self.storage.schema
        return 0 if schema is None else schema.layout.record_size

    def fix(self, layout: Layout) -> None:
        try:
            self.storage.publish(layout)
        except LayoutError as error:
            raise Refused("layout", str(error)) from None

    def seen(self, producer: int, next_item: int) -> int:
        return int(self.storage.tape.seen(producer, next_item))

    def skip(self, producer: int, next_item: int) -> None:
        self.storage.tape.skip(producer, next_item)

    def accept(self, receiver: Any, producer: int) -> Outcome:
        most = 1 << 62
        if self.limiter is not None:
            most = self.limiter.room(self.storage)
            if most < 1:
                return Outcome(int(self.storage.tape.seen(producer, receiver.number)), 0, 0, True)
        writer = self._writer(producer)
        seen, items, rows, gap = self._append(writer, receiver, producer, most)
        if gap:
            _refuse_gap(receiver.number, seen)
        return Outcome(seen, items, rows, seen < receiver.number + receiver.runs)

    def _append(self, writer: Any, receiver: Any, producer: int, most: int) -> Any:
        return _native.accept_runs(writer, receiver, producer, most)

    def _writer(self, producer: int) -> Any:
        writer = self._writers.get(producer)
        if writer is None:
            schema = self.storage.schema
            assert schema is not None  # the handshake fixed it
            writer = self._writers[producer] = self.storage.native_writer(schema)
            if len(self._writers) > _PRODUCERS:
                self._writers.popitem(last=False)
        self._writers.move_to_end(producer)
        return writer

    def word(self) -> int:
        return int(self.storage.tape.wake_word)

    def wait(self, word: int, timeout_s: float) -> None:
        self.storage.tape.wait(word, timeout_s)

    def rows_in(self) -> int:
        return int(self.storage.tape.snapshot()[0])
