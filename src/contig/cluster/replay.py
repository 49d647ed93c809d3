"""RayReplayBuffer: a replay buffer whose rows are in shards all over a Ray cluster.

    producers ──▶ shard 0 ──┐
    producers ──▶ shard 1 ──┼──▶ masses ─▶ split ─▶ shares ─▶ one Batch ──▶ learner
    producers ──▶ shard 2 ──┘    (sample/shards.py, replay/shards.py: nothing of Ray)

Groups of trajectories, whose members may lie on any shard, are drawn by the learner instead, from
what shards report (sample/spanning.py, replay/group_shards.py).

Shards are made and replaced by the directory (`directory.py`); a thread of each learner hears of
it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np

from ..arguments import check_kind, one_each, ranks, seconds, trajectory_ids, whole, whole_numbers
from ..batch import Batch
from ..convert import as_array
from ..errors import ClosedError, EmptyBufferError, NothingEligibleError, ServerError
from ..replay.feeding import Feeding
from ..replay.output import to_output
from ..replay.prefetch import Cancelled, Prefetcher
from ..replay.samples import Samples
from ..replay.shards import read_shards
from ..replay.statistics import priorities_in
from ..replay.typed import Out_co, ShardOptions
from ..sample import RandomSampler, Request, Rng, Sampler
from ..sample.shards import decode
from ..tape import Storage
from ..tape.episodes import EPISODE
from . import saving
from .client import ShardClient
from .directory import open_directory, started
from .engine import need_cluster, ray
from .fleet import Fleet
from .listening import LEAVE_S, listen
from .placement import checked_spec
from .statistics import RayBufferStats
from .writing import ShardedWrites

if TYPE_CHECKING:
    from ..convert.types import TensorDict
    from ..tree import Nested

__all__ = ["RayReplayBuffer"]

log = logging.getLogger("contig.cluster")

_POLL_S = 0.005
_PASSING = (EmptyBufferError, NothingEligibleError)


class RayReplayBuffer(ShardedWrites, Samples[Out_co]):
    """Samples over shards as a ReplayBuffer does over one tape. Thread-safe.

    Args:
        shards: how many tapes.
        storage: rows of each shard, in shared memory; or a function of the shard's number, from 0,
            that makes its SharedStorage or DiskStorage, in the shard's own process.
        sampler: which rows come out; uniform if None. Each shard gets a copy.
        placement: "spread" (over the nodes), "local" (this one), or a list with a node id, or
            resources such as ``{"replay_node": 1}``, for each shard.
        batch_size, prefetch, seed, output, device, sample_timeout_s: as in ReplayBuffer.
        rank, world_size: which of several learners this is: each has random numbers of its own,
            and its own part of an epoch.
        name: the first that names it makes the shards, others share them; they end with the first.
        num_cpus: that each shard takes of its node.

    Raises:
        RuntimeError: this process is not connected to a Ray cluster.
    """

    @overload
    def __init__(
        self: RayReplayBuffer[Batch],
        shards: int,
        storage: int | Callable[[int], Storage] = 1_000_000,
        sampler: Sampler | None = None,
        *,
        output: Literal["numpy"] = "numpy",
        **options: Unpack[ShardOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: RayReplayBuffer[Nested],
        shards: int,
        storage: int | Callable[[int], Storage] = 1_000_000,
        sampler: Sampler | None = None,
        *,
        output: Literal["torch"],
        **options: Unpack[ShardOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: RayReplayBuffer[Nested],
        shards: int,
        storage: int | Callable[[int], Storage] = 1_000_000,
        sampler: Sampler | None = None,
        *,
        output: Literal["jax"],
        **options: Unpack[ShardOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: RayReplayBuffer[TensorDict],
        shards: int,
        storage: int | Callable[[int], Storage] = 1_000_000,
        sampler: Sampler | None = None,
        *,
        output: Literal["tensordict"],
        **options: Unpack[ShardOptions],
    ) -> None: ...

    def __init__(
        self,
        shards: int,
        storage: int | Callable[[int], Storage] = 1_000_000,
        sampler: Sampler | None = None,
        *,
        placement: Any = "spread",
        batch_size: int | None = None,
        prefetch: int = 0,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        output: str = "numpy",
        device: Any = None,
        sample_timeout_s: float | None = None,
        name: str | None = None,
        num_cpus: float = 0,
    ) -> None:
        need_cluster()
        self.sampler = RandomSampler() if sampler is None else sampler
        check_kind("sampler", self.sampler, Sampler, "give a sampler such as RandomSampler()")
        batch_size = self.sampler.batch_size if batch_size is None else batch_size
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1, "rows")
            self.sampler.request(batch_size)  # raises if it does not fit
        self.batch_size = batch_size
        self.sample_timeout_s = seconds(
            "sample_timeout_s", 60.0 if sample_timeout_s is None else sample_timeout_s
        )
        prefetch = whole("prefetch", prefetch, 0, "a number of batches")
        self.rank, self.world_size = ranks(rank, world_size)
        self.output, self._output = output, to_output(output, device)
        spec = checked_spec(shards, storage, self.sampler, placement, num_cpus)
        self._rng = Rng(seed, self.rank if self.world_size > 1 else None)
        self.sampler.divide(self.rank, self.world_size)
        self._turn = threading.RLock()  # one sampler at a time
        self._feeding = Feeding()
        self._batches = self._rows_out = self._lost = 0
        self.closed = False
        self.failure: Exception | None = None
        self.directory = open_directory(spec, name)
        self.spec = started(self.directory)
        self._owner = self.spec.token == spec.token  # else another process made it
        self._fleet = Fleet(self.sampler, secrets.token_hex(8))
        self.version, places, self._lost = ray.get(self.directory.changes.remote(-1, 0.0))
        self._fleet.install(places)
        super().__init__(self.client(), self.spec.shards)
        self._listening = listen(self)
        self._ahead = prefetch
        self._prefetcher = Prefetcher(self.draw, self._mark, prefetch) if prefetch else None

    def client(self, wait_s: float = 60.0) -> ShardClient:
        """A handle for actors that write to this buffer: picklable, see `ShardClient`.

        Args:
            wait_s: how long a producer waits for a lost shard to be replaced.
        """
        return ShardClient(self.directory, self.spec.token, wait_s)

    # -- sampling -----------------------------------------------------------------------------

    def _next_batch(self, batch_size: int | None) -> Batch:
        if self._prefetcher is not None and batch_size in (None, self.batch_size):
            batch: Batch = self._prefetcher.take(_PASSING)
            return batch
        return self.draw(batch_size)

    def draw(self, batch_size: int | None = None) -> Batch:
        """A batch as numpy, past the prefetcher."""
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("no batch size: give one to sample() or to the buffer")
        size = whole("batch_size", size, 1, "rows")
        self._check()
        request = self.sampler.request(size)
        try:
            batch = self._read(request)
        except (*_PASSING, _NoShards):
            batch = self._await_rows(request)
        self._rows_out += len(batch)
        return batch

    def _read(self, request: Request) -> Batch:
        with self._turn:
            fleet = self._fleet
            if fleet.silent:
                fleet.take_back()
            self._batches += 1
            turn = self._batches if self._ahead else 0
            if not fleet.sources:
                raise _NoShards
            return read_shards(self.sampler, self._rng, fleet.sources, request, fleet.lost, turn)

    def _await_rows(self, request: Request) -> Batch:
        """What somebody brings, or a shard that takes the place of a lost one has."""
        deadline = time.monotonic() + self.sample_timeout_s
        while True:
            try:
                return self._read(request)
            except (*_PASSING, _NoShards) as nothing:
                late = time.monotonic() >= deadline
                if isinstance(nothing, _NoShards):
                    if late:
                        raise self._no_shards() from None
                elif not self._feeding.feeders and not self._fleet.silent:
                    raise
                elif late:
                    raise type(nothing)(f"after {self.sample_timeout_s} s: {nothing}") from nothing
            self._check()
            for check in self._feeding.feeders:
                check()
            time.sleep(_POLL_S)

    def _no_shards(self) -> ServerError:
        silent, n, late = len(self._fleet.silent), self.spec.shards, self.sample_timeout_s
        if silent:
            return ServerError(
                f"{silent} of {n} shards did not answer within {late} s, and the others were lost: "
                "see whether their processes run, and their nodes can be reached"
            )
        return ServerError(f"all {n} shards were lost, and none could be replaced within {late} s")

    def _check(self) -> None:
        """Raises if a batch cannot, or need not, be drawn."""
        if self._prefetcher is not None and self._prefetcher.cancelled():
            raise Cancelled("the batch was drawn ahead and is not wanted any more")
        if self.closed:
            raise ClosedError("this buffer is closed")
        if self.failure is not None:
            raise ServerError(f"the buffer's directory is gone: {self.failure}") from self.failure
        for check in self._feeding.watched:
            check()

    def feed(self, check: Callable[[], None], *, always: bool = False) -> Callable[[], None]:
        """Says that somebody feeds this buffer; see `ReplayBuffer.feed`."""
        return self._feeding.feed(check, always)

    def watch(self, check: Callable[[], None]) -> Callable[[], None]:
        """Has every draw call `check`; see `ReplayBuffer.watch`."""
        return self._feeding.watch(check)

    # -- priorities ---------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets priorities of rows by their `index`; those that were evicted, or lost with their
        shard, are ignored and counted. Each learner has priorities of its own."""
        rows = whole_numbers("index", as_array(index)).reshape(-1)
        values = one_each(as_array(priority), len(rows))
        with self._turn:
            self.sampler.note_priority(values)
            self._fleet.update_priority(*decode(rows), values)

    def update_tensordict_priority(self, data: Any, key: str = "td_error") -> None:
        """`update_priority` from a batch that has `index` and a priority, as TorchRL does it."""
        self.update_priority(*priorities_in(data, key))

    # -- trajectories -------------------------------------------------------------------------

    def episodes(self) -> np.ndarray[Any, Any]:
        """Trajectories of all shards but silent ones, as `Storage.episodes` has them; asks every
        shard. `id` and `first` say shard and number (`contig.sample.shards`)."""
        with self._turn:
            found = [e for e in self._fleet.call("episodes") if e is not None]
        return np.concatenate(found) if found else np.empty(0, EPISODE)

    def set_fields(self, ids: Any, fields: Any) -> int:
        """Changes fields of stored trajectories, each whole or not at all; see
        `Storage.set_fields`.

        Args:
            ids: as `episodes()` has them, or one.
            fields: a mapping of those to change; values of a field, or one for each id.

        Returns:
            how many were still there, in shards that answer.
        """
        numbers, own = decode(trajectory_ids(as_array(ids)))
        with self._turn:
            return self._fleet.set_fields(numbers, own, fields)

    # -- state --------------------------------------------------------------------------------

    def save(self, path: str | FilePath) -> None:
        """Writes a checkpoint directory of all shards, samplers and random numbers, where every
        shard's node sees it: a shared file system, if there are several machines.

        Batches drawn ahead but not delivered are discarded: after `load`, the next batch is the
        one that would have come next. Of several learners, this one's state is in it.

        Raises:
            FileExistsError: something else than such a checkpoint is there.
            ServerError: a shard is missing just now.
        """
        self._drain()
        with self._turn:
            saving.save(self._fleet, self.spec, self.sampler, self._rng.state(), FilePath(path))

    def load(self, path: str | FilePath) -> None:
        """Takes a checkpoint in, in place of what the shards hold. From another number of shards,
        whole trajectories are dealt out anew, with their priorities; an epoch begins anew.
        """
        self._drain()
        with self._turn:
            state = saving.load(self._fleet, self.spec, self.sampler, FilePath(path))
            self._rng.load(state["rng"])
            self.sampler.load(state["sampler"])

    def _mark(self) -> Any:
        with self._turn:
            return (self._rng.state(), self._batches + 1, self.sampler.mark())

    def _drain(self) -> None:
        if self._prefetcher is None:
            return
        mark, thrown_away = self._prefetcher.drain()
        self._rows_out -= sum(len(b) for b in thrown_away if b is not None)
        if mark is not None:
            with self._turn:
                self._rng.load(mark[0])
                self._fleet.tell("rewind", mark[1])
                self.sampler.rewind(mark[2])

    def empty(self) -> None:
        """Evicts every row, and throws away what was drawn ahead."""
        self._drain()
        with self._turn:
            self._fleet.empty()
            self.sampler.reset()

    def stats(self) -> RayBufferStats:
        """Counters; asks every shard."""
        with self._turn:
            self._fleet.take_back()
            found = self._fleet.ask("counts")
            stale = sum(self._fleet.ask("stale_updates")) + self._fleet.lost_updates
            silent = len(self._fleet.silent)
        sums = {k: sum(c[k] for c in found) for k in RayBufferStats._fields[:5]}
        return RayBufferStats(
            **sums,
            rows_sampled=self._rows_out,
            batches_sampled=self._batches,
            stale_priority_updates=stale,
            shards=len(found),
            shards_lost=self._lost,
            shards_silent=silent,
        )

    def __len__(self) -> int:
        with self._turn:
            return sum(c["rows"] for c in self._fleet.ask("counts"))

    @property
    def nodes(self) -> list[str | None]:
        """The node of each shard; None while it is being replaced, or silent."""
        with self._turn:
            by_slot = {s.place.slot: s.place.node for s in self._fleet.sources}
        return [by_slot.get(slot) for slot in range(self.spec.shards)]

    def close(self) -> None:
        """Ends the prefetcher, and, in the process that made them, the shards."""
        if self.closed:
            return
        self.closed = True
        if self._prefetcher is not None:
            self._prefetcher.close()
        self.close_writers()
        with self._turn:
            self._fleet.close()
        if self._owner and ray.is_initialized():
            try:
                ray.get(self.directory.close.remote(), timeout=30.0)
                ray.kill(self.directory)
            except ray.exceptions.RayError as error:
                log.debug("shards were not closed in good order: %s", error)
        self._listening.join(LEAVE_S)

    def __repr__(self) -> str:
        name = f"{type(self).__name__}{' closed:' if self.closed else ':'}"
        size = "" if self.batch_size is None else f", batches of {self.batch_size}"
        what = f"{self.spec.shards} shards, {self.sampler!r}{size}"
        return f"<{name} {what}, output={self.output!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a RayReplayBuffer belongs to its process; pass buffer.client() to actors that write, "
            "and give learners elsewhere the same name="
        )

    def heard(self, version: int, places: list[Any], lost: int) -> None:
        """The directory has news."""
        with self._turn:
            if lost > self._lost:
                log.warning("%d of %d shards were lost so far", lost, self.spec.shards)
            self.version, self._lost = version, lost
            if not self.closed:
                self._fleet.install(places)


class _NoShards(Exception):
    """None is there just now."""
