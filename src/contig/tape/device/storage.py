"""DeviceStorage: rows on a torch device, the index of their runs in host memory.

    tape on the host      marks of each row (flags, ids, rewards), the index, as in any storage
    tensor on the device  everything else, one record for each row, at seq % capacity

An append writes the marks to the tape and the rest to the tensor, under one lock; a gather reads
both under it. So every sampler works as it does elsewhere, and rows do not leave the device.

Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Never

import numpy as np

from ...arguments import whole
from ...batch import Batch
from ...convert import DeviceMemory, as_array, device_of
from ...errors import ClosedError, EmptyBufferError, LayoutError
from ...keys import STEPS
from ...layout import Layout, as_bytes
from ...tree import Path
from ..asked import Asked
from ..boundaries import complete_flags, fill_flags
from ..ending import End, end_rows
from ..fields import check_fields, fields_layout
from ..folding import ExtraLeaf, FoldedSteps, Recipe, fold_of
from ..memory import new_tape
from ..schema import Schema, Wide, row_layout
from ..segment import Segment
from ..snapshot import Snapshot
from ..storage import Storage
from .fitting import Parts, check_leaves, fit, mark_paths
from .rows import DeviceRows
from .writer import DeviceWriter

__all__ = ["DeviceStorage"]

Array = np.ndarray[Any, Any]


class _Widened(NamedTuple):
    """What a gather with some extra leaves needs.

    Attributes:
        marks: what gathers them on the host.
        layout: of the whole batch.
        replaced: leaves of the device that a sampler's take the place of.
        looked_at: leaves of the device that a sampler changes: they come over.
    """

    marks: Wide
    layout: Layout
    replaced: frozenset[Path]
    looked_at: tuple[Path, ...]


class DeviceStorage(Storage):
    """Rows on a torch device, for simulators that have thousands of envs there.

    Tensors of the device are stored and sampled without a way over the host; what the index of
    trajectories needs (done flags, rewards, and ids and versions if rows have some) comes over once
    per append, in one copy. Samples are tensors of the device.

    It belongs to its process. Leaves have a fixed size, and nothing is stored once: `codecs` and
    `share_next` are for storages in host memory.

    Args:
        capacity: rows to keep.
        device: of torch: "cuda", "cuda:1", "cpu".
        ndim: batch dims of plain trees given to `extend`, the last of them time.
        example: one row; without it the first write fixes the layout.
        fields: an example of what each trajectory has besides its rows.
        late: `extend` and `add_step` do not wait for the device: their rows can be sampled one
            append later, and the seqs that are returned are those of the append before. `flush`,
            from the thread that writes or after it has ended, makes up for the last one.
        others: options of storages in host memory, which are refused by name.

    Raises:
        ValueError: no such device, or one whose tensors have no values.
        StorageFull: by the first write, if the device has too little memory.
        TypeError: an option of storages in host memory.

    Attributes:
        needs_values: False in tests that look at where rows go: then the device may be "meta".
    """

    takes_records = False
    needs_values = True

    def __init__(
        self,
        capacity: int,
        device: Any,
        ndim: int = 1,
        example: Any = None,
        fields: Any = None,
        *,
        late: bool = False,
        **others: Never,
    ) -> None:
        for name in others:
            raise TypeError(_refused(name))
        self.device = device_of(device)
        if self.device.type == "meta" and self.needs_values:
            raise ValueError(
                'device="meta": its tensors have shapes and no values, so that nothing would be '
                'kept; use "cpu", or a device such as "cuda"'
            )
        self.late = bool(late)
        self.rows_lock = threading.RLock()
        self.unsettled: set[DeviceWriter] = set()
        self._process = os.getpid()
        self._rows: Schema | None = None
        self._parts: Parts | None = None
        self._memory: DeviceMemory | None = None
        self._widened: dict[tuple[tuple[ExtraLeaf, ...], Recipe | None], _Widened] = {}
        asked = Asked(
            fields=None if fields is None else fields_layout(fields), share_next=False, stack={}
        )
        ndim = whole("ndim", ndim, 1, "a number of batch dims")
        super().__init__(new_tape(capacity), ndim, example, asked)

    # -- what rows are ------------------------------------------------------------------------

    @property
    def schema(self) -> Schema | None:
        return self._rows

    @property
    def marks(self) -> Schema | None:
        """What the tape's records are."""
        return self._schema

    @property
    def parts(self) -> Parts:
        """Which leaves are on the device, and which beside the index."""
        assert self._parts is not None, "rows are known before they are written"
        return self._parts

    @property
    def memory(self) -> DeviceMemory:
        """The rows on the device."""
        if self._memory is None:
            raise ClosedError("this storage is closed")
        return self._memory

    def define(
        self, tree: Any, batch_ndim: int, fields: Layout | None = None, end: End | None = None
    ) -> Schema:
        row, ndim = row_layout(tree, batch_ndim)
        check_leaves(row)
        schema = Schema(complete_flags(row), *self.asked.keys)
        # Data that would be refused must not fix the layout.
        rows = fit(schema, self.device, tree, ndim, mark_paths(schema))
        given = rows.columns
        flags = [
            as_array(given[x.path]) if x.path in given and x.path in schema.flag_paths else None
            for x in schema.layout.leaves
        ]
        if end is not None and rows.rows:
            end_rows(schema, list(flags), rows.rows, end)
        fill_flags(schema.layout, schema.boundaries.flags, flags)
        return self.publish(row, fields)

    def publish_like(self, rows: Batch, fields: Layout | None = None) -> Schema:
        return self.publish(rows.layout, fields)

    def publish(self, layout: Layout, fields: Layout | None = None) -> Schema:
        check_leaves(layout)
        mine = self.asked.schema(layout, fields)
        with self._lock:
            if self._rows is None:
                self._open()
                parts = Parts.of(mine)
                memory = DeviceMemory(self.device, self.capacity, parts.others, parts.record)
                keys = (mine.boundaries.traj_key, mine.boundaries.end_key)
                marks = Schema(parts.marks, *keys, mine.fields)
                self._announce(marks)
                self._load(marks)
                self._memory, self._parts, self._rows = memory, parts, mine
        if mine.layout != self._rows.layout:
            raise LayoutError(
                "this storage already holds another layout:\n" + self._rows.layout.diff(mine.layout)
            )
        check_fields(self._rows.fields, mine.fields)
        return self._rows

    # -- writing ------------------------------------------------------------------------------

    def writer(self, orphans: list[Any] | None = None) -> DeviceWriter:
        self._open()
        writer = DeviceWriter(self, orphans)
        self._writers.add(writer)
        return writer

    def as_rows(self, tree: Any, batch_ndim: int) -> Batch:
        return DeviceRows.of_tree(tree, batch_ndim, self.device)

    def flush(self) -> None:
        """Returns when every append of the calling thread, and of those that have ended, can be
        sampled."""
        self._open()
        self._settle()

    def empty(self) -> None:
        self._open()
        self._settle()
        super().empty()

    def _settle(self) -> None:
        with self.rows_lock:
            for writer in list(self.unsettled):
                writer.settle()

    def _restore(
        self,
        contents: Snapshot,
        limiter: tuple[int, int],
        layout: Layout | None,
        fields: Layout | None,
    ) -> None:
        index = contents.numbered()
        tail, head, rows = contents.tail, contents.head, contents.rows
        self.tape.prepare_restore(*index)
        if self._rows is None:  # damaged rows are found before a layout is fixed
            for span in rows.spans(tail, head):
                rows.read(*span)
        if layout is not None:
            self.publish(layout, fields)
        marks = np.zeros((head - tail, self.parts.marks.record_size), np.uint8)
        for first, last in rows.spans(tail, head):
            self._copy_marks(rows.read(first, last), marks[first - tail : last - tail])
        with self.rows_lock:
            counts = (*index, contents.trajectories)
            self.tape.restore(marks.reshape(-1), tail, head, *counts, contents.fields, None)
            for writer in list(self.unsettled):  # what waits was written before this, too
                writer.discard()
            for first, last in rows.spans(tail, head):
                others = self._others_of(rows.read(first, last), last - first)
                self.memory.write(first, others, last - first, last - first)
            self.restored += 1
        self.tape.inserted, self.tape.sampled = limiter

    def _copy_marks(self, records: Array, marks: Array) -> None:
        """What is on the host of some rows."""
        assert self._rows is not None
        whole = self._rows.layout
        records = records.reshape(len(marks), whole.record_size)
        for leaf in self.parts.marks.leaves:
            if leaf.path in whole.by_path:
                part = _bytes_of(records, whole, leaf.path)
                marks[:, leaf.offset : leaf.offset + leaf.nbytes] = part

    def _others_of(self, records: Array, rows: int) -> dict[Path, Array]:
        """What is on the device of them."""
        assert self._rows is not None
        whole = self._rows.layout
        records = records.reshape(rows, whole.record_size)
        return {
            path: np.ascontiguousarray(_bytes_of(records, whole, path))
            .view(place.dtype)
            .reshape(rows, *place.shape)
            if place.nbytes
            else np.empty((rows, *place.shape), place.dtype)
            for path, place in self.parts.others.items()
        }

    # -- reading ------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes + int(sum(self.tape.reserved))

    def _gathered(
        self,
        seqs: Array,
        extras: tuple[ExtraLeaf, ...],
        steps: FoldedSteps | None,
        aside: Array | None = None,
    ) -> tuple[Batch, int, Array | None]:
        wide = self._wide_for(extras, None if steps is None else steps.recipe)
        with self.rows_lock:
            lasts = None
            if steps is None:
                block, lost, damaged = wide.marks.gatherer.gather(seqs)
            else:
                gatherer = wide.marks.gatherer
                block, lost, damaged = gatherer.gather_folded(seqs, steps.rows, steps.lengths)
            marks = Batch(block, wide.marks.layout, (len(seqs),), wide.marks.extras)
            if steps is not None:
                ends = np.cumsum(steps.lengths) - steps.lengths
                lasts = steps.rows[ends + np.clip(marks[STEPS], 1, steps.lengths) - 1]
            reading = self.memory.gather(seqs, lasts, self.parts.after)
        for path in wide.looked_at:
            marks[path][...] = as_array(reading.leaves[path])
        there = {p: x for p, x in reading.leaves.items() if p not in wide.replaced}
        batch = DeviceRows(marks, wide.layout, there, self.device, reading.arriving)
        return batch, lost, damaged

    def wide(self, extras: tuple[ExtraLeaf, ...], steps: FoldedSteps | None) -> Wide:
        raise TypeError(
            "rows of a DeviceStorage are not in host memory, so that no block of several storages "
            "can be filled with them; use LazyTensorStorage"
        )

    def _wide_for(self, extras: tuple[ExtraLeaf, ...], recipe: Recipe | None) -> _Widened:
        self._open()
        rows, marks = self._rows, self._schema
        if rows is None or marks is None:
            raise EmptyBufferError("nothing has been written to this storage yet")
        found = self._widened.get((extras, recipe))
        if found is None:
            found = self._widened[extras, recipe] = self._widen(rows, marks, extras, recipe)
        return found

    def _widen(
        self, rows: Schema, marks: Schema, extras: tuple[ExtraLeaf, ...], recipe: Recipe | None
    ) -> _Widened:
        others, known = self.parts.others, rows.layout.by_path
        looked_at = tuple(x.path for x in extras if x.kept and x.path in others)
        mine = tuple(
            ExtraLeaf(x.path, others[x.path].shape, others[x.path].dtype)
            if x.path in looked_at
            else x
            for x in extras
        )
        made = () if recipe is None else fold_of(marks.layout, recipe).leaves
        gathers = (
            marks.wide(self.tape, mine) if recipe is None else marks.folded(self.tape, mine, recipe)
        )
        new = [x[:3] for x in extras if not (x.kept and x.path in known)]
        layout, _ = rows.layout.with_leaves([*new, *(x[:3] for x in made)])
        replaced = frozenset(p for p in others if p in gathers.layout.by_path)
        gathers = gathers._replace(extras=gathers.extras.difference(looked_at))
        return _Widened(gathers, layout, replaced, looked_at)

    def read_columns(self, seqs: Array, paths: tuple[Path, ...]) -> tuple[list[Any], Array | None]:
        """Some leaves of rows by seq, marks as arrays and others as tensors; and a mask of the rows
        that were evicted meanwhile, or None."""
        assert self._schema is not None, "rows are known before they are read"
        mine = tuple(p for p in paths if p not in self.parts.others)
        with self.rows_lock:
            marks, lost, _ = self._gathered_marks(seqs)
            found = {p: self.memory.leaf(p, seqs) for p in paths if p in self.parts.others}
        found.update({p: np.array(marks[p]) for p in mine})
        return [found[p] for p in paths], (seqs < lost) if lost else None

    def _gathered_marks(self, seqs: Array) -> tuple[Batch, int, Array | None]:
        wide = self._wide_for((), None).marks
        block, lost, damaged = wide.gatherer.gather(seqs)
        return Batch(block, wide.layout, (len(seqs),), wide.extras), lost, damaged

    def read_records(self, seqs: Array, out: Array) -> int:
        batch, lost, _ = self._gathered(seqs, (), None)
        assert self._rows is not None
        layout = self._rows.layout
        records = out.reshape(len(seqs), layout.record_size)
        records[...] = 0
        for leaf, column in zip(layout.leaves, batch._leaves()):
            part = as_bytes(np.ascontiguousarray(column)).reshape(len(seqs), leaf.nbytes)
            records[:, leaf.offset : leaf.offset + leaf.nbytes] = part
        return int(lost)

    @contextmanager
    def _lock_held(self) -> Iterator[None]:
        # In the order in which writers take them.
        with self.rows_lock, super()._lock_held():
            yield

    # -- life ---------------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        """-1: no other process can have it."""
        self._open()
        return -1

    def _open(self) -> Segment:
        # Its tape is memory that a forked child shares; rows on the device are not.
        if os.getpid() != self._process:
            raise ClosedError(
                f"this DeviceStorage belongs to process {self._process}, and this is its forked "
                f"child {os.getpid()}, which has no part in its device; make it after the fork, or "
                "use a LazyTensorStorage or SharedStorage"
            )
        return super()._open()

    def close(self) -> None:
        if self._segment is not None and os.getpid() == self._process:
            self._settle()
        super().close()
        self._memory = None
        self.unsettled.clear()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DeviceStorage belongs to its process: other processes write to a LazyTensorStorage "
            "or SharedStorage, whose batches go to the device (ReplayBuffer(device=...))"
        )


def _refused(name: str) -> str:
    if name in ("codecs", "share_next", "stack", "blob_bytes"):
        return (
            f"DeviceStorage: {name}= is for storages in host memory; on a device each row has all "
            "of its leaves, as they are. Leave it out, or use LazyTensorStorage"
        )
    return f"DeviceStorage has no argument {name}="


def _bytes_of(records: Array, layout: Layout, path: Path) -> Array:
    leaf = layout.by_path[path]
    return records[:, leaf.offset : leaf.offset + leaf.nbytes]
