"""A client's requests: which of them wait for an answer, and what the server still has to answer.

    ask -> PendingRequest, which whoever asked holds -> answered
              | dropped: by an exception, Ctrl-C, or because nobody wanted it after all
              +-> forgotten, and so is its answer when it comes

A request is known for as long as its asker holds it, so at no moment can an interrupt leave one
behind. What the server has to answer counts against its bounds, wanted or not.
"""

from __future__ import annotations

import struct
import weakref

from .. import wire
from .._native import Inflight
from ..wire import Type

__all__ = ["PendingRequest", "Requests"]

_GET = 0  # the key of the one request for weights: its answer has a version for its number


class PendingRequest:
    """What was asked, by its number. `answer` is None, or the type, number and payload of a
    frame."""

    __slots__ = ("__weakref__", "answer", "frame", "number")

    def __init__(self, number: int, frame: bytes) -> None:
        self.number, self.frame = number, frame
        self.answer: tuple[int, int, bytes] | None = None


class Requests:
    """Those of one session. Every call is made with the session's lock.

    Attributes:
        untaken: numbers of SAMPLE requests whose batches nobody has been given, answered or not.
    """

    def __init__(self, inflight: Inflight) -> None:
        self._inflight = inflight
        self._wanted: weakref.WeakValueDictionary[int, PendingRequest] = (
            weakref.WeakValueDictionary()
        )
        self._coming: dict[int, int] = {}  # what the server has to answer, and their bytes
        self._last = 0
        self.untaken: set[int] = set()

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
        asked = PendingRequest(number, wire.frame(kind, number, payload))
        self._wanted[key] = asked
        if kind == Type.SAMPLE:
            self.untaken.add(number)
        self._inflight.ask(asked.frame)
        self._coming[key] = len(payload)  # last: nobody waits for an answer that cannot come
        return asked

    def answered(self, kind: int, number: int, payload: bytes) -> None:
        """An answer came; what nobody wants any more is dropped."""
        key = _GET if kind == Type.WEIGHTS else number
        self._coming.pop(key, None)
        asked = self._wanted.get(key)
        if asked is not None and asked.answer is None:
            asked.answer = (kind, number, payload)

    def again(self) -> list[bytes]:
        """The server is another one, or has forgotten them: what is to be sent again."""
        left = {k: r.frame for k, r in self._wanted.items() if r.answer is None}
        self._coming = {k: len(frame) - wire.HEADER_BYTES for k, frame in left.items()}
        return list(left.values())

    def goodbye(self) -> bytes:
        """What BYE says: the batches that may be given to others."""
        return struct.pack(f"<{len(self.untaken)}Q", *sorted(self.untaken))

    def __len__(self) -> int:
        """Those that the server has to answer."""
        return len(self._coming)

    @property
    def held(self) -> int:
        """Those that somebody holds, answered or not."""
        return len(self._wanted)
