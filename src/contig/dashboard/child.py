"""The process that serves a page: opens the tables it is told of, and asks its parent the rest."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import numpy as np

from ..errors import ServerError
from ..process.channel import Channel, Message
from ..process.spawn import enter
from ..tape import SharedStorage, Storage
from ..tape.disk import DiskStorage
from ..tape.memory import storage_of_fd
from .ages import SEEN
from .numbers import Numbers
from .serving import PageOptions, PageServer
from .source import StorageSource, Told

__all__ = ["main"]

_ANSWER_S = 10.0


class _Parent:
    """The process whose tables are watched, asked one question at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._arrived = threading.Condition()
        self._answer: Message | None = None
        self.gone = threading.Event()

    def listen(self) -> None:
        """Takes in answers; returns when the parent is gone."""
        while (message := self._channel.receive()) is not None:
            with self._arrived:
                self._answer = message
                self._arrived.notify_all()
        self.gone.set()

    def ask(self) -> Told:
        with self._lock, self._arrived:
            self._answer = None
            self._channel.send({"op": "numbers"})
            self._arrived.wait_for(lambda: self._answer is not None, _ANSWER_S)
            if self._answer is None:
                raise ServerError("the learner's process does not answer: it is stopped, or gone")
            content, raw = self._answer
        if "error" in content:
            raise ServerError(content["error"])
        rows = np.frombuffer(raw, SEEN)
        seen, at = {}, 0
        for name, count in content["seen"].items():
            seen[name] = rows[at : at + count]
            at += count
        return Told(Numbers(**content["numbers"]), seen, content["weights_version"])


def _opened(place: dict[str, Any]) -> Storage:
    if "path" in place:
        return DiskStorage(place["path"], read_only=True)
    if "name" in place:
        return SharedStorage.attach(place["name"])
    return storage_of_fd(place["fd"])


def _served(config: dict[str, Any], parent: _Parent) -> PageServer:
    storages = {name: _opened(place) for name, place in config["tables"].items()}
    source = StorageSource(config["kind"], config["label"], storages, ask=parent.ask)
    told = config["options"]
    options = PageOptions(**{**told, "tls": None if told["tls"] is None else tuple(told["tls"])})
    listening = socket.socket(fileno=config["listening"])
    return PageServer(source, options, listening)


def main() -> None:
    """Serves until the parent lets go of the channel, or dies."""
    channel, _ = enter()
    first = channel.receive()
    if first is None:
        return
    parent = _Parent(channel)
    try:
        page = _served(first.content, parent)
    except Exception as error:
        channel.send({"failed": f"{type(error).__name__}: {error}"})
        return
    channel.send({"op": "ready"})
    parent.listen()
    page.close()
    os._exit(0)  # a request that still waits keeps nobody


if __name__ == "__main__":
    main()
