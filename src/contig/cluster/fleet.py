"""The shards as a learner has them: those of its own node in its own process, others by calls.

on this node   SharedStorage.attach(name) or DiskStorage(path, read_only) -> ShardReader
elsewhere      RemoteShard: a call of the shard's actor, answered with one Ray object
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ..batch import Batch
from ..collect.specs import nest
from ..layout import Layout
from ..replay.shard_reader import Fetched, Part, ShardLost, ShardReader, Source
from ..sample import Mass, Request, Sampler
from ..sample.report import Asked, Report
from ..tape import SharedStorage, Storage
from ..tape.disk import DiskStorage
from ..tape.fields import Given, pack_fields
from ..tree import flatten
from .engine import own_node, ray
from .place import Place

__all__ = ["Answer", "Fleet", "RemoteShard"]

log = logging.getLogger("contig.cluster")

Array = np.ndarray[Any, Any]


class Answer:
    """What a shard elsewhere is going to say.

    Args:
        ref: Ray's promise of it.
        read: makes of it what was asked for.
    """

    def __init__(self, ref: Any, read: Callable[[Any], Any] | None = None) -> None:
        self._ref, self._read = ref, read

    def get(self) -> Any:
        lost = ray.exceptions
        try:
            found = ray.get(self._ref)
        except (lost.RayActorError, lost.ObjectLostError, lost.WorkerCrashedError) as error:
            raise ShardLost(str(error)) from error
        return found if self._read is None else self._read(found)


class RemoteShard:
    """A shard on another node. Each learner has its own reader there.

    Args:
        place: where it is.
        learner: whose reader is asked.
        sampler: for that reader, if it has none yet.
        layouts: of batches, as far as they are known, by fingerprint.
    """

    def __init__(
        self,
        place: Place,
        learner: str,
        sampler: Sampler,
        layouts: dict[str, tuple[Layout, frozenset[Any]]],
    ) -> None:
        self.place, self.number = place, place.number
        self._learner, self._layouts = learner, layouts
        # Calls may overtake each other in the shard: what must have happened before goes along.
        self._after: Any = place.actor.open.remote(learner, sampler)
        self._late: Any = None  # how many priorities came too late, when it is known

    def survey(self) -> Answer:
        after, self._after = self._after, None
        return Answer(self.place.actor.survey.remote(self._learner, after))

    def offer(self, request: Request, told: Any, turn: int, sure: bool) -> Answer:
        after, self._after = self._after, None
        ref = self.place.actor.offer.remote(self._learner, tuple(request), told, turn, sure, after)
        return Answer(ref, lambda found: Mass(*found))

    def begin_epoch(self, words: Array) -> Answer:
        return Answer(self.place.actor.begin_epoch.remote(self._learner, words))

    def take(self, request: Request, words: Array, least: float, sure: bool) -> Answer:
        ref = self.place.actor.take.remote(self._learner, tuple(request), words, least, sure)
        return Answer(ref, self._part)

    def _part(self, found: Any) -> Part | None:
        return None if found is None else (self._batch(*found[:3]), found[3])

    def _batch(self, block: Array, name: str, rows: int) -> Batch:
        if name not in self._layouts:
            self._layouts[name] = Answer(self.place.actor.layout.remote(name)).get()
        layout, extras = self._layouts[name]
        return Batch(block, layout, (rows,), extras)

    def report(self, asked: Asked, sure: bool) -> Answer:
        after, self._after = self._after, None
        ref = self.place.actor.report.remote(self._learner, tuple(asked), sure, after)
        return Answer(ref, lambda found: None if found is None else Report(*found))

    def have(self, ids: Array) -> Answer:
        return Answer(self.place.actor.have.remote(self._learner, ids))

    def fetch(self, ids: Array, words: Array, sure: bool) -> Answer:
        ref = self.place.actor.fetch.remote(self._learner, ids, words, sure)
        return Answer(ref, self._fetched)

    def _fetched(self, found: Any) -> Fetched:
        block, name, lengths = found
        return None if name is None else self._batch(block, name, int(lengths.sum())), lengths

    def missing(self) -> Answer:
        return Answer(self.place.actor.missing.remote(self._learner))

    def update_priority(self, seqs: Array, priority: Array) -> None:
        """Before the next draw; nobody waits for it."""
        update = self.place.actor.update_priority
        self._after = self._late = update.remote(self._learner, seqs, priority, self._after)

    def stale_updates(self) -> int:
        return 0 if self._late is None else int(Answer(self._late).get())

    def rewind(self, turn: int) -> Answer:
        return Answer(self.place.actor.rewind.remote(self._learner, turn))

    def reset(self) -> Answer:
        return Answer(self.place.actor.forget.remote(self._learner, True))

    def state(self) -> Answer:
        return Answer(self.place.actor.sampler_state.remote(self._learner, self._after))

    def load(self, state: Any) -> Answer:
        return Answer(self.place.actor.load_sampler.remote(self._learner, state))


class _NearShard(ShardReader):
    """A shard of this node, read in this process."""

    def __init__(self, place: Place, storage: Storage, sampler: Sampler) -> None:
        super().__init__(storage, sampler, place.number)
        self.place = place

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
    """

    def __init__(self, sampler: Sampler, learner: str) -> None:
        self._sampler = copy.deepcopy(sampler)
        self._learner, self._node = learner, own_node()
        self._layouts: dict[str, tuple[Layout, frozenset[Any]]] = {}
        self._by_slot: dict[int, Any] = {}
        self.sources: list[Any] = []
        self.lost_updates = 0  # priorities for shards that are gone
        self._kept: dict[int, Sampler] = {}  # of shards on disk that may come back, by number

    def install(self, places: list[Place | None]) -> None:
        """Takes over what the directory says."""
        for slot, place in enumerate(places):
            known = self._by_slot.get(slot)
            if place is None:
                self._forget(slot)
            elif known is None or known.place.life != place.life:
                self._forget(slot)
                self._by_slot[slot] = self._open(place)
        self.sources = [self._by_slot[slot] for slot in sorted(self._by_slot)]

    def _open(self, place: Place) -> Any:
        sampler = self._kept.pop(place.number, None) or copy.deepcopy(self._sampler)
        if place.node == self._node:
            try:
                return _NearShard(place, _attach(place), sampler)
            except (OSError, ValueError) as error:  # a directory without rows, or it is gone again
                log.debug("shard %d is not read directly: %s", place.slot, error)
        return RemoteShard(place, self._learner, sampler, self._layouts)

    def lost(self, source: Source) -> None:
        """A shard did not answer: it is left out until the directory has replaced it."""
        place: Place = source.place  # type: ignore[attr-defined]
        log.warning("shard %d on node %s was lost; sampling goes on", place.slot, place.node)
        if self._by_slot.get(place.slot) is source:
            self._forget(place.slot)
        self.sources = [self._by_slot[slot] for slot in sorted(self._by_slot)]

    def _forget(self, slot: int) -> None:
        gone = self._by_slot.pop(slot, None)
        if isinstance(gone, _NearShard):
            gone.storage.close()
            if gone.place.kind == "disk":  # what is known of its rows will hold when it is back
                self._kept[gone.number] = gone.sampler

    def update_priority(self, numbers: Array, seqs: Array, priority: Array) -> None:
        """Sets priorities by shard and seq; of shards that are gone they are counted."""
        by_number = {s.number: s for s in self.sources}
        for number in np.unique(numbers):
            mine = numbers == number
            source = by_number.get(int(number))
            if source is None:
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
        """What the shards say to something that each is asked; lost ones say nothing."""
        asked = [(s, getattr(s, verb)(*given)) for s in list(self.sources)]
        out = []
        for source, answer in asked:
            try:
                out.append(answer.get() if isinstance(answer, Answer) else answer)
            except ShardLost:
                self.lost(source)
        return out

    def call(self, method: str, *given: Any) -> list[Any]:
        """What the shards' actors say; lost ones say nothing."""
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
