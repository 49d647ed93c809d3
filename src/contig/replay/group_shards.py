"""A batch of groups whose members may lie on any shard (see `sample.spanning`).

report    every shard says what has changed of its trajectories
draw      groups that are complete, over all shards
fetch     every shard gives the members that it has
deliver   groups of which every member came; others are put aside, and others drawn for them
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..batch import Batch, stack_batches
from ..sample import Request, Rng, Sampler
from ..sample.base import OuterSampler
from ..sample.shards import decode, streams
from ..sample.spanning import Members, Spanning
from .shard_reader import Asking, Fetched, ShardLost, said

__all__ = ["GroupRound"]

Array = np.ndarray[Any, Any]

_OVERTAKEN = 4  # rounds that lose rows to writers before members are gathered under locks
_TRIES = 100


class GroupRound:
    """One batch in the making.

    Args:
        sampler: the user's own; copies of it are on the shards.
        spanning: what draws; it may be held by other samplers, which narrow what may be drawn.
        rng: of the whole.
        asking: the shards.
        request: how many trajectories.
    """

    def __init__(
        self, sampler: Sampler, spanning: Spanning, rng: Rng, asking: Asking, request: Request
    ) -> None:
        self.sampler, self.spanning, self.rng, self.asking = sampler, spanning, rng, asking
        self.request = request
        self._kept: list[Members] = []
        self._aside: list[Members] = []
        self._parts: list[Batch] = []

    def read(self) -> Batch:
        """The batch: whole, or, if members were lost to eviction and no more are ready, shorter.

        Raises:
            EmptyBufferError, NothingEligibleError: there are too few groups.
        """
        sure = False
        for tries in range(_TRIES):
            self._hear(sure)
            groups = self._draw()
            if groups:
                self._fetch(groups, sure or tries >= _OVERTAKEN)
                if self._need <= 0:
                    break
            elif self._parts or sure:
                break
            else:
                sure = True
        if not self._parts:
            raise self._nothing()
        return stack_batches(self._parts)

    @property
    def _need(self) -> int:
        """Trajectories that are missing; a group that was released with fewer counts as whole."""
        size = self.spanning.grouping.size
        return self.request.groups - sum(size or len(group) for group in self._kept)

    def _hear(self, sure: bool) -> None:
        asking, spanning = self.asking, self.spanning
        surveys: list[Any] = [None] * len(asking.sources)
        if self.sampler.surveys:
            surveys = asking.answers([s.survey() for s in asking.sources])
        told = self.sampler.agree(surveys) if surveys else None
        if told is not None:  # they adopt it
            offers = zip(asking.sources, told)
            asking.answers([s.offer(self.request, t, 0, sure) for s, t in offers])
        asked = spanning.ask([s.number for s in asking.sources])
        reports = asking.answers([s.report(a, sure) for s, a in zip(asking.sources, asked)])
        spanning.hear([s.number for s in asking.sources], reports)

    def _draw(self) -> list[Members]:
        have = self._have if isinstance(self.sampler, OuterSampler) else None
        return self.spanning.draw(self.rng.words, self._need, self._aside, have)

    def _have(self, groups: list[Members]) -> list[bool]:
        """Of which groups the shards let every member pass, a window perhaps."""
        wanted = self._by_shard(groups)
        asked = [s for s in self.asking.sources if s.number in wanted]
        answers = [s.have(decode(wanted[s.number])[1]) for s in asked]
        passing: set[int] = set()
        for source, answer in zip(asked, answers):
            try:
                passing.update(wanted[source.number][said(source, answer)].tolist())
            except ShardLost:
                self.asking.drop(source)
        return [passing.issuperset(group) for group in groups]

    def _by_shard(self, groups: list[Members]) -> dict[int, Array]:
        """Members by the shard that has them, each once."""
        members = np.array(sorted({m for group in groups for m in group}), np.int64)
        shard, _ = decode(members)
        return {int(number): members[shard == number] for number in np.unique(shard)}

    # -- gathering --------------------------------------------------------------------------------

    def _fetch(self, groups: list[Members], held: bool) -> None:
        """Has shards give the members; keeps the groups that are whole."""
        wanted = self._by_shard(groups)
        words = streams(self.rng, len(self.asking.sources))
        asked = [(s, w) for s, w in zip(self.asking.sources, words) if s.number in wanted]
        answers = [s.fetch(decode(wanted[s.number])[1], w, held) for s, w in asked]
        batches: list[Batch] = []
        places: dict[int, tuple[int, int]] = {}  # of members: their rows
        at = 0
        for (source, _), answer in zip(asked, answers):
            try:
                found: Fetched = said(source, answer)
            except ShardLost:
                self.asking.drop(source)
                continue
            batch, rows = found
            for member, n in zip(wanted[source.number].tolist(), rows.tolist()):
                if n:
                    places[member] = (at, at + n)
                    at += n
            if batch is not None:
                batches.append(batch)
        whole = [group for group in groups if places.keys() >= set(group)]
        if held:  # what was evicted is known at the next report; what is damaged is not
            self._aside += [group for group in groups if group not in whole]
        if whole:
            order = [np.arange(*places[member]) for group in whole for member in group]
            self._parts.append(stack_batches(batches)[np.concatenate(order)])
            self._kept += whole
            self.spanning.deliver(whole)

    def _nothing(self) -> Exception:
        return self.asking.nothing(self.sampler, self.spanning.lacking(self.request.groups))
