"""A tape on the other side of a link: rows become runs of frames instead of appends.

`Writer` does the same work as for a storage here (casts, flags, lanes); what it hands to native
code goes to the link's outbox.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from ..errors import ClosedError, LayoutError
from ..tape.schema import Schema
from ..tape.writer import Writer
from . import wire
from .link import Link

__all__ = ["RemoteTape"]

Array = np.ndarray[Any, Any]
_RULES = (0, wire.GOES_ON, wire.TOLD)  # tape/writer.py: new, if open, told


class RemoteTape:
    """Rows for a tape far away, over a link. Thread-safe: the link's lock is held around each
    append."""

    def __init__(self, link: Link, schema: dict[str, Any] | None, producer: int) -> None:
        if schema is None:
            raise ValueError(
                "the table has no layout yet: give the client a data_sample, or the server's "
                "storage an example"
            )
        self.schema = Schema.from_bytes(json.dumps(schema).encode())
        self._link = link
        self._ids = producer
        self._writer = Writer(_Rows(link, self.schema))  # type: ignore[arg-type]

    def next_id(self) -> int:
        """A trajectory id that nobody else has."""
        self._ids = (self._ids + 1) & (2**63 - 1)
        return self._ids

    def add(self, tree: Any) -> None:
        self._link.add(partial(self._writer.add, tree))

    def extend(self, data: Any, continues: bool | None = None) -> None:
        self._link.add(partial(self._writer.extend, data, continues))

    def add_step(self, step: Any, env_ids: Any = None, mask: Any = None) -> None:
        self._link.add(partial(self._writer.add_step, step, env_ids, mask))

    def extend_trajectory(self, data: Any, **end: Any) -> None:
        self._link.add(partial(self._writer.extend_trajectory, data, **end))

    def send_part(
        self, record: Array, flags: int, traj_id: int, version: int, wait: bool = True
    ) -> None:
        """Rows of one trajectory, packed; for a StreamWriter."""
        add = self._link.add if wait else self._link.add_now
        add(partial(self._link.outbox.add_run, record, flags, traj_id, version, 0, True))


class _Rows:
    """What a Writer asks of a storage. Apart from the tape, so that no cycle keeps a link alive."""

    capacity = 1 << 62

    def __init__(self, link: Link, schema: Schema) -> None:
        self.link, self.schema = link, schema
        self.ndim = link.ndim

    def check_open(self) -> None:
        if self.link.session.closing:
            raise ClosedError("this client is closed")

    def native_writer(self, schema: Schema) -> _Runs:
        return _Runs(self)


class _Runs:
    """In place of a native writer: appends become runs."""

    id = 0
    last_rows = 0
    envs = 0

    def __init__(self, rows: _Rows) -> None:
        self._link = rows.link
        self._layout = rows.schema.layout

    def orphan(self, orphans: list[Any]) -> None:
        """Nothing was open before."""

    def add(self, plan: Any, tree: Any) -> int:
        outbox = self._link.outbox
        flags = wire.MARKED | wire.GOES_ON
        return 0 if outbox.pack_row(plan, tree, flags, -1, -1, 1) else -1

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
        if envs is not None:
            raise LayoutError(
                "add_step: steps of some envs do not go over the network; use one client.writer() "
                "for each env, or give all rows without env_ids and mask"
            )
        flags = wire.MARKED | _RULES[rule]
        self._add(columns, rows, flags, -1, -1, lanes, lanes == 1)
        return 0

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
        size = self._layout.record_size
        most = self._link.max_frame - wire.HEADER_BYTES - 32
        if rows * size > most:
            raise LayoutError(
                f"{rows} rows of {size} bytes are more than the server's largest frame "
                f"({most} bytes): send fewer at a time, or raise TcpTransport(max_frame=)"
            )
        self._link.outbox.add_columns(columns, self._layout.table, rows, *told)
