"""A tape on the other side of a session: rows become runs of frames instead of appends.

`Writer` does the same work as for a storage here (casts, flags, lanes); what it hands to native
code goes to the session's frame builder.

Where trajectories begin and end is found out on one side only:

    add, extend             the server's, by the lanes of its writer
    whole steps             the server's, by the envs of its writer
    steps of some envs      this one's: a server's envs have no gaps, and such steps do
    steps of one env        this one's: on the wire they look like rows of `add`

A trajectory that began on one side cannot go on on the other: from the first `add_step` with
`env_ids` or `mask` on, all steps are found out here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import _native, wire
from .._native import Continue, RunFlag
from ..errors import ClosedError, LayoutError
from ..layout import Layout
from ..tape.fields import Given
from ..tape.schema import Schema
from ..tape.writer import Writer
from ..tree import show_path
from .session import Session
from .stream import TrajectoryPart

__all__ = ["RemoteTape"]

Array = np.ndarray[Any, Any]
Blobs = Sequence[Any]  # of leaves of any size, as `Layout.apart` has them
_GOES_ON = {Continue.NO: 0, Continue.IF_OPEN: RunFlag.GOES_ON, Continue.TOLD: RunFlag.TOLD}
_LANE = RunFlag.MARKED | RunFlag.GOES_ON


class RemoteTape:
    """Rows for a tape far away. Thread-safe: the session's lock is held around each append."""

    def __init__(self, session: Session, schema: Schema, producer: int) -> None:
        self.schema = schema
        self._session = session
        self._ids = _Ids(producer)
        self._rows = _Rows(session, schema, self._ids)
        self._writer = Writer(self._rows)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raises if nothing can be sent any more."""
        self._session.check()

    def next_id(self) -> int:
        """A trajectory id that nobody else has."""
        return self._ids.take(1)

    def add(self, tree: Any, fields: Any = None) -> None:
        self._session.add(partial(self._writer.add, tree, fields))

    def extend(self, data: Any, continues: bool | None = None, fields: Any = None) -> None:
        self._session.add(partial(self._writer.extend, data, continues, fields))

    def add_step(
        self, step: Any, env_ids: Any = None, mask: Any = None, fields: Any = None
    ) -> None:
        self._session.add(partial(self._add_step, step, env_ids, mask, fields))

    def _add_step(self, step: Any, env_ids: Any, mask: Any, fields: Any) -> None:
        if env_ids is not None or mask is not None:
            self._rows.some_envs = True
        self._writer.add_step(step, env_ids, mask, fields)

    def extend_trajectory(self, data: Any, **end: Any) -> None:
        self._session.add(partial(self._writer.extend_trajectory, data, **end))

    def send_part(self, part: TrajectoryPart, wait: bool = True) -> None:
        """Rows of one trajectory, packed; for a StreamWriter."""
        add = self._session.add if wait else self._session.add_now
        add(partial(self._rows.add_part, part))


class _Ids:
    """Trajectory ids that nobody else has: a client's own number, and up."""

    def __init__(self, producer: int) -> None:
        self._last = producer
        self._lock = threading.Lock()

    def take(self, count: int) -> int:
        """The first of some ids in a row; behind the largest comes 0."""
        with self._lock:
            first = (self._last + 1) & (2**63 - 1)
            self._last = (self._last + count) & (2**63 - 1)
        return first


