"""The directory: makes a buffer's shards, knows where they are, and replaces those that are lost.

    learner ──changes──▶ ┌───────────┐ ──makes, holds──▶ shard 0   (Ray actors)
    producer ─successor─▶│ directory │ ─────────────────▶ shard 1
                         └───────────┘                    ...

It is an actor on the node of the process that made the buffer, and ends with that process. A call
`hold` to each shard never returns: it fails when the shard does, so nobody has to look.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from ..arguments import check_kind
from .engine import own_node, ray
from .place import Place, ShardSpec
from .placement import actor_options, choose_node
from .shard import Shard

__all__ = ["Directory", "open_directory", "started"]

log = logging.getLogger("contig.cluster")

_AGAIN_S = (0.1, 0.5, 2.0)  # between attempts to replace a shard
_THREADS = 32  # calls a shard answers at a time: `hold`s, and draws of several learners


def open_directory(spec: ShardSpec, name: str | None) -> Any:
    """The directory of this name if there is one, else a new one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_concurrency": 10_000,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(own_node(), soft=False),
    }
    if name is not None:
        check_kind("name", name, str, "give text")
        options.update(name=f"contig.{name}", get_if_exists=True)
    return ray.remote(Directory).options(**options).remote(spec)


def started(directory: Any) -> ShardSpec:
    """Waits for the shards. Raises what making them raised."""
    found: ShardSpec | Exception = ray.get(directory.start.remote())
    if isinstance(found, Exception):
        ray.kill(directory)
        raise found
    return found


class Directory:
    """The actor. All of its methods are coroutines of one event loop."""

    def __init__(self, spec: ShardSpec) -> None:
        self._spec = spec
        self._places: list[Place | None] = [None] * spec.shards
        self._lives = [0] * spec.shards
        self._last: list[Place | None] = [None] * spec.shards
        self._nodes: list[str | None] = [None] * spec.shards
        self._producers: Counter[int] = Counter()
        self._numbers = 0
        self._version = 0
        self._lost = 0
        self._failure: Exception | None = None
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    async def start(self) -> ShardSpec | Exception:
        """Makes the shards, the first time; what they are made of, or what went wrong."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._tend(s)) for s in range(self._spec.shards)]
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure is not None or all(self._lives))
        return self._spec if self._failure is None else self._failure

    # -- for learners and producers -----------------------------------------------------------

    async def changes(self, version: int, wait_s: float) -> tuple[int, list[Place | None], int]:
        """Version, shards by slot and how many were ever lost, when that is news or it is late."""
        async with self._changed:
            await self._within(wait_s, lambda: self._version != version or self._closing)
        return self._version, list(self._places), self._lost

    async def successor(self, slot: int, life: int, wait_s: float) -> Place | None:
        """What took the place of a shard; None if nothing did in time."""

        def there() -> bool:
            place = self._places[slot]
            return self._closing or (place is not None and place.life > life)

        async with self._changed:
            await self._within(wait_s, there)
        place = self._places[slot]
        return place if place is not None and place.life > life else None

    async def assign(self, node: str, slot: int | None, wait_s: float) -> Place | None:
        """A shard for a producer on a node: that of a slot, or one that suits it. None: there was
        none in time."""

        def fit() -> list[Place]:
            return [p for p in self._places if p is not None and slot in (None, p.slot)]

        async with self._changed:
            await self._within(wait_s, fit)
        there = fit()
        if not there:
            return None
        near = [p for p in there if p.node == node] or there
        place = min(near, key=lambda p: (self._producers[p.slot], p.slot))
        self._producers[place.slot] += 1
        return place

    async def release(self, slot: int) -> None:
        """A producer leaves."""
        self._producers[slot] -= 1

    async def close(self) -> None:
        """Ends the shards in good order."""
        self._closing = True
        async with self._changed:
            self._changed.notify_all()
        closing = [p.actor.close.remote() for p in self._places if p is not None]
        if closing:
            await asyncio.wait([asyncio.wrap_future(c.future()) for c in closing], timeout=20.0)
        for place in self._places:
            if place is not None:
                ray.kill(place.actor)

    # -- tending ------------------------------------------------------------------------------

    async def _tend(self, slot: int) -> None:
        """Keeps a slot filled."""
        failed = 0
        while not self._closing:
            try:
                place = await self._fill(slot)
            except Exception as error:
                gone = isinstance(error, ray.exceptions.ActorUnschedulableError)
                if self._last[slot] is None and not gone:  # for the user to see
                    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
                    self._failure = cause
                    async with self._changed:
                        self._changed.notify_all()
                    return
                log.warning("shard %d cannot be replaced yet: %s", slot, error)
                await asyncio.sleep(_AGAIN_S[min(failed, len(_AGAIN_S) - 1)])
                failed += 1
                continue
            failed = 0
            await self._put(slot, place)
            try:
                await place.actor.hold.remote()
            except Exception as error:
                if not self._closing:
                    self._lost += 1
                    log.warning(
                        "shard %d on node %s was lost: %s", slot, place.node, _first_line(error)
                    )
            await self._put(slot, None)

    async def _fill(self, slot: int) -> Place:
        spec, last = self._spec, self._last[slot]
        kept = last is not None and last.kind == "disk"
        others = [node for s, node in enumerate(self._nodes) if s != slot]
        before = self._nodes[slot] if kept else None
        node = choose_node(spec.placement, slot, spec.home, others, before)
        self._nodes[slot] = node
        options = actor_options(spec.placement, slot, node)
        if kept and last is not None:
            number = last.number
        else:
            number, self._numbers = self._numbers, self._numbers + 1
        actor = (
            ray.remote(Shard)
            .options(num_cpus=spec.num_cpus, max_concurrency=_THREADS, **options)
            .remote(spec, slot, number)
        )
        described = await actor.start.remote()
        self._lives[slot] += 1
        place = Place(slot, number, self._lives[slot], actor, **described)
        self._last[slot], self._nodes[slot] = place, place.node
        return place

    async def _put(self, slot: int, place: Place | None) -> None:
        async with self._changed:
            self._places[slot] = place
            self._version += 1
            self._changed.notify_all()

    async def _within(self, wait_s: float, there: Any) -> None:
        try:
            await asyncio.wait_for(self._changed.wait_for(there), wait_s)
        except TimeoutError:
            pass


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
