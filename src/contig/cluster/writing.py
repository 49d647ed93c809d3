"""Rows that the learner itself writes to a sharded buffer."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from .client import ShardClient, ShardProducer

__all__ = ["ShardedWrites"]


class ShardedWrites:
    """The writing half of a RayReplayBuffer.

    Whole trajectories go round the shards. Rows that may go on with what came before (`add`,
    `add_step`, `extend`) stay with one shard for each thread, or go where `shard` says.
    """

    def __init__(self, client: ShardClient, shards: int) -> None:
        self._client, self._shards = client, shards
        self._producers: dict[int, ShardProducer] = {}
        self._writing = threading.Lock()
        self._round = itertools.cycle(range(shards))
        self._threads = itertools.cycle(range(shards))
        self._own = threading.local()

    def add(self, step: Any, fields: Any = None, *, shard: int | None = None) -> None:
        """Appends one row, which goes on with the trajectory until a done row."""
        self._to(shard).add(step, fields)

    def add_step(
        self,
        step: Any,
        env_ids: Any = None,
        mask: Any = None,
        fields: Any = None,
        *,
        shard: int | None = None,
    ) -> None:
        """Appends one step of B envs, ``[B, ...]``, or of some of them."""
        self._to(shard).add_step(step, env_ids, mask, fields)

    def extend(
        self,
        data: Any,
        *,
        continues: bool | None = None,
        fields: Any = None,
        shard: int | None = None,
    ) -> None:
        """Appends rows as `ReplayBuffer.extend` does."""
        self._to(shard).extend(data, continues=continues, fields=fields)

    def extend_trajectory(self, data: Any, *, shard: int | None = None, **end: Any) -> None:
        """Appends one whole trajectory to the next shard; see `ReplayBuffer.extend_trajectory`."""
        self._to(next(self._round) if shard is None else shard).extend_trajectory(data, **end)

    def flush(self, timeout: float | None = None) -> None:
        """Returns when everything that this process wrote is in the shards' tapes."""
        for producer in list(self._producers.values()):
            producer.flush(timeout)

    def close_writers(self) -> None:
        """Sends what is left and closes this process's connections to shards."""
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()

    def _to(self, shard: int | None) -> ShardProducer:
        if shard is None:
            shard = getattr(self._own, "shard", None)
            if shard is None:
                shard = self._own.shard = next(self._threads)
        elif not 0 <= shard < self._shards:
            raise ValueError(f"shard: expected 0 to {self._shards - 1}, got {shard!r}")
        with self._writing:
            producer = self._producers.get(shard)
            if producer is None:
                producer = self._producers[shard] = self._client.connect(shard=shard)
            return producer
