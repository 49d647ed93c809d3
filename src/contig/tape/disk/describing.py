"""A new storage on disk: which arguments make one, and what layout.json says of it."""

from __future__ import annotations

import json
import os
from typing import Any

from ...arguments import seconds, whole
from ..schema import Schema
from .directory import Directory, open_index, write_description
from .extents import extent_rows, row_stride
from .index import FORMAT

__all__ = ["check_bounds", "create", "describe", "with_store"]

_MOST_BYTES = 1 << 44  # of addresses


def check_bounds(
    durability: str,
    capacity: int | None,
    max_bytes: int | None,
    max_episodes: int | None,
    max_lag_rows: int,
    max_lag_s: float,
) -> int | None:
    """Raises ValueError if arguments of a storage make no sense; its capacity."""
    if durability not in ("committed", "durable"):
        raise ValueError(f'durability {durability!r}: "committed" or "durable"')
    if capacity is not None:
        capacity = whole("capacity", capacity, 1, "a number of rows")
    bounds = (
        ("max_bytes", max_bytes),
        ("max_episodes", max_episodes),
        ("max_lag_rows", max_lag_rows),
    )
    for name, bound in bounds:
        if bound is not None and bound < 1:
            raise ValueError(f"{name} must be at least 1, got {bound}")
    if not seconds("max_lag_s", max_lag_s) > 0:
        raise ValueError(f"max_lag_s must be more than 0, got {max_lag_s}")
    return capacity


def describe(
    schema: Schema, wanted_rows: int | None, capacity: int | None, max_bytes: int | None
) -> dict[str, Any]:
    """What layout.json of a new storage says, but for its number.

    Args:
        schema: what a record is.
        wanted_rows: of a file.
        capacity, max_bytes: what is going to be kept.
    """
    stride = row_stride(schema.layout.record_size)
    if capacity is not None:
        max_bytes = min(capacity * stride, max_bytes or _MOST_BYTES)
    return {
        "format": FORMAT,
        "schema": json.loads(schema.to_bytes()),
        "stride": stride,
        "rows_per_extent": extent_rows(stride, wanted_rows, max_bytes),
    }


def with_store(directory: Directory, described: dict[str, Any]) -> dict[str, Any]:
    """Makes an index, which gives the storage its number."""
    # The index first: where there is a layout, there is an index.
    directory.check()
    index = open_index(directory, True, int.from_bytes(os.urandom(8), "little") >> 1)
    try:
        # It may be one that was left without a layout.
        return {**described, "store": index.read_store()}
    finally:
        index.close()


def create(directory: Directory, described: dict[str, Any]) -> dict[str, Any]:
    """Makes a new directory a storage; its description."""
    described = with_store(directory, described)
    write_description(directory, described)
    return described
