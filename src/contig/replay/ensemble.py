"""Several buffers sampled as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from .. import _native
from ..arguments import check_kind, one_each, whole, whole_numbers
from ..batch import Batch, stack_batches
from ..convert import as_array
from ..errors import LayoutError
from ..keys import RELABELED
from ..sample import Request, Rng
from ..sample.hindsight import relabels
from ..sample.prioritized import check_priorities
from .buffer import ReplayBuffer
from .output import to_output
from .samples import Samples
from .typed import EnsembleOptions, Info, Out_co

if TYPE_CHECKING:
    from ..convert.types import TensorDict
    from ..tree import Nested

__all__ = ["ReplayBufferEnsemble"]

_IDS = "buffer_ids"


def _shares(p: Any, members: int) -> np.ndarray[Any, Any]:
    """Probabilities that add up to 1, whatever the numbers' size. Raises ValueError."""
    try:
        weights = np.array(p, float)
    except (TypeError, ValueError):
        weights = np.zeros(0)
    if weights.shape != (members,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(f"p: expected {members} numbers of at least 0, got {p!r}")
    if not weights.any():
        raise ValueError(f"p: expected a number above 0 among them, got {p!r}")
    weights /= weights.max()  # their sum may be more than a float can be
    weights /= weights.sum()
    return weights


def _one_place(buffers: Sequence[ReplayBuffer]) -> Any:
    """The device that all members' rows are on; None: in host memory. Raises LayoutError."""
    places = [b.storage.device for b in buffers]
    for i, place in enumerate(places):
        if place != places[0]:
            mine, other = (x or "host memory" for x in (place, places[0]))
            raise LayoutError(
                f"buffers[{i}]: its rows are in {mine}, those of buffers[0] in {other}, and a "
                "batch has rows of one place; use storages of one kind on one device"
            )
    return places[0]


class ReplayBufferEnsemble(Samples[Out_co]):
    """Samples from all of its members, or from each with its own probability.

    Batches are flat, the members' rows one after another, with `buffer_ids` saying whose they are.

    Args:
        buffers: the members; their rows must have one layout, and be in host memory or on one
            device. Beside one with HindsightRelabel the others' rows have
            ``("collector", "relabeled")`` too: False.
        sample_from_all: an equal share of every member in every batch.
        p: probabilities of the members, drawn for each row or slice; uniform if None.
        batch_size: rows of a batch of the ensemble; members get their share of it.
        seed: as in ReplayBuffer.
        output, device: as in ReplayBuffer; None: the first member's.

    Raises:
        LayoutError: members whose rows are on different devices.
    """

    @overload
    def __init__(
        self: ReplayBufferEnsemble[Out_co],
        *buffers: ReplayBuffer[Out_co],
        output: None = None,
        **options: Unpack[EnsembleOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBufferEnsemble[Batch],
        *buffers: ReplayBuffer[Any],
        output: Literal["numpy"],
        **options: Unpack[EnsembleOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBufferEnsemble[Nested],
        *buffers: ReplayBuffer[Any],
        output: Literal["torch"],
        **options: Unpack[EnsembleOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBufferEnsemble[Nested],
        *buffers: ReplayBuffer[Any],
        output: Literal["jax"],
        **options: Unpack[EnsembleOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBufferEnsemble[TensorDict],
        *buffers: ReplayBuffer[Any],
        output: Literal["tensordict"],
        **options: Unpack[EnsembleOptions],
    ) -> None: ...

    def __init__(
        self,
        *buffers: ReplayBuffer[Any],
        sample_from_all: bool = False,
        p: Sequence[float] | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        output: str | None = None,
        device: Any = None,
    ) -> None:
        if not buffers:
            raise ValueError("an ensemble needs at least one buffer")
        for i, buffer in enumerate(buffers):
            check_kind(
                f"buffers[{i}]", buffer, ReplayBuffer, "give the members one by one, *buffers"
            )
        if p is not None and sample_from_all:
            raise ValueError("p has no meaning with sample_from_all=True: every member is sampled")
        self.buffers = buffers
        self.sample_from_all = sample_from_all
        self.p = None if p is None else _shares(p, len(buffers))
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1, "rows")
            self._requests(batch_size)  # raises if it does not fit
        self.batch_size = batch_size
        self._relabels = any(relabels(b.sampler) for b in buffers)
        first = buffers[0]
        output = first.output if output is None else output
        if device is None and output in ("torch", "tensordict"):
            device = first.device
        self._output: Callable[[Batch], Out_co] = to_output(output, device, on=_one_place(buffers))
        self._rng = Rng(seed)

    def __repr__(self) -> str:
        members = ", ".join(map(repr, self.buffers))
        return (
            f"<{type(self).__name__}: {len(self)} rows of {len(self.buffers)} buffers: {members}>"
        )

    def __len__(self) -> int:
        return sum(len(b) for b in self.buffers)

    def __getitem__(self, member: int) -> ReplayBuffer[Any]:
        """A member. (Rows are reached through it: seqs are each member's own.)"""
        return self.buffers[member]

    def member_for(self, worker: int) -> ReplayBuffer[Any]:
        """The member that worker i of a collector writes to: i mod n."""
        return self.buffers[worker % len(self.buffers)]

    def extend(self, data: Any, *, member: int = 0, **options: Any) -> np.ndarray[Any, Any]:
        """Appends rows to one member; see `ReplayBuffer.extend`."""
        return self.member_for(member).extend(data, **options)

    def add_step(
        self,
        step: Any,
        env_ids: Any = None,
        mask: Any = None,
        *,
        member: int = 0,
        fields: Any = None,
    ) -> np.ndarray[Any, Any]:
        """Appends one step of B envs to one member; see `ReplayBuffer.add_step`."""
        return self.member_for(member).add_step(step, env_ids, mask, fields)

    def set_fields(self, ids: Any, fields: Any, *, member: int = 0) -> int:
        """Changes fields of one member's trajectories: ids are each member's own."""
        return self.buffers[member].set_fields(ids, fields)

    def _next_batch(self, batch_size: int | None) -> Batch:
        """All members' shares, with root key `buffer_ids`."""
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("no batch size: give one to sample() or to the ensemble")
        size = whole("batch_size", size, 1, "rows")
        parts = []
        for i, rows in enumerate(self._shares(size)):
            if rows:
                batch = self.buffers[i].draw(rows, of=rows if self.sample_from_all else size)
                added: dict[Any, Any] = {_IDS: np.full(len(batch), i, np.int64)}
                if self._relabels and RELABELED not in batch:
                    added[RELABELED] = np.zeros(len(batch), np.bool_)
                parts.append(batch.with_leaves(added, extra=True))
        return stack_batches(parts)

    def _info(self, batch: Batch) -> Info:
        return {"index": batch["index"], _IDS: batch[_IDS]}

    def _shares(self, size: int) -> list[int]:
        n = len(self.buffers)
        requests = self._requests(size)
        if self.sample_from_all:
            return [size // n] * n
        groups, length = requests[0]
        u = _native.uniform_below(self._rng.words, 0, 2**53, groups) / 2.0**53
        p = np.full(n, 1 / n) if self.p is None else self.p
        picked = np.searchsorted(np.cumsum(p), u, side="right").clip(0, n - 1)
        return [int(c) * length for c in np.bincount(picked, minlength=n)]

    def _requests(self, size: int) -> list[Request]:
        """Returns how many rows each member is asked for, for a batch of `batch_size`.

        Raises:
            ValueError: it does not fit them.
        """
        n = len(self.buffers)
        if self.sample_from_all:
            if size % n:
                raise ValueError(f"batch_size {size} is not a multiple of {n} members")
            return [b.sampler.request(size // n) for b in self.buffers]
        requests = [b.sampler.request(size) for b in self.buffers]
        if len(set(requests)) > 1:
            raise ValueError(
                "members that draw slices of different lengths can only be sampled with "
                "sample_from_all=True"
            )
        return requests

    def update_priority(self, index: Any, priority: Any, buffer_ids: Any) -> None:
        """Sets priorities of rows by `index` (seqs) and `buffer_ids`, as a sample has them."""
        seqs = whole_numbers("index", as_array(index))
        ids = whole_numbers("buffer_ids", as_array(buffer_ids), "`buffer_ids` as a sample has it")
        values = one_each(as_array(priority), len(seqs))
        if len(ids) != len(seqs):
            raise ValueError(f"{len(ids)} buffer_ids for {len(seqs)} rows: give one for each")
        known = (ids >= 0) & (ids < len(self.buffers))
        if not known.all():
            raise ValueError(f"buffer_ids: {ids[~known][0]} is none of {len(self.buffers)} members")
        check_priorities(values)  # before the first member takes any
        for i in np.unique(ids):
            mine = ids == i
            self.buffers[int(i)].update_priority(seqs[mine], values[mine])

    def update_tensordict_priority(self, data: Any, key: str = "td_error") -> None:
        """`update_priority` from a sample of the ensemble that has a priority leaf."""
        rows = as_array(data["index"]).reshape(-1)
        priority = np.abs(as_array(data[key]).reshape(len(rows), -1)).max(-1)
        self.update_priority(rows, priority, data[_IDS])

    def empty(self) -> None:
        """Evicts every row of every member."""
        for buffer in self.buffers:
            buffer.empty()

    def stats(self) -> list[Any]:
        """The members' counters, in their order."""
        return [b.stats() for b in self.buffers]

    def close(self) -> None:
        """Closes every member; their storages stay open."""
        for buffer in self.buffers:
            buffer.close()
