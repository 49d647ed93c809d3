"""A tape on the other side of a link: rows become runs of frames instead of appends.

`Writer` does the same work as for a storage here (casts, flags, lanes); what it hands to native
code goes to the link's outbox.
"""

from __future__ import annotations

import json
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
    """What a Writer needs of a storage, over a link. Thread-safe: the link's lock is held around
    each call."""

    capacity = 1 << 62

    def __init__(self, link: Link, schema: dict[str, Any] | None, producer: int) -> None:
        if schema is None:
            raise ValueError(
                "the table has no layout yet: give the client a data_sample, or the server's "
                "storage an example"
            )
        self.schema = Schema.from_bytes(json.dumps(schema).encode())
        self.link = link
        self.ndim = link.ndim
        self._ids = producer
        self._writer = Writer(self)  # type: ignore[arg-type]

    def next_id(self) -> int:
        """A trajectory id that nobody else has."""
        self._ids = (self._ids + 1) & (2**63 - 1)
        return self._ids

    def add(self, tree: Any) -> None:
        with self.link.lock:
            self.link.reserve()
            self._writer.add(tree)
            self.link.kick()

    def extend(self, data: Any, continues: bool | None = None) -> None:
        with self.link.lock:
            self.link.reserve()
            self._writer.extend(data, continues)
            self.link.kick()

    def extend_trajectory(self, data: Any, **end: Any) -> None:
        with self.link.lock:
            self.link.reserve()
            self._writer.extend_trajectory(data, **end)
            self.link.kick()

    def send_part(self, record: Array, flags: int, traj_id: int, version: int) -> None:
        """Rows of one trajectory, packed; for a StreamWriter."""
        with self.link.lock:
            self.link.reserve()
            self.link.outbox.add_run(record, flags, traj_id, version, 0, True)
            self.link.kick()

    # -- what a Writer asks of a storage ------------------------------------------------------

    def check_open(self) -> None:
        if self.link._closing:
            raise ClosedError("this client is closed")

    def native_writer(self, schema: Schema) -> _Runs:
        return _Runs(self)


class _Runs:
    """In place of a native writer: appends become runs."""

    id = 0
    last_rows = 0

    def __init__(self, tape: RemoteTape) -> None:
        self._tape = tape
        self._layout = tape.schema.layout

    def orphan(self, orphans: list[Any]) -> None:
        """Nothing was open before."""

    def add(self, plan: Any, tree: Any) -> int:
        outbox = self._tape.link.outbox
        flags = wire.MARKED | wire.GOES_ON
        return 0 if outbox.pack_row(plan, tree, flags, -1, -1, 1) else -1

    def extend(self, *args: Any) -> int:
        return -1  # the general way, which makes columns

    def append_columns(
        self, columns: list[Any], offsets: list[int], rows: int, lanes: int, rule: int
    ) -> int:
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
        most = self._tape.link.max_frame - wire.HEADER_BYTES - 32
        if rows * size > most:
            raise LayoutError(
                f"{rows} rows of {size} bytes are more than the server's largest frame "
                f"({most} bytes): send fewer at a time, or raise TcpTransport(max_frame=)"
            )
        self._tape.link.outbox.add_columns(columns, self._layout.table, rows, *told)
