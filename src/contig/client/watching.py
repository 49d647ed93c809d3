"""A server watched over the network: what its own page would show, asked for by WATCH.

    numbers, ages      the server's own: counters, clients, limiters, what its learner draws
    episodes, rows     its tables', some megabytes at a time

Reads only: nothing is drawn for it, and no limiter counts it.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np

from ..batch import Batch, stack_batches
from ..dashboard import Book, Kept, Numbers, Source
from ..layout import Layout
from ..tape.episodes import EPISODE
from ..wire import Type, table_in
from ..wire.tls import client_context
from .connecting import ServerAddress
from .replies import read_batch, read_described, read_reply
from .session import Session
from .session_thread import SessionOptions
from .tcp import asking_session

__all__ = ["RemoteSource"]

Array = np.ndarray[Any, Any]

_ANSWER_S = 10.0
_MOST_EPISODES = 200_000  # of the newest
_PIECE_BYTES = 1 << 20  # of rows that are asked for at a time
_COUNTED = ("tables", "server", "clients")


class RemoteSource(Source):
    """Tables of a server, over TCP.

    Args:
        host, port: the server.
        tables: those to show; none: all.
        token, tls, reconnect_s: as `TcpClient` takes them.

    Raises:
        ConnectionClosedError: there is no server.
        ValueError: it refuses the token or the table, or is too old to be watched.
    """

    kind = "remote"

    def __init__(
        self,
        host: str,
        port: int,
        tables: tuple[str, ...] = (),
        *,
        token: str | None = None,
        tls: Any = None,
        reconnect_s: float = 30.0,
    ) -> None:
        super().__init__()
        self.label = f"{host}:{port}"
        self._shown = tables
        address = ServerAddress(host, port, None, token, client_context(tls))
        self._session = self._connect(address, SessionOptions(reconnect_s=reconnect_s))
        try:
            if not self._session.thread.first.accepted.watched:
                raise ValueError(
                    f"the server at {self.label} cannot be watched over the network: update contig "
                    "where it runs, or use its own page, `contig serve --dashboard PORT`"
                )
            self._books: dict[str, _RemoteBook] = {}
            self.numbers()
        except BaseException:
            self.close()
            raise

    def _connect(self, address: ServerAddress, options: SessionOptions) -> Session:
        """A session at any table: each can be asked about all. The name that a server with one
        table gives it is tried first; a refusal says which there are."""
        if self._shown:
            return asking_session(address._replace(table=self._shown[0]), options)
        try:
            return asking_session(address, options)
        except ValueError as error:
            there = table_in(str(error))
            if there is None:
                raise
            return asking_session(address._replace(table=there), options)

    def ask(self, **asked: Any) -> tuple[int, bytes]:
        """The type and payload of the answer to a WATCH."""
        return self._session.request(Type.WATCH, json.dumps(asked).encode(), _ANSWER_S)

    def numbers(self) -> Numbers:
        told = read_reply(*self.ask(what="numbers"))
        tables, server, clients = (told[name] for name in _COUNTED)
        missing = [name for name in self._shown if name not in tables]
        if missing:
            raise ValueError(f"no table {missing[0]!r}; this server has: {', '.join(tables)}")
        self.notes = told["notes"]
        for name in tables:
            self._books.setdefault(name, _RemoteBook(self, name))
        return Numbers(
            {name: t for name, t in tables.items() if name in (self._shown or tables)},
            server,
            clients,
        )

    def ages(self, table: str) -> dict[str, Any]:
        ages: dict[str, Any] = read_reply(*self.ask(what="ages", table=table))["ages"]
        return ages

    def book(self, table: str) -> Book:
        if table not in self._books:
            raise KeyError(f"no table {table!r}; there are {', '.join(self._books)}")
        book = self._books[table]
        book.episodes()  # a queue has none, and says so
        return book

    def close(self) -> None:
        self._session.close(1.0)


class _RemoteBook(Book):
    """The newest episodes of a table. Thread-safe."""

    def __init__(self, source: RemoteSource, table: str) -> None:
        self._source, self._table = source, table
        self._lock = threading.Lock()
        self._due = 0.0
        self._layout: Layout | None = None
        self._fields: Layout | None = None
        self._episodes: Array = np.empty(0, EPISODE)

    @property
    def layout(self) -> Layout | None:
        self.episodes()
        return self._layout

    @property
    def fields(self) -> Layout | None:
        return self._fields

    def episodes(self) -> Array:
        """As it was at most a second ago; asking takes at most a twentieth of the time."""
        with self._lock:
            began = time.monotonic()
            if began >= self._due:
                self._episodes = self._ask_episodes()
                self._due = began + max(1.0, 20 * (time.monotonic() - began))
            return self._episodes

    def _ask_episodes(self) -> Array:
        parts: list[Array] = []
        asked: dict[str, Any] = {"what": "episodes", "table": self._table}
        while True:
            try:
                head, raw = read_described(*self._source.ask(**asked))
            except KeyError:
                if not parts:
                    raise  # a queue, or the table is gone
                parts, asked = [], {k: asked[k] for k in ("what", "table")}  # another server
                continue
            self._layout, self._fields = (_layout(head[name]) for name in ("layout", "fields"))
            columns = [(name, dtype, tuple(shape)) for name, dtype, shape in head["columns"]]
            part = np.frombuffer(raw, np.dtype(columns))
            parts.insert(0, part)
            if not len(part) or not head["left"] or sum(map(len, parts)) >= _MOST_EPISODES:
                return np.concatenate(parts)
            asked.update(before=int(part["id"][0]), life=head["life"])

    def kept(self, episode: int) -> Kept:
        asked = {"what": "rows", "table": self._table, "id": int(episode)}
        told = read_reply(*self._source.ask(**asked))
        return Kept(int(episode), int(told["first"]), int(told["end"]), str(told["life"]))

    def read(self, kept: Kept, steps: Array) -> Batch:
        layout = self.layout
        most = max(_PIECE_BYTES // max(1 if layout is None else layout.decoded.record_size, 1), 1)
        asked = {"what": "rows", "table": self._table, "id": kept.episode, "life": kept.life}
        parts = []
        for at in range(0, len(steps), most):
            some = [int(step) for step in steps[at : at + most]]
            parts.append(read_batch(*self._source.ask(**asked, steps=some)))
        if not parts:
            raise KeyError(f"no rows of episode {kept.episode} were asked for")
        return stack_batches(parts)


def _layout(content: Any) -> Layout | None:
    return None if content is None else Layout.from_json(content)