class _Rows:
    """What a Writer asks of a storage. Apart from the tape, or a cycle keeps the session alive."""

    capacity = 1 << 62

    def __init__(self, session: Session, schema: Schema, ids: _Ids) -> None:
        self.session, self.schema, self.ids = session, schema, ids
        self.ndim = session.ndim
        self.some_envs = False  # steps come with env_ids or masks

    def check_open(self) -> None:
        if self.session.thread.closing:
            raise ClosedError("this client is closed")

    @property
    def fields(self) -> Layout | None:
        return self.schema.fields

    def native_writer(self, schema: Schema) -> _Runs:
        return _Runs(self)

    def add_part(self, part: TrajectoryPart) -> None:
        said = _said(part.fields)
        self.check_size(1, said, _sizes_of(self.schema.layout, part.record))
        told = (part.flags, part.traj_id, part.version, 0, True)
        with self.fitting():
            self.session.builder.add_run(part.record, *told, said, part.blobs)

    def check_size(
        self, rows: int, said: Array | None, sizes: Array | None, first: int = 0
    ) -> None:
        """Raises if what is to be one item, from row `first` of a call on, is more than the
        server's largest frame has, or one of its rows more than the table.

        Args:
            sizes: bytes of each leaf of any size, of each row, ``[leaves, rows]``.
        """
        size, most = self.schema.layout.record_size, self.most
        whole = rows * size + (0 if said is None else said.size)
        many = f"{rows} rows of {size} bytes"
        if sizes is not None:
            self._check_rows(sizes, first)
            whole += int(sizes.sum())
            many += f" and {int(sizes.sum())} bytes of leaves of any size"
        if whole > most and not self.session.thread.compact:  # else the builder knows it
            raise LayoutError(_too_large(many, most))

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Has what the builder says of rows that fit no frame said as `check_size` does."""
        try:
            yield
        except ValueError as error:
            if isinstance(error, LayoutError) or not self.session.thread.compact:
                raise
            raise LayoutError(_too_large(str(error), self.most)) from None

    def _check_rows(self, sizes: Array, first: int) -> None:
        total, most = sizes.sum(0), self.session.max_row
        row = int(total.argmax())
        if not most or total[row] <= most:
            return
        leaf = int(sizes[:, row].argmax())
        name = show_path(self.schema.layout.variable[leaf].path)
        raise LayoutError(
            f"{name}: row {first + row} has {sizes[leaf, row]} bytes in it, {total[row]} in all "
            f"leaves of any size, and the table has room for {most}; nothing was sent. Raise "
            "blob_bytes= of the server's storage, or send smaller rows"
        )

    @property
    def most(self) -> int:
        """Bytes that a frame with one run may have besides."""
        return self.session.max_frame - wire.HEADER_BYTES - wire.RUN_BYTES


class _Runs:
    """In place of a native writer: appends become runs."""

    id = 0
    last_rows = last_kept = 0
    envs = 0

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._session, self._ids = rows.session, rows.ids
        self._layout = rows.schema.layout
        own = rows.schema.boundaries.traj_key is not None
        self._envs = _native.EnvRuns(rows.schema.marks, own)
        self._open = _native.OpenLanes(rows.schema.marks, own)  # of rows that the server splits
        self._steps_there = False  # the server has envs, perhaps with open trajectories
        fixed = [(x.offset, x.nbytes) for x in self._layout.leaves if not x.variable]
        self._table = np.array(fixed, np.int64).reshape(-1)

    def orphan(self, orphans: list[Any]) -> None:
        """Nothing was open before."""

    def add(self, plan: Any, tree: Any, fields: Given | None = None) -> int:
        builder = self._session.builder
        if fields is None and not self._layout.variable:
            return 0 if builder.pack_row(plan, tree, _LANE, -1, -1, 1, self._open) else -1
        said = _said(fields)
        self._rows.check_size(1, said, None)
        # More than that goes the general way, which says what is wrong.
        most = self._rows.most - self._layout.record_size - (0 if said is None else said.size)
        most = min(most, self._session.max_row or most)
        row = (plan, tree, _LANE, -1, -1, 1, said, most, self._open)
        return 0 if builder.pack_rich_row(*row) else -1

    def extend(self, *args: Any, **fields: Any) -> int:
        return -1  # the general way, which makes columns

    extend_whole = extend

    def append_columns(
        self,
        columns: list[Any],
        offsets: list[int],
        rows: int,
        lanes: int,
        rule: Continue,
        envs: Array | None = None,
        blobs: Blobs = (),
        fields: Given | None = None,
    ) -> int:
        given = _Columns(columns, rows, list(blobs), _said(fields))
        if envs is not None and not self._whole(envs):
            self._add_envs(given, envs)
            return 0
        flags = RunFlag.MARKED | _GOES_ON[rule]
        self._add(given, (flags, -1, -1, lanes, lanes == 1), self._open)
        self._steps_there = self._steps_there or envs is not None
        return 0

    def _whole(self, envs: Array) -> bool:
        """Whether the server finds out where a step's trajectories begin and end."""
        several = len(envs) > 1 and bool((envs == np.arange(len(envs))).all())
        return several and (self._steps_there or not self._rows.some_envs)

    def _add_envs(self, given: _Columns, envs: Array) -> None:
        if self._steps_there:
            raise LayoutError(
                "add_step: over the network steps of some envs do not go on with those that this "
                "client sent without env_ids and mask; give add_step one of them from its first "
                "step on, or use another client"
            )
        given = given.each()
        sizes = given.row_bytes(self._layout.record_size + wire.RUN_BYTES)
        most, last = self._session.max_frame - wire.HEADER_BYTES, 0
        row = int(sizes.argmax())  # all of them fit, or nothing is sent
        one = given.rows_between(row, row + 1)
        self._rows.check_size(1, one.said, one.sizes(), row)
        while last < given.rows:
            at = last
            last += max(int(np.searchsorted(np.cumsum(sizes[at:]), most, "right")), 1)
            part = given.rows_between(at, last)
            whose, first = envs[at:last], self._ids.take(part.rows)
            self._session.builder.add_env_rows(
                self._envs, part.columns, self._table, whose, first, part.said, part.blobs
            )

    def append_whole(
        self,
        columns: list[Any],
        offsets: list[int],
        rows: int,
        flags: int,
        traj_id: int,
        version: int,
        blobs: Blobs = (),
        fields: Given | None = None,
    ) -> int:
        given = _Columns(columns, rows, list(blobs), _said(fields))
        self._add(given, (RunFlag.BEGINS | flags, traj_id, version, 0, False))
        return 0

    def _add(
        self, given: _Columns, told: tuple[int, int, int, int, bool], open_lanes: Any = None
    ) -> None:
        """`told`: flags, id, version, lanes, and whether it may go on with what is to be sent."""
        self._rows.check_size(given.rows, given.said, given.sizes())
        with self._rows.fitting():
            self._session.builder.add_columns(
                given.columns,
                self._table,
                given.rows,
                *told,
                given.said,
                given.blobs,
                open_lanes,
            )


