"""ReplayBuffer with TorchRL's arguments.

    extend   -> inverse transforms -> items -> contig's writer
    sample   -> contig's draw -> TensorDict -> collate_fn -> transforms

Thread-safe, as contig's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.context import get_spawning_popen
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch
from torchrl.data import replay_buffers as theirs

from ...batch import Batch
from ...errors import EmptyBufferError, NothingEligibleError, RateLimitError
from ...keys import INIT
from ...replay import ReplayBuffer as TapeBuffer
from ...replay.output import info_of
from ...sample import Sampler
from ...tape import Storage
from ..saving import packed, unpack
from .arguments import device_of, made, refused, seed_of, without_effect
from .epochs import Epoch
from .items import Items
from .rows import on_each, with_next_init
from .storages import LazyTensorStorage
from .transforms import Transforms
from .writers import check_writer

__all__ = ["ReplayBuffer"]

_PASSING = (EmptyBufferError, NothingEligibleError, RateLimitError)
_DEFAULT_ROWS = 1000  # TorchRL's


class Sampled:
    """A batch as the learner gets it, with what `return_info` adds."""

    def __init__(self, td: Any, batch: Batch) -> None:
        self.td, self._batch = td, batch

    @property
    def info(self) -> dict[str, Any]:
        return {k: torch.from_numpy(np.array(v)) for k, v in info_of(self._batch).items()}

    def __len__(self) -> int:
        return len(self._batch)


class ReplayBuffer(TapeBuffer):
    """TorchRL's ReplayBuffer, with rows on a tape. Samples are TensorDicts; of tensors or
    tuples, those.

    Args:
        storage: `LazyTensorStorage(1000)` if None; or a function that makes one.
        sampler: uniform if None; or a function that makes one.
        writer: round-robin, which a storage is anyway.
        collate_fn: a function of the TensorDict, before transforms.
        pin_memory: samples are in pinned memory, where there is a CUDA device.
        prefetch: batches that are drawn, and transformed, ahead.
        transform: a TorchRL transform, or a function of a TensorDict.
        transform_factory: makes it, in place of `transform`.
        batch_size: rows of a sample, unless `sample` is told otherwise.
        dim_extend: the time dim of `ndim` batch dims, which is the last.
        generator: of random numbers; torch's own if None. Samplers' are seeded from it.
        checkpointer: none: `dumps` writes a contig checkpoint.
        sample_unit, consume_after_n_samples: not taken; the error says what to use.
        shared, compilable, delayed_init: without effect: a storage is shared with whoever gets it.
        options: `seed`, `limiter`, `sample_timeout_s`, `rank`, `world_size` of contig's own.
    """

    # TorchRL's isinstance asks for it: a buffer of this kind passes as one of TorchRL's.
    _service_cls: Any = theirs.ReplayBuffer

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        sample_unit: Any = None,
        writer: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        transform_factory: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        checkpointer: Any = None,
        generator: torch.Generator | None = None,
        consume_after_n_samples: int | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
        **options: Any,
    ) -> None:
        without_effect(dim_extend, compilable, delayed_init)
        refused(
            sample_unit=(sample_unit, "draw by SliceSampler"),
            checkpointer=(checkpointer, "dumps and loads write and read a contig checkpoint"),
            consume_after_n_samples=(
                consume_after_n_samples,
                "draw by RandomSampler(max_times_sampled=n)",
            ),
        )
        check_writer(writer)
        if transform is not None and transform_factory is not None:
            raise TypeError("transform and transform_factory are two ways to say one thing")
        hint = "import storages and samplers from contig.adapters.torchrl, or from contig"
        kept = made(storage, Storage, "storage", hint)
        kept = LazyTensorStorage(_DEFAULT_ROWS) if kept is None else kept
        options.setdefault("seed", seed_of(generator))
        self.shared, self._collate = shared, collate_fn
        self._pin = pin_memory and torch.cuda.is_available()
        self._device = device_of(getattr(kept, "device", None))
        self._items = Items(kept.ndim)
        super().__init__(
            kept,
            made(sampler, Sampler, "sampler", hint),
            batch_size=batch_size,
            prefetch=prefetch or 0,
            output="tensordict",
            **options,
        )
        self.transforms = Transforms(
            transform if transform_factory is None else transform_factory()
        )
        self._attach()

    # -- transforms ---------------------------------------------------------------------------

    @property
    def transform(self) -> Any:
        """TorchRL's Compose of the transforms."""
        return self.transforms.compose

    _transform = transform

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Adds a transform after the others.

        Args:
            transform: a TorchRL transform, or a function of a TensorDict.
            invert: what it does to samples is done to what is written, and the other way round.
        """
        self.transforms.append(transform, invert)
        self._attach()
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Adds a transform before the one that is at an index."""
        self.transforms.insert(index, transform, invert)
        self._attach()
        return self

    def _attach(self) -> None:
        """Has rows and samples go through the transforms there are now."""
        if self._prefetcher is not None:
            self._drain()
        self.ingress.transform = self.transforms.to_store if self.transforms.writes else None
        # Inside the draw, so that it is done ahead, too. Without transforms a draw stays a Batch.
        self._on_sample = self._finished if len(self.transforms) else None

    # -- writing ------------------------------------------------------------------------------

    def extend(self, data: Any, **options: Any) -> Any:
        """Appends rows; returns their seqs, as a tensor.

        Args:
            data: a TensorDict, a tensorclass, a mapping, or a list of them; or a tensor, or a tuple
                of tensors, which samples are too, then.
            options: `continues` and `fields` of contig's own.
        """
        return torch.from_numpy(super().extend(self._items.rows_of(data), **options))

    def add(self, data: Any, fields: Any = None) -> int:
        """Appends one row; returns its seq."""
        return super().add(self._items.row_of(data), fields)

    def empty(self, empty_write_count: bool = True) -> None:
        """Evicts every row. Seqs go on: they never repeat."""
        without_effect(empty_write_count)
        super().empty()

    @property
    def write_count(self) -> int:
        """Rows written so far."""
        return int(self.storage.tape.snapshot()[0])

    def share(self, shared: bool = True) -> ReplayBuffer:
        """Says that other processes write too: they may in any case."""
        self.shared = shared
        return self

    # -- sampling -----------------------------------------------------------------------------

    def sample(
        self, batch_size: int | None = None, return_info: bool = False, include_info: Any = None
    ) -> Any:
        """A TensorDict, with `index` (seqs) and `priority_weight` in it.

        Args:
            batch_size: rows; the buffer's own if None.
            return_info: also return a dict of `index` and so on.
            include_info: without effect: it is always included.
        """
        without_effect(include_info)
        if self._prefetcher is not None and batch_size in (None, self.batch_size):
            drawn = self._prefetcher.take(_PASSING)
        else:
            drawn = self.draw(batch_size)
        done = drawn if isinstance(drawn, Sampled) else self._finished(drawn)
        return (done.td, done.info) if return_info else done.td

    def _finished(self, batch: Batch) -> Any:
        return Sampled(self._given_out(batch), batch)

    def _given_out(self, batch: Batch) -> Any:
        if batch.layout.structure.kind == "dict":
            td = batch.to_tensordict(self._device)
            if INIT in batch:
                td = with_next_init(td)
            td = self._items.widened(td)
        else:  # a tensor, or a tuple of some, as it came
            td = batch.torch(self._device)
        if self._collate is not None:
            td = self._collate(td)
        td = self.transforms.to_learner(td)
        return on_each(lambda x: x.pin_memory(), td) if self._pin else td

    def __iter__(self) -> Iterator[Any]:
        """Batches: without end, or, of a sampler without replacement, one epoch."""
        if self.batch_size is None:
            raise RuntimeError("no batch size to iterate with: give batch_size= to the buffer")
        if self.sampler.drops_last is None:
            while True:
                yield self.sample()
        self._drain()
        epoch = Epoch(self.sampler, self._index, self._rng, self.batch_size)
        with self._turn:
            epoch.begin()
        while epoch.goes_on():
            yield self.sample(self.batch_size) if self._prefetcher is None else self._aside()

    def _aside(self) -> Any:
        """A sample past the prefetcher, which would draw beyond the epoch."""
        drawn = self.draw()
        return (drawn if isinstance(drawn, Sampled) else self._finished(drawn)).td

    def next(self) -> Any:
        """The next batch of an iteration that goes on from call to call; None at its end."""
        if getattr(self, "_iterator", None) is None:
            self._iterator: Iterator[Any] | None = iter(self)
        assert self._iterator is not None
        out = next(self._iterator, None)
        self._iterator = None if out is None else self._iterator
        return out

    def __getitem__(self, index: Any) -> Any:
        """Rows: by seq, by position for a slice; of a key, or a tuple of keys, all rows' values."""
        if isinstance(index, str):
            return self[:][index]
        if isinstance(index, tuple):
            if all(isinstance(k, str) for k in index):
                return self[:][index]
            return self[index[0]] if len(index) == 1 else self[index[0]][index[1:]]
        found = self._given_out(self._rows(index))
        one = isinstance(index, (int, np.integer))
        return on_each(lambda x: x[0], found) if one else found

    def _rows(self, index: Any) -> Batch:
        from ...replay.read import read_rows

        return read_rows(self.storage, index)

    # -- priorities ---------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets priorities of rows by their seqs. Nothing happens if the sampler has none."""
        if self.has_priorities:
            index = torch.stack(index, -1) if isinstance(index, tuple) else index
            super().update_priority(index, priority)

    @property
    def has_priorities(self) -> bool:
        """Whether the sampler draws by priority."""
        return hasattr(self.sampler, "priorities")

    # -- saving -------------------------------------------------------------------------------

    def dumps(self, path: str | FilePath) -> None:
        """Writes a contig checkpoint: rows, index, sampler, random numbers, transforms' state."""
        self.save(path)

    def loads(self, path: str | FilePath) -> None:
        """Takes a checkpoint in, in place of what the buffer holds."""
        self.load(path)

    dump = dumps

    def state(self) -> dict[str, Any]:
        """Random numbers, sampler and transforms, for `load_state`."""
        tensors = {
            key: value.detach().cpu().numpy()
            for key, value in self.transforms.compose.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        more = {"item_shape": list(self._items.shape), "transforms": tensors}
        return {**super().state(), "torchrl": more}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes in what `state` returned."""
        super().load_state(state)
        more = state.get("torchrl", {})
        self._items.shape = tuple(more.get("item_shape", ()))
        tensors = {k: torch.from_numpy(v) for k, v in more.get("transforms", {}).items()}
        if tensors:
            self.transforms.compose.load_state_dict(tensors, strict=False)

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint as tensors of bytes, for `torch.save`."""
        return {name: torch.from_numpy(content) for name, content in packed(self).items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes in what `state_dict` returned, rows and all."""
        unpack(self, {name: content.cpu().numpy() for name, content in state_dict.items()})

    # -- other processes ----------------------------------------------------------------------

    @property
    def _storage(self) -> Storage:
        """What TorchRL's collectors look at before they start workers."""
        return self.storage

    @property
    def _sampler(self) -> Sampler:
        return self.sampler

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:
            return super().__reduce__()
        # A worker of a TorchRL collector: it writes to the same storage.
        transform = self.transforms.compose if self.transforms.writes else None
        return _writing_end, (self.storage, transform)


def _writing_end(storage: Storage, transform: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=storage, transform=transform)
