"""ReplayBuffer: a storage, a sampler, and the road between them.

    add / extend -> ingress: transform.on_write -> limiter -> storage (tape)
    sample       -> limiter -> sampler.draw -> gather -> transform.on_sample -> output

Thread-safe: any number of threads may write; samplers take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import numpy as np

from ..arguments import check_kind, ranks, seconds, whole, whole_numbers
from ..batch import Batch
from ..convert import as_array
from ..errors import ClosedError, EmptyBufferError, NothingEligibleError, RateLimitError
from ..sample import Index, RandomSampler, RateLimiter, Request, Rng, Sampler
from ..tape import LazyTensorStorage, Storage
from . import checkpoint
from .feeding import Feeding
from .ingress import Ingress
from .output import info_of, to_output
from .prefetch import Cancelled, Prefetcher
from .read import read_batch, read_rows
from .remote_files import folder_to_load, folder_to_save

__all__ = ["BufferStats", "ReplayBuffer", "TensorDictReplayBuffer"]

# Errors that end when somebody writes.
_PASSING = (EmptyBufferError, NothingEligibleError, RateLimitError)


class BufferStats(NamedTuple):
    """Counters of a buffer, from `ReplayBuffer.stats`."""

    rows: int
    capacity: int
    rows_written: int
    appends: int
    trajectories: int
    rows_sampled: int
    batches_sampled: int
    stale_priority_updates: int


def row_counts(storage: Storage) -> dict[str, int]:
    """The counters that a buffer has from its storage."""
    tape = storage.tape
    return {
        "rows": len(storage),
        "capacity": storage.capacity,
        "rows_written": int(tape.snapshot()[0]),
        "appends": int(tape.appends),
        "trajectories": int(tape.trajectories),
    }


def priorities_in(data: Any, key: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The rows of a batch, and a priority for each: the largest of all that `key` has of it."""
    rows = as_array(data["index"]).reshape(-1)
    return rows, np.abs(as_array(data[key]).reshape(len(rows), -1)).max(-1)


