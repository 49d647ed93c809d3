"""What a server says of itself to who watches it: what it counts, and its tables."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from ..dashboard import Dashboard, Numbers, PageOptions, Told
from ..errors import ClosedError, ServerError
from ..replay import ReplayBuffer
from ..replay.watching import look_at_draws, told_of
from ..tape import Storage
from .statistics import ServerStats

__all__ = ["ToldByServer", "Watched", "open_dashboard"]

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
    def buffers(self) -> dict[str, ReplayBuffer[Any]]: ...
    @property
    def weights_version(self) -> int | None: ...
    def stats(self) -> ServerStats: ...


def _queue_numbers(table: dict[str, Any]) -> dict[str, Any]:
    """A queue's counters, named as a table's are."""
    names = ("kind", "capacity", "rows_in", "rows_out", "blocked")
    known = {name: table[name] for name in names}
    return {**known, "rows": table["depth"], "episodes": None, "drawn": None, "limiter": None}


class ToldByServer:
    """Asks a server, which it does not keep, and has its learner's draws looked at until `end`.

    Args:
        server: what is watched.
        samples_per_s: rows of draws that are looked at.

    Attributes:
        label: where the server is.
        storages: by table.
    """

    def __init__(self, server: Watched, samples_per_s: float) -> None:
        buffers, find = server.buffers, weakref.ref(server)

        def newest() -> int | None:
            there = find()
            try:
                return None if there is None else there.weights_version
            except RuntimeError:  # the board is torn: no draw fails because somebody looks
                return None

        looked = {name: look_at_draws(b, samples_per_s, newest) for name, b in buffers.items()}
        self._tables = {name: (ingress, seen) for name, ((ingress, seen), _) in looked.items()}
        self._ends = [end for _, end in looked.values()]
        self._server, self._name = find, server.name
        self.storages: dict[str, Storage] = {name: b.storage for name, b in buffers.items()}
        try:
            self.label = f"on port {server.port}"
        except ServerError:  # it is not started: SharedClients find it by its name
            self.label = server.name

    def ask(self) -> Told:
        """The numbers now. Raises ClosedError: the server is gone."""
        there = self._server()
        if there is None:
            raise ClosedError(f"the server {self._name!r} is gone")
        stats = there.stats()
        told = told_of(self._tables)
        queues = {n: t for n, t in stats.tables.items() if t["kind"] == "queue"}
        numbers = told.numbers.tables | {n: _queue_numbers(t) for n, t in queues.items()}
        counted = {key: getattr(stats, key) for key in _COUNTED}
        return Told(Numbers(numbers, counted, stats.clients), told.seen, there.weights_version)

    def end(self) -> None:
        """Draws are not looked at any more."""
        for end in self._ends:
            end()


def open_dashboard(server: Watched, port: int, options: dict[str, Any]) -> Dashboard:
    """See `Server.dashboard`. The page does not keep the server."""
    page = PageOptions(port=port, **options).checked()
    told = ToldByServer(server, page.samples_per_s)
    try:
        return Dashboard("server", told.label, told.storages, told.ask, page, told.end)
    except BaseException:
        told.end()
        raise
