"""What the parts of a server's core know of a connection, which knows all of them."""

from __future__ import annotations

from typing import Any, Protocol

from ..wire import Refused
from .flow import FrameWriter, ReadGate
from .item_stream import ItemStream

__all__ = ["Peer"]


class Peer(Protocol):
    """A connection. Belongs to the core's thread.

    Attributes:
        number: its own, never used again.
        address: of the other side, for people.
        transport: asyncio's.
        encrypted: whether it goes through TLS.
        socket: to read from directly; -1: that cannot be.
        receiver: the native receiver, whose buffer counts.
        stream: its items, once it is open.
        gate: whether it is read from.
        out: what it writes.
        heard: when something came, by the monotonic clock.
        forgotten: its memory does not count any more.
        watches: it looks at the server, as a dashboard does, and is no client of its tables.
    """

    number: int
    address: str
    transport: Any
    encrypted: bool
    socket: int
    receiver: Any
    stream: ItemStream | None
    gate: ReadGate
    out: FrameWriter
    heard: float
    forgotten: bool
    watches: bool

    @property
    def waiting(self) -> bool:
        """Whether a whole frame of items has not been taken in yet."""

    @property
    def listens(self) -> bool:
        """Whether a peer that lives would be heard, or, if it was told to go, be gone."""

    def stats(self) -> dict[str, Any]:
        """What is counted of it, once it is open."""

    def handle_frames(self) -> None:
        """Handles every whole frame that is there."""

    def settle(self) -> None:
        """Acks what its table has committed meanwhile."""

    def drop_if_stalled(self) -> None:
        """Others need the memory: ends it, if it has read nothing for long."""

    def refuse(self, refused: Refused) -> None:
        """Says why, and closes."""

    def give_up(self, why: str) -> None:
        """The other side is not there any more."""

    def leave(self, final: bool = True) -> None:
        """Closes; says goodbye before, unless the server means to come back."""

    def abandon(self) -> None:
        """Its client has come back on another connection."""
