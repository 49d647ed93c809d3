"""A cluster of three raylets on this machine, loopback only: `node0` is the tests' own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("ray")

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# A node that was killed is known to be dead soon.
os.environ.setdefault("RAY_health_check_initial_delay_ms", "0")
os.environ.setdefault("RAY_health_check_period_ms", "500")
os.environ.setdefault("RAY_health_check_failure_threshold", "3")

_NODE = {
    "num_cpus": 2,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "node_ip_address": "127.0.0.2",  # Ray takes 127.0.0.1 for a way to say this machine
}


class RayCluster:
    """The cluster, and nodes that tests add and remove."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        head = {**_NODE, "resources": {"node0": 100}}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self._cluster.head_node]
        for i in (1, 2):
            self.add(f"node{i}")
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self._cluster.wait_for_nodes()

    def add(self, resource: str) -> Any:
        """A node with a resource of this name."""
        args = {k: v for k, v in _NODE.items() if k != "include_dashboard"}
        node = self._cluster.add_node(resources={resource: 100}, **args)
        self.nodes.append(node)
        return node

    def remove(self, node: Any) -> None:
        """Kills a node and everything on it."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    found = RayCluster()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    def wait(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"after {seconds} s: {what}"
            time.sleep(0.02)

    return wait
