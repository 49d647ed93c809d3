"""Connections of browsers to the page: uvicorn's, with bounds for those that send no request.

uvicorn waits for ever for a first request, and counts idle connections among those it serves.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from ..process.pending import PendingConnections

__all__ = ["page_connections"]

_PENDING = 64  # connections at a time whose request has not arrived
_REQUEST_S = 10.0  # for a request to arrive


class _PageConnection(H11Protocol):
    """A browser's connection.

    It waits in `pending` whenever no request of it is being answered, and its time there does not
    begin again with each byte that arrives.
    """

    def __init__(self, pending: PendingConnections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pending = pending

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._pending.add(self, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._pending.remove(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # begins to answer the next request if it is here already
        if not self.transport.is_closing() and not self._is_answering():
            self._pending.add(self, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._pending.remove(self)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def page_connections() -> Any:
    """Returns what makes the connections of one page, which share their bounds."""
    return partial(_PageConnection, PendingConnections(_PENDING, _REQUEST_S))
