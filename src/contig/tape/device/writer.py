"""The writer of a DeviceStorage: marks go to the tape, everything else to the device's rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..._native import Continue, Lanes
from ...batch import Batch
from ...convert import Arriving, DeviceMemory, Fetched, is_tensor, plain_tree
from ...errors import LayoutError
from ...layout import Encoded, Layout
from ...ragged import Ragged
from ...tree import Path, nested
from ..boundaries import check_given
from ..ending import Whole
from ..env_step import EnvStep, check_total
from ..fields import RowFields, first_fields, pack_fields
from ..schema import Schema
from ..stacking import batch_ndim_of, lanes_of, stack_rows
from ..writer import Writer
from .fitting import HIDDEN, Parts, Rows, fit

__all__ = ["DeviceWriter"]

Array = np.ndarray[Any, Any]
Append = Callable[[Any], Array]  # a tree of marks; returns seqs


class DeviceTape(Protocol):
    """What its writers need of a DeviceStorage.

    Attributes:
        late: whether marks come over one append late.
        rows_lock: held over an append and its rows on the device.
        unsettled: writers with an append that waits for its marks, kept while it does: whoever
            wrote it may be gone.
    """

    capacity: int
    ndim: int
    late: bool
    rows_lock: threading.RLock
    unsettled: set[DeviceWriter]
    tape: Any

    @property
    def schema(self) -> Schema | None: ...

    @property
    def marks(self) -> Schema | None: ...

    @property
    def parts(self) -> Parts: ...

    @property
    def memory(self) -> DeviceMemory: ...

    @property
    def fields(self) -> Layout | None: ...

    def check_open(self) -> None: ...

    def define(
        self, tree: Any, batch_ndim: int, fields: Layout | None = None, whole: Whole | None = None
    ) -> Schema: ...

    def check_bytes(self, layout: Layout, rows: Rows) -> None: ...

    def native_writer(self, schema: Schema) -> Any: ...

    def as_rows(self, tree: Any, batch_ndim: int) -> Batch: ...


class _Marks:
    """The tape of marks, as a writer appends to it."""

    def __init__(self, storage: DeviceTape) -> None:
        self._storage = storage
        self.capacity, self.ndim = storage.capacity, storage.ndim
        self.check_open, self.native_writer = storage.check_open, storage.native_writer

    @property
    def schema(self) -> Schema | None:
        return self._storage.marks

    @property
    def fields(self) -> Layout | None:
        return self._storage.fields

    def define(
        self, tree: Any, batch_ndim: int, fields: Layout | None = None, whole: Whole | None = None
    ) -> Schema:
        raise AssertionError("marks are defined with the rows that they belong to")


class _Pending(NamedTuple):
    """An append that waits for its marks.

    Attributes:
        records: its rows on the device.
        thread: whose; trajectories do not go on in another one.
        envs: how many envs its step is of, if rows are those of envs by their places.
    """

    marks: Callable[[], Any]
    records: Arriving
    append: Append
    thread: threading.Thread
    envs: int | None = None


class DeviceWriter(Writer):
    """Appends rows to a DeviceStorage; see `Writer`. Tensors of its device stay there.

    If the storage is `late`, `extend` and `add_step` return the seqs of the append before, which is
    the one that can be sampled from then on.
    """

    def __init__(self, storage: DeviceTape, orphans: list[Any] | None = None) -> None:
        super().__init__(_Marks(storage), orphans)
        self._device_tape = storage
        self._pending: _Pending | None = None

    # -- verbs --------------------------------------------------------------------------------

    def add(self, step: Any, fields: Any = None) -> int:
        tree, shape = self._tree(step)
        if shape:
            raise LayoutError(f"add takes one row, got batch shape {list(shape)}; use extend")
        rows, fields = self._fit(tree, 0, fields, ())
        seqs = self._write_rows(
            rows, lambda marks: self._extend_marks(marks, rows.batch, None, fields), at_once=True
        )
        return int(seqs[0])

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> Array:
        schema = self._device_tape.schema
        layout = None if schema is None else schema.layout
        return self.add_env_step(EnvStep.of(step, env_ids, mask, layout), fields)

    def add_env_step(self, step: EnvStep, fields: Any = None) -> Array:
        verb = super().add_env_step
        envs = step.rows if step.envs is None else step.total
        if envs is not None:
            check_total(self._known_envs(), envs)
        if step.envs is not None and len(step.envs) == 0:
            return verb(step, fields)
        tree, _ = self._tree(step.data)
        step = step._replace(data=None, of_rows=step.rows)
        rows, fields = self._fit(tree, 1, fields, (step.rows,))
        return self._write_rows(
            rows, lambda marks: verb(step._replace(data=marks), fields), envs=envs
        )

    def extend(self, data: Any, continues: bool | None = None, fields: Any = None) -> Array:
        data = stack_rows(data, self._device_tape.schema, self._device_tape.as_rows)
        tree, shape = self._tree(data)
        ndim = self._device_tape.ndim if shape is None else len(shape)
        if ndim == 0:
            raise LayoutError("extend takes rows with a leading dim; use add for a single one")
        lanes = None if shape is None else shape[:-1]
        rows, fields = self._fit(tree, ndim, fields, lanes, shape is None)
        return self._write_rows(
            rows, lambda marks: self._extend_marks(marks, rows.batch, continues, fields)
        )

    def _extend_whole(
        self, data: Any, whole: Whole, policy_version: int | None, fields: Any
    ) -> Array:
        verb = super()._extend_whole
        tree, shape = self._tree(data)
        if shape is not None and len(shape) != 1:
            raise LayoutError(f"a trajectory is [T, ...], got batch shape {list(shape)}")
        rows, fields = self._fit(tree, 1, fields, (), whole=whole)
        return self._write_rows(
            rows, lambda marks: verb(marks, whole, policy_version, fields), at_once=True
        )

    def append_records(self, records: Array, lanes: int = 1) -> Array:
        raise TypeError(
            "packed rows are for storages in host memory; a DeviceStorage takes trees: extend"
        )

    def settle(self) -> Array:
        """Appends what waits for its marks, if that is the calling thread's or that of one that has
        ended; its seqs."""
        with self._device_tape.rows_lock:
            waiting = self._pending
            if waiting is None or (
                waiting.thread is not threading.current_thread() and waiting.thread.is_alive()
            ):
                return np.empty(0, np.int64)
            return self._settle_now()

    def discard(self) -> None:
        """Forgets what waits for its marks."""
        with self._device_tape.rows_lock:
            self._pending = None
            self._device_tape.unsettled.discard(self)

    def _settle_now(self) -> Array:
        waiting = self._pending
        if waiting is None:
            return np.empty(0, np.int64)
        self.discard()
        marks = waiting.marks()
        with self._both():
            seqs = waiting.append(marks)
            if len(seqs):
                memory = self._device_tape.memory
                memory.write_staged(int(seqs[0]), waiting.records, len(seqs))
        return seqs

    # -- how ----------------------------------------------------------------------------------

    def _tree(self, data: Any) -> tuple[Any, tuple[int, ...] | None]:
        schema = self._device_tape.schema
        if isinstance(data, Batch):
            return data.stored(() if schema is None else schema.layout.by_path), data.shape
        return plain_tree(data)

    def _fit(
        self,
        tree: Any,
        ndim: int,
        fields: Any,
        lanes: tuple[int, ...] | None,
        fewer: bool = False,
        whole: Whole | None = None,
    ) -> tuple[Rows, RowFields | None]:
        """The rows, whose layout is fixed if they are the first; and their fields as they are now,
        checked: an error that came with the marks would be somebody else's.

        Args:
            lanes: dims of the lanes, for fields; None: to be found out.
            fewer: whether there may be fewer batch dims.
            whole: what is said of a whole trajectory.
        """
        storage = self._device_tape
        storage.check_open()
        schema, known = storage.schema, storage.fields
        if schema is not None and fewer:
            ndim = batch_ndim_of(schema, tree, ndim)
        if fields is not None and not isinstance(fields, RowFields):
            lanes = lanes_of(tree, schema, ndim) if lanes is None else lanes
            if known is None and schema is None:
                known = first_fields(fields, lanes)
            given = pack_fields(known, fields, lanes)  # before they fix anything
            fields = None if given is None else RowFields(*given)
        if schema is None:
            schema = storage.define(tree, ndim, known, whole)
            ndim = batch_ndim_of(schema, tree, ndim) if fewer else ndim
        marks = storage.parts.marks.by_path
        return fit(schema, storage.memory.device, tree, ndim, marks), fields

    def _known_envs(self) -> int:
        """How many envs steps have been of, that which waits included; 0: there was none."""
        if self._pending is not None and self._pending.envs is not None:
            return self._pending.envs
        return self._envs if self._native is None else int(self._native.envs)

    def _extend_marks(
        self, marks: Any, batch: tuple[int, ...], continues: bool | None, fields: Any
    ) -> Array:
        ndim = len(batch)
        given = {} if fields is None else self._given(marks, ndim, fields, batch)
        schema = self._ready(marks, ndim)
        lanes = Lanes.ONE if ndim == 1 else Lanes.LEADING_DIMS
        rule = Continue.TOLD if continues else Continue.NO
        if continues is None and ndim == 1:
            rule = Continue.IF_OPEN
        return self._seqs(*self._write(schema, marks, ndim, lanes, rule, None, given))

    def _write_rows(
        self, rows: Rows, append: Append, at_once: bool = False, envs: int | None = None
    ) -> Array:
        storage = self._device_tape
        late = storage.late and not at_once
        if late:  # an error that came later would be somebody else's
            schema = storage.schema
            assert schema is not None
            check_given(schema.flag_paths, schema.flag_paths.difference(rows.columns))
            storage.check_bytes(schema.layout, rows)
        marks = self._fetch_marks(rows, late)
        others = {path: rows.flat(path) for path in storage.parts.others}
        if not late:
            tree = marks()
        with storage.rows_lock:
            seqs = self._settle_now()
            if late:
                records = storage.memory.stage(others, rows.rows)
                thread = threading.current_thread()
                self._pending = _Pending(marks, records, append, thread, envs)
                storage.unsettled.add(self)
                return seqs
            with self._both():
                seqs = append(tree)
                if len(seqs):
                    storage.memory.write(int(seqs[0]), others, rows.rows, len(seqs))
            return seqs

    @contextmanager
    def _both(self) -> Iterator[None]:
        """Rows get to the tape and to the device, or to neither of them; whoever fails or is
        interrupted in between leaves rows whose contents nobody knows, and they are never drawn."""
        tape = self._device_tape.tape
        head = tape.snapshot()[0]
        try:
            yield
        except BaseException:
            if tape.snapshot()[0] != head:
                tape.clear()
            raise

    def _fetch_marks(self, rows: Rows, late: bool) -> Callable[[], Any]:
        """Marks on their way to the host: those of the device in one copy."""
        paths = [p for p in self._device_tape.parts.marks.by_path if p in rows.columns]
        there = [p for p in paths if is_tensor(rows.columns[p])]
        fetched: Fetched | None = None
        if there:
            fetched = self._device_tape.memory.fetch([rows.columns[p] for p in there], late)
        here: dict[Path, Any] = {p: rows.columns[p] for p in paths if p not in there}
        if late:  # the caller may write to them before they are appended
            here = {p: _copied(column) for p, column in here.items()}
        if HIDDEN in self._device_tape.parts.marks.by_path:
            here[HIDDEN] = np.zeros(rows.batch, np.uint8)

        def arrived() -> Any:
            arrays = [] if fetched is None else fetched.arrays()
            return nested({**here, **dict(zip(there, arrays))})

        return arrived

    def __reduce__(self) -> Any:
        raise TypeError("a DeviceStorage belongs to its process, and so do its writers")


def _copied(column: Any) -> Any:
    if isinstance(column, Encoded):  # made here
        return column
    return column[:] if isinstance(column, Ragged) else np.array(column)
