"""Items with fields and with leaves of any size: made, said naively what is right, and damaged."""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple

import numpy as np

from contig import _native
from tests.wire.mutate import EDGES, LENGTHS, pack_runs
from tests.wire.naive import Run, frame, runs_of

HAS_FIELDS = 128
ANY, TEXT, BOOLS = 0, 1, 2


class Shape(NamedTuple):
    """A table's items beyond their records' size; bools are (offset, bytes)."""

    record_size: int
    fields: int = 0
    leaves: int = 0
    field_bools: tuple[tuple[int, int], ...] = ()
    variable: tuple[tuple[int, int, int], ...] = ()  # offset, bytes of an element, content

    @property
    def given(self) -> int:
        """Bytes of a run's fields on the wire."""
        return 8 + -(-self.fields // 8) * 8

    def tell(self, receiver: Any) -> Any:
        if self.fields:
            bools = np.array(self.field_bools, np.int64).reshape(-1)
            receiver.set_fields(self.fields, self.leaves, bools)
        if self.variable:
            receiver.set_variable(np.array(self.variable, np.int64).reshape(-1))
        return receiver


SHAPES = [
    Shape(8),
    Shape(8, 5, 3, ((4, 1),)),
    Shape(24, variable=((8, 1, ANY),)),
    Shape(40, 12, 64, (), ((0, 4, ANY), (24, 1, TEXT))),
    Shape(48, 1, 1, ((0, 1),), ((0, 6, ANY), (16, 1, BOOLS), (32, 0, ANY))),
]


def verdict(shape: Shape, runs: int, rows: int, payload: bytes) -> str:
    """What is wrong with a tape's frame of items, as plainly as the page says it."""
    if rows == 0 or runs == 0:
        return "shape"
    given = 0
    table = runs_of(payload, runs)
    for run in table:
        marked = bool(run.flags & 16)
        known = (16 | 32 | 64 | 256 if marked else 1 | 2 | 4) | (HAS_FIELDS if shape.fields else 0)
        if run.rows == 0 or run.flags & ~known:
            return "shape"
        if marked and (run.lanes == 0 or run.lanes > 1 << 18 or run.rows % run.lanes):
            return "shape"
        if not marked and run.lanes:
            return "shape"
        if run.flags & HAS_FIELDS:
            if run.reserved not in ((1, run.lanes) if marked else (1,)):
                return "shape"
            given += run.reserved
    if sum(run.rows for run in table) != rows:
        return "shape"
    behind = payload[32 * runs :]
    if len(behind) < given * shape.given:
        return "shape"
    said = [behind[i * shape.given :][: shape.given] for i in range(given)]
    behind = behind[given * shape.given :]
    if any(int.from_bytes(f[:8], "little") >> shape.leaves for f in said):
        return "shape"
    for at, n in shape.field_bools:
        if any(b > 1 for f in said for b in f[8 + at : 8 + at + n]):
            return "value"
    if len(behind) < rows * shape.record_size:
        return "shape"
    return _bytes_verdict(shape, rows, behind)


def _bytes_verdict(shape: Shape, rows: int, behind: bytes) -> str:
    data, at = behind[rows * shape.record_size :], 0
    for row in range(rows):
        for offset, unit, content in shape.variable:
            where = row * shape.record_size + offset
            position, n = struct.unpack_from("<QQ", behind, where)
            if position != at or n > len(data) - at:
                return "shape"
            value, at = data[at : at + n], at + n
            if n % unit if unit else n:
                return "value"
            if content == BOOLS and any(b > 1 for b in value):
                return "value"
            if content == TEXT:
                try:
                    value.decode()
                except UnicodeDecodeError:
                    return "value"
    return "none" if at == len(data) else "shape"


class Parts(NamedTuple):
    """A frame's parts; `records` and `said` one by one."""

    runs: list[Run]
    said: list[bytes]
    records: list[bytearray]
    data: bytes

    def sealed(self, number: int) -> bytes:
        payload = pack_runs(self.runs) + b"".join(self.said) + b"".join(self.records) + self.data
        return frame(4, number, payload, len(self.runs), len(self.records))


def value(rng: random.Random, unit: int, content: int) -> bytes:
    n = rng.choice([0, 0, 1, 2, 3, 9])
    if content == TEXT:
        return "".join(rng.choice("aß∂𝄞 ") for _ in range(n)).encode()
    if content == BOOLS:
        return bytes(rng.randrange(2) for _ in range(n * unit))
    return rng.randbytes(n * unit)


def given_fields(rng: random.Random, shape: Shape) -> bytes:
    mask = rng.randrange(1 << shape.leaves)
    record = bytearray(rng.randbytes(shape.fields))
    for at, n in shape.field_bools:
        record[at : at + n] = bytes(b & 1 for b in record[at : at + n])
    return struct.pack("<Q", mask) + bytes(record).ljust(shape.given - 8, b"\0")


def items(rng: random.Random, shape: Shape, plain: bool = False) -> Parts:
    """A good frame; `plain`: of runs told by their flags."""
    runs, said = [], []
    for _ in range(rng.randint(1, 4)):
        has = bool(shape.fields) and rng.random() < 0.6
        flags, lanes, count = rng.randrange(8), 0, 1
        if not plain and rng.random() < 0.4:
            lanes = rng.choice([1, 1, 2, 3])
            flags = 16 | rng.choice([0, 32, 64])
            count = rng.choice([1, lanes])
        rows = (lanes or 1) * rng.randint(1, 3)
        told = (flags | HAS_FIELDS * has, rng.choice([0, 1, 2]), -1, lanes, count * has)
        runs.append(Run(rows, *told))
        said += [given_fields(rng, shape) for _ in range(count * has)]
    records, data = [], b""
    for _ in range(sum(run.rows for run in runs)):
        record = bytearray(rng.randbytes(shape.record_size))
        for offset, unit, content in shape.variable:
            one = value(rng, unit, content)
            struct.pack_into("<QQ", record, offset, len(data), len(one))
            data += one
        records.append(record)
    return Parts(runs, said, records, data)


def spoiled(rng: random.Random, shape: Shape, number: int) -> bytes:
    """A frame with right checksums of which a part is not as it should be; or, rarely, is."""
    parts = items(rng, shape)
    how = rng.choice(["run", "said", "place", "data", "cut", "more", "less"])
    if how == "run":
        at, name = rng.randrange(len(parts.runs)), rng.choice(("flags", "reserved", "lanes"))
        was = getattr(parts.runs[at], name)
        near = [was ^ HAS_FIELDS, was ^ 16, was + 1, *EDGES]
        parts.runs[at] = parts.runs[at]._replace(**{name: rng.choice(near) % 2**32})
    elif how == "said" and parts.said:
        at = rng.randrange(len(parts.said))
        said = bytearray(parts.said[at])
        said[rng.randrange(len(said))] = rng.randrange(256)
        parts.said[at] = bytes(said)
    elif how == "place" and shape.variable:
        record, (offset, _, _) = rng.choice(parts.records), rng.choice(shape.variable)
        offset += rng.choice((0, 8))
        (was,) = struct.unpack_from("<Q", record, offset)
        struct.pack_into("<Q", record, offset, rng.choice([was + 1, was - 1, *LENGTHS]) % 2**64)
    elif how == "data" and parts.data:
        data = bytearray(parts.data)
        data[rng.randrange(len(data))] = rng.randrange(256)
        parts = parts._replace(data=bytes(data))
    elif how == "cut":
        parts = parts._replace(data=parts.data[:-1])
    elif how == "more":
        parts = parts._replace(data=parts.data + b"\0" * rng.choice((1, 8)))
    elif how == "less" and parts.said:
        parts.said.pop()
    return parts.sealed(number)


def received(shape: Shape, sent: bytes) -> Any:
    """A receiver with a frame at its front."""
    receiver = shape.tell(_native.Receiver(max(len(sent), 64), 1 << 20))
    receiver.feed(sent)
    assert receiver.next() == 1
    return receiver
