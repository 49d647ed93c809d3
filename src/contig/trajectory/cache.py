"""TrajectoryCache: the trajectories that were put in last, as rows, in memory."""

from __future__ import annotations

import threading
from typing import Any

from ..arguments import whole

__all__ = ["TrajectoryCache"]


class TrajectoryCache:
    """The trajectories that were added to a `TrajectoryReplayBuffer`, or read from it, last, so
    that reading one of them gathers no rows. First in, first out; holds references, copies nothing.
    Thread-safe.

    (RLinf's cache is what makes its `sample` fast, because that loads whole files. Here `sample`
    reads single rows where they lie, so a cache of trajectories could only slow it down.)

    Args:
        max_size: trajectories to keep.
    """

    def __init__(self, max_size: int = 5) -> None:
        self.max_size = whole("max_size", max_size, 1, "a number of trajectories")
        self._items: dict[int, Any] = {}  # in the order of coming in
        self._lock = threading.Lock()

    def put(self, trajectory_id: int, trajectory: Any) -> None:
        """Keeps a trajectory; one that is there already is replaced and keeps its turn."""
        with self._lock:
            self._items[trajectory_id] = trajectory
            while len(self._items) > self.max_size:
                del self._items[next(iter(self._items))]

    def get(self, trajectory_id: int) -> Any | None:
        """The trajectory, or None if it is not here."""
        return self._items.get(trajectory_id)

    def remove(self, trajectory_id: int) -> None:
        """Forgets a trajectory, if it is here."""
        with self._lock:
            self._items.pop(trajectory_id, None)

    def items(self) -> list[tuple[int, Any]]:
        """The ids and trajectories that are here, in the order of coming in."""
        with self._lock:
            return list(self._items.items())

    def clear(self) -> None:
        """Forgets every trajectory."""
        with self._lock:
            self._items.clear()

    def __contains__(self, trajectory_id: object) -> bool:
        return trajectory_id in self._items

    def __len__(self) -> int:
        return len(self._items)
