"""Versions of the protocol, and what older ones cannot carry.

    1   records of a fixed size
    2   fields of trajectories, leaves of any size, SET_FIELDS
    3   rows whose observations come once, for tables that store them so
    4   observations that the frame before brought need not come again

A client says the oldest and the newest version it speaks, a server which of them it will be. Tables
that need nothing of version 2 are open to peers of 1, too; nothing needs 3 or 4: whole rows are
taken by every table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..layout import Layout
from ..tree import show_path
from .frames import Refused

__all__ = [
    "CARRYING_VERSION",
    "COMPACT_VERSION",
    "OLDEST_VERSION",
    "RICH_VERSION",
    "VERSION",
    "carry_of",
    "check_carried",
    "newer_parts",
    "spoken_version",
    "told_schema",
    "without_carry",
]

OLDEST_VERSION, VERSION = 1, 4
RICH_VERSION, COMPACT_VERSION, CARRYING_VERSION = 2, 3, 4  # that brought what is said above
_MOST_CARRY = 64 << 20  # a client keeps as much as its server does: not whatever that says


def spoken_version(oldest: int, newest: int) -> int:
    """What is spoken with a client that says this. Raises Refused if there is no such version."""
    spoken = min(max(oldest, newest), VERSION)
    if spoken < max(oldest, OLDEST_VERSION):
        raise Refused(
            "version", f"protocol {oldest}, expected {OLDEST_VERSION} to {VERSION}: update one side"
        )
    return spoken


def newer_parts(layout: Layout | None, fields: Any) -> str:
    """What of a table, or of a client's items, version 1 has no word for; empty if nothing."""
    parts = []
    if fields:
        parts.append("fields of trajectories")
    variable = () if layout is None else layout.variable
    if variable:
        names = ", ".join(show_path(x.path) for x in variable)
        parts.append(f"leaves of any size ({names})")
    return " and ".join(parts)


def check_carried(spoken: int, schema: Mapping[str, Any] | None) -> None:
    """Raises Refused if a table has what a peer of this version cannot be told of."""
    if spoken >= RICH_VERSION or schema is None:
        return
    parts = newer_parts(Layout.from_json(schema["layout"]), schema.get("fields"))
    if parts:
        raise Refused(
            "version",
            f"this table has {parts}, which needs protocol {RICH_VERSION}, and the client speaks "
            f"{spoken}: update contig where it runs, or use a table without them",
        )


def told_schema(
    spoken: int, schema: Mapping[str, Any] | None, carry: int = 0
) -> dict[str, Any] | None:
    """What a peer is told of a table: how observations are stored, only if it may send them so, and
    how many bytes of them are kept of a frame, if some are."""
    if schema is None:
        return None
    told = dict(schema)
    if spoken < COMPACT_VERSION:
        told.pop("shared", None)
    shared = told.get("shared")
    if isinstance(shared, dict):
        shared = {**shared, "carry": carry} if carry else shared
        told["shared"] = shared if spoken >= CARRYING_VERSION else without_carry(shared)
    return told


def without_carry(shared: Any) -> Any:
    """How observations are stored once, of what a server says of them: the rest is for the one
    connection."""
    if not isinstance(shared, dict):
        return shared
    return {name: value for name, value in shared.items() if name != "carry"}


def carry_of(schema: Mapping[str, Any] | None) -> int:
    """Bytes of slots that a server keeps, by what it says; 0 if it is more than a client would keep
    for it, too: then nothing is left out. Raises ValueError."""
    shared = None if schema is None else schema.get("shared")
    carry = shared.get("carry", 0) if isinstance(shared, dict) else 0
    if type(carry) is not int or not 0 <= carry < 2**63:
        raise ValueError(f"carry {carry!r}: bytes")
    return carry if carry <= _MOST_CARRY else 0
