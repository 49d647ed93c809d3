"""A shard: one tape of a sharded buffer, in an actor of its own.

    producer on this node ──shared memory──┐
    producer elsewhere ──TCP──▶ ingest ──▶ tape ◀──shared memory── learner on this node
                                           ▲ └── ShardReader ──Ray objects──▶ learner elsewhere

The actor's methods are for learners on other nodes, and for checkpoints; rows come in past it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..layout import Layout
from ..replay import ReplayBuffer
from ..replay.redistribute import load_shard, load_share, save_shard
from ..replay.shard_reader import ShardReader
from ..replay.statistics import row_counts
from ..sample import Request, Sampler
from ..sample.report import Asked
from ..sample.shards import base_of
from ..server import Server, TcpTransport
from ..tape import SharedStorage
from ..tape.disk import DiskStorage
from .engine import own_node, ray
from .place import ShardSpec, make_storage
from .progress import Progress

__all__ = ["Shard"]

Array = np.ndarray[Any, Any]

_COMMIT_S = 0.5  # it takes milliseconds, unless the disk is full


class _Reader:
    """A learner's reader, and which of the learner's requests it has begun. Requests may overtake
    each other, and come long after the learner has given them up."""

    def __init__(self, reader: ShardReader) -> None:
        self.reader = reader
        self._refused = 0  # requests up to this number are not begun any more
        self._share: tuple[int, Any] | None = None  # the last one taken: number, mark before it

    def begins(self, number: int, is_share: bool = False) -> bool:
        """Returns whether a request is to be done."""
        if number <= self._refused:
            return False
        if is_share:
            self._share = (number, self.reader.sampler.mark())
        return True

    def progress(self, whole: bool) -> tuple[bool, Any]:
        """Returns what the last share took or the whole state, and which of the two it is."""
        sampler = self.reader.sampler
        if whole or self._share is None:
            return True, sampler.state()
        return False, sampler.progress(self._share[1])

    def settle(self) -> None:
        """Makes what was taken last final: it cannot be put back any more."""
        self._share = None

    def go_on(self, number: int, share: int) -> None:
        """Refuses requests that were not begun; puts a share back that nobody got."""
        self._refused = max(self._refused, number)
        if self._share is not None and self._share[0] == share:
            self.reader.sampler.rewind(self._share[1])
        self._share = None


class Shard:
    """The actor. Its methods run in several threads; those of a reader take turns."""

    def __init__(self, spec: ShardSpec, slot: int, number: int) -> None:
        self._spec, self._slot, self.number = spec, slot, number
        self._readers: dict[str, _Reader] = {}
        self._turn = threading.RLock()
        self._end = threading.Event()
        self._layouts: dict[str, tuple[Layout, frozenset[Any]]] = {}

    def start(self) -> dict[str, Any]:
        """Opens the storage and the port; where it is, as a Place says it."""
        spec, slot = self._spec, self._slot
        storage = make_storage(spec.storage, slot)
        if not isinstance(storage, SharedStorage | DiskStorage):
            raise TypeError(
                f"storage: shard {slot} was made a {type(storage).__name__}, which other processes "
                "cannot attach to; return a SharedStorage or a DiskStorage"
            )
        storage.bind_keys(*spec.keys)
        self.storage = storage
        host = str(ray.util.get_node_ip_address())
        transport = TcpTransport(host=host, token=spec.token)
        self._server = Server(buffer=ReplayBuffer(storage), transport=transport).start()
        if isinstance(storage, DiskStorage):
            kind, where = "disk", str(storage.path)
        else:
            kind, where = "shared", storage.name
        return {
            "node": own_node(),
            "server": self._server.name,
            "host": host,
            "port": self._server.port,
            "kind": kind,
            "where": where,
        }

    def hold(self) -> None:
        """Returns when the shard was closed: who waits for it learns of its death."""
        self._end.wait()

    def close(self) -> None:
        """Says goodbye to producers, and lets go of the storage."""
        self._server.close()
        self.storage.close()
        self._end.set()

    def pid(self) -> int:
        return os.getpid()

    # -- readers of learners elsewhere --------------------------------------------------------

    def open(self, learner: str, sampler: Sampler, progress: Progress | None) -> None:
        """Makes a learner's reader, if it has none. With `progress`, which is all that the learner
        knows of, a new one in any case."""
        with self._turn:
            if learner not in self._readers or progress is not None:
                reader = ShardReader(self.storage, sampler, self.number)
                if progress is not None:
                    progress.restore(reader)
                self._readers[learner] = _Reader(reader)

    def go_on(self, learner: str, number: int, share: int) -> None:
        """The learner gave up requests up to a number; it did not get a share, if it names one."""
        with self._turn:
            self._readers[learner].go_on(number, share)

    def survey(self, learner: str, after: Any = None) -> Any:
        """`after`: what must have been done before."""
        with self._turn:
            return self._readers[learner].reader.survey()

    def offer(
        self,
        learner: str,
        number: int,
        request: Request,
        told: Any,
        turn: int,
        sure: bool,
        after: Any = None,
    ) -> Any:
        """`after`: what must have been done before."""
        with self._turn:
            held = self._readers[learner]
            if not held.begins(number):
                return None
            return held.reader.offer(Request(*request), told, turn, sure)

    def rewind(self, learner: str, turn: int, wants_state: bool, after: Any = None) -> Any:
        """Returns the sampler's state if it is wanted. `after`: what must have been done before."""
        with self._turn:
            held = self._readers[learner]
            held.settle()
            held.reader.rewind(turn)
            return held.reader.sampler.state() if wants_state else None

    def begin_epoch(self, learner: str, number: int, words: Array, wants_state: bool) -> Any:
        """Returns the sampler's state, if it is wanted."""
        with self._turn:
            held = self._readers[learner]
            if not held.begins(number):
                return None
            held.reader.begin_epoch(words.copy())
            if wants_state:
                self._commit()
            return held.reader.sampler.state() if wants_state else None

    def take(
        self,
        learner: str,
        number: int,
        request: Request,
        words: Array,
        least: float,
        sure: bool,
        whole: bool | None,
    ) -> tuple[tuple[Array, str, int, int] | None, tuple[bool, Any] | None] | None:
        """A share as one array (the block, the name of its layout, rows and groups), and what it
        changed of the sampler.

        Args:
            whole: whether that is to be the whole state; None: nobody needs it.
        """
        with self._turn:
            held = self._readers[learner]
            if not held.begins(number, is_share=True):
                return None
            part = held.reader.take(Request(*request), words.copy(), least, sure)
            progress = None if whole is None else held.progress(whole)
            if whole is not None:
                self._commit()
            if part is None:
                return None, progress
            batch, groups = part
            return (batch.sealed_block, self._name(batch), len(batch), groups), progress

    def _commit(self) -> None:
        """Has the disk hold every row that a learner is told of: a row that was lost with this
        process would be written again, perhaps as another one, and count as drawn."""
        if isinstance(self.storage, DiskStorage):
            with suppress(OSError, RuntimeError):  # who appends hears of it
                self.storage.flush(_COMMIT_S)

    def _name(self, batch: Batch) -> str:
        """Of a batch's layout, which learners can ask for."""
        name = batch.layout.fingerprint
        if name not in self._layouts:
            self._layouts[name] = (batch.layout, batch.extras)
        return name

    def report(self, learner: str, asked: Asked, sure: bool, after: Any = None) -> Any:
        """What has changed of its trajectories; `after`: what must have been done before."""
        with self._turn:
            found = self._readers[learner].reader.report(Asked(*asked), sure)
            return None if found is None else tuple(found)

    def have(self, learner: str, ids: Array) -> Array:
        with self._turn:
            return self._readers[learner].reader.have(ids)

    def fetch(
        self, learner: str, ids: Array, words: Array, sure: bool
    ) -> tuple[Array | None, str | None, Array]:
        """Trajectories as one array: the block, the name of its layout, and rows of each."""
        with self._turn:
            batch, lengths = self._readers[learner].reader.fetch(ids, words.copy(), sure)
            if batch is None:
                return None, None, lengths
            return batch.sealed_block, self._name(batch), lengths

    def layout(self, name: str) -> tuple[Layout, frozenset[Any]]:
        """A layout of shares, and which of its leaves were added."""
        return self._layouts[name]

    def missing(self, learner: str) -> tuple[int, str]:
        with self._turn:
            return self._readers[learner].reader.missing()

    def update_priority(self, learner: str, seqs: Array, priority: Array, after: Any) -> int:
        """Returns how many updates came too late, ever."""
        with self._turn:
            reader = self._readers[learner].reader
            reader.update_priority(seqs, priority)
            return reader.sampler.stale_priority_updates

    def sampler_state(self, learner: str, after: Any = None) -> Any:
        with self._turn:
            return self._readers[learner].reader.sampler.state()

    def load_sampler(self, learner: str, state: Any) -> None:
        with self._turn:
            self._readers[learner].settle()
            self._readers[learner].reader.sampler.load(state)

    def forget(self, learner: str, reset_only: bool = False, after: Any = None) -> None:
        """Lets go of a reader, or of what its sampler knows; `after`: what must have been done
        before."""
        with self._turn:
            if reset_only:
                self._readers[learner].settle()
                self._readers[learner].reader.sampler.reset()
            else:
                self._readers.pop(learner, None)

    # -- the whole ----------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Counters of its tape."""
        return row_counts(self.storage)

    def empty(self) -> None:
        self.storage.empty()

    def episodes(self) -> Array | None:
        """Its trajectories, numbered as those of the whole; None: it has never had any."""
        if self.storage.schema is None:
            return None
        found = self.storage.episodes()
        for column in ("id", "first"):
            found[column] += base_of(self.number)
        return found

    def fields(self) -> Layout | None:
        """Of its trajectories."""
        return self.storage.fields

    def set_fields(self, ids: Array, fields: Any) -> int:
        """Changes fields of its trajectories, by its own numbers; how many were still there."""
        return self.storage.set_fields(ids, fields)

    def save(self, path: str, sampler: Sampler, state: Any) -> bool:
        """Writes its rows, and what a sampler knows of them; False: it has never had any."""
        return save_shard(self.storage, sampler, state, Path(path))

    def load(self, path: str | None, sampler: Sampler) -> Any:
        """Takes a shard's checkpoint in, in place of its own rows; None: it has none. Returns the
        sampler's state."""
        if path is None:
            self.storage.empty()
            return None
        return load_shard(self.storage, sampler, Path(path))

    def load_share(self, paths: list[str], sampler: Sampler, share: tuple[int, int]) -> Any:
        """Takes its share of several shards in. Returns the sampler's state."""
        return load_share(self.storage, sampler, [Path(p) for p in paths], share)
