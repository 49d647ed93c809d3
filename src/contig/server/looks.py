"""WATCH: what somebody elsewhere sees of a server, as its own page shows it.

    {"what": "numbers"}                                       counters, clients
    {"what": "ages", "table": T}                              of what is sampled
    {"what": "episodes", "table": T}                          the newest
    {"what": "episodes", "table": T, "before": N, "life": L}  the newest of those before one
    {"what": "rows", "table": T, "id": N}                     which steps an episode has
    {"what": "rows", "table": T, "id": N, "steps": [...], "life": L}    some of them

An answer that goes on in others says which life of the table it is of: a server that was started
anew, or that loaded a checkpoint, refuses the rest. `tests/model/watching.py` is a model of it.

Reads only. Belongs to one thread of the sampling service; nothing is made before somebody asks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native, wire
from ..arguments import whole
from ..errors import ClosedError
from ..layout import Layout
from ..wire import Type
from .answers import MOST_WATCHED
from .batch_frame import batch_frame

if TYPE_CHECKING:  # the dashboard is imported when somebody looks
    from ..dashboard import Book, StorageSource
    from .watching import ToldByServer, Watched

__all__ = ["Looks"]

_SEEN_PER_S = 1000.0  # rows of the learner's draws that ages are of

Array = np.ndarray[Any, Any]


def _columns_of(episodes: Array) -> list[list[Any]]:
    """What a list of episodes consists of: name, dtype and shape of each column."""
    dtypes = [(name, episodes.dtype[name]) for name in episodes.dtype.names or ()]
    return [[name, dtype.base.str, list(dtype.shape)] for name, dtype in dtypes]


class Looks:
    """Answers those who watch a server over the network.

    Args:
        server: finds it, or None once it is gone.
        name: of the server.
    """

    def __init__(self, server: Callable[[], Watched | None], name: str) -> None:
        self._find, self._name = server, name
        self._life = f"{secrets.token_hex(8)}-"
        self._told: ToldByServer | None = None
        self._source: StorageSource | None = None

    def answer(self, number: int, payload: bytes, max_frame: int) -> list[Any]:
        """The parts of the frame that answers a request. Raises what is wrong with it."""
        asked = wire.parse_json(payload)
        what = asked.get("what")
        if what == "numbers":
            source = self._watched()
            told = {**source.numbers()._asdict(), "label": source.label, "notes": source.notes}
            return [wire.json_frame(Type.REPLY, told, number)]
        table = asked.get("table")
        if not isinstance(table, str):
            raise ValueError(f"WATCH: expected a table's name, got {table!r}")
        most = min(MOST_WATCHED, max_frame)
        if what == "ages":
            ages = self._watched().ages(table)
            return [wire.json_frame(Type.REPLY, {"ages": ages}, number)]
        if what == "episodes":
            return self._episodes(table, asked, number, most)
        if what == "rows":
            return self._rows(self._watched().book(table), asked, number, most)
        raise ValueError(f"WATCH: expected numbers, ages, episodes or rows, got {what!r}")

    def _watched(self) -> StorageSource:
        if self._source is None:
            from ..dashboard import StorageSource
            from .watching import ToldByServer

            server = self._find()
            if server is None:
                raise ClosedError(f"the server {self._name!r} is gone")
            told = self._told = ToldByServer(server, _SEEN_PER_S)
            self._source = StorageSource("server", told.label, told.storages, ask=told.ask)
        return self._source

    def _episodes(self, table: str, asked: dict[str, Any], number: int, most: int) -> list[Any]:
        book = self._watched().book(table)
        life, episodes = book.listed()
        before = asked.get("before")
        if before is not None:
            self._check_life(asked, life)
            episodes = episodes[episodes["id"] < whole("before", before, 0)]
        head = {
            "layout": _json(book.layout),
            "fields": _json(book.fields),
            "left": len(episodes),
            "life": self._life + life,
            "columns": _columns_of(episodes),
        }
        room = most - len(str(head)) - 64
        newest = episodes[-max(room // max(episodes.dtype.itemsize, 1), 1) :]
        head["left"] -= len(newest)
        return wire.described(head, newest.tobytes(), Type.BATCH, number)

    def _check_life(self, asked: dict[str, Any], life: str) -> None:
        if asked.get("life", self._life + life) != self._life + life:
            raise KeyError("the server was started anew, or loaded a checkpoint: look again")

    def _rows(self, book: Book, asked: dict[str, Any], number: int, most: int) -> list[Any]:
        kept, steps = book.kept(whole("id", asked.get("id"), 0)), asked.get("steps")
        if steps is None:
            told = {"first": kept.first, "end": kept.end, "life": self._life + kept.life}
            return [wire.json_frame(Type.REPLY, told, number)]
        if not isinstance(steps, list) or not steps:
            raise ValueError("steps: expected a list of numbers")
        self._check_life(asked, kept.life)
        at = np.array([whole("steps", step, 0) for step in steps], np.int64)
        layout = book.layout
        size = 0 if layout is None else layout.decoded.record_size
        if len(at) * size > most:
            raise ValueError(f"{len(at)} rows of {size} bytes: at most {most} bytes at a time")
        before = _native.limit_gather(most)  # before there is memory for leaves of any size
        try:
            return batch_frame(book.read(kept, at), number, most)
        finally:
            _native.limit_gather(before)

    def close(self) -> None:
        """Draws are not looked at any more."""
        if self._told is not None:
            self._told.end()


def _json(layout: Layout | None) -> Any:
    return None if layout is None else layout.to_json()
