"""The frame format once more, as plainly as the page says it: what the parser is compared with."""

from __future__ import annotations

import struct
from typing import NamedTuple

from contig import _native
from contig._native import Received

MORE, READY, GROW, BAD = Received
crc32c = _native.crc32c_portable  # test_crc.py compares it with another one


class Fields(NamedTuple):
    """A header without its checksums."""

    type: int = 4
    flags: int = 0
    reserved: int = 0
    number: int = 0
    runs: int = 0
    rows: int = 0
    length: int = 0


class Run(NamedTuple):
    """An entry of the table of runs."""

    rows: int
    flags: int
    traj_id: int
    version: int
    lanes: int
    reserved: int = 0


def seal(fields: Fields, payload: bytes) -> bytes:
    """A frame with right checksums, whatever its fields say."""
    head = struct.pack("<4sBBHQIIQI", b"cFrm", *fields, crc32c(payload))
    return head + struct.pack("<I", crc32c(head)) + payload


def frame(kind: int, number: int, payload: bytes, runs: int = 0, rows: int = 0) -> bytes:
    return seal(Fields(kind, 0, 0, number, runs, rows, len(payload)), payload)


def runs_of(payload: bytes, runs: int) -> list[Run]:
    return [Run(*struct.unpack_from("<IIqqII", payload, 32 * i)) for i in range(runs)]


def items_fit(fields: Fields, payload: bytes, record_size: int, tape: bool) -> bool:
    """Whether an ITEMS frame is one for a table with such records."""
    if fields.rows == 0 or tape != (fields.runs > 0):
        return False
    if fields.flags & 5:  # compact rows, and here are only tables that store whole ones
        return False
    if fields.runs * 32 + fields.rows * record_size != len(payload):
        return False
    runs = runs_of(payload, fields.runs)
    for run in runs:
        marked = bool(run.flags & 16)
        if run.rows == 0 or run.flags & ~(16 | 32 | 64 | 256 if marked else 1 | 2 | 4):
            return False
        if marked and (run.lanes == 0 or run.lanes > 1 << 18 or run.rows % run.lanes):
            return False
        if not marked and run.lanes:
            return False
    return not tape or sum(run.rows for run in runs) == fields.rows


class NaiveReceiver:
    """The states of a receiver, over everything it was ever given."""

    def __init__(self, size: int, max_frame: int) -> None:
        self.size, self.max_frame = size, max_frame
        self.data = b""
        self.refusal = "none"
        self.fields = Fields()

    def feed(self, data: bytes) -> None:
        self.data += data

    def next(self) -> int:
        if self.refusal == "none" and len(self.data) >= 40:
            self.refusal = self._header()
        if self.refusal != "none":
            return BAD
        if len(self.data) < 40:
            return MORE
        if len(self.data) < self.needed:
            return GROW if self.needed > self.size else MORE
        if crc32c(self.payload) != struct.unpack_from("<I", self.data, 32)[0]:
            self.refusal = "body_crc"
            return BAD
        if self.fields.type == 4 and self.fields.flags & 2:  # there is no frame before that is kept
            self.refusal = "shape"
            return BAD
        return READY

    def _header(self) -> str:
        if self.data[:4] != b"cFrm":
            return "magic"
        if crc32c(self.data[:36]) != struct.unpack_from("<I", self.data, 36)[0]:
            return "header_crc"
        self.fields = Fields(*struct.unpack_from("<BBHQIIQ", self.data, 4))
        if not 1 <= self.fields.type <= 17:
            return "type"
        if self.needed > self.max_frame:
            return "size"
        if 32 * self.fields.runs > self.fields.length:
            return "shape"
        return "none"

    @property
    def needed(self) -> int:
        return 40 + self.fields.length

    @property
    def payload(self) -> bytes:
        return self.data[40 : self.needed]

    def pop(self) -> None:
        self.data = self.data[self.needed :]
