"""Collectors as ways into a buffer: environments give the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Any

from contig import (
    Collector,
    LazyTensorStorage,
    MultiAsyncCollector,
    MultiSyncCollector,
    ParallelEnv,
    ReplayBuffer,
    SerialEnv,
)
from contig.tape import Storage
from contig.testing import OpenRoute, RouteNeeds, VerbKind, WriteRoute
from tests.routes.playing import Scripted, act, ends_of
from tests.waiting import until

__all__ = ["COLLECTORS", "MULTI_COLLECTORS"]

Make = Callable[[list[Any], dict[str, Any]], Any]


class CollectorWay(OpenRoute):
    """A collector that is made for the rows, and ends with them."""

    def __init__(self, storage: Storage, make: Make, starts: bool) -> None:
        self._storage, self._make, self._starts = storage, make, starts

    @property
    def storage(self) -> Storage:
        return self._storage

    def write(self, verb: str, lane: int, data: Any) -> None:
        envs = [partial(Scripted, ends_of(data))] * len(data)
        total = sum(map(len, data))
        options = {
            "policy": act,
            "total_frames": total,
            "frames_per_batch": 2 * len(data),
            "replay_buffer": ReplayBuffer(self._storage, batch_size=2),
            "seed": 0,
        }
        with self._make(envs, options) as collector:
            if self._starts:
                collector.start()
                until(lambda: len(self._storage) >= total, "all rows")
            else:
                for _ in collector:
                    pass


class CollectorRoute(WriteRoute):
    """A kind of collector; `starts`: it runs in the background."""

    verbs = MappingProxyType({"collect": VerbKind.PLAY})

    def __init__(self, name: str, make: Make, starts: bool = False) -> None:
        self.name, self._make, self._starts = name, make, starts

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        with LazyTensorStorage(200) as storage:
            yield CollectorWay(storage, self._make, self._starts)


def _single(envs: list[Any], options: dict[str, Any]) -> Any:
    return Collector(envs[0] if len(envs) == 1 else SerialEnv(len(envs), envs), **options)


def _parallel(envs: list[Any], options: dict[str, Any]) -> Any:
    return Collector(ParallelEnv(len(envs), envs), **options)


COLLECTORS: list[WriteRoute] = [
    CollectorRoute("a collector", _single),
    CollectorRoute("a collector in the background", _single, starts=True),
]
MULTI_COLLECTORS: list[WriteRoute] = [
    CollectorRoute("envs in processes", _parallel),
    CollectorRoute("a synchronous collector", lambda e, o: MultiSyncCollector(e, **o)),
    CollectorRoute("an asynchronous collector", lambda e, o: MultiAsyncCollector(e, **o)),
]
