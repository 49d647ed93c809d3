"""A client's requests: which of them wait for an answer, and what the server still has to answer.

    ask -> PendingRequest, which whoever asked holds -> answered
              | dropped: by an exception, Ctrl-C, or because nobody wanted it after all
              +-> forgotten, and so is its answer when it comes

A request is known for as long as its asker holds it, so at no moment can an interrupt leave one
behind. Weights that were published stand: a server that is started anew has none, so they are
published again when it is there, with the same number, by which one that has them knows it. What
the server has to answer counts against its bounds, wanted or not.
"""

from __future__ import annotations

import struct
import weakref

from .. import wire
from .._native import Inflight
from ..wire import Type

__all__ = ["PendingRequest", "Requests"]

_SIZE_BYTES = 8  # of a batch's size, which SAMPLE begins with
_GET = 0  # the key of the one request for weights: its answer has a version for its number


class PendingRequest:
    """What was asked, by its number. `answer` is None, or the type, number and payload of a
    frame."""

    __slots__ = ("__weakref__", "answer", "frame", "key", "kind", "number")

    def __init__(self, key: int, kind: int, number: int, frame: bytes) -> None:
        self.key, self.kind, self.number, self.frame = key, kind, number, frame
        self.answer: tuple[int, int, bytes] | None = None


class Requests:
    """Those of one session. Every call is made with the session's lock.

    Attributes:
        untaken: numbers of SAMPLE requests whose batches nobody has been given, answered or not.
        names: whether the server is told of them with each SAMPLE, and not only at the end.
    """

    def __init__(self, inflight: Inflight) -> None:
        self._inflight = inflight
        self._wanted: weakref.WeakValueDictionary[int, PendingRequest] = (
            weakref.WeakValueDictionary()
        )
        self._coming: dict[int, int] = {}  # what the server has to answer, and their bytes
        self._last = 0
        self.untaken: set[int] = set()
        self.names = False
        self._standing: PendingRequest | None = None  # weights that the server is to have
        self._held = False  # requests are, until these are answered

    def may_ask(self, kind: int, nbytes: int) -> bool:
        """Whether the server takes another request of this size."""
        if kind == Type.GET and _GET in self._coming:
            return False  # of somebody who gave up: one at a time
        fits = sum(self._coming.values()) + nbytes <= wire.MAX_REQUEST_BYTES
        return not self._coming or (fits and len(self._coming) < wire.MAX_REQUESTS)

    def ask(self, kind: int, payload: bytes, number: int | None = None) -> PendingRequest:
        """Has a request sent."""
        self._last += 1
        key = _GET if kind == Type.GET else self._last
        number = self._last if number is None else number
        if kind == Type.SAMPLE:
            self.untaken.add(number)
            payload = self._sample(payload)
        asked = PendingRequest(key, kind, number, wire.frame(kind, number, payload))
        self._wanted[key] = asked
        self._inflight.ask(asked.frame)
        self._coming[key] = len(payload)  # last: nobody waits for an answer that cannot come
        return asked

    def stand(self, published: PendingRequest, payload: bytes) -> None:
        """Has weights that were published be so on every server that comes back, by a payload that
        says the version they got."""
        published.frame = wire.frame(published.kind, published.number, payload)
        self._standing = published
        self._wanted.pop(published.key, None)  # nobody waits for its answers any more

    def answered(self, kind: int, number: int, payload: bytes) -> bool:
        """An answer came; what nobody wants any more is dropped. Whether more is to be sent now."""
        key = _GET if kind == Type.WEIGHTS else number
        self._coming.pop(key, None)
        asked = self._wanted.get(key)
        if asked is not None and asked.answer is None:
            asked.answer = (kind, number, payload)
        if not self._held or self._standing is None or key != self._standing.key:
            return False
        self._held = False
        for left in self._open():
            self._inflight.ask(left.frame)
            self._coming[left.key] = _payload(left)
        return True

    def again(self, takes_weights: bool) -> list[bytes]:
        """The server is another one, or has forgotten them: what is to be sent again.

        Args:
            takes_weights: whether it takes those that stand.
        """
        left, stands = self._open(), self._standing
        for asked in left:
            if asked.kind == Type.SAMPLE:  # the server may be of another kind
                payload = self._sample(asked.frame[wire.HEADER_BYTES :])
                asked.frame = wire.frame(asked.kind, asked.number, payload)
        self._held = False
        if stands is not None and takes_weights:
            # Also before newer ones, whose version may be the one after these.
            together = _payload(stands) + sum(map(_payload, left))
            fit = together <= wire.MAX_REQUEST_BYTES and len(left) < wire.MAX_REQUESTS
            self._held = bool(left) and not fit
            left = [stands] if self._held else [stands, *left]
        self._coming = {r.key: _payload(r) for r in left}
        return [r.frame for r in left]

    def _open(self) -> list[PendingRequest]:
        """Those that somebody waits for, in the order in which they were asked."""
        return [r for r in self._wanted.values() if r.answer is None]

    def goodbye(self) -> bytes:
        """BYE, with the batches that may be given to others."""
        return wire.frame(Type.BYE, 0, self._untaken())

    def _sample(self, payload: bytes) -> bytes:
        """What SAMPLE says, to this server."""
        return payload[:_SIZE_BYTES] + (self._untaken() if self.names else b"")

    def _untaken(self) -> bytes:
        return struct.pack(f"<{len(self.untaken)}Q", *sorted(self.untaken))

    def __len__(self) -> int:
        """Those that the server has to answer."""
        return len(self._coming)

    @property
    def held(self) -> int:
        """Those that somebody holds, answered or not."""
        return len(self._wanted)


def _payload(asked: PendingRequest) -> int:
    """Bytes that count against the server's bounds."""
    return len(asked.frame) - wire.HEADER_BYTES
