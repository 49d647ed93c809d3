"""layout.json: what a record of a storage is and how rows lie in files; it never changes."""

from __future__ import annotations

import json
import os
from typing import Any

from ... import _native
from ..schema import Schema
from . import files
from .directory import Directory
from .extents import extent_rows, row_stride
from .index import open_index
from .index_tables import FORMAT

__all__ = ["create", "describe", "read_description", "sealed", "with_store"]

_MOST_BYTES = 1 << 44  # of addresses


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
    files.write_new(directory.root / "layout.json", sealed(described))
    return described


def read_description(directory: Directory) -> dict[str, Any] | None:
    """What layout.json says, or None in a new directory."""
    path, shown = directory.root / "layout.json", directory.path / "layout.json"
    if not files.exists(path):
        left = directory.row_files()
        if left:
            raise ValueError(
                f"{shown} is missing, but there are {len(left)} files of rows, which cannot be "
                "read without it. Restore it from a checkpoint of this storage"
            )
        return None
    try:
        described = dict(json.loads(files.read(path)))
        if described["format"] > FORMAT:
            raise ValueError(
                f"{shown}: format {described['format']}, this contig reads up to {FORMAT}; "
                "use a newer one"
            )
        if described["crc"] != _crc(described):
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError) as error:
        if "use a newer one" in str(error):
            raise
        raise ValueError(
            f"{shown} is damaged ({error}): without it the rows cannot be read. Restore it from "
            "a checkpoint of this storage; it does not change after the first row"
        ) from error
    return described


def sealed(described: dict[str, Any]) -> bytes:
    """A description as it is stored: with its checksum."""
    return json.dumps({**described, "crc": _crc(described)}, indent=1).encode()


def _crc(described: dict[str, Any]) -> int:
    content = {k: v for k, v in described.items() if k != "crc"}
    return _native.crc32c(json.dumps(content, sort_keys=True).encode())
