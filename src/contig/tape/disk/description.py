"""layout.json: what a record of a storage is and how rows lie in files, which never changes; and
how much its writers keep: what one of them said last.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from ... import _native
from ...errors import LayoutError
from ...tree import show_path
from ..schema import Schema
from . import files
from .directory import Directory
from .extents import blob_file_bytes, extent_rows, row_stride
from .index import open_index
from .index_tables import FORMAT, PLAIN, Form
from .stored_slots import StoredSlots, reach_for

__all__ = [
    "create",
    "describe",
    "form_of",
    "keep",
    "kept",
    "read_description",
    "sealed",
    "slots_of",
    "stored_schema",
    "with_store",
]

log = logging.getLogger("contig.disk")

SHARING = 4  # of layout.json; the index is one of format 3 then

_MOST_BYTES = 1 << 44  # of addresses
_MOST_ROWS = 1 << 30


def describe(
    schema: Schema,
    wanted_rows: int | None,
    capacity: int | None,
    max_bytes: int | None,
    blob_bytes: int | None,
    reach: int | None = None,
) -> dict[str, Any]:
    """What layout.json of a new storage says, but for its number.

    Args:
        schema: what a record is.
        wanted_rows: of a file.
        capacity, max_bytes, blob_bytes: what is going to be kept.
        reach: of observations that are stored once, if it has to be a certain one.
    """
    keeps = (capacity, blob_bytes)
    slots = _slots(schema, reach, capacity, max_bytes)
    any_size = bool(schema.layout.variable) or slots is not None
    record_size = schema.layout.record_size if slots is None else slots.record_size
    stride = row_stride(record_size, any_size)
    asked = max_bytes
    bounds = [most for most in (blob_bytes, max_bytes) if most is not None]
    if slots is not None and capacity is not None:
        bounds.append(slots.most(capacity))
    if capacity is not None:
        max_bytes = min(capacity * stride, max_bytes or _MOST_BYTES)
    # Of the oldest format that has all there is: an older contig may read it.
    more = {"format": PLAIN.format}
    if schema.fields is not None or any_size:
        more = {
            "format": FORMAT if slots is None else SHARING,
            "field_bytes": 0 if schema.fields is None else schema.fields.record_size,
            "blob_file_bytes": blob_file_bytes(min(bounds, default=None)) if any_size else 0,
        }
    if slots is not None:
        more["reach"] = slots.reach
    return {
        **_kept(keeps),
        **more,
        "schema": json.loads(schema.to_bytes()),
        "stride": stride,
        "rows_per_extent": extent_rows(stride, wanted_rows, max_bytes, asked),
    }


def kept(
    described: dict[str, Any] | None, capacity: int | None, blob_bytes: int | None
) -> tuple[int | None, int | None]:
    """What a writer keeps who says these: what he does not say is what others said before."""
    then = {} if described is None else described.get("kept", {})
    return (
        then.get("capacity") if capacity is None else capacity,
        then.get("blob_bytes") if blob_bytes is None else blob_bytes,
    )


def keep(directory: Directory, described: dict[str, Any], *keeps: int | None) -> None:
    """Writes down what is kept from now on (capacity, blob_bytes), if it is something else."""
    now = {k: v for k, v in described.items() if k not in ("kept", "crc")} | _kept(keeps)
    if now.get("kept") != described.get("kept"):
        files.write_new(directory.root / "layout.json", sealed(now))


def _kept(keeps: tuple[int | None, ...]) -> dict[str, Any]:
    told = {k: v for k, v in zip(("capacity", "blob_bytes"), keeps) if v is not None}
    return {"kept": told} if told else {}


def stored_schema(schema: Schema, like: StoredSlots | None, asked: bool) -> Schema:
    """How rows are stored on disk.

    Args:
        schema: as it would be in memory.
        like: observations as they are stored elsewhere, which they should be here, too.
        asked: whether somebody asked for them to be stored once.

    Raises:
        LayoutError: they cannot be.
    """
    if schema.sharing is None and like is None:
        return schema
    if not schema.layout.variable:
        return schema if like is None else schema.with_sharing(like.sharing)
    names = ", ".join(
        show_path(x.path)
        + (f" (codec {schema.codecs[x.path].kind})" if x.path in schema.codecs else " (any size)")
        for x in schema.layout.variable
    )
    if asked:
        raise LayoutError(
            f"{names}: beside leaves of any size or with codecs, observations are not stored once "
            "on disk; leave share_next and stack out, or those leaves' codecs"
        )
    if schema.sharing is not None:
        once = ", ".join(show_path(x.path) for x in schema.sharing.leaves)
        log.warning(
            "DiskStorage: %s: not stored once beside leaves of any size or with codecs (%s), which "
            "makes files larger. Leave those out, or write share_next=False if it is meant",
            once,
            names,
        )
    return schema.with_sharing(None)


def _slots(
    schema: Schema, reach: int | None, capacity: int | None, max_bytes: int | None
) -> StoredSlots | None:
    if schema.shared_form is None:
        return None
    rows = _MOST_ROWS if capacity is None else capacity
    return StoredSlots.of(
        schema, reach or reach_for(rows, schema.shared_form.slot_bytes, max_bytes)
    )


def slots_of(schema: Schema, described: dict[str, Any]) -> StoredSlots | None:
    """Observations that are stored once, of a storage that is described so."""
    return StoredSlots.of(schema, int(described.get("reach", 0)))


def form_of(described: dict[str, Any]) -> Form:
    """What the index of a storage is of."""
    if int(described["format"]) < FORMAT:
        return PLAIN
    return Form(FORMAT, int(described["field_bytes"]))


def with_store(directory: Directory, described: dict[str, Any]) -> dict[str, Any]:
    """Makes an index, which gives the storage its number."""
    # The index first: where there is a layout, there is an index.
    directory.check()
    store = int.from_bytes(os.urandom(8), "little") >> 1
    index = open_index(directory, True, store, form_of(described))
    try:
        # It may be one that was left without a layout.
        index.settle_format()
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
        if described["format"] > SHARING:
            raise ValueError(
                f"{shown}: format {described['format']}, this contig reads up to {SHARING}; "
                "use a newer one"
            )
        if described["crc"] != _crc(described):
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError) as error:
        if "use a newer one" in str(error):
            raise
        raise ValueError(
            f"{shown} is damaged ({error}): without it the rows cannot be read. Restore it from "
            "a checkpoint of this storage"
        ) from error
    return described


def sealed(described: dict[str, Any]) -> bytes:
    """A description as it is stored: with its checksum."""
    return json.dumps({**described, "crc": _crc(described)}, indent=1).encode()


def _crc(described: dict[str, Any]) -> int:
    content = {k: v for k, v in described.items() if k != "crc"}
    return _native.crc32c(json.dumps(content, sort_keys=True).encode())
