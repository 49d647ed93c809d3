"""DeviceStorage: rows on a torch device, the index of their runs in host memory.

    tape on the host      marks of each row (flags, ids, rewards), the index, as in any storage; and
                          leaves of any size or with codecs, whose bytes are in its ring
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
from ...errors import ClosedError, EmptyBufferError
from ...keys import STEPS
from ...layout import Layout, as_bytes
from ...tree import Path
from ..asked import Asked, check_bytes
from ..boundaries import complete_flags, fill_flags
from ..encoding import codecs_of
from ..ending import Whole
from ..fields import fields_layout
from ..folding import ExtraLeaf, FoldedSteps, Recipe, fold_of
from ..memory import new_tape
from ..schema import Schema, Wide
from ..segment import Segment
from ..snapshot import Snapshot
from ..storage import Storage
from ..taking_in import check_records
from .fitting import Parts, Rows, check_leaves, fit, mark_paths
from .rows import DeviceRows, moved_column
from .taking_in import marks_of, others_of, put_leaf
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
        decoded: leaves that are decoded on the host, and go to the device.
    """

    marks: Wide
    layout: Layout
    replaced: frozenset[Path]
    looked_at: tuple[Path, ...]
    decoded: tuple[Path, ...]


class DeviceStorage(Storage):
    """Rows on a torch device, for simulators that have thousands of envs there.

    Tensors of the device are stored and sampled without a way over the host; what the index of
    trajectories needs (done flags, rewards, and ids and versions if rows have some) comes over once
    per append, in one copy. Samples are tensors of the device.

    Leaves of any size, and leaves with codecs, are kept in host memory: what is given for them is
    encoded there, on its way back it is decoded there and sent to the device with the sample.

    It belongs to its process. Nothing is stored once: `share_next` and `stack` are for storages in
    host memory.

    Args:
        capacity: rows to keep.
        device: of torch: "cuda", "cuda:1", "cpu".
        ndim: batch dims of plain trees given to `extend`, the last of them time.
        example: one row; without it the first write fixes the layout.
        fields: an example of what each trajectory has besides its rows.
        blob_bytes, codecs: as in LazyTensorStorage.
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
        blob_bytes: int | None = None,
        codecs: Any = None,
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
            fields=None if fields is None else fields_layout(fields),
            blob_bytes=blob_bytes,
            codecs=codecs_of(codecs),
            share_next=False,
            stack={},
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
    def records(self) -> Layout | None:
        return None if self._schema is None else self._schema.layout

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
        self, tree: Any, batch_ndim: int, fields: Layout | None = None, whole: Whole | None = None
    ) -> Schema:
        row, ndim = self.asked.row_of(tree, batch_ndim)
        check_leaves(row)
        schema = Schema(complete_flags(row), *self.asked.keys)
        # Data that would be refused must not fix the layout.
        rows = fit(schema, self.device, tree, ndim, mark_paths(schema))
        given = rows.columns
        self.check_bytes(schema.layout, rows)
        flags = [
            as_array(given[x.path]) if x.path in given and x.path in schema.flag_paths else None
            for x in schema.layout.leaves
        ]
        if whole is not None and rows.rows:
            whole.settle(schema, list(flags), rows.rows)
        fill_flags(schema.layout, schema.boundaries.flags, flags)
        return self.publish(row, fields)

    def check_bytes(self, layout: Layout, rows: Rows) -> None:
        """Raises ValueError if a row has more bytes in leaves of any size than there is room for,
        as the append would."""
        if layout.variable:
            columns = [rows.columns.get(x.path) for x in layout.leaves]
            check_bytes(layout, columns, self._ring_for(layout))

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
        self._check_same(self._rows, mine, layout)
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
        if contents.rows.places is not None:
            contents = contents.fitting(self._ring_for(layout))
        schema = self._rows
        if schema is None:
            assert layout is not None
            schema = self.asked.schema(layout, fields)
        # What can fail comes before a layout is fixed.
        check_records(contents.rows, schema, layout)
        marks = marks_of(contents, schema.layout, Parts.of(schema))
        index = contents.numbered()
        self.tape.prepare_restore(*index)
        if layout is not None:
            schema = self.publish(layout, fields)
        tail, head, rows = contents.tail, contents.head, contents.rows
        blobs = marks.blobs if self.parts.marks.variable else None
        with self.rows_lock:
            counts, before = (*index, contents.trajectories), self.tape.restores
            try:
                self.tape.restore(marks.records, tail, head, *counts, contents.fields, blobs)
                for writer in list(self.unsettled):  # what waits was written before this, too
                    writer.discard()
                for first, last in rows.spans(tail, head):
                    others = others_of(rows.read(first, last), schema.layout, self.parts)
                    self.memory.write(first, others, last - first, last - first)
            except BaseException:
                if self.tape.restores != before:  # what there was is gone
                    self.tape.clear()  # rows whose contents nobody knows are never drawn
                    self.restored += 1
                raise
            self.restored += 1
        self.tape.inserted, self.tape.sampled = limiter

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
        if wide.marks.decoder is None:
            batch = DeviceRows(marks, wide.layout, there, self.device, reading.arriving)
            return batch, lost, damaged
        lost = wide.marks.decoder.fill(marks, seqs, steps, lost, damaged, aside=aside)
        if aside is not None:
            self._undecodable.found(seqs[aside], int(self.tape.snapshot()[1]))
        batch = DeviceRows(marks, wide.layout, there, self.device, reading.arriving)
        return batch.sent(wide.decoded), lost, damaged

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
        layout, _ = rows.layout.decoded.with_leaves([*new, *(x[:3] for x in made)])
        replaced = frozenset(p for p in others if p in gathers.layout.by_path)
        gathers = gathers._replace(extras=gathers.extras.difference(looked_at))
        replacing = {x.path for x in extras}
        decoded = tuple(p for p in self.parts.coded if p not in replacing)
        return _Widened(gathers, layout, replaced, looked_at, decoded)

    def read_columns(self, seqs: Array, paths: tuple[Path, ...]) -> tuple[list[Any], Array | None]:
        """Some leaves of rows by seq, marks as arrays and others as tensors; and a mask of the rows
        that were evicted meanwhile, or None."""
        assert self._schema is not None, "rows are known before they are read"
        others = self.parts.others
        wide = self._wide_for((), None).marks
        with self.rows_lock:
            block, lost, damaged = wide.gatherer.gather(seqs)
            found = {p: self.memory.leaf(p, seqs) for p in paths if p in others}
        marks = Batch(block, wide.layout, (len(seqs),), wide.extras)
        gone = np.zeros(len(seqs), np.bool_)
        if wide.decoder is not None and not self.parts.coded.isdisjoint(paths):
            lost = wide.decoder.fill(marks, seqs, None, lost, damaged, aside=gone)
        gone |= seqs < lost
        for path in paths:
            if path in self.parts.coded:
                found[path] = moved_column(marks[path], self.device)
            elif path not in others:
                found[path] = marks[path]
        return [found[p] for p in paths], gone if gone.any() else None

    def read_records(self, seqs: Array, out: Array) -> int:
        assert self._rows is not None and self._schema is not None
        layout, marks = self._rows.layout, self.parts.marks
        records = out.reshape(len(seqs), layout.record_size)
        records[...] = 0
        there = np.empty((len(seqs), marks.record_size), np.uint8)
        with self.rows_lock:
            lost = int(self.tape.gather_records(seqs, there.reshape(-1)))
            others = self.memory.gather(seqs).leaves
        for leaf in marks.leaves:
            if leaf.path in layout.by_path:
                part = there[:, leaf.offset : leaf.offset + leaf.nbytes]
                put_leaf(records, layout, leaf.path, part)
        for path, tensor in others.items():
            part = as_bytes(np.ascontiguousarray(as_array(tensor)))
            part = part.reshape(len(seqs), self.parts.others[path].nbytes)
            put_leaf(records, layout, path, part)
        return lost

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
    if name in ("share_next", "stack"):
        return (
            f"DeviceStorage: {name}= is for storages in host memory; on a device each row has all "
            "of its leaves, as they are. Leave it out, or use LazyTensorStorage"
        )
    return f"DeviceStorage has no argument {name}="
