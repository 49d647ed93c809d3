"""The model: rates of a cluster from constants of a machine. No measuring here.

Each node has `cores`: one is its shard's, the others step environments, whose rows go to the shard
of their node through shared memory. One learner samples over all shards, and publishes weights.

    actors    (cores - 1) / (1 / steps_per_s + 1 / shared_rows_per_s)
                                                     each steps, and packs its own rows
    tape      copy_bytes_per_s / row_bytes           one append at a time: under the lock, a memcpy
    gather    sample_s                               a batch, whatever it comes from
    requests  request_s each                         the learner's own time: every other shard is
                                                     asked what it has, and those that a batch of
                                                     n rows falls on, at most n, for their share
    network   bytes that are not on the learner's node, over its one network card
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Constants:
    """Measured on one machine, or given.

    Attributes:
        row_bytes: of one step.
        copy_bytes_per_s: memcpy.
        shared_rows_per_s: appended to one tape through shared memory, by one core.
        tcp_rows_per_s: through one TCP connection, with what receives them.
        steps_per_s: that one core makes of environment and policy.
        sample_s: a batch of `batch` rows from one tape of this process.
        call_s: a call of a Ray actor, there and back.
        request_s: what each more shard costs the learner.
        network_bytes_per_s: of one node's card.
        weights_bytes: of one version.
        cores: of a node.
        batch: rows of a batch.
    """

    row_bytes: int
    copy_bytes_per_s: float
    shared_rows_per_s: float
    tcp_rows_per_s: float
    steps_per_s: float
    sample_s: float
    call_s: float
    request_s: float
    network_bytes_per_s: float
    weights_bytes: float
    cores: int = 32
    batch: int = 256


class Rate(NamedTuple):
    """So much a second, and what bounds it."""

    per_s: float
    bottleneck: str


class Prediction(NamedTuple):
    """Of a cluster.

    Attributes:
        nodes: how many.
        ingest: rows, into the shards of all nodes.
        central: rows, if all went by TCP to one table on the learner's node instead.
        batches: that one learner samples.
        weights: versions, fetched by every node from the learner's.
    """

    nodes: int
    ingest: Rate
    central: Rate
    batches: Rate
    weights: Rate


def _least(bounds: dict[str, float]) -> Rate:
    name = min(bounds, key=lambda n: bounds[n])
    return Rate(bounds[name], name)


def batch_parts(c: Constants, shards: int) -> dict[str, float]:
    """Seconds of the parts of one batch that is drawn over shards, one of them here."""
    asked = min(shards, c.batch)
    away = (shards - 1) / shards * c.batch * c.row_bytes
    return {
        "gather": c.sample_s,
        "requests": (shards - 1 + asked - 1) * c.request_s,
        "latency": 2 * c.call_s if shards > 1 else 0.0,  # both, one after the other
        "network": away / c.network_bytes_per_s,
    }


def predict(c: Constants, nodes: int) -> Prediction:
    """Rates of a cluster of so many nodes; the first bottleneck is the one to do something about.

    Batches are drawn ahead, so latency is hidden and bounds nothing.
    """
    produced = (c.cores - 1) / (1 / c.steps_per_s + 1 / c.shared_rows_per_s)
    tape = c.copy_bytes_per_s / c.row_bytes
    ingest = _least({"actors": nodes * produced, "tape": nodes * tape})
    central = _least(
        {
            "actors": nodes * produced,
            "TCP receiver": c.tcp_rows_per_s,
            "network": c.network_bytes_per_s / c.row_bytes,
        }
    )
    parts = batch_parts(c, nodes)
    busy = parts["gather"] + parts["requests"]
    bounds = {"gather" if parts["gather"] > parts["requests"] else "requests": 1 / busy}
    if parts["network"]:
        bounds["network"] = 1 / parts["network"]
    versions = {"copy": c.copy_bytes_per_s / c.weights_bytes}
    if nodes > 1:
        versions["network"] = c.network_bytes_per_s / (c.weights_bytes * (nodes - 1))
    return Prediction(nodes, ingest, central, _least(bounds), _least(versions))
