"""Frames that leave out slots that came before, as plainly as the wire page says it; and some that
are not as they should be."""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.wire import compact
from tests.wire.compact import COMPACT, Form
from tests.wire.mutate import EDGES, pack_runs
from tests.wire.naive import Fields, Run, seal

CARRIED, KEPT = 2, 4  # of a frame's flags
Table = list[tuple[int, int]]  # own number, and how many came since


def fields_of(sent: bytes) -> Fields:
    return Fields(*struct.unpack_from("<BBHQIIQ", sent, 4))


def sealed(
    runs: list[Run],
    rows: list[Any],
    slots: list[bytes],
    table: Table | None = None,
    *,
    kept: bool = False,
    first: int = 0,
) -> bytes:
    """A frame of all these slots, but for those that a table says; None: it has no table."""
    payload, flags = pack_runs(runs), COMPACT | KEPT * kept
    left_out = {own for own, _ in table or ()}
    if table is not None:
        flags |= CARRIED
        payload += struct.pack("<I", len(table))
        payload += b"".join(struct.pack("<II", *pair) for pair in table)
    payload += b"".join(rows)
    payload += b"".join(s for n, s in enumerate(slots) if n not in left_out)
    return seal(Fields(4, flags, 0, first, len(runs), len(rows), len(payload)), payload)


def shared_with(slots: list[bytes], before: list[bytes], rng: random.Random) -> Table:
    """What of some slots may be left out; mostly all of it, each of the others' once."""
    table, used = [], set()
    for own, slot in enumerate(slots):
        same = [n for n, s in enumerate(before) if s == slot and n not in used]
        if same and rng.random() < 0.9:
            number = rng.choice(same)
            table.append((own, len(before) - 1 - number))
            used.add(number)
    return table


class Keeper:
    """The slots that a server keeps, the newest last, and what it makes of the next frame."""

    def __init__(self, form: Form, carry: int, max_frame: int) -> None:
        self.form, self.carry, self.max_frame = form, carry, max_frame
        self.slots: list[bytes] = []
        self.left_out: set[int] = set()

    def take(self, sent: bytes) -> tuple[str, bytes]:
        """What is wrong with a frame, or "none" and what it is with all of its slots."""
        whole = sent
        if len(sent) > self.max_frame:
            return "size", b""
        if fields_of(sent).flags & CARRIED:
            wrong, whole = self._completed(sent)
            if wrong != "none":
                return wrong, b""
        wrong = compact.verdict(self.form, whole)
        fields, slots = fields_of(whole), []
        if wrong == "none" and fields.flags & COMPACT:
            behind = whole[40 + 32 * fields.runs + fields.rows * self.form.row_bytes :]
            size = self.form.slot_bytes
            slots = [behind[i : i + size] for i in range(0, len(behind), size)]
        places = self.carry // self.form.slot_bytes
        if wrong == "none" and fields.flags & KEPT:
            if not slots or not places:
                return "shape", b""
            left_out = self.left_out if whole is not sent else set()
            self.slots += [s for n, s in enumerate(slots) if n not in left_out]
            self.slots = self.slots[-places:]
        return wrong, whole

    def _completed(self, sent: bytes) -> tuple[str, bytes]:
        fields, form = fields_of(sent), self.form
        if not fields.flags & COMPACT or not self.slots:
            return "shape", b""
        front, behind = sent[40 : 40 + 32 * fields.runs], sent[40 + 32 * fields.runs :]
        if len(behind) < 4:
            return "shape", b""
        (n,) = struct.unpack_from("<I", behind)
        if n == 0 or len(behind) < 4 + 8 * n:
            return "shape", b""
        table = [struct.unpack_from("<II", behind, 4 + 8 * i) for i in range(n)]
        rows, behind = behind[4 + 8 * n :][: fields.rows * form.row_bytes], behind[4 + 8 * n :]
        if len(rows) < fields.rows * form.row_bytes:
            return "shape", b""
        slots = behind[len(rows) :]
        own, since = [a for a, _ in table], [b for _, b in table]
        if own != sorted(set(own)) or len(set(since)) < n or max(since) >= len(self.slots):
            return "shape", b""
        sent_slots = len(slots) // form.slot_bytes
        if len(slots) % form.slot_bytes or own[-1] >= sent_slots + n:
            return "shape", b""
        self.left_out = set(own)
        put, at, data = dict(table), 0, b""
        for number in range(sent_slots + n):
            if number in put:
                data += self.slots[-1 - put[number]]
            else:
                data += slots[at : at + form.slot_bytes]
                at += form.slot_bytes
        payload = front + rows + data
        whole = fields._replace(flags=fields.flags & ~CARRIED, length=len(payload))
        if compact.verdict(form, done := seal(whole, payload)) == "shape":
            return "shape", b""
        return ("none", done) if 40 + len(payload) <= self.max_frame else ("size", b"")


def spoiled(
    rng: random.Random,
    form: Form,
    runs: list[Run],
    records: list[bytes],
    before: list[bytes],
    first: int,
) -> bytes:
    """A frame with right checksums where these slots are kept; some of it may be wrong."""
    rows, slots = form.packed(records)
    table = shared_with(slots, before, rng)
    how = rng.choice(["good"] * 20 + ["own", "since", "twice", "order", "none", "count", "less"])
    kept = rng.random() < 0.9
    if how == "none" or not table:
        table = [] if how == "none" else table
        none = None if how != "none" else table
        return sealed(runs, rows, slots, none, kept=kept, first=first)
    at = rng.randrange(len(table))
    own, since = table[at]
    sent = sealed(runs, rows, slots, table, kept=kept, first=first)
    if how in ("good", "twice", "order"):
        if how == "twice":
            table.insert(at, (own, since))
        elif how == "order":
            table.reverse()
        else:
            return sent
    elif how == "own":
        table[at] = (rng.choice([own + 1, len(slots), len(slots) - 1, *EDGES]) % 2**32, since)
    elif how == "since":
        table[at] = (own, rng.choice([since + 1, len(before), *EDGES]) % 2**32)
    fields, payload = fields_of(sent), sent[40:]
    behind = payload[32 * fields.runs + 4 :]
    count = len(table)
    if how == "count":
        count = rng.choice([count + 1, count - 1, *EDGES]) % 2**32
    else:
        was = struct.unpack_from("<I", payload, 32 * fields.runs)[0]
        behind = b"".join(struct.pack("<II", *pair) for pair in table) + behind[8 * was :]
    if how == "less":
        behind = behind[: rng.randrange(len(behind))]
    payload = payload[: 32 * fields.runs] + struct.pack("<I", count) + behind
    flags = fields.flags & ~(COMPACT if rng.random() < 0.1 else 0)
    return seal(fields._replace(flags=flags, length=len(payload)), payload)
