"""Rows on a torch device: one tensor of bytes, a record for each row.

    rows   uint8 [capacity, record]      row of seq s: s % capacity
    leaf   a view of all rows: rows[:, offset : offset + nbytes] as its dtype

Offsets and the record are multiples of every leaf's item size, so that each leaf is a view of the
records wherever they are, gathered ones too. Not thread-safe: whoever has one has a lock for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import StorageFull
from ..tree import Path
from .tensors import to_torch
from .transfers import Arriving, Fetched, Transfers, Turns, device_of, packed, sent, unpacked

__all__ = [
    "DeviceMemory",
    "Place",
    "Places",
    "Reading",
    "fits_unseen",
    "is_tensor",
    "joined",
    "put_rows",
    "stacked",
    "torch_dtype",
]

Array = np.ndarray[Any, Any]

_WORD = 8  # bytes that are copied at a time


class Place(NamedTuple):
    """Where a leaf is in a record."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    nbytes: int


class Reading(NamedTuple):
    """Leaves of some rows, and what to wait for on other streams before they are used."""

    leaves: dict[Path, Any]
    arriving: Arriving


def is_tensor(value: Any) -> bool:
    """Whether it is a dense torch tensor."""
    return (
        type(value).__module__.startswith("torch")
        and hasattr(value, "device")
        and not getattr(value, "is_nested", False)
        and str(getattr(value, "layout", "")) == "torch.strided"
    )


@functools.cache
def torch_dtype(dtype: np.dtype[Any]) -> Any:
    """A numpy dtype as torch has it.

    Raises:
        TypeError: it has none.
    """
    return to_torch(np.empty(0, dtype)).dtype


def fits_unseen(given: Any, wanted: Any) -> bool:
    """Whether `cast` takes every value of a torch dtype in another one, so that nobody has to look
    at them: a device would have to be waited for."""
    import torch

    if given == wanted or given == torch.bool:
        return True
    if wanted == torch.bool or (given.is_complex and not wanted.is_complex):
        return False
    if wanted.is_floating_point or wanted.is_complex:  # rounded; larger ones would be infinities
        real = given.is_floating_point or given.is_complex
        largest = torch.finfo(given).max if real else torch.iinfo(given).max
        return bool(torch.finfo(wanted).max >= largest)
    if given.is_floating_point:
        return False
    mine, other = torch.iinfo(given), torch.iinfo(wanted)
    return bool(other.min <= mine.min and mine.max <= other.max)


