"""WeightsFeed: the weights that a learner elsewhere publishes on its server, as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..errors import ClosedError
from .board import Weights

__all__ = ["BringsWeights", "WeightsFeed"]

_ASK_S = 0.25
_STOP_S = 5.0
_NONE = -1  # older than any version


@runtime_checkable
class BringsWeights(Protocol):
    """A client of a server on which somebody publishes weights."""

    def weights(self, newer_than: int = -1, timeout_s: float = 0.0) -> Weights | None: ...


class WeightsFeed:
    """Asks a server for new weights, in a thread, over a connection of its own.

    Args:
        client: of the server.
        take: called with each version's number and weights.

    Attributes:
        failure: what ended it too early, or None.
    """

    def __init__(self, client: BringsWeights, take: Callable[[int, Any], None]) -> None:
        self._client, self._take = client, take
        self._version = _NONE
        self._stop = False
        self.failure: BaseException | None = None
        self._ask(0.0)  # what is there already is there from the first step on
        self._thread = threading.Thread(target=self._run, name="contig-weights", daemon=True)
        self._thread.start()

    def _ask(self, timeout_s: float) -> None:
        weights = self._client.weights(self._version, timeout_s)
        if weights is not None and not self._stop:
            self._version = weights.version
            self._take(weights.version, weights.tree)

    def _run(self) -> None:
        try:
            while not self._stop:
                self._ask(_ASK_S)
        except ClosedError:
            pass  # the client was closed; what is written to it says so
        except BaseException as error:
            if not self._stop:
                self.failure = error

    def close(self) -> None:
        self._stop = True
        self._thread.join(_STOP_S)
