"""A dashboard of a server: what it counts, and its tables."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from ..dashboard import Dashboard, Numbers, PageOptions, Told
from ..errors import ClosedError, ServerError
from ..replay import ReplayBuffer
from ..replay.watching import look_at_draws, told_of
from .statistics import ServerStats

__all__ = ["open_dashboard"]

_COUNTED = (
    "connections", "connections_total", "frames_in", "items_in", "bytes_in", "bytes_out",
    "duplicates_dropped", "resent_frames", "lost_items", "blocked", "blocked_s", "rejected",
    "bytes_held",
)  # fmt: skip


class Watched(Protocol):
    """A Server, as this module needs it."""

    name: str

    @property
    def port(self) -> int: ...
    @property
    def buffers(self) -> dict[str, ReplayBuffer]: ...
    @property
    def weights_version(self) -> int | None: ...
    def stats(self) -> ServerStats: ...


def _queue_numbers(table: dict[str, Any]) -> dict[str, Any]:
    """A queue's counters, named as a table's are."""
    names = ("kind", "capacity", "rows_in", "rows_out", "blocked")
    known = {name: table[name] for name in names}
    return {**known, "rows": table["depth"], "episodes": None, "drawn": None, "limiter": None}


def open_dashboard(server: Watched, port: int, options: dict[str, Any]) -> Dashboard:
    """See `Server.dashboard`. The page does not keep the server."""
    page = PageOptions(port=port, **options).checked()
    buffers = server.buffers
    looked = {name: look_at_draws(b, page.samples_per_s) for name, b in buffers.items()}
    tables = {name: (ingress, seen) for name, ((ingress, seen), _) in looked.items()}
    ref, name = weakref.ref(server), server.name

    def ask() -> Told:
        there = ref()
        if there is None:
            raise ClosedError(f"the server {name!r} is gone")
        stats = there.stats()
        told = told_of(tables)
        queues = {n: t for n, t in stats.tables.items() if t["kind"] == "queue"}
        numbers = told.numbers.tables | {n: _queue_numbers(t) for n, t in queues.items()}
        counted = {key: getattr(stats, key) for key in _COUNTED}
        return Told(Numbers(numbers, counted, stats.clients), told.seen, there.weights_version)

    def end() -> None:
        for _, stop in looked.values():
            stop()

    storages = {name: b.storage for name, b in buffers.items()}
    try:
        label = f"on port {server.port}"
    except ServerError:  # it is not started: SharedClients find it by its name
        label = name
    try:
        return Dashboard("server", label, storages, ask, page, end)
    except BaseException:
        end()
        raise
