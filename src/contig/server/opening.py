"""The server's side of OPEN: what a client asks for, checked in the order of the wire format."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import wire
from ..errors import LayoutError, StorageFull
from ..layout import Layout
from ..wire import Refused
from .tables import Table

__all__ = ["Opening"]


class Opening(NamedTuple):
    """An OPEN that is right.

    Attributes:
        table, name: what it wants to write to or read from.
        producer: who sends.
        following: the first of its items that it has not seen acked.
        ack: what an ACK is to mean.
        layout: of the records to come; None: there are none.
        heartbeat: whether it says something from time to time, and expects that of the server.
    """

    table: Table
    name: str
    producer: int
    following: int
    ack: str
    layout: Layout | None
    heartbeat: bool

    @staticmethod
    def read(
        asked: dict[str, Any], tables: dict[str, Table], expected: str, max_frame: int
    ) -> Opening:
        """Reads what a client sent; `expected` is the proof that it is let in. Raises Refused."""
        if not wire.same_proof(asked.get("proof"), expected):
            hint = "" if expected else "; this server has none, leave it out"
            raise Refused("token", f"the token is missing or wrong{hint}")
        name = asked.get("table")
        table = tables.get(name) if isinstance(name, str) else None
        if table is None:
            known = ", ".join(sorted(tables))
            raise Refused("table", f"no table {name!r}; this server has: {known}")
        producer, following = asked.get("producer"), asked.get("next")
        if not _is_count(producer) or not producer or not _is_count(following):
            raise Refused("producer", "producer: a number of 1 to 2^63 - 1; next: 0 or more")
        if asked.get("ack") not in table.ack_levels:
            levels = ", ".join(table.ack_levels)
            raise Refused("frame", f"ack {asked.get('ack')!r}: this table has {levels}")
        layout = None
        if asked.get("layout") is not None:
            layout = _layout_of(asked["layout"])
            if list(layout.structure.paths()) != [x.path for x in layout.leaves]:
                raise Refused("layout", "its leaves are not those of its structure")
            if layout.record_size + 128 > max_frame:
                raise Refused("layout", "a record is larger than a frame may be")
        number, ack, beats = int(following or 0), str(asked["ack"]), asked.get("heartbeat") is True
        return Opening(table, str(name), producer, number, ack, layout, beats)

    def table_is_ready(self) -> bool:
        """Whether its table takes the layout and can say what it has. Raises Refused.

        On a full disk neither need be so; it is asked again.
        """
        try:
            if self.layout is not None:
                self.table.fix(self.layout)
        except StorageFull:
            return False
        return self.table.settle()  # what is only in memory would not come again


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _layout_of(content: Any) -> Layout:
    try:
        return Layout.from_json(content)
    except LayoutError as error:
        raise Refused("layout", str(error)) from None
