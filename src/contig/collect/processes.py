"""Processes: workers that are children of this process, with weights in shared memory."""

from __future__ import annotations

from typing import Any

from ..weights.board import WeightsBoard
from .carrier import Events
from .sink import Address, address_of
from .worker_handle import WorkerHandle
from .worker_spec import WorkerSpec

__all__ = ["Processes"]


class Processes:
    """The carrier of a MultiCollector: see `Carrier`."""

    def __init__(self) -> None:
        self._board: WeightsBoard | None = None

    def address(self, buffer: Any, number: int) -> Address | None:
        return address_of(buffer, number)

    def publish(self, version: int | None, tree: Any) -> int:
        if self._board is None:  # before the first worker starts, which inherits it
            self._board = WeightsBoard.create(tree)
        return self._board.publish(version, tree)

    def start(self, job: WorkerSpec, events: Events, instead: Any = None) -> WorkerHandle:
        board = -1 if self._board is None else self._board.fd
        return WorkerHandle(job._replace(board=board), events)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
