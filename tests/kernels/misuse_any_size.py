"""As tests/kernels/misuse.py: calls that break the contract of leaves of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from contig import Blob, LazyTensorStorage, Ragged, _native
from tests.attempts import attempt_all

FAR = 1 << 40


def b(n: int) -> Any:
    return np.zeros(n, np.uint8)


def i(*values: int) -> Any:
    return np.array(values, np.int64)


def storage() -> LazyTensorStorage:
    """Records of 40 bytes: two places and a number."""
    s = LazyTensorStorage(
        8, example={"a": Blob(), "b": Ragged(np.int32), "n": np.int64(0)}, blob_bytes=64
    )
    s.default_writer.extend({"a": [b"12", b""], "b": [[1, 2], []], "n": np.arange(2)})
    return s


def writer(s: LazyTensorStorage) -> Any:
    s.keep = s.tape  # type: ignore[attr-defined]
    return _native.Writer(s.tape, {}, False)


def record(*places: int) -> Any:
    return i(*places, 7).view(np.uint8)


def append(*places: int, blobs: int) -> Callable[[], Any]:
    return lambda: writer(storage()).append_records(record(*places), 1, 0, b(blobs))


def columns(*blobs: Any, rows: int = 1) -> Callable[[], Any]:
    return lambda: writer(storage()).append_columns(
        [b(8 * rows)], [32], rows, 1, 0, None, list(blobs)
    )


def gatherer(blobs: Any, sizes: Any = None) -> Any:
    s = storage()
    return _native.Gatherer(s.tape, i(8) if sizes is None else sizes, i(), -1, blobs)


def restore(records: Any, blobs: Any) -> None:
    s = storage()
    s.tape.restore(records, 0, 1, np.zeros(0, np.uint64), 0, 0, 0, None, blobs)


GOOD = (b(2), i(0, 2), 1, 0)
CASES: dict[str, Callable[[], Any]] = {
    "positions that do not begin at 0": append(1, 2, 3, 0, blobs=3),
    "positions with a gap": append(0, 2, 3, 0, blobs=3),
    "positions that overlap": append(0, 4, 0, 4, blobs=4),
    "positions far away": append(FAR, 2, FAR + 2, 0, blobs=2),
    "a length past the bytes": append(0, FAR, FAR, 0, blobs=2),
    "a negative length": append(0, -1, -1, 0, blobs=2),
    "lengths that come round": append(0, 1 << 62, 1 << 62, 3 << 62, blobs=0),
    "a length of half an element": append(0, 0, 0, 3, blobs=3),
    "bytes that are nobody's": append(0, 2, 2, 0, blobs=9),
    "no bytes at all": lambda: writer(storage()).append_records(record(0, 2, 2, 0), 1, 0),
    "more bytes than the ring": append(0, 65, 65, 0, blobs=65),
    "part of a trajectory out of order": lambda: writer(storage()).append_part(
        record(1, 0, 1, 0), 1, 5, 0, b(0)
    ),
    "a leaf without a column": columns(GOOD),
    "columns of other leaves": columns(GOOD, (b(4), i(0, 1), 4, 8)),
    "a place past the record": columns(GOOD, (b(4), i(0, 1), 4, FAR)),
    "offsets past the values": columns(GOOD, (b(4), i(0, 2), 4, 16)),
    "offsets that go back": columns(GOOD, (b(4), i(1, 0), 4, 16)),
    "negative offsets": columns(GOOD, (b(4), i(-1, 0), 4, 16)),
    "too few offsets": columns(GOOD, (b(4), i(0), 4, 16)),
    "elements of no bytes": columns(GOOD, (b(4), i(0, 1), 0, 16)),
    "values of another dtype": columns(GOOD, (np.zeros(1, np.int32), i(0, 1), 4, 16)),
    "a whole trajectory without its bytes": lambda: writer(storage()).append_whole(
        [b(8)], [32], 1, 0, -1, -1
    ),
    "attach less than the ring": lambda: storage().tape.attach_blobs(b(63), i(0, 1, 16, 4)),
    "attach fewer leaves": lambda: storage().tape.attach_blobs(b(64), i(0, 1)),
    "attach half a leaf": lambda: storage().tape.attach_blobs(b(64), i(0, 1, 16)),
    "attach a leaf past the record": lambda: storage().tape.attach_blobs(b(64), i(0, 1, 32, 4)),
    "attach a leaf between words": lambda: storage().tape.attach_blobs(b(64), i(0, 1, 17, 4)),
    "attach elements of no bytes": lambda: storage().tape.attach_blobs(b(64), i(0, 1, 16, 0)),
    "a ring for no leaves": lambda: _native.Tape(control(), -1).publish(b"{}", 8, 0, 0, 64),
    "leaves without a ring": lambda: _native.Tape(control(), -1).publish(b"{}", 16, 0, 1, 0),
    "read more than the ring": lambda: storage().tape.read_blobs(0, b(65)),
    "read of a tape without a ring": lambda: LazyTensorStorage(4, example={"x": 0}).tape.read_blobs(
        0, b(1)
    ),
    "gather of a tape without a ring": lambda: _native.Gatherer(
        LazyTensorStorage(4, example={"x": 0}).tape, i(8), i(), -1, i(0, 0, 1)
    ),
    "gather to a column there is not": lambda: gatherer(i(3, 0, 1)),
    "gather to column -1": lambda: gatherer(i(-1, 0, 1)),
    "gather offsets into another size": lambda: gatherer(i(0, 0, 1), i(4)),
    "gather from past the record": lambda: gatherer(i(0, FAR, 1)),
    "gather a place that ends past the record": lambda: gatherer(i(0, 32, 1)),
    "gather elements of no bytes": lambda: gatherer(i(0, 0, 0)),
    "gather into a block that is there": lambda: gatherer(i(0, 0, 1)).gather_at(
        i(0), _native.Block(4096), 4, 0, 0
    ),
    "restore without the bytes": lambda: restore(record(0, 2, 2, 0), None),
    "restore out of order": lambda: restore(record(2, 2, 4, 0), b(4)),
    "restore more than the ring": lambda: restore(record(0, 65, 65, 0), b(65)),
    "plan a leaf of any size of another size": lambda: _native.Plan(
        {"a": 0}, [("u", 1, 0, 8, (), "b")], [], 8
    ),
}


def control() -> Any:
    memory = b(_native.control_bytes(8))
    _native.format_control(memory, 8)
    return memory


if __name__ == "__main__":
    attempt_all(CASES)
