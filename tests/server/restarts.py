"""Episodes that are sent to a server which goes away in their middle, and comes back.

    kind, number = ENDS["SIGTERM"]             # how it goes
    server = kind(number, path)
    client = server.client()                   # and calls of it
    server.restart()                           # and more of them
    found = server.close()                     # its episodes

`sent_in_two` is the whole scenario: a number of calls before, the restart, and the rest.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contig import DiskStorage, ReplayBuffer, Server, SharedStorage, TcpClient, TcpTransport
from tests.client.serving import free_port
from tests.server.test_command import Command
from tests.waiting import until

LIMIT_S = 60.0
ROW = {
    "number": {"shape": [], "dtype": "int64"},
    "next": {"reward": {"shape": [], "dtype": "float32"}, "done": {"shape": [], "dtype": "bool"}},
}
ID_ROW = {**ROW, "episode": {"shape": [], "dtype": "int64"}}


def example(row: dict[str, Any]) -> Any:
    """One row of zeros."""
    if "shape" in row:
        return np.zeros(row["shape"], row["dtype"])
    return {key: example(value) for key, value in row.items()}


class Episode(NamedTuple):
    """What a table has of an episode: the numbers of its rows, and whether it is complete."""

    numbers: list[int]
    complete: bool


def episodes_in(storage: Any) -> list[Episode]:
    """Episodes of a storage, those with the smallest numbers first."""
    found = []
    for line in storage.episodes():
        numbers = storage.read_episode(int(line["id"]))["number"].tolist()
        found.append(Episode(numbers, bool(line["complete"])))
    return sorted(found)


class OnDisk:
    """`contig serve --disk`, ended by a signal and started again.

    Args:
        number: the signal.
        path: where it keeps its rows.
        row: what rows are.
    """

    keeps = True

    def __init__(self, number: int, path: Path, row: dict[str, Any] = ROW) -> None:
        self._number, self._path = number, path
        (path / "row.json").write_text(json.dumps(row))
        self._port = free_port()
        self._command = self._start()

    def _start(self) -> Command:
        at = ("--disk", self._path / "runs", "--port", self._port)
        return Command("--example", self._path / "row.json", *at)

    def client(self, **options: Any) -> TcpClient:
        return TcpClient("127.0.0.1", self._port, **options)

    def restart(self) -> None:
        self._command.end(self._number)
        self._command = self._start()

    def close(self) -> list[Episode]:
        self._command.end()
        with DiskStorage(self._path / "runs" / "default", read_only=True) as storage:
            return episodes_in(storage)


class InMemory:
    """A server of a table in memory, which begins empty each time it is started."""

    keeps = False

    def __init__(self, number: int, path: Path, row: dict[str, Any] = ROW) -> None:
        self._row, self._port = row, free_port()
        self._start()

    def _start(self) -> None:
        self._storage = SharedStorage(1000, example=example(self._row))
        transport = TcpTransport(self._port, max_restarts=1)
        self._server = Server(buffer=ReplayBuffer(self._storage), transport=transport).start()

    def client(self, **options: Any) -> TcpClient:
        return TcpClient("127.0.0.1", self._port, **options)

    def restart(self) -> None:
        self._server.close(final=False)
        self._storage.close()
        self._start()

    def close(self) -> list[Episode]:
        found = episodes_in(self._storage)
        self._server.close()
        self._storage.close()
        return found


class IngestKilled(InMemory):
    """A server of a table in memory, whose ingest process is killed and started again."""

    keeps = True

    def restart(self) -> None:
        before = self._server.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)

        def started() -> bool:
            self._server.check()
            return self._server.pid not in (None, before)

        until(started, "another ingest process")


ENDS: dict[str, tuple[Callable[..., Any], int]] = {
    "SIGTERM": (OnDisk, signal.SIGTERM),
    "SIGKILL": (OnDisk, signal.SIGKILL),
    "in memory": (InMemory, 0),
    "ingest process": (IngestKilled, 0),
}

Call = Callable[[Any], None]


class Sent(NamedTuple):
    """Calls of one client, and what they are to be in a table.

    Attributes:
        calls: each gets the client.
        episodes: the numbers of their rows.
    """

    calls: list[Call]
    episodes: list[list[int]]


def sent_in_two(end: str, path: Path, sent: list[Sent], before: int, row: Any = ROW) -> None:
    """Has each of some clients make its calls, with a restart behind so many of them, and checks
    what is in the table then."""
    kind, number = ENDS[end]
    server = kind(number, path, row)
    clients = [server.client() for _ in sent]
    try:
        for client, what in zip(clients, sent):
            for call in what.calls[:before]:
                call(client)
            client.wait(LIMIT_S)
        server.restart()
        for client, what in zip(clients, sent):
            for call in what.calls[before:]:
                call(client)
            client.wait(LIMIT_S)
    finally:
        for client in clients:
            client.close()
        found = server.close()
    seen = sorted(numbers for what in sent for numbers in what.episodes)
    if server.keeps:
        assert found == [Episode(numbers, True) for numbers in seen]
        return
    for numbers, complete in found:  # the rest of what began before, or a whole one
        whole = next(e for e in seen if numbers[-1] in e)
        assert numbers == whole[-len(numbers) :]
        assert complete == (numbers == whole), (numbers, whole)
