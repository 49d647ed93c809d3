"""Compact rows as plainly as the wire page says it, and frames of them that are not as they should
be."""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple

from contig import Layout, _native
from contig.server.item_shape import ItemShape
from contig.tape.asked import Asked
from contig.tape.schema import Schema
from tests.wire.mutate import EDGES, pack_runs
from tests.wire.naive import Fields, Run, runs_of, seal

COMPACT = 1  # of a frame's flags


class Shared(NamedTuple):
    """A leaf that is stored once: where a record has it, and its frames."""

    offset: int
    next_offset: int | None
    shape: tuple[int, ...]
    itemsize: int
    frames: int
    leading: bool

    @property
    def nbytes(self) -> int:
        n = self.itemsize
        for dim in self.shape:
            n *= dim
        return n

    def frame(self, value: bytes, number: int) -> bytes:
        """One of the frames of its value."""
        if self.leading:
            size = len(value) // self.frames
            return value[number * size : (number + 1) * size]
        whole = self.shape[-1] * self.itemsize
        part = whole // self.frames
        pieces = (value[at + number * part :][:part] for at in range(0, len(value), whole))
        return b"".join(pieces)


class Form:
    """What rows of a schema look like on their way."""

    def __init__(self, schema: Schema) -> None:
        assert schema.sharing is not None
        self.schema, self.layout = schema, schema.layout
        self.record_size = self.layout.record_size
        self.shared = [self._shared(x, schema.sharing.paired) for x in schema.sharing.leaves]
        self.k = max(x.frames for x in self.shared)
        self.references = self.k * (2 if schema.sharing.paired else 1)
        taken = {x.offset for x in self.shared} | {x.next_offset for x in self.shared}
        self.kept = []  # offset in a record, bytes, offset in a row
        at = 4 * self.references
        for unit in (8, 4, 2, 1):
            for leaf in self.layout.leaves:
                own = next(u for u in (8, 4, 2, 1) if leaf.nbytes % u == 0)
                if leaf.offset not in taken and own == unit:
                    at = -(-at // unit) * unit
                    self.kept.append((leaf.offset, leaf.nbytes, at))
                    at += leaf.nbytes
        self.row_bytes = -(-at // 4) * 4
        self.slot_bytes = -(-sum(x.nbytes // x.frames for x in self.shared) // 4) * 4

    def _shared(self, leaf: Any, paired: bool) -> Shared:
        own = self.layout.by_path[leaf.path]
        below = self.layout.by_path[("next", *leaf.path)].offset if paired else None
        dtype = own.dtype.itemsize
        return Shared(own.offset, below, own.shape, dtype, leaf.frames, leaf.leading)

    def slots_of(self, record: bytes, following: bool) -> list[bytes]:
        """Those of a record's observation, or of its next one."""
        out = []
        for j in range(self.k):
            slot = b""
            for leaf in self.shared:
                at = leaf.next_offset if following else leaf.offset
                assert at is not None
                number = max(j - (self.k - leaf.frames), 0)
                slot += leaf.frame(record[at : at + leaf.nbytes], number)
            out.append(slot.ljust(self.slot_bytes, b"\0"))
        return out

    def packed(self, records: list[bytes], among: random.Random | None = None) -> Any:
        """(rows, slots): equal slots are the same one; or, if asked, only sometimes."""
        rows, slots, known = [], [], {}
        for record in records:
            wanted = self.slots_of(record, False)
            wanted += self.slots_of(record, True) if self.references > self.k else []
            numbers = []
            for slot in wanted:
                if slot not in known or (among is not None and among.random() < 0.2):
                    known[slot] = len(slots)
                    slots.append(slot)
                numbers.append(known[slot])
            row = bytearray(self.row_bytes)
            struct.pack_into(f"<{len(numbers)}I", row, 0, *numbers)
            for offset, n, at in self.kept:
                row[at : at + n] = record[offset : offset + n]
            rows.append(row)
        return rows, slots

    def receiver(self, sent: bytes, once: bool = True) -> Any:
        """One that has a frame at its front, of a table that stores observations once, or not."""
        receiver = _native.Receiver(max(len(sent), 64), 1 << 24)
        parts = {"layout": self.layout.to_json()}
        if self.schema.fields is not None:
            parts["fields"] = self.schema.fields.to_json()
        assert self.schema.sharing is not None
        if once:
            parts["shared"] = self.schema.sharing.to_json()
        ItemShape.of(parts).tell(receiver)
        receiver.feed(sent)
        assert receiver.next() == 1
        return receiver


def form_of(row: Any, **asked: Any) -> Form:
    asked.setdefault("share_next", True)
    return Form(Asked(**asked).schema(Layout(row)))


def sealed(runs: list[Run], rows: list[Any], slots: list[bytes], first: int = 0) -> bytes:
    payload = pack_runs(runs) + b"".join(rows) + b"".join(slots)
    return seal(Fields(4, COMPACT, 0, first, len(runs), len(rows), len(payload)), payload)


def spoiled(rng: random.Random, form: Form, runs: list[Run], records: list[bytes]) -> bytes:
    """A frame with right checksums of which something may not be as it should be."""
    rows, slots = form.packed(records, rng)
    how = rng.choice(["reference", "reference", "slot", "more", "less", "cut", "kind", "good"])
    if how == "reference":
        row, at = rng.choice(rows), 4 * rng.randrange(form.references)
        (was,) = struct.unpack_from("<I", row, at)
        near = [was + 1, was - 1, len(slots), len(slots) - 1, 0, *EDGES]
        struct.pack_into("<I", row, at, rng.choice(near) % 2**32)
    elif how == "slot":
        at = rng.randrange(len(slots))
        slot = bytearray(slots[at])
        slot[rng.randrange(len(slot))] = rng.randrange(256)
        slots[at] = bytes(slot)
    elif how == "more":
        slots.append(slots[0])
    elif how == "less":
        slots.pop()
    elif how == "cut":
        slots[-1] = slots[-1][: rng.randrange(len(slots[-1]))]
    sent = sealed(runs, rows, slots)
    if how == "kind":  # compact rows that say they are whole, or the other way round
        payload = sent[40:]
        if rng.random() < 0.5:
            payload = pack_runs(runs) + b"".join(records)
        flags = COMPACT if len(payload) != len(sent) - 40 else 0
        sent = seal(Fields(4, flags, 0, 0, len(runs), len(rows), len(payload)), payload)
    return sent


def verdict(form: Form, sent: bytes) -> str:
    """What is wrong with a frame for a tape of this form; there are no fields, and no leaves of any
    size."""
    fields, payload = Fields(*struct.unpack_from("<BBHQIIQ", sent, 4)), sent[40:]
    assert fields.rows == sum(run.rows for run in runs_of(payload, fields.runs))
    behind = payload[32 * fields.runs :]
    size = form.row_bytes if fields.flags & COMPACT else form.record_size
    if len(behind) < size * fields.rows:
        return "shape"
    rows, behind = behind[: size * fields.rows], behind[size * fields.rows :]
    bools = [x for x in form.layout.leaves if x.dtype == bool]
    if not fields.flags & COMPACT:
        if behind:
            return "shape"
        values = (
            rows[i * size + x.offset :][: x.nbytes] for i in range(fields.rows) for x in bools
        )
        return "value" if any(b > 1 for v in values for b in v) else "none"
    numbers = [
        n
        for i in range(fields.rows)
        for n in struct.unpack_from(f"<{form.references}I", rows, i * size)
    ]
    following = 0
    for n in numbers:
        if n > following:
            return "shape"
        following += n == following
    if len(behind) != following * form.slot_bytes:
        return "shape"
    at = 0
    for leaf in form.shared:
        part = leaf.nbytes // leaf.frames
        if any(x.offset == leaf.offset for x in bools):
            seen = (behind[i * form.slot_bytes + at :][:part] for i in range(following))
            if any(b > 1 for v in seen for b in v):
                return "value"
        at += part
    for offset, n, stored in form.kept:
        if any(x.offset == offset for x in bools):
            if any(b > 1 for i in range(fields.rows) for b in rows[i * size + stored :][:n]):
                return "value"
    return "none"
