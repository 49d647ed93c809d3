"""The shards as a learner has them: those of its own node in its own process, others by calls.

on this node   SharedStorage.attach(name) or DiskStorage(path, read_only) -> ShardReader
elsewhere      RemoteShard: a call of the shard's actor, answered with one Ray object
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np

from ..collect.specs import nest
from ..layout import Layout
from ..replay.shard_reader import ShardLost, ShardReader, Source
from ..sample import Sampler
from ..tape import SharedStorage, Storage
from ..tape.disk import DiskStorage
from ..tape.fields import Given, pack_fields
from ..tree import flatten
from .engine import own_node
from .place import Place
from .progress import Progress
from .remote_shard import Answer, RemoteShard

__all__ = ["Fleet"]

log = logging.getLogger("contig.cluster")

Array = np.ndarray[Any, Any]


class _NearShard(ShardReader):
    """A shard of this node, read in this process."""

    def __init__(
        self, place: Place, storage: Storage, sampler: Sampler, progress: Progress | None
    ) -> None:
        super().__init__(storage, sampler, place.number)
        self.place = place
        if progress is not None:
            progress.restore(self)

    is_silent = False

    def counts(self) -> Answer:
        return Answer(self.place.actor.counts.remote())

    def stale_updates(self) -> int:
        return self.sampler.stale_priority_updates

    def reset(self) -> None:
        self.sampler.reset()

    def state(self) -> Any:
        return self.sampler.state()

    def load(self, state: Any) -> None:
        self.sampler.load(state)


class Fleet:
    """The shards that there are. Guarded by the buffer's lock.

    Args:
        sampler: copies of it draw.
        learner: a name that no other learner has.

    Attributes:
        sources: the shards that answer.
        silent: the shards that do not, and were not lost.
        lost_updates: priorities for shards that are gone.
    """

    def __init__(self, sampler: Sampler, learner: str) -> None:
        self._sampler = copy.deepcopy(sampler)
        self._learner, self._node = learner, own_node()
        self._layouts: dict[str, tuple[Layout, frozenset[Any]]] = {}
        self._by_slot: dict[int, Any] = {}
        self.sources: list[Any] = []
        self.silent: list[RemoteShard] = []
        self.lost_updates = 0
        # Of shards on disk, whose rows come back, by number.
        self._kept: dict[int, Progress] = {}

    def install(self, places: list[Place | None]) -> None:
        """Takes over what the directory says."""
        for slot, place in enumerate(places):
            known = self._by_slot.get(slot)
            if place is None:
                self._forget(slot)
            elif known is None or known.place.life != place.life:
                self._forget(slot)
                self._by_slot[slot] = self._open(place)
        self._sort()

    def _sort(self) -> None:
        every = [self._by_slot[slot] for slot in sorted(self._by_slot)]
        self.sources = [s for s in every if not s.is_silent]
        self.silent = [s for s in every if s.is_silent]

    def _open(self, place: Place) -> Any:
        sampler, progress = copy.deepcopy(self._sampler), None
        if place.kind == "disk":
            progress = self._kept.pop(place.number, None) or Progress()
        if place.node == self._node:
            try:
                return _NearShard(place, _attach(place), sampler, progress)
            except (OSError, ValueError) as error:  # a directory without rows, or it is gone again
                log.debug("shard %d is not read directly: %s", place.slot, error)
        return RemoteShard(
            place, self._learner, sampler, self._layouts, lambda: self.sources, progress
        )

    def lost(self, source: Source) -> None:
        """A shard did not answer: it is left out until it does, or has been replaced."""
        place: Place = source.place  # type: ignore[attr-defined]
        if isinstance(source, RemoteShard) and source.is_silent:
            log.warning(
                "shard %d on node %s is silent; sampling goes on without it until it answers",
                place.slot,
                place.node,
            )
            source.go_on()
        else:
            log.warning("shard %d on node %s was lost; sampling goes on", place.slot, place.node)
            if self._by_slot.get(place.slot) is source:
                self._forget(place.slot)
        self._sort()

    def take_back(self) -> None:
        """Shards that were silent, and answer now, are asked again."""
        for source in self.silent:
            try:
                if source.is_back():
                    log.warning("shard %d answers again", source.place.slot)
            except ShardLost:
                source.is_silent = False
                self.lost(source)
        self._sort()

    def _forget(self, slot: int) -> None:
        gone = self._by_slot.pop(slot, None)
        if isinstance(gone, _NearShard):
            gone.storage.close()
            if gone.place.kind == "disk":
                self._kept[gone.number] = Progress(gone.sampler.state())
        elif gone is not None and gone.progress is not None:
            self._kept[gone.number] = gone.progress

    def update_priority(self, numbers: Array, seqs: Array, priority: Array) -> None:
        """Sets priorities by shard and seq; of shards that are gone for good they are counted."""
        by_number = {s.number: s for s in self._by_slot.values()}
        for number in np.unique(numbers):
            mine = numbers == number
            source = by_number.get(int(number))
            if source is None and int(number) in self._kept:
                self._kept[int(number)].update_priority(seqs[mine], priority[mine])
            elif source is None:
                self.lost_updates += int(mine.sum())
            else:
                source.update_priority(seqs[mine], priority[mine])

    def set_fields(self, numbers: Array, ids: Array, fields: Any) -> int:
        """Changes fields by shard and trajectory; how many were still there."""
        layout = next((x for x in self.call("fields") if x is not None), None)
        given = pack_fields(layout, fields, (len(ids),))
        if layout is None or given is None:
            return 0
        by_number = {s.number: s for s in self.sources}
        asked = []
        for number in np.unique(numbers):
            mine, source = numbers == number, by_number.get(int(number))
            if source is not None:
                some = _values(layout, given, mine)
                asked.append((source, source.place.actor.set_fields.remote(ids[mine], some)))
        there = 0
        for source, ref in asked:
            try:
                there += int(Answer(ref).get())
            except ShardLost:
                self.lost(source)
        return there

    def ask(self, verb: str, *given: Any) -> list[Any]:
        """Returns what the shards answer to a request that each is asked; others are left out."""
        asked = [(s, getattr(s, verb)(*given)) for s in list(self.sources)]
        out = []
        for source, answer in asked:
            try:
                out.append(answer.get() if isinstance(answer, Answer) else answer)
            except ShardLost:
                self.lost(source)
        return out

    def tell(self, verb: str, *given: Any) -> None:
        """Has every shard's sampler do something; silent ones do it before their next draw."""
        for source in self.silent:
            getattr(source, verb)(*given)
        self.ask(verb, *given)

    def empty(self) -> None:
        """Has every shard evict its rows; silent ones when they go on."""
        for source in self.silent:
            source.place.actor.empty.remote()
        self.call("empty")
        self.tell("reset")

    def call(self, method: str, *given: Any) -> list[Any]:
        """Returns what the shards' actors answer, however long it takes; others are left out."""
        calls = [getattr(s.place.actor, method).remote(*given) for s in self.sources]
        out = []
        for source, ref in zip(list(self.sources), calls):
            try:
                out.append(Answer(ref).get())
            except ShardLost:
                self.lost(source)
        return out

    def close(self) -> None:
        for slot in list(self._by_slot):
            self._forget(slot)
        self.sources = []


def _values(layout: Layout, given: Given, mine: Array) -> Any:
    """Those of packed fields that are given, of some trajectories."""
    records = given[0][mine] if len(given[0]) > 1 else given[0][0]
    mask = int(given[1][0])
    paths, columns, _ = flatten(layout.unpack(records))
    return nest({p: c for i, (p, c) in enumerate(zip(paths, columns)) if mask >> i & 1})


def _attach(place: Place) -> Storage:
    if place.kind == "disk":
        return DiskStorage(place.where, read_only=True)
    return SharedStorage.attach(place.where)
