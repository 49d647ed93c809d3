"""A cluster of raylets on this machine, and what it does: ingest by one actor for each node, and
batches over a shard of each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.cluster.constants import CAPACITY, STEPS, rate, trajectory

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

_NODE = {"num_cpus": 2, "object_store_memory": 100 << 20, "node_ip_address": "127.0.0.2"}


class Measured(NamedTuple):
    """Rows added a second, by all producers; seconds of a batch."""

    rows_per_s: float
    batch_s: float


@contextmanager
def cluster(nodes: int) -> Iterator[list[str]]:
    """The ids of its nodes; the first is this process's."""
    import ray
    from ray.cluster_utils import Cluster

    made: Any = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(**_NODE)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        made.wait_for_nodes()
        here = ray.get_runtime_context().get_node_id()
        others = sorted(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here)
        yield [here, *others]
    finally:
        ray.shutdown()
        made.shutdown()


class _Producer:
    def __init__(self, client: Any) -> None:
        self._producer = client.connect()
        self._producer.extend_trajectory(trajectory(), truncated=True)
        self._producer.flush()

    def shared(self) -> bool:
        return bool(self._producer.shared)

    def produce(self, seconds: float) -> tuple[int, float, float]:
        """Rows, and when they were written."""
        data, rows, begun = trajectory(), 0, time.time()
        while time.time() - begun < seconds:
            for _ in range(20):
                self._producer.extend_trajectory(data, truncated=True)
            rows += 20 * STEPS
        self._producer.flush()
        return rows, begun, time.time()


class _Echo:
    def call(self, given: Any) -> Any:
        return given


def call_s(seconds: float) -> float:
    """A call of an actor of another process, there and back."""
    import ray

    echo: Any = ray.remote(_Echo).options(num_cpus=0).remote()
    return 1 / rate(lambda: ray.get(echo.call.remote(1)), seconds)


def request_s(seconds: float, calls: int = 32) -> float:
    """What one more call costs if all are on their way at once."""
    import ray

    echo: Any = ray.remote(_Echo).options(num_cpus=0).remote()
    return 1 / rate(
        lambda: ray.get([echo.call.remote(1) for _ in range(calls)]), seconds, units=calls
    )


def measure(nodes: list[str], batch: int, seconds: float) -> Measured:
    """With a shard and a producer on each of these nodes."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    from contig import RayReplayBuffer

    with RayReplayBuffer(len(nodes), CAPACITY, placement=nodes, batch_size=batch, seed=0) as buffer:
        kind: Any = ray.remote(_Producer)
        producers = [
            kind.options(num_cpus=0, scheduling_strategy=On(n, soft=False)).remote(buffer.client())
            for n in nodes
        ]
        assert all(ray.get([p.shared.remote() for p in producers]))
        runs = ray.get([p.produce.remote(seconds) for p in producers])
        spent = max(end for *_, end in runs) - min(begun for _, begun, _ in runs)
        rows_per_s = sum(rows for rows, *_ in runs) / spent
        batch_s = 1 / rate(buffer.sample, seconds)
        return Measured(rows_per_s, batch_s)
