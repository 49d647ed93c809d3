"""Weights that a learner elsewhere publishes through a server.

    client --PUBLISH--> ingest process --> Publications --> Server.publish
    client <--REPLY---  ingest process <-------+

A client that has lost its connection asks again: what it asked for may have been done. So each
publication has a number of its own, and those that were done last are not done again: their answer
is the version that they got.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import wire
from ..errors import ClosedError, LayoutError
from ..layout import Layout
from ..weights.board import unpack_weights

__all__ = ["Publications"]

_KNOWN = 1024  # publications that are known again: more than there are learners at one server


class Publications:
    """Takes them in, one after another. For one thread.

    Args:
        find: gives the server's `publish`, or None if there is no server any more.
    """

    def __init__(self, find: Callable[[], Callable[[int | None, Any], int] | None]) -> None:
        self._find = find
        self._done: dict[int, int] = {}  # versions by publication, oldest first

    def take(self, payload: bytes) -> int:
        """Does what a PUBLISH says, and returns the version that it published.

        Raises:
            LayoutError, ValueError: it does not fit, or its version is not larger than the newest.
        """
        head, record = wire.parse_described(payload)
        version, publication = head.get("version", ...), head.get("publication")
        if (
            not (version is None or type(version) is int)
            or type(publication) is not int
            or publication < 1
        ):
            raise ValueError(
                "PUBLISH: expected a version (null: the next) and a publication, whole numbers"
            )
        if publication in self._done:
            return self._done[publication]
        described: Any = head.get("layout")  # whatever it is, `from_json` says what is wrong
        layout = Layout.from_json(described).need_fixed("weights")
        if record.nbytes != layout.record_size:
            raise LayoutError(
                f"weights of {record.nbytes} bytes, and their layout says {layout.record_size}"
            )
        publish = self._find()
        if publish is None:
            raise ClosedError("this server is closed")
        published = publish(version, unpack_weights(layout, bytes(record)))
        self._done[publication] = published
        if len(self._done) > _KNOWN:
            del self._done[next(iter(self._done))]
        return published