class _Columns(NamedTuple):
    """What an append brings: the bytes of fixed leaves, those of any size (see `Layout.apart`), and
    fields as the wire has them."""

    columns: list[Any]
    rows: int
    blobs: list[Any]
    said: Array | None

    def sizes(self) -> Array | None:
        """Bytes of each leaf of any size, of each row, ``[leaves, rows]``; None: there are none."""
        if not self.blobs:
            return None
        return np.stack([np.diff(offsets) * element for _, offsets, element, _ in self.blobs])

    def row_bytes(self, fixed: int) -> Array:
        """Bytes of each row in a frame, of which so many are fixed."""
        given = 0 if self.said is None else self.said.shape[1]
        sizes = self.sizes()
        return np.full(self.rows, fixed + given) + (0 if sizes is None else sizes.sum(0))

    def each(self) -> _Columns:
        """The same, with fields for each row."""
        if self.said is None or len(self.said) == self.rows:
            return self
        return self._replace(said=np.repeat(self.said, self.rows, 0))

    def rows_between(self, start: int, end: int) -> _Columns:
        """Some of the rows."""
        if start == 0 and end == self.rows:
            return self
        size = [len(c) // self.rows for c in self.columns]
        columns = [c[start * n : end * n] for c, n in zip(self.columns, size)]
        blobs = [(v, offsets[start : end + 1], *rest) for v, offsets, *rest in self.blobs]
        said = None if self.said is None else self.said[start:end]
        return _Columns(columns, end - start, blobs, said)


def _sizes_of(layout: Layout, record: Array) -> Array | None:
    """The same of one packed row."""
    if not layout.variable:
        return None
    sizes = [record[x.offset + 8 : x.offset + 16].view(np.uint64) for x in layout.variable]
    return np.stack(sizes).astype(np.int64)


def _too_large(what: str, most: int) -> str:
    return (
        f"{what} are more than the server's largest frame ({most} bytes): send fewer at a time, "
        "or raise TcpTransport(max_frame=)"
    )


def _said(fields: Given | None) -> Array | None:
    return None if fields is None else wire.wire_fields(fields)
