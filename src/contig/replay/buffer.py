"""ReplayBuffer: a storage, a sampler, and the road between them.

    add / extend -> ingress: transform.on_write -> limiter -> storage (tape)
    sample       -> limiter -> sampler.draw -> gather -> transform.on_sample -> output

Thread-safe: any number of threads may write; samplers take turns.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np

from ..arguments import check_kind, ranks, seconds, whole, whole_numbers
from ..batch import Batch
from ..convert import as_array
from ..errors import ClosedError, EmptyBufferError, NothingEligibleError, RateLimitError
from ..sample import Index, RandomSampler, RateLimiter, Request, Rng, Sampler
from ..tape import DeviceStorage, LazyTensorStorage, Storage
from . import checkpoint
from .arriving import ArrivingBatch
from .feeding import Feeding
from .ingress import Ingress
from .lending import Lending, Lent
from .output import advise_output, hooks_of, output_of, to_output, transfers_to
from .prefetch import Cancelled, Prefetcher
from .read import read_batch, read_rows
from .remote_files import folder_to_load, folder_to_save
from .samples import Samples
from .statistics import BufferStats, priorities_in, row_counts
from .typed import BufferOptions, Out_co

if TYPE_CHECKING:
    from ..convert.types import TensorDict
    from ..dashboard import Dashboard, SeenRows
    from ..tree import Nested

__all__ = ["BufferStats", "ReplayBuffer"]

# Errors that end when somebody writes.
_PASSING = (EmptyBufferError, NothingEligibleError, RateLimitError)


class ReplayBuffer(Samples[Out_co]):
    """Stores rows, samples batches.

    Args:
        storage: where rows go; a LazyTensorStorage of a million rows if None.
        sampler: which rows come out; uniform if None.
        batch_size: rows per sample, unless `sample` is told otherwise, or the sampler knows.
        transform: a callable for what is written, or an object with `on_write` and/or
            `on_sample`; each gets and returns a Batch.
        prefetch: batches drawn ahead in a thread; with a CUDA device they are copied there ahead,
            too.
        seed: of the sampler's random numbers; None: fresh ones.
        output: "numpy" (a Batch), "torch", "jax" or "tensordict". None: "torch", if there is a
            device or the storage is on one, else "numpy".
        device: where torch and tensordict outputs go, in one copy; None: where the rows are. Copies
            to CUDA are in order for the stream that the caller of `sample` computes on, and nobody
            waits for them.
        limiter: keeps sampling and writing in proportion.
        sample_timeout_s: how long `sample` waits for the first rows while somebody feeds it, and
            for the limiter. None: 60 s, and as long as the limiter says.
        rank, world_size: which of several learners this is, that read the same rows with the same
            seed: each has random numbers of its own, and its own part of an epoch.
    """

    @overload
    def __init__(
        self: ReplayBuffer[Nested],
        storage: DeviceStorage,
        sampler: Sampler | None = None,
        *,
        output: Literal["torch"] | None = None,
        **options: Unpack[BufferOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[Batch],
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        *,
        output: Literal["numpy"] | None = None,
        device: None = None,
        **options: Unpack[BufferOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[Nested],
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        *,
        output: Literal["torch"] | None = None,
        device: Any = None,
        **options: Unpack[BufferOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[Nested],
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        *,
        output: Literal["jax"],
        **options: Unpack[BufferOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[TensorDict],
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        *,
        output: Literal["tensordict"],
        device: Any = None,
        **options: Unpack[BufferOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[Any],
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        *,
        output: str | None,
        device: Any = None,
        **options: Unpack[BufferOptions],
    ) -> None: ...

    def __init__(
        self,
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        *,
        batch_size: int | None = None,
        transform: Any = None,
        prefetch: int = 0,
        seed: int | None = None,
        output: str | None = None,
        device: Any = None,
        limiter: RateLimiter | None = None,
        sample_timeout_s: float | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.storage = LazyTensorStorage(1_000_000) if storage is None else storage
        self.sampler = RandomSampler() if sampler is None else sampler
        hint = "give LazyTensorStorage(10_000) for that many rows"
        check_kind("storage", self.storage, Storage, hint)
        check_kind("sampler", self.sampler, Sampler, "give a sampler such as RandomSampler()")
        batch_size = self.sampler.batch_size if batch_size is None else batch_size
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1, "rows")
            self.sampler.request(batch_size)  # raises if it does not fit
        self.batch_size = batch_size
        prefetch = whole("prefetch", prefetch, 0, "a number of batches")
        self._ends_limiter = sample_timeout_s is not None  # whichever of the two is shorter
        self.sample_timeout_s = seconds(
            "sample_timeout_s", 60.0 if sample_timeout_s is None else sample_timeout_s
        )
        self.output, self.device = output_of(output, device, self.storage), device
        self._advises = output is None and self.output == "numpy"  # until the first write
        self._transfers = transfers_to(device, self.storage, prefetch + 2)
        self._output: Callable[[Batch], Out_co] = to_output(
            self.output, device, self._transfers, self.storage.device
        )
        on_write, self._on_sample = hooks_of(transform)
        self.ingress = Ingress(self.storage, on_write)
        self.limiter = limiter
        self.storage.bind_keys(self.sampler.traj_key, self.sampler.end_key)
        self.rank, self.world_size = ranks(rank, world_size)
        self._rng = Rng(seed, self.rank if self.world_size > 1 else None)
        self.sampler.divide(self.rank, self.world_size)
        self._index = Index(self.storage)
        self._turn = threading.RLock()  # one sampler at a time
        self._batches = self._rows_out = 0
        self.seen: tuple[SeenRows, ...] = ()  # what dashboards see of draws
        self._dashboards: list[Dashboard] = []
        self._feeding = Feeding()
        self._lending = Lending()
        self._closed = False
        draw = self.draw if self._transfers is None else self._draw_and_send
        self._prefetcher = Prefetcher(draw, self._mark, prefetch) if prefetch else None

    # -- writing ------------------------------------------------------------------------------

    def add(self, step: Any, fields: Any = None) -> int:
        """Appends one row, which goes on with the trajectory until a done row, and some of the
        trajectory's `fields`. Returns its seq."""
        if self._closed or self._advises:
            self._begin_write(step)
        if self.ingress.limiter is None and fields is None:
            return self.ingress.add(step)
        return self.ingress.add(step, self._check_open, fields)

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> np.ndarray[Any, Any]:
        """Appends one step of B envs, ``[B, ...]``; row b goes on with env b, or `env_ids[b]`. Rows
        that `mask` has False for are not stored, and end nothing. Returns seqs."""
        self._begin_write(step)
        return self.ingress.add_step(step, env_ids, mask, self._check_open, fields)

    def extend(
        self, data: Any, *, continues: bool | None = None, fields: Any = None
    ) -> np.ndarray[Any, Any]:
        """Appends rows, or lanes of rows; see `Writer.extend`. Returns seqs."""
        self._begin_write(data)
        return self.ingress.extend(data, continues, self._check_open, fields)

    def extend_trajectory(self, data: Any, **end: Any) -> np.ndarray[Any, Any]:
        """Appends one whole trajectory; see `Writer.extend_trajectory`. Returns seqs."""
        self._begin_write(data)
        return self.ingress.extend_trajectory(data, self._check_open, **end)

    def set_fields(self, ids: Any, fields: Any) -> int:
        """Changes fields of stored trajectories; see `Storage.set_fields`. How many were there."""
        self._check_open()
        return self.storage.set_fields(ids, fields)

    def _begin_write(self, data: Any) -> None:
        self._check_open()
        if self._advises:
            self._advises = False
            advise_output(data)

    def _check_open(self) -> None:
        """Raises ClosedError after `close`, to writers that wait for room, too."""
        if self._closed:
            raise ClosedError("this buffer is closed")

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
        self._check_open()
        self._drain()
        with self._turn:
            self.storage.empty()
            self.sampler.reset()

    # -- sampling -----------------------------------------------------------------------------

    def _next_batch(self, batch_size: int | None) -> Batch:
        if self._prefetcher is not None and batch_size in (None, self.batch_size):
            ahead: Batch = self._prefetcher.take(_PASSING)
            return ahead
        # Drawing aside from the prefetcher: what it drew ahead stays in its order.
        return self.draw(batch_size)

    def draw(self, batch_size: int | None = None, *, of: int | None = None) -> Batch:
        """A batch as numpy, past the prefetcher.

        Args:
            batch_size: rows; the buffer's own if None.
            of: rows of the whole that this batch is a share of, for samplers of slices.
        """
        self._check_open()
        size = self.batch_size
        if batch_size is not None:
            size = whole("batch_size", batch_size, 1, "rows")
        if size is None:
            raise ValueError("no batch size: give one to sample() or to the buffer")
        for check in self._feeding.watched:
            check()  # raises if the feeder died
        request = self.sampler.request(size if of is None else of)
        if of is not None:
            request = request._replace(groups=size // request.length)
        tape = self.storage.tape
        limiter = self.ingress.limiter
        if limiter is not None:
            most_s = self.sample_timeout_s if self._ends_limiter else math.inf
            limiter.await_sample(self.storage, size, self._go_on, most_s)  # counts them
            try:
                batch = self._read(request)
            except BaseException:
                tape.add_sampled(-size)
                raise
            rows = len(batch)
            tape.add_sampled(rows - size)
        else:
            batch = self._read(request)
            rows = len(batch)
            tape.add_sampled(rows)
        self._batches += 1
        self._rows_out += rows
        for seen in self.seen:
            seen(batch)
        return batch if self._on_sample is None else self._on_sample(batch)

    def _draw_and_send(self) -> Batch:
        """A batch drawn ahead, on its way to the device."""
        assert self._transfers is not None
        return ArrivingBatch.sent(self.draw(), self._transfers, aside=True)

    def _read(self, request: Request) -> Batch:
        try:
            return self._read_now(request)
        except (EmptyBufferError, NothingEligibleError):
            if not self._feeding.feeders:
                raise
        return self._feeding.await_rows(
            self.storage.tape, lambda: self._read_now(request), self._go_on, self.sample_timeout_s
        )

    def _read_now(self, request: Request) -> Batch:
        with self._turn:
            if self._lending.wanted is None:
                return read_batch(self._index, self.sampler, self._rng, request)
            mark = self.sampler.mark()
            batch = read_batch(self._index, self.sampler, self._rng, request)
            self._lending.taken += self.sampler.taken(mark)
            self._lending.rows += len(batch)
            return batch

    def lend(self, batch_size: int | None, wanted: Callable[[], bool]) -> tuple[Batch, Lent]:
        """What `draw` draws, for who may not get it; see `lending.py`. Raises Cancelled if it is
        not `wanted` any more: nothing was drawn."""
        return self._lending.lend(lambda: self.draw(batch_size), self.take_back, wanted)

    def take_back(self, lent: Lent) -> None:
        """Nobody got a batch: it may be drawn again, but for what was evicted. Once for each."""
        with self._turn:
            self.sampler.give_back(lent.taken)
        self.storage.tape.add_sampled(-lent.rows)

    def _go_on(self) -> None:
        """Called while a draw waits: raises if nobody waits for it any more."""
        self._lending.check()
        if self._prefetcher is not None and self._prefetcher.cancelled():
            raise Cancelled("the batch was drawn ahead and is not wanted any more")
        self._check_open()
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

    def __getitem__(self, index: Any) -> Out_co:
        """Stored rows by seq; -1 is the newest one; for a slice, by position from the oldest."""
        return self._output(read_rows(self.storage, index))

    # -- priorities ---------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets priorities of rows by their `index` (seqs); evicted rows are ignored and counted."""
        self._check_open()
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
        """Random numbers and sampler, for `load_state`; rows are in `save`."""
        return {"rng": self._rng.state(), "sampler": self.sampler.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes in what `state` returned."""
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
                self._rewind(mark)

    def _rewind(self, mark: Any) -> None:
        self._rng.load(mark[0])
        self.sampler.rewind(mark[1])

    def stats(self) -> BufferStats:
        """Counters of rows written, stored and sampled."""
        return BufferStats(
            **row_counts(self.storage),
            rows_sampled=self._rows_out,
            batches_sampled=self._batches,
            stale_priority_updates=self.sampler.stale_priority_updates,
        )

    def dashboard(self, port: int = 0, **options: Any) -> Dashboard:
        """A page that shows this buffer, until it is closed or the buffer is; see
        `contig.dashboard.PageOptions` for `host`, `token`, `tls` and `samples_per_s`."""
        from .watching import open_dashboard

        page = open_dashboard(self, port, options)
        self._dashboards.append(page)
        return page

    def __len__(self) -> int:
        return len(self.storage)

    def __repr__(self) -> str:
        name = f"{type(self).__name__}{' closed:' if self._closed else ':'}"
        size = "" if self.batch_size is None else f", batches of {self.batch_size}"
        return f"<{name} {self.storage!r}, {self.sampler!r}{size}, output={self.output!r}>"

    def close(self) -> None:
        """Ends the prefetcher and dashboards. The storage stays open: it may be shared."""
        self._closed = True
        while self._dashboards:
            self._dashboards.pop().close()
        if self._prefetcher is not None:
            self._prefetcher.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a ReplayBuffer belongs to its process; pass its .storage to other processes, and make "
            "a buffer of it there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