class DeviceMemory:
    """The memory of rows.

    Args:
        device: where it is.
        capacity: rows.
        places: of the leaves, in records of `record` bytes.
    """

    def __init__(
        self, device: Any, capacity: int, places: Mapping[Path, Place], record: int
    ) -> None:
        import torch

        self.device, self.capacity, self._places = device_of(device), capacity, places
        # A record is a multiple of its largest item, so that this many words are, too.
        self._words = -(-max(record, 1) // _WORD)
        with torch.inference_mode(False):  # whoever writes first: others write, too
            self._rows = self._allocated()
            self._all = self._views(self._rows)
        self._transfers = Transfers.to(self.device)
        self._turns = Turns(None if self._transfers is None else self._transfers.streams)

    def _allocated(self) -> Any:
        import torch

        shape = (self.capacity, self._words)
        try:
            return torch.empty(shape, dtype=torch.int64, device=self.device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            need = self.capacity * self._words * _WORD
            raise StorageFull(
                f"DeviceStorage: {self.capacity:,} rows of {self._words * _WORD:,} bytes need "
                f"{need / 1e9:,.1f} GB on {self.device}, which has not so much. What helps: a "
                "smaller capacity, a LazyTensorStorage, which stores observations once, or a "
                f"DiskStorage ({str(error).splitlines()[0]})"
            ) from error

    @property
    def nbytes(self) -> int:
        return int(self._rows.numel()) * _WORD

    @property
    def rows(self) -> Any:
        """All rows, uint8 ``[capacity, record]``."""
        import torch

        return self._rows.view(torch.uint8)

    def holds(self, value: Any) -> bool:
        """Whether a value is a tensor of this device."""
        return is_tensor(value) and value.device == self.device

    def _views(self, words: Any) -> dict[Path, Any]:
        """Leaves of records ``[n, words]``, as views."""
        import torch

        records, n = words.view(torch.uint8), len(words)
        out = {}
        for path, place in self._places.items():
            dtype = torch_dtype(place.dtype)
            if not place.nbytes:
                out[path] = torch.empty((n, *place.shape), dtype=dtype, device=self.device)
                continue
            part = records[:, place.offset : place.offset + place.nbytes]
            out[path] = part.view(dtype).view((n, *place.shape))
        return out

    # -- writing ------------------------------------------------------------------------------

    def stage(self, columns: Mapping[Path, Any], rows: int) -> Arriving:
        """Rows as records of their own, int64 ``[rows, words]``: the columns may be changed
        afterwards."""
        import torch

        records = torch.empty((rows, self._words), dtype=torch.int64, device=self.device)
        for path, view in self._views(records).items():
            view.copy_(_tensor(columns[path]))
        return self._turns.made(records)

    def write(self, first: int, columns: Mapping[Path, Any], rows: int, kept: int) -> None:
        """The last `kept` of some rows, the first of them with this seq.

        Args:
            columns: arrays or tensors ``[rows, ...]`` of each leaf.
        """
        self._turns.before_write()
        for start, end, at in self._stretches(first, kept):
            skip = rows - kept + start
            for path, view in self._all.items():
                column = _tensor(columns[path])[skip : skip + end - start]
                view[at : at + end - start].copy_(column)
        self._turns.wrote()

    def write_staged(self, first: int, staged: Arriving, kept: int) -> None:
        """The last `kept` of some staged rows."""
        records = staged.tensor()
        self._turns.before_write()
        for start, end, at in self._stretches(first, kept):
            skip = len(records) - kept + start
            self._rows[at : at + end - start].copy_(records[skip : skip + end - start])
        self._turns.wrote()

    def _stretches(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """Rows by seq as (start, end, place of start), without the seam in between."""
        at = first % self.capacity
        before = min(count, self.capacity - at)
        parts = [(0, before, at)]
        return parts if before == count else [*parts, (before, count, 0)]

    def fetch(self, tensors: Sequence[Any], copy: bool = False) -> Fetched:
        """Tensors of this device as arrays of the host, in one copy; on the CPU the same memory,
        unless it is to be a `copy`."""
        if self._transfers is not None:
            return self._transfers.fetch(tensors)
        if self.device.type == "cpu":
            return Fetched([x.clone() if copy else x for x in tensors])
        return Fetched(unpacked(packed(tensors).cpu(), tensors))

    # -- reading ------------------------------------------------------------------------------

    def _slots(self, seqs: Array) -> Any:
        slots = seqs % self.capacity
        if self._transfers is None:
            return to_torch(slots).to(self.device)
        import torch

        return self._transfers.send(slots.view(np.uint8)).tensor().view(torch.int64)

    def gather(self, seqs: Array, lasts: Array | None = None, of_last: Any = ()) -> Reading:
        """Rows by seq, all leaves of them as views of the records that are copied.

        Args:
            lasts: for each row another one, which the leaves `of_last` are of.
        """
        n = len(seqs)
        self._turns.before_read()
        both = seqs if lasts is None else np.concatenate([seqs, lasts])
        records = self._rows.index_select(0, self._slots(both))
        leaves = self._views(records)
        if lasts is not None:
            leaves = {p: v[n:] if p in of_last else v[:n] for p, v in leaves.items()}
        return Reading(leaves, self._turns.read(records))

    def leaf(self, path: Path, seqs: Array) -> Any:
        """One leaf of rows by seq, in memory of its own."""
        self._turns.before_read()
        column = self._all[path].index_select(0, self._slots(seqs))
        return self._turns.read(column).tensor()


def _tensor(column: Any) -> Any:
    return column if is_tensor(column) else to_torch(column)


def joined(columns: Sequence[Any]) -> Any:
    """Tensors one after another."""
    import torch

    return torch.cat(list(columns))


def stacked(rows: Sequence[Any]) -> Any:
    """Tensors of one shape as rows of one."""
    import torch

    return torch.stack(list(rows))


class Places:
    """Numbers of rows, int64, on whatever devices they are needed: sent there once. Not
    thread-safe."""

    def __init__(self, numbers: Array) -> None:
        self.numbers = np.ascontiguousarray(numbers, np.int64)
        self._sent: dict[Any, Arriving] = {}

    def on(self, device: Any) -> Any:
        """They as a tensor of a device, for the calling thread's stream."""
        import torch

        if device not in self._sent:
            self._sent[device] = sent(self.numbers.view(np.uint8), device)
        return self._sent[device].tensor().view(torch.int64)

    def of(self, column: Any) -> Any:
        """These rows of a column, an array or a tensor."""
        return column[self.on(column.device) if is_tensor(column) else self.numbers]


def put_rows(column: Any, places: Any, values: Any) -> None:
    """Writes to some rows of a tensor, by a tensor of places, what is on its device."""
    import torch

    values = values.detach().to(column.dtype)
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    if column.dtype in signed:  # torch writes no rows of these; their bits are as good
        column, values = (x.view(signed[column.dtype]) for x in (column, values))
    column[places] = values
