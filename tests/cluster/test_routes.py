"""Ray's ways into a shard give the trajectories of the model, by every verb that they have."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from contig import RayReplayBuffer, SharedStorage, SliceSampler
from contig.cluster import RayCollector, ShardProducer
from contig.tape import Storage
from contig.testing import (
    OpenRoute,
    RouteNeeds,
    VerbKind,
    WriteRoute,
    check_route_case,
    route_cases,
)
from tests.routes.local import STORED_VERBS, call
from tests.routes.playing import Scripted, act, ends_of
from tests.routes.verbs import check_members

NUMBERS = itertools.count()
PLAIN = [verb for verb in STORED_VERBS if "(" not in verb]


class Shards:
    """Buffers of one shard on a node, one for each kind of rows, emptied from case to case."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[Any, Storage]] = {}

    def of(self, needs: RouteNeeds, node: str) -> tuple[Any, Storage]:
        leaves = str(needs.example.keys()) + str(needs.example["collector"].keys())
        kind = (leaves, needs.traj_key, node)
        if kind not in self._made:
            name = f"contig-routes-{os.getpid()}-{next(NUMBERS)}"
            sampler = None
            if needs.traj_key is not None:
                sampler = SliceSampler(slice_len=2, traj_key=needs.traj_key)
            buffer = RayReplayBuffer(
                1, lambda slot: SharedStorage(200, name), sampler, batch_size=2
            )
            self._made[kind] = buffer, SharedStorage.attach(name)
        buffer, storage = self._made[kind]
        storage.empty()
        return buffer, storage

    def close(self) -> None:
        for buffer, storage in self._made.values():
            storage.close()
            buffer.close()


class ProducerWay(OpenRoute):
    """Each lane has a producer, or what `connect` makes of the buffer."""

    def __init__(self, buffer: Any, storage: Storage, connect: Callable[[Any], Any]) -> None:
        self._buffer, self._storage, self._connect = buffer, storage, connect
        self._lanes: dict[int, Any] = {}

    @property
    def storage(self) -> Storage:
        return self._storage

    def write(self, verb: str, lane: int, data: Any) -> None:
        if lane not in self._lanes:
            self._lanes[lane] = self._connect(self._buffer)
        call(self._lanes[lane], verb, data)

    def settle(self) -> None:
        for producer in self._lanes.values():
            producer.flush(60)

    def happen(self, event: str) -> None:
        self.settle()
        self.close()

    def close(self) -> None:
        for producer in self._lanes.values():
            producer.close()
        self._lanes = {}


class ProducerRoute(WriteRoute):
    """Producers of a shard."""

    name = "a Ray producer"
    verbs = MappingProxyType(STORED_VERBS)
    events: Mapping[str, bool] = MappingProxyType({"replace": True})

    def __init__(self, shards: Shards, node: str, connect: Callable[[Any], Any]) -> None:
        self._shards, self._node, self._connect = shards, node, connect

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        way = ProducerWay(*self._shards.of(needs, self._node), self._connect)
        try:
            yield way
        finally:
            way.close()


@pytest.fixture(scope="module")
def shards(cluster: Any) -> Iterator[Shards]:
    made = Shards()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("verb", "node"),
    [*((verb, "node0") for verb in STORED_VERBS), *((verb, "node1") for verb in PLAIN)],
)
def test_what_comes_out_of_producers(shards: Shards, verb: str, node: str) -> None:
    """Through shared memory of the tests' own node, or by TCP."""
    route = ProducerRoute(shards, node, lambda buffer: buffer.client().connect())
    for case in route_cases(route):
        if case.verb == verb and case.sizes in ((), (2, 3, 1)):
            check_route_case(route, case)


class OwnWrites:
    """What the learner itself writes; one producer for all lanes."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def close(self) -> None:
        self._buffer.close_writers()


@pytest.mark.parametrize("verb", PLAIN)
def test_what_comes_out_of_the_buffer_itself(shards: Shards, verb: str) -> None:
    route = ProducerRoute(shards, "node0", OwnWrites)
    for case in route_cases(route):
        rows = route.verbs[verb] in (VerbKind.ROW, VerbKind.ROWS)
        if case.verb == verb and not (rows and len(case.situation.lanes) > 1):
            check_route_case(route, case)


class CollectorWay(OpenRoute):
    """A collector whose actors write to a shard."""

    def __init__(self, buffer: Any, storage: Storage) -> None:
        self._buffer, self._storage = buffer, storage

    @property
    def storage(self) -> Storage:
        return self._storage

    def write(self, verb: str, lane: int, data: Any) -> None:
        ends = ends_of(data)
        with RayCollector(
            [lambda: Scripted(ends)],
            act,
            frames_per_batch=4,
            total_frames=sum(map(len, data)),
            replay_buffer=self._buffer,
            seed=0,
            num_cpus=0,
        ) as collector:
            for _ in collector:
                pass


class CollectorRoute(WriteRoute):
    """A RayCollector."""

    name = "a Ray collector"
    verbs = MappingProxyType({"collect": VerbKind.PLAY})

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        name = f"contig-routes-{os.getpid()}-{next(NUMBERS)}"
        with RayReplayBuffer(1, lambda slot: SharedStorage(200, name), batch_size=2) as buffer:
            storage = SharedStorage.attach(name)
            yield CollectorWay(buffer, storage)
            storage.close()


def test_what_comes_out_of_a_collector(cluster: Any) -> None:
    route = CollectorRoute()
    cases = [c for c in route_cases(route) if len(c.situation.lanes) == 1]
    check_route_case(route, cases[0])


def test_every_verb_of_a_producer_is_driven() -> None:
    others = {"acked", "close", "flush", "pending", "shard", "shared"}
    check_members(ShardProducer, STORED_VERBS, others)


def test_every_verb_of_a_sharded_buffer_is_driven() -> None:
    life = {"client", "close", "close_writers", "flush", "heard", "load", "nodes", "save", "stats"}
    reads = {"draw", "episodes", "feed", "sample", "update_priority", "update_tensordict_priority"}
    check_members(RayReplayBuffer, STORED_VERBS, life | reads | {"empty", "set_fields", "watch"})