class ReplayBuffer:
    """Stores rows, samples batches.

    Args:
        storage: where rows go; a LazyTensorStorage of a million rows if None.
        sampler: which rows come out; uniform if None.
        batch_size: rows per sample, unless `sample` is told otherwise.
        transform: a callable for what is written, or an object with `on_write` and/or
            `on_sample`; each gets and returns a Batch.
        prefetch: batches drawn ahead in a thread.
        seed: of the sampler's random numbers; None: fresh ones.
        output: "numpy" (a Batch), "torch", "jax" or "tensordict".
        device: where torch and tensordict outputs go.
        limiter: keeps sampling and writing in proportion.
        sample_timeout_s: how long `sample` waits for the first rows while somebody feeds it.
        rank, world_size: which of several learners this is, that read the same rows with the same
            seed: each has random numbers of its own, and its own part of an epoch.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        *,
        batch_size: int | None = None,
        transform: Any = None,
        prefetch: int = 0,
        seed: int | None = None,
        output: str = "numpy",
        device: Any = None,
        limiter: RateLimiter | None = None,
        sample_timeout_s: float = 60.0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.storage = LazyTensorStorage(1_000_000) if storage is None else storage
        self.sampler = RandomSampler() if sampler is None else sampler
        hint = "give LazyTensorStorage(10_000) for that many rows"
        check_kind("storage", self.storage, Storage, hint)
        check_kind("sampler", self.sampler, Sampler, "give a sampler such as RandomSampler()")
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, 1, "rows")
        prefetch = whole("prefetch", prefetch, 0, "a number of batches")
        self.sample_timeout_s = seconds("sample_timeout_s", sample_timeout_s)
        self.output = output
        self._output = to_output(output, device)
        on_write, self._on_sample = _hooks(transform)
        self.ingress = Ingress(self.storage, on_write)
        self.limiter = limiter
        self.storage.bind_keys(self.sampler.traj_key, self.sampler.end_key)
        self.rank, self.world_size = ranks(rank, world_size)
        self._rng = Rng(seed, self.rank if self.world_size > 1 else None)
        self.sampler.divide(self.rank, self.world_size)
        self._index = Index(self.storage)
        self._turn = threading.RLock()  # one sampler at a time
        self._batches = self._rows_out = 0
        self._feeding = Feeding()
        self._closed = False
        self._prefetcher = Prefetcher(self.draw, self._mark, prefetch) if prefetch else None

    # -- writing ------------------------------------------------------------------------------

    def add(self, step: Any) -> int:
        """Appends one row, which goes on with the trajectory until a done row. Returns its seq."""
        return self.ingress.add(step)

    def add_step(self, step: Any, env_ids: Any = None, mask: Any = None) -> np.ndarray[Any, Any]:
        """Appends one step of B envs, ``[B, ...]``; row b goes on with env b, or `env_ids[b]`. Rows
        that `mask` has False for are not stored, and end nothing. Returns seqs."""
        return self.ingress.add_step(step, env_ids, mask)

    def extend(self, data: Any, *, continues: bool | None = None) -> np.ndarray[Any, Any]:
        """Appends rows, or lanes of rows; see `Writer.extend`. Returns seqs."""
        return self.ingress.extend(data, continues)

    def extend_trajectory(self, data: Any, **end: Any) -> np.ndarray[Any, Any]:
        """Appends one whole trajectory; see `Writer.extend_trajectory`. Returns seqs."""
        return self.ingress.extend_trajectory(data, **end)

    @property
    def limiter(self) -> RateLimiter | None:
        """What keeps sampling and writing in proportion."""
        return self.ingress.limiter

    @limiter.setter
    def limiter(self, limiter: RateLimiter | None) -> None:
        if limiter is not None:
            check_kind("limiter", limiter, RateLimiter, "give RateLimiter(samples_per_insert)")
        self.ingress.limiter = limiter

    def empty(self) -> None:
        """Evicts every row, and throws away what was drawn ahead."""
        self._drain()
        with self._turn:
            self.storage.empty()
            self.sampler.reset()

    # -- sampling -----------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A batch.

        Args:
            batch_size: rows; the buffer's own if None.
            return_info: also return a dict with `index` and `priority_weight` if there are any.

        Raises:
            EmptyBufferError, NothingEligibleError: nothing to draw. While a collector or server
                feeds the buffer, it waits up to `sample_timeout_s` first.
        """
        if self._prefetcher is not None and batch_size in (None, self.batch_size):
            batch = self._prefetcher.take(_PASSING)
        else:
            # Drawing aside from the prefetcher: what it drew ahead stays in its order.
            batch = self.draw(batch_size)
        out = self._output(batch)
        return (out, info_of(batch)) if return_info else out

    def draw(self, batch_size: int | None = None, *, of: int | None = None) -> Batch:
        """A batch as numpy, past the prefetcher.

        Args:
            batch_size: rows; the buffer's own if None.
            of: rows of the whole that this batch is a share of, for samplers of slices.
        """
        if self._closed:
            raise ClosedError("this buffer is closed")
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("no batch size: give one to sample() or to the buffer")
        size = whole("batch_size", size, 1, "rows")
        for check in self._feeding.watched:
            check()  # raises if the feeder died
        request = self.sampler.request(size if of is None else of)
        if of is not None:
            request = request._replace(groups=size // request.length)
        tape = self.storage.tape
        limiter = self.ingress.limiter
        if limiter is not None:
            limiter.await_sample(self.storage, size, self._go_on)  # counts them
            try:
                batch = self._read(request)
            except BaseException:
                tape.add_sampled(-size)
                raise
            tape.add_sampled(len(batch) - size)
        else:
            batch = self._read(request)
            tape.add_sampled(len(batch))
        self._batches += 1
        self._rows_out += len(batch)
        return batch if self._on_sample is None else self._on_sample(batch)

    def _read(self, request: Request) -> Batch:
        def read() -> Batch:
            with self._turn:
                return read_batch(self._index, self.sampler, self._rng, request)

        try:
            return read()
        except (EmptyBufferError, NothingEligibleError):
            if not self._feeding.feeders:
                raise
        return self._feeding.await_rows(self.storage.tape, read, self._go_on, self.sample_timeout_s)

    def _go_on(self) -> None:
        """Called while a draw waits: raises if nobody waits for it any more."""
        if self._prefetcher is not None and self._prefetcher.cancelled():
            raise Cancelled("the batch was drawn ahead and is not wanted any more")
        if self._closed:
            raise ClosedError("this buffer is closed")
        for check in self._feeding.watched:
            check()  # raises if the feeder died

    def feed(self, check: Callable[[], None], *, always: bool = False) -> Callable[[], None]:
        """Says that somebody feeds this buffer, so that `sample` waits for the first rows.

        Args:
            check: called while waiting; raises if the feeder failed.
            always: call it before every draw too.

        Returns:
            a function to call when the feeding ends.
        """
        return self._feeding.feed(check, always)

    def watch(self, check: Callable[[], None]) -> Callable[[], None]:
        """Has every draw call `check`, which raises if something failed; `sample` does not wait.

        Returns:
            a function to call when that ends.
        """
        return self._feeding.watch(check)

    def __iter__(self) -> Iterator[Any]:
        """Batches without end; of an epoch's sampler, one epoch after another."""
        while True:
            yield self.sample()

    def __getitem__(self, index: Any) -> Any:
        """Stored rows by seq, or, for a slice, by position from the oldest one."""
        return self._output(read_rows(self.storage, index))

    # -- priorities ---------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets priorities of rows by their `index` (seqs); evicted rows are ignored and counted."""
        seqs, values = whole_numbers("index", as_array(index)), as_array(priority)
        with self._turn:
            self._index.refresh()
            self.sampler.update_priority(self._index, seqs, values)

    def update_tensordict_priority(self, data: Any, key: str = "td_error") -> None:
        """`update_priority` from a batch that has `index` and a priority, as TorchRL does it."""
        self.update_priority(*priorities_in(data, key))

    # -- state --------------------------------------------------------------------------------

    def save(self, path: str | FilePath) -> None:
        """Writes a checkpoint directory: rows, index, sampler, random numbers, limiter.

        Batches drawn ahead but not delivered are discarded: after `load`, the next batch is the
        one that would have come next.

        Args:
            path: nothing may be there, or an empty directory, or an earlier checkpoint, which is
                replaced at once or not at all. A url (``s3://bucket/run``) is uploaded to, from a
                temporary directory, which needs fsspec.

        Raises:
            FileExistsError: something else is there, the storage's own files for example. Nothing
                was changed.
        """
        with folder_to_save(path) as folder:
            self._drain()
            with self._turn:
                checkpoint.save(self, folder)

    def load(self, path: str | FilePath, rank: int = 0, world_size: int = 1) -> None:
        """Takes a checkpoint in, in place of what the buffer holds; into any storage, of any
        capacity (the newest rows stay).

        Args:
            path: what `save` wrote; or a url, which is downloaded and verified.
            rank, world_size: a share of its trajectories: contiguous, the first ranks get one more
                if the numbers do not divide. Samplers start anew, each rank with its own stream.
        """
        with folder_to_load(path) as folder:
            self._drain()
            with self._turn:
                checkpoint.load(self, folder, (rank, world_size))

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.state(), "sampler": self.sampler.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._rng.load(state["rng"])
        self.sampler.load(state["sampler"])

    def _mark(self) -> Any:
        with self._turn:
            return (self._rng.state(), self.sampler.mark())

    def _drain(self) -> None:
        if self._prefetcher is None:
            return
        mark, thrown_away = self._prefetcher.drain()
        self.storage.tape.add_sampled(-sum(len(b) for b in thrown_away if b is not None))
        if mark is not None:
            with self._turn:
                self._rng.load(mark[0])
                self.sampler.rewind(mark[1])

    def stats(self) -> BufferStats:
        return BufferStats(
            **row_counts(self.storage),
            rows_sampled=self._rows_out,
            batches_sampled=self._batches,
            stale_priority_updates=self.sampler.stale_priority_updates,
        )

    def __len__(self) -> int:
        return len(self.storage)

    def close(self) -> None:
        """Ends the prefetcher. The storage stays open: it may be shared."""
        self._closed = True
        if self._prefetcher is not None:
            self._prefetcher.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a ReplayBuffer belongs to its process; pass its .storage to other processes, and make "
            "a buffer of it there"
        )

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class TensorDictReplayBuffer(ReplayBuffer):
    """A ReplayBuffer whose samples are TensorDicts."""

    def __init__(
        self, storage: Storage | None = None, sampler: Sampler | None = None, **options: Any
    ):
        super().__init__(storage, sampler, **{"output": "tensordict", **options})


def _hooks(transform: Any) -> tuple[Any, Any]:
    if transform is None:
        return None, None
    on_write, on_sample = (getattr(transform, n, None) for n in ("on_write", "on_sample"))
    if on_write is None and on_sample is None:
        if not callable(transform):
            raise TypeError("transform: expected a callable or an object with on_write / on_sample")
        return transform, None
    return on_write, on_sample
