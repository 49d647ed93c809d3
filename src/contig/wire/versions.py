"""Versions of the protocol, and what older ones cannot carry.

    1   records of a fixed size
    2   fields of trajectories, leaves of any size, SET_FIELDS
    3   rows whose observations come once, for tables that store them so

A client says the oldest and the newest version it speaks, a server which of them it will be. Tables
that need nothing of version 2 are open to peers of 1, too; nothing needs 3: whole rows are taken by
every table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..layout import Layout
from ..tree import show_path
from .frames import Refused

__all__ = [
    "COMPACT_VERSION",
    "OLDEST_VERSION",
    "RICH_VERSION",
    "VERSION",
    "check_carried",
    "newer_parts",
    "spoken_version",
    "told_schema",
]

OLDEST_VERSION, VERSION = 1, 3
RICH_VERSION, COMPACT_VERSION = 2, 3  # that brought what is said above


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


def told_schema(spoken: int, schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a peer is told of a table: how observations are stored, only if it may send them so."""
    if schema is None:
        return None
    told = dict(schema)
    if spoken < COMPACT_VERSION:
        told.pop("shared", None)
    return told
