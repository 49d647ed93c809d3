"""Calls that break the kernels' contract, each run in a process of its own.

``python -m tests.kernels.misuse`` prints one JSON object: for every case how it ended, which is
the name of the exception it raised, "returned", or "signal N" (14: it had to be stopped). A kernel
must raise; if it read or wrote elsewhere instead, only its own process is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from contig import LazyTensorStorage, _native
from tests.attempts import attempt_all

FAR = 1 << 40  # an offset that is in nobody's memory


def b(n: int) -> Any:
    return np.zeros(n, np.uint8)


def i(*values: int) -> Any:
    return np.array(values, np.int64)


def tape() -> Any:
    """Formatted, but without a schema and without data."""
    control = b(_native.control_bytes(8))
    _native.format_control(control, 8)
    return _native.Tape(control, -1)


def published() -> Any:
    t = tape()
    t.publish(b"{}", 8)
    return t


def storage() -> LazyTensorStorage:
    s = LazyTensorStorage(8, example={"a": 0.0, "b": 0})  # 16 bytes a row
    s.default_writer.extend({"a": np.zeros(8, np.float32), "b": np.arange(8)})
    return s


def writer(s: LazyTensorStorage) -> Any:
    s.keep = s.tape  # type: ignore[attr-defined]
    return _native.Writer(s.tape, {}, False)


def sum_tree(n: int) -> Any:
    size = _native.SumTree.size(n)
    return _native.SumTree(n, np.zeros(size))


def plan(leaf: Any = ("f", 4, 0, 4, ()), tree: Any = None, duals: Any = (), size: int = 4) -> Any:
    return _native.Plan({"a": 0} if tree is None else tree, [leaf], list(duals), size)


def flag_plan(op: str, to: Any = (0, 4), a: Any = (0, 4)) -> Any:
    return plan(duals=[(op, to, a, (0, 4), bytes(4))])


def mark(lengths: list[int], columns: Any) -> None:
    ones = i(*[1] * len(lengths))
    _native.mark_slices(_native.Block(8), i(*lengths), ones, ones, columns, False)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def gatherer(s: LazyTensorStorage, sizes: Any, stored: Any, index: int = -1) -> Any:
    return _native.Gatherer(s.tape, sizes, stored, index)


X = {"a": 1.0}

CASES: dict[str, Callable[[], Any]] = {
    # Plan
    "pack into a record that is too small": lambda: plan().pack(X, b(3)),
    "pack into an array of another dtype": lambda: plan().pack(X, np.zeros(4, np.int8)),
    "pack into an array with gaps": lambda: plan().pack(X, b(8)[::2]),
    "pack into read-only memory": lambda: plan().pack(X, read_only(b(4))),
    "pack into two dimensions": lambda: plan().pack(X, b(4).reshape(2, 2)),
    "plan with a leaf past the record": lambda: plan(("f", 4, FAR, 4, ())).pack(X, b(4)),
    "plan with a leaf that ends past the record": lambda: plan(("f", 4, 2, 4, ())),
    "plan with more bytes than the shape has": lambda: plan(("f", 8, 0, FAR, (2,)), size=16).pack(
        {"a": np.zeros(2)}, b(16)
    ),
    "plan that numbers a leaf it does not have": lambda: plan(tree={"a": 5}).pack(X, b(4)),
    "plan with a short leaf": lambda: plan(("f", 4)),
    "plan with a flag past the record": lambda: flag_plan("zero", to=(FAR, 4)).pack(X, b(4)),
    "plan with a flag that ends past the record": lambda: flag_plan("zero", to=(2, 4)),
    "plan with a flag from past the record": lambda: flag_plan("copy", a=(FAR, 4)).pack(X, b(4)),
    "plan with a flag of the wrong size": lambda: flag_plan("zero", to=(0, 2)),
    "plan with an unknown flag operation": lambda: flag_plan("frob"),
    # Columns and records
    "join with a leaf past the record": lambda: _native.join_columns([b(4)], i(FAR, 4), 1, 8, b(8)),
    "join with a leaf that ends past the record": lambda: _native.join_columns(
        [b(8)], i(4, 8), 1, 8, b(8)
    ),
    "join with a negative offset": lambda: _native.join_columns([b(4)], i(-8, 4), 1, 8, b(8)),
    "join with negative bytes": lambda: _native.join_columns([b(4)], i(0, -4), 1, 8, b(8)),
    "join with a table that is too short": lambda: _native.join_columns(
        [b(4), b(4)], i(0, 4), 1, 8, b(8)
    ),
    "join with so many rows that bytes overflow": lambda: _native.join_columns(
        [b(0)], i(0, 0), 2**62, 4, b(8)
    ),
    "join into an output that is too small": lambda: _native.join_columns(
        [b(8)], i(0, 4), 2, 4, b(7)
    ),
    "join into an array of another dtype": lambda: _native.join_columns(
        [b(8)], i(0, 4), 2, 4, np.zeros(8, np.int8)
    ),
    "join a column of another dtype": lambda: _native.join_columns(
        [np.zeros(8, np.float32)], i(0, 4), 2, 4, b(8)
    ),
    "split into a block that is too small": lambda: _native.split_records(
        b(1 << 20), 1 << 17, 8, b(8), i(0), i(0, 8)
    ),
    "split into a block that is a byte too small": lambda: _native.split_records(
        b(16), 2, 8, b(15), i(0), i(0, 8)
    ),
    "split to a column past the block": lambda: _native.split_records(
        b(8), 1, 8, b(8), i(FAR), i(0, 8)
    ),
    "split to a column before the block": lambda: _native.split_records(
        b(8), 1, 8, b(8), i(-FAR), i(0, 8)
    ),
    "split a leaf past the record": lambda: _native.split_records(
        b(8), 1, 8, b(8), i(0), i(FAR, 8)
    ),
    "split a leaf that ends past the record": lambda: _native.split_records(
        b(8), 1, 8, b(8), i(0), i(4, 8)
    ),
    "split with a table that is too short": lambda: _native.split_records(
        b(8), 1, 8, b(8), i(0, 4), i(0, 4)
    ),
    "split with so many rows that bytes overflow": lambda: _native.split_records(
        b(8), 2**62, 4, b(8), i(0), i(0, 4)
    ),
    "split into an array of another dtype": lambda: _native.split_records(
        b(8), 1, 8, np.zeros(8, np.int8), i(0), i(0, 8)
    ),
    # Sum tree
    "sum tree of no leaves": lambda: sum_tree(0).fill(0, 1, 1.0),
    "sum tree of no leaves, weighed": lambda: sum_tree(0).weights(i(0), 1, 0.5),
    "sum tree of no leaves, prioritized": lambda: sum_tree(0).prioritize(
        i(0), np.ones(1), 0, 1, 1.0, 0.0
    ),
    "sum tree over float32 nodes": lambda: _native.SumTree(
        4, np.zeros(_native.SumTree.size(4), np.float32)
    ),
    "sum tree over read-only nodes": lambda: _native.SumTree(
        4, read_only(np.zeros(_native.SumTree.size(4)))
    ),
    "sum tree over nodes with gaps": lambda: _native.SumTree(
        4, np.zeros(2 * _native.SumTree.size(4))[::2]
    ),
    "sum tree update of a leaf out of range": lambda: sum_tree(4).update(i(4), np.ones(1)),
    "sum tree update of float leaves": lambda: sum_tree(4).update(np.array([1.5]), np.ones(1)),
    "sum tree draw with too few words of state": lambda: sum_tree(4).draw(
        np.ones(1, np.uint64), 9, 4
    ),
    "sum tree draw with a state of another dtype": lambda: sum_tree(4).draw(
        np.ones(4, np.float64), 1, 4
    ),
    # Random numbers
    "uniform_below with too few words of state": lambda: _native.uniform_below(
        np.ones(3, np.uint64), 0, 10, 4
    ),
    "uniform_below with no state": lambda: _native.uniform_below(b(0).view(np.uint64), 0, 10, 4),
    "uniform_below with a state of another dtype": lambda: _native.uniform_below(
        np.ones(4, np.int64), 0, 10, 4
    ),
    "uniform_below with a read-only state": lambda: _native.uniform_below(
        read_only(np.ones(4, np.uint64)), 0, 10, 4
    ),
    "permute from a position that overflows": lambda: _native.permute(1, 10, 2**64 - 1, 1),
    "permute a negative position": lambda: _native.permute(1, 10, -1, 1),
    "permute beyond n": lambda: _native.permute(1, 10, 8, 3),
    # Slice marks
    "mark a column past the block": lambda: mark([9], ((0, b"\x01"), None, None, None, None)),
    "mark a column whose offset overflows": lambda: mark(
        [1], ((2**64 - 1, b"\x01"), None, None, None, None)
    ),
    "mark so many rows that they overflow": lambda: mark([2**62] * 4 + [1], ((0, b"\x01"),) * 5),
    "mark with too few columns": lambda: mark([1], (None,)),
    "mark with too few ends": lambda: _native.mark_slices(
        _native.Block(8), i(1), i(1), i(), (None,) * 5, False
    ),
    # Tape
    "tape over no memory": lambda: _native.Tape(b(0), -1),
    "tape over memory that is none": lambda: _native.Tape(b(4096), -1),
    "tape over less than its header": lambda: _native.Tape(
        np.frombuffer(b"contape1" + bytes(8), np.uint8).copy(), -1
    ),
    "format less than the header": lambda: _native.format_control(b(8), 8),
    "attach less than the data": lambda: published().attach_data(b(1)),
    "gather records before there are any": lambda: tape().gather_records(i(0), b(8)),
    "gather records into too little": lambda: storage().tape.gather_records(i(0, 1), b(31)),
    "gather records into another dtype": lambda: storage().tape.gather_records(
        i(0), np.zeros(16, np.int8)
    ),
    "gather columns before there are any rows": lambda: _native.Gatherer(
        tape(), i(8), i(0, 0, 8), -1
    ).gather(i(0)),
    "gather to a column there is not": lambda: gatherer(storage(), i(16), i(1 << 30, 0, 16)),
    "gather to column -1": lambda: gatherer(storage(), i(16), i(-1, 0, 16)),
    "gather more bytes than the column has": lambda: gatherer(storage(), i(1), i(0, 0, 16)).gather(
        np.zeros(4096, np.int64)
    ),
    "gather from past the record": lambda: gatherer(storage(), i(8), i(0, FAR, 8)).gather(i(0)),
    "gather with half a leaf": lambda: gatherer(storage(), i(8), i(0, 0)),
    "gather with an index there is not": lambda: gatherer(
        storage(), i(16), i(0, 0, 16), 1 << 20
    ).gather(i(0)),
    "gather with an index of another size": lambda: gatherer(
        storage(), i(16, 1), i(0, 0, 16), 1
    ).gather(np.zeros(4096, np.int64)),
    "gather float seqs": lambda: gatherer(storage(), i(16), i(0, 0, 16)).gather(np.array([0.5])),
    # Writer
    "append columns of no rows": lambda: writer(storage()).append_columns(
        [b(4), b(8)], [0, 8], 0, 1, 0
    ),
    "append columns in no lanes": lambda: writer(storage()).append_columns(
        [b(12), b(24)], [0, 8], 3, 0, 0
    ),
    "append columns in more lanes than rows": lambda: writer(storage()).append_columns(
        [b(8), b(16)], [0, 8], 2, 5, 0
    ),
    "append a column past the record": lambda: writer(storage()).append_columns(
        [b(4)], [FAR], 1, 1, 0
    ),
    "append a column that ends past the record": lambda: writer(storage()).append_columns(
        [b(8)], [12], 1, 1, 0
    ),
    "append columns with too few offsets": lambda: writer(storage()).append_columns(
        [b(4), b(8)], [0], 1, 1, 0
    ),
    "append a column of no whole rows": lambda: writer(storage()).append_columns(
        [b(7)], [0], 2, 1, 0
    ),
    "append columns before there is a schema": lambda: _native.Writer(
        tape(), {}, False
    ).append_columns([b(4)], [0], 1, 1, 0),
    "append records in no lanes": lambda: writer(storage()).append_records(b(16), 0, 0),
    "append half a record": lambda: writer(storage()).append_records(b(24), 1, 0),
    "append records before there is a schema": lambda: _native.Writer(
        tape(), {}, False
    ).append_records(b(16), 1, 0),
    "append a trajectory of no rows": lambda: writer(storage()).append_whole(
        [b(4), b(8)], [0, 8], 0, 0, -1, -1
    ),
    "append a trajectory past the record": lambda: writer(storage()).append_whole(
        [b(8)], [12], 1, 0, -1, -1
    ),
    "mark past the record": lambda: _native.Writer(
        storage().tape, {"done": ("b", 1, FAR, 1)}, False
    ).append_records(b(16), 1, 0),
    # View
    "draw rows with too few words of state": lambda: _native.View(storage().tape).draw_rows(
        np.ones(1, np.uint64), None, 4
    ),
}


if __name__ == "__main__":
    attempt_all(CASES)
