"""Dashboard: the page of a buffer's or a server's tables, in a process of its own.

    learner's process                                   the page's process
    storages  ── shared memory, or a directory ───────> reads rows, like any other reader
    counters  <─ asked once a second, while somebody ─> uvicorn ──> browsers
                 looks: numbers, rows that were drawn

So what a page costs the learner is one answer per second: the page's own work is elsewhere. Where
memory cannot be handed to another process, the page is served by a thread.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..process.spawn import Child
from ..tape import LazyTensorStorage, SharedStorage, Storage
from ..tape.disk import DiskStorage
from .serving import PageOptions, PageServer, check_installed, listen, url_of
from .source import Ask, StorageSource, Told

__all__ = ["Dashboard"]

_START_S = 60.0
_END_S = 5.0


class Dashboard:
    """A page that shows tables while they are used. Made by `ReplayBuffer.dashboard` and
    `Server.dashboard`; they close it with themselves. Thread-safe.

    Args:
        kind, label: what is watched, for the page's title.
        storages: by table.
        ask: what the page asks this process.
        options: how it is reached.
        on_close: called when it ends.

    Attributes:
        url: what to open in a browser; it has the token, if there is one.
        port: where it listens.

    Raises:
        ImportError: the extra `dashboard` is not installed.
        OSError: the port is taken.
    """

    def __init__(
        self,
        kind: str,
        label: str,
        storages: Mapping[str, Storage],
        ask: Ask,
        options: PageOptions,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        options = options.checked()
        check_installed()
        listening = listen(options)
        self.url = url_of(options, listening)
        self.port = int(listening.getsockname()[1])
        places = {name: _place(storage) for name, storage in storages.items()}
        end: Callable[[], None]
        if sys.platform == "linux" and None not in places.values():
            config = {"kind": kind, "label": label, "tables": places, "options": options._asdict()}
            end = _PageProcess(config, listening, ask).close
        else:
            source = _Borrowed(kind, label, storages, ask=ask)
            end = PageServer(source, options, listening).close
        self._close = weakref.finalize(self, _here_only, os.getpid(), on_close, end)

    def close(self) -> None:
        """Ends the page."""
        self._close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Dashboard({self.url.partition('?')[0]!r})"


class _Borrowed(StorageSource):
    """Storages of this process, which go on when the page ends."""

    def close(self) -> None:
        pass


def _here_only(pid: int, *calls: Callable[[], None]) -> None:
    """In a forked child the page is its parent's."""
    if os.getpid() == pid:
        for call in calls:
            call()


def _place(storage: Storage) -> dict[str, Any] | None:
    """How another process of this host opens a storage; None: it cannot."""
    if isinstance(storage, DiskStorage):
        return {"path": str(storage.path)}
    if isinstance(storage, SharedStorage):
        return {"name": storage.name}
    return {"fd": storage.fd} if type(storage) is LazyTensorStorage and storage.fd >= 0 else None


class _PageProcess:
    """The process that serves a page, as this one sees it."""

    def __init__(self, config: dict[str, Any], listening: socket.socket, ask: Ask) -> None:
        fds = [place["fd"] for place in config["tables"].values() if "fd" in place]
        self._ask = ask
        with listening:
            child = self._child = Child(
                "contig.dashboard.child",
                inherited=[listening.fileno(), *fds],
                environment={"OPENBLAS_NUM_THREADS": "1"},
            )
            try:
                child.channel.line.settimeout(_START_S)
                child.channel.send({**config, "listening": listening.fileno()})
                first = child.channel.receive()
                child.channel.line.settimeout(None)
                if first is None or "failed" in first.content:
                    said = "it said nothing" if first is None else first.content["failed"]
                    raise OSError(f"the dashboard's process did not start: {said}")
            except BaseException:
                self.close()
                raise
        self._reader = threading.Thread(target=self._answer, name="contig-dashboard", daemon=True)
        self._reader.start()

    def _answer(self) -> None:
        """Answers what the page asks, until one of the two ends."""
        channel = self._child.channel
        while channel.receive() is not None:
            try:
                channel.send(*_encoded(self._ask()))
            except OSError:
                return
            except Exception as error:  # a server that was closed: the page says so
                channel.send({"error": f"{type(error).__name__}: {error}"})

    def close(self) -> None:
        self._child.close()  # it ends by that
        self._child.end(_END_S)


def _encoded(told: Told) -> tuple[dict[str, Any], bytes]:
    """What is told, as a message: JSON, and rows that were seen, as their bytes."""
    seen = {name: len(rows) for name, rows in told.seen.items()}
    content = {
        "numbers": told.numbers._asdict(),
        "seen": seen,
        "weights_version": told.weights_version,
    }
    return content, b"".join(np.ascontiguousarray(rows).tobytes() for rows in told.seen.values())
