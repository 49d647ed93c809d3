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
from functools import partial
from typing import Any

import numpy as np

from .. import _native, wire
from ..errors import ClosedError, LayoutError
from ..tape.schema import Schema
from ..tape.writer import Writer
from .session import Session

__all__ = ["RemoteTape"]

Array = np.ndarray[Any, Any]
_RULES = (0, wire.GOES_ON, wire.TOLD)  # tape/writer.py: new, if open, told


class RemoteTape:
    """Rows for a tape far away. Thread-safe: the session's lock is held around each append."""

    def __init__(self, session: Session, schema: Schema, producer: int) -> None:
        self.schema = schema
        self._session = session
        self._ids = _Ids(producer)
        self._rows = _Rows(session, schema, self._ids)
        self._writer = Writer(self._rows)  # type: ignore[arg-type]

    def next_id(self) -> int:
        """A trajectory id that nobody else has. Raises if nothing can be sent any more."""
        self._session.check()
        return self._ids.take(1)

    def add(self, tree: Any) -> None:
        self._session.add(partial(self._writer.add, tree))

    def extend(self, data: Any, continues: bool | None = None) -> None:
        self._session.add(partial(self._writer.extend, data, continues))

    def add_step(self, step: Any, env_ids: Any = None, mask: Any = None) -> None:
        self._session.add(partial(self._add_step, step, env_ids, mask))

    def _add_step(self, step: Any, env_ids: Any, mask: Any) -> None:
        if env_ids is not None or mask is not None:
            self._rows.some_envs = True
        self._writer.add_step(step, env_ids, mask)

    def extend_trajectory(self, data: Any, **end: Any) -> None:
        self._session.add(partial(self._writer.extend_trajectory, data, **end))

    def send_part(
        self, record: Array, flags: int, traj_id: int, version: int, wait: bool = True
    ) -> None:
        """Rows of one trajectory, packed; for a StreamWriter."""
        add = self._session.add if wait else self._session.add_now
        add(partial(self._session.builder.add_run, record, flags, traj_id, version, 0, True))


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

    def native_writer(self, schema: Schema) -> _Runs:
        return _Runs(self)


class _Runs:
    """In place of a native writer: appends become runs."""

    id = 0
    last_rows = 0
    envs = 0

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._session, self._ids = rows.session, rows.ids
        self._layout = rows.schema.layout
        own = rows.schema.boundaries.traj_key is not None
        self._envs = _native.EnvRuns(rows.schema.marks, own)
        self._steps_there = False  # the server has envs, perhaps with open trajectories

    def orphan(self, orphans: list[Any]) -> None:
        """Nothing was open before."""

    def add(self, plan: Any, tree: Any) -> int:
        flags = wire.MARKED | wire.GOES_ON
        return 0 if self._session.builder.pack_row(plan, tree, flags, -1, -1, 1) else -1

    def extend(self, *args: Any) -> int:
        return -1  # the general way, which makes columns

    def append_columns(
        self,
        columns: list[Any],
        offsets: list[int],
        rows: int,
        lanes: int,
        rule: int,
        envs: Array | None = None,
    ) -> int:
        if envs is not None and not self._whole(envs):
            self._add_envs(columns, rows, envs)
            return 0
        flags = wire.MARKED | _RULES[rule]
        self._add(columns, rows, flags, -1, -1, lanes, lanes == 1)
        self._steps_there = self._steps_there or envs is not None
        return 0

    def _whole(self, envs: Array) -> bool:
        """Whether the server finds out where a step's trajectories begin and end."""
        several = len(envs) > 1 and bool((envs == np.arange(len(envs))).all())
        return several and (self._steps_there or not self._rows.some_envs)

    def _add_envs(self, columns: list[Any], rows: int, envs: Array) -> None:
        if self._steps_there:
            raise LayoutError(
                "add_step: over the network steps of some envs do not go on with those that this "
                "client sent without env_ids and mask; give add_step one of them from its first "
                "step on, or use another client"
            )
        each = self._layout.record_size + wire.RUN_BYTES
        most = (self._session.max_frame - wire.HEADER_BYTES) // each
        if most == 0:
            raise self._too_large(1)
        for at in range(0, rows, most):
            n = min(most, rows - at)
            parts = [c[at * (len(c) // rows) :][: n * (len(c) // rows)] for c in columns]
            whose, first = envs[at : at + n], self._ids.take(n)
            self._session.builder.add_env_rows(self._envs, parts, self._layout.table, whose, first)

    def append_whole(
        self,
        columns: list[Any],
        offsets: list[int],
        rows: int,
        flags: int,
        traj_id: int,
        version: int,
    ) -> int:
        self._add(columns, rows, wire.BEGINS | flags, traj_id, version, 0, False)
        return 0

    def _add(self, columns: list[Any], rows: int, *told: Any) -> None:
        if rows * self._layout.record_size > self._most:
            raise self._too_large(rows)
        self._session.builder.add_columns(columns, self._layout.table, rows, *told)

    @property
    def _most(self) -> int:
        """Bytes of records that a frame with one run may have."""
        return self._session.max_frame - wire.HEADER_BYTES - wire.RUN_BYTES

    def _too_large(self, rows: int) -> LayoutError:
        return LayoutError(
            f"{rows} rows of {self._layout.record_size} bytes are more than the server's largest "
            f"frame ({self._most} bytes): send fewer at a time, or raise TcpTransport(max_frame=)"
        )
