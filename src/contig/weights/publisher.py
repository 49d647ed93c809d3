"""WeightPublisher: what a collector does with its policy's weights, whoever changes them.

learner here       update_policy_weights_() ──> version + 1 ──> workers, server
learner elsewhere  its server ──TCP──> _WeightsFeed ──> its version ──> workers
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..errors import ClosedError, WorkerError
from .board import Weights
from .policy import get_weights, policy_name, refusal

__all__ = ["WeightPublisher"]

_ASK_S = 0.25
_STOP_S = 5.0
_NONE = -1  # older than any version


@runtime_checkable
class _BringsWeights(Protocol):
    """A client of a server on which somebody publishes weights."""

    def weights(self, newer_than: int = -1, timeout_s: float = 0.0) -> Weights | None: ...


@runtime_checkable
class _PublishesWeights(Protocol):
    """A server from which actors elsewhere get weights."""

    @property
    def weights_version(self) -> int | None: ...
    def publish(self, version: int | None, tree: Any) -> int: ...


class WeightPublisher:
    """The version of a policy's weights. Thread-safe.

    A learner elsewhere counts its own versions: until the first of them arrives, rows say -1.

    Args:
        policy: whose weights; None: random actions, which have none and need none.
        buffer: the collector's `replay_buffer`: a server gets what is published, a client of one
            brings weights, and others have nothing to do with them.
        put: makes weights current for whoever acts, under a version; copies what it keeps.
        gives: the policy must also give weights: those who act get them through a board, which
            must know what they are like.

    Attributes:
        version: the newest.
    """

    def __init__(
        self, policy: Any, buffer: Any, put: Callable[[int, Any], object], gives: bool = False
    ) -> None:
        self._policy, self._put = policy, put
        self._refusal = refusal(policy, gives)
        self._server = buffer if isinstance(buffer, _PublishesWeights) else None
        self._remote = buffer if isinstance(buffer, _BringsWeights) else None
        self._lock = threading.Lock()
        self._feed: _WeightsFeed | None = None
        self.has_weights = get_weights(policy) is not None
        self.version = 0 if self._remote is None else _NONE
        if self.has_weights and self._server is not None:
            self.version = self._server.publish(None, get_weights(policy))

    @property
    def from_elsewhere(self) -> bool:
        """Whether weights may come at any time."""
        return self._remote is not None

    def begin(self) -> None:
        """Takes weights from a remote server from now on.

        Raises:
            TypeError: there are some already, and the policy has no way to take them.
            LayoutError: they are not like the policy's.
        """
        if self._policy is not None and self._remote is not None:
            self._feed = _WeightsFeed(self._remote, self._arrive)

    def _arrive(self, version: int, tree: Any) -> None:
        if self._refusal is not None:
            raise TypeError(f"weights of version {version} are published, and {self._refusal}")
        with self._lock:
            if version > self.version:
                self._put(version, tree)
                self.version = version

    def update(self, given: Any, in_place: bool = False) -> Any:
        """Publishes a policy's weights, or weights, as the next version; returns them.

        Args:
            in_place: they are the policy's own, and whoever acts has them already; `put` gets None.

        Raises:
            TypeError: the policy has no way to take them, or what was given has none to give.
        """
        tree = get_weights(given)
        if tree is None and not in_place:
            if callable(given):
                raise TypeError(
                    f"{policy_name(given)} has no weights to give: publish an nn.Module, a policy "
                    "with get_weights() or state_dict(), or the weights"
                )
            tree = given
        if self._refusal is not None and not in_place:
            raise TypeError(self._refusal)
        with self._lock:
            version = self.version + 1
            if self._server is not None and tree is not None:
                version = self._server.publish(None, tree)
            self._put(version, None if in_place else tree)
            self.version = version
        return tree

    def check(self) -> None:
        """Raises WorkerError if weights from a server have stopped to come."""
        failure = None if self._feed is None else self._feed.failure
        if failure is not None:
            raise WorkerError(f"weights from the server: {failure}")

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()


class _WeightsFeed:
    """The weights that a learner elsewhere publishes, as they come.

    Asks its server for new ones, in a thread, over a connection of its own.

    Args:
        client: of the server.
        take: called with each version's number and weights.

    Attributes:
        failure: what ended it too early, or None.
    """

    def __init__(self, client: _BringsWeights, take: Callable[[int, Any], None]) -> None:
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
