"""Fields of trajectories on the wire: each with a mask of the leaves that are given in front of it.

| u64 mask | all leaves, packed by their layout, padded to 8 bytes |
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ..layout import Layout
from ..tape.fields import Given
from ..tree import flatten
from .frames import Refused

__all__ = ["pack_set_fields", "parse_set_fields", "wire_fields"]

Array = np.ndarray[Any, Any]
_COUNTS = struct.Struct("<QQ")


def wire_fields(given: Given) -> Array:
    """What a call gives, as ITEMS and SET_FIELDS have it: uint8 ``[n, bytes]``."""
    records, masks = given
    out = np.zeros((len(masks), 8 + -(-records.shape[1] // 8) * 8), np.uint8)
    out[:, :8] = masks.astype("<u8").view(np.uint8).reshape(-1, 8)
    out[:, 8 : 8 + records.shape[1]] = records
    return out


def pack_set_fields(ids: Array, given: Given) -> bytes:
    """The payload of SET_FIELDS: fields of these trajectories, one for all or one for each."""
    said = wire_fields(given)
    return _COUNTS.pack(len(ids), len(said)) + ids.astype("<i8").tobytes() + said.tobytes()


def parse_set_fields(payload: bytes, fields: Layout) -> tuple[Array, Any]:
    """The trajectories and what they are given, as `set_fields` takes it. Raises Refused for
    anything else."""
    size = 8 + -(-fields.record_size // 8) * 8
    count, said = _COUNTS.unpack_from(payload) if len(payload) >= _COUNTS.size else (0, 2)
    fits = said in (1, count) and len(payload) == _COUNTS.size + 8 * count + size * said
    if not fits:
        raise Refused("frame", "SET_FIELDS: expected as many ids and fields as it says")
    ids = np.frombuffer(payload, "<i8", count, _COUNTS.size).astype(np.int64)
    table = np.frombuffer(payload, np.uint8, size * said, len(payload) - size * said)
    table = table.reshape(said, size)
    masks = np.ascontiguousarray(table[:, :8]).view("<u8").reshape(-1).astype(np.uint64)
    if (masks >> np.uint64(len(fields.leaves) - 1) > 1).any():
        raise Refused("frame", "SET_FIELDS: a mask of more leaves than there are")
    records = np.ascontiguousarray(table[:, 8 : 8 + fields.record_size])
    for leaf in fields.leaves:
        if leaf.dtype == bool and (records[:, leaf.offset : leaf.offset + leaf.nbytes] > 1).any():
            raise Refused("value", "SET_FIELDS: a bool is one byte, 0 or 1")
    if (masks == masks[:1]).all():
        return ids, _mapping(fields, records if said > 1 else records[0], int(masks[0]))
    return ids, [_mapping(fields, r, int(m)) for r, m in zip(records, masks)]


def _mapping(fields: Layout, records: Array, mask: int) -> dict[str, Any]:
    """The given leaves of one record, or of one for each trajectory, as a tree of arrays."""
    out: dict[str, Any] = {}
    values = flatten(fields.unpack(records))[1]
    for number, (leaf, value) in enumerate(zip(fields.leaves, values)):
        if mask >> number & 1:
            node = out
            for key in leaf.path[:-1]:
                node = node.setdefault(str(key), {})
            node[str(leaf.path[-1])] = value
    return out
