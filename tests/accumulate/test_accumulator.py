"""TrajectoryAccumulator: what goes in, what build() gives, and whose memory that is."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import Layout, ShapeDtype
from contig.accumulate import Built, TrajectoryAccumulator
from tests.reference import trees

F4 = np.float32


def zeros(*shape: int, dtype: Any = F4) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def one(spec: Any, data: Any) -> Any:
    """What a timescale of one slot holds after one add."""
    acc = TrajectoryAccumulator({"t": spec})
    acc.add("t", data)
    return acc.build()["t"]


# -- which timescales there are -------------------------------------------------------------------

CAPACITIES = [
    (zeros(4, 3), 4),
    ({"a": zeros(5), "b": zeros(5, 2)}, 5),
    ({"a": zeros(1), "b": zeros(1, 2)}, 1),
    ({"a": zeros(), "b": zeros(4, 2)}, 1),
    ({"a": zeros(), "b": zeros(1, 2), "c": zeros(7)}, 1),
    (0.0, 1),
    ((zeros(2), [zeros(2, 2), None]), 2),
    (ShapeDtype((6, 84), np.uint8), 6),
    ({"a": zeros(0, 3)}, 0),
    ({"a": zeros(3, 0), "b": zeros(3)}, 3),
]


@pytest.mark.parametrize("spec, capacity", CAPACITIES, ids=trees.label)
def test_capacity_follows_from_the_leading_dims(spec: Any, capacity: int) -> None:
    acc = TrajectoryAccumulator({"t": spec})
    assert acc.capacity("t") == capacity
    assert acc.counts() == {"t": 0}
    assert acc.is_full() is acc.is_full("t") is (capacity == 0)


def test_the_layout_is_that_of_the_example() -> None:
    example = {"step": {"obs": zeros(3, 4), "done": zeros(3, dtype=bool)}, "end": (0, 1.0)}
    acc = TrajectoryAccumulator(example)
    assert acc.layout == acc.build(partial=True).layout == Layout(example)
    assert acc.layout.fingerprint == Layout(example).fingerprint
    assert acc.build(partial=True).record.shape == (Layout(example).record_size,)


def test_the_examples_values_are_not_taken() -> None:
    spec = np.full((2, 3), 7, F4)
    assert not TrajectoryAccumulator({"t": spec}).build(partial=True)["t"].any()


# -- what an item may be --------------------------------------------------------------------------

ROW = np.arange(4, dtype=F4)
ITEMS = [
    # example of the timescale, item, what is stored
    ({"x": zeros(1, 4)}, {"x": ROW}, {"x": ROW[None]}),
    ({"x": zeros(1, 4)}, {"x": ROW[None]}, {"x": ROW[None]}),
    ({"x": zeros(1)}, {"x": 3.0}, {"x": np.array([3], F4)}),
    ({"x": zeros(1)}, {"x": np.array([3.0])}, {"x": np.array([3], F4)}),
    ({"x": zeros()}, {"x": 3.0}, {"x": np.array(3, F4)}),
    ({"x": zeros()}, {"x": np.array([3.0])}, {"x": np.array(3, F4)}),
    # A 0-d leaf beside others: items are the leaves themselves.
    ({"x": zeros(4), "r": zeros()}, {"x": ROW, "r": 1.0}, {"x": ROW, "r": np.array(1, F4)}),
    ({"x": zeros(4), "r": 0.0}, {"x": ROW[None], "r": 1.0}, {"x": ROW, "r": np.array(1, F4)}),
    ({"x": zeros(1), "r": 0.0}, {"x": ROW[:1], "r": 0.0}, {"x": ROW[:1], "r": np.array(0, F4)}),
    ({"x": zeros(1), "r": 0.0}, {"x": 0.0, "r": 0.0}, {"x": ROW[:1], "r": np.array(0, F4)}),
    ({"x": zeros(1), "r": 0.0}, {"x": ROW[None, :1], "r": 0}, {"x": ROW[:1], "r": zeros()}),
    # Arrays of other libraries, and memory of other forms.
    (zeros(1, 4), torch.arange(4), ROW[None]),
    (zeros(1, 4), torch.arange(4.0, requires_grad=True), ROW[None]),
    (zeros(1, 4), torch.arange(4.0)[None], ROW[None]),
    (zeros(1, 4), jnp.arange(4), ROW[None]),
    (zeros(1, 4), jnp.arange(4.0)[None], ROW[None]),
    (zeros(1, 4), np.arange(8.0, dtype=F4)[::2] / 2, ROW[None]),
    (zeros(1, 4), np.arange(4, dtype=">f4"), ROW[None]),
    (zeros(1, 2, 2), ROW.reshape(2, 2).T, ROW[[0, 2, 1, 3]].reshape(1, 2, 2)),
    (zeros(1, dtype=ml_dtypes.bfloat16), torch.tensor(1.5, dtype=torch.bfloat16), None),
    # Casts.
    (zeros(1, dtype=np.int32), 2.0, np.array([2], np.int32)),
    (zeros(1, dtype=np.uint8), np.int64(255), np.array([255], np.uint8)),
    (zeros(1, dtype=bool), 1, np.array([True])),
    (zeros(1), True, np.array([1], F4)),
    (zeros(1), 1e-3, np.array([1e-3], F4)),
    # Containers.
    ((zeros(1), [zeros(1)]), (1.0, [2.0]), (np.array([1], F4), [np.array([2], F4)])),
    (trees.Pair(zeros(1), 0), trees.Pair(1.0, 2), trees.Pair(np.array([1], F4), np.array(2))),
    ({"a": zeros(1), "n": None}, {"a": 1.0, "n": None}, None),
    ({"b": 0.0, "a": 0}, OrderedDict(a=1, b=2.0), {"b": np.array(2, F4), "a": np.array(1)}),
    ({"b": 0.0, "a": 0}, MappingProxyType({"a": 1, "b": 2.0}), None),
    ({"b": 0.0, "a": {"c": 0}}, {"a": MappingProxyType({"c": 1}), "b": 2.0}, None),
]


@pytest.mark.parametrize("spec, item, stored", ITEMS, ids=trees.label)
def test_items(spec: Any, item: Any, stored: Any) -> None:
    got = one(spec, item)
    if stored is not None:
        assert trees.same(got, stored)
    # The same item in a timescale of three slots, where the example allows it.
    leaves = [x for _, x in trees.walk(spec) if x is not None]
    if all(np.shape(x)[:1] == (1,) for x in leaves):
        many = trees.rebuild(spec, lambda _, x: x if x is None else np.repeat(x, 3, 0))
        acc = TrajectoryAccumulator({"t": many})
        for _ in range(2):
            acc.add("t", item)
        rows = acc.build(partial=True)["t"]
        for (_, a), (_, b) in zip(trees.walk(rows), trees.walk(got)):
            assert a is b is None or (a.tobytes() == b.tobytes() * 2 + bytes(b.nbytes))


def test_a_row_of_a_tensordict() -> None:
    spec = {"a": zeros(2, 3), "b": {"c": zeros(2, dtype=bool)}}
    acc = TrajectoryAccumulator({"t": spec, "u": {"d": spec}})
    item = TensorDict({"a": torch.ones(1, 3), "b": {"c": torch.tensor([True])}}, [1])
    acc.add("t", item)
    acc.add("t", item[0])
    acc.add("u", {"d": item})
    built = acc.build(partial=True)
    assert trees.same(built["t"], {"a": np.ones((2, 3), F4), "b": {"c": np.array([True] * 2)}})
    assert built["u"]["d"]["b"]["c"].tolist() == [True, False]


def test_bfloat16_keeps_its_bits() -> None:
    got = one(zeros(1, dtype=ml_dtypes.bfloat16), torch.tensor(1.5, dtype=torch.bfloat16))
    assert got.dtype == ml_dtypes.bfloat16
    assert float(got[0]) == 1.5


# -- filling, building, resetting -----------------------------------------------------------------


def three_rates() -> TrajectoryAccumulator:
    return TrajectoryAccumulator(
        {
            "step": {"obs": zeros(4, 2), "t": zeros(4, dtype=np.int64)},
            "chunk": zeros(2, 3, dtype=np.int16),
            "episode": {"return": zeros()},
        }
    )


def fill(acc: TrajectoryAccumulator, start: int) -> None:
    """Values that tell rollout and slot."""
    for t in range(4):
        acc.add("step", {"obs": np.full(2, start + t), "t": start + t})
        if t % 2:
            acc.add("chunk", np.array([start, t, 0], np.int16))
    acc.add("episode", {"return": float(start)})


def check(built: Built, start: int) -> None:
    assert built["step"]["t"].tolist() == [start, start + 1, start + 2, start + 3]
    assert built["step"]["obs"].tolist() == [[start + t] * 2 for t in range(4)]
    assert built["chunk"].tolist() == [[start, 1, 0], [start, 3, 0]]
    assert built["episode"]["return"].shape == ()
    assert built["episode"]["return"] == start


def test_timescales_fill_on_their_own() -> None:
    acc = three_rates()
    acc.add("episode", {"return": 1.0})
    assert acc.counts() == {"step": 0, "chunk": 0, "episode": 1}
    assert acc.is_full("episode")
    assert not acc.is_full("step")
    assert not acc.is_full()
    acc.add("step", {"obs": np.zeros(2), "t": 0})
    assert acc.counts() == {"step": 1, "chunk": 0, "episode": 1}
    assert repr(acc) == "TrajectoryAccumulator('step' 1 of 4, 'chunk' 0 of 2, 'episode' 1 of 1)"
    acc.reset()
    assert acc.counts() == {"step": 0, "chunk": 0, "episode": 0}
    fill(acc, 10)
    assert acc.is_full()
    check(acc.build(), 10)


def test_every_build_is_the_same_object_in_the_same_memory() -> None:
    acc = three_rates()
    fill(acc, 100)
    first = acc.build()
    check(first, 100)
    where = [a.ctypes.data for _, a in trees.walk(first)]
    assert acc.counts() == {"step": 0, "chunk": 0, "episode": 0}
    fill(acc, 200)
    again = acc.build()
    assert again is first
    assert [a.ctypes.data for _, a in trees.walk(again)] == where
    check(first, 200)
    assert acc.build(partial=True) is first


def test_leaves_and_record_share_memory() -> None:
    acc = three_rates()
    fill(acc, 7)
    built = acc.build()
    assert isinstance(built, Built)
    assert built.record.ctypes.data % 64 == 0
    for leaf in built.layout.leaves:
        view = built[leaf.path[0]] if len(leaf.path) == 1 else built[leaf.path[0]][leaf.path[1]]
        assert view.ctypes.data == built.record.ctypes.data + leaf.offset
        assert (view.shape, view.dtype) == (leaf.shape, leaf.dtype)
    built["step"]["t"][2] = 55  # in place is part of the record
    assert built.layout.unpack(built.record)["step"]["t"][2] == 55


def test_the_record_is_the_packed_tree() -> None:
    acc = three_rates()
    fill(acc, 7)
    built = acc.build()
    plain = trees.rebuild(dict(built), lambda _, a: a.copy())
    assert built.record.tobytes() == Layout(plain).pack(plain).tobytes()
    assert built.record.tobytes() == built.layout.pack(built).tobytes()


def test_the_views_outlive_the_accumulator() -> None:
    acc = three_rates()
    fill(acc, 7)
    view = acc.build()["step"]["t"]
    del acc
    TrajectoryAccumulator({"t": np.ones((4, 64))})  # would get the block, had it gone back
    assert view.tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_of_what_was_built_is_a_record_of_its_own(duplicate: Any) -> None:
    acc = three_rates()
    fill(acc, 1)
    kept = duplicate(acc.build())
    fill(acc, 2)
    check(acc.build(), 2)
    check(kept, 1)
    assert isinstance(kept, Built)
    assert kept.layout == acc.layout
    assert np.shares_memory(kept["step"]["obs"], kept.record)


def test_add_copies() -> None:
    acc = TrajectoryAccumulator({"t": zeros(2, 4)})
    buffer = ROW.copy()
    for _ in range(2):
        acc.add("t", buffer)
        buffer += 10
    assert acc.build()["t"][:, 0].tolist() == [0, 10]


def test_rows_of_the_accumulator_itself_can_be_added() -> None:
    acc = TrajectoryAccumulator({"t": zeros(2, 4)})
    acc.add("t", ROW)
    acc.add("t", ROW + 10)
    built = acc.build()
    acc.add("t", built["t"][1])
    acc.add("t", built["t"][0])
    assert acc.build()["t"][:, 0].tolist() == [10, 10]


def test_a_partial_build_has_nothing_of_the_rollout_before() -> None:
    acc = three_rates()
    fill(acc, 100)
    acc.build()
    acc.add("step", {"obs": np.ones(2), "t": 1})
    built = acc.build(partial=True)
    assert built["step"]["t"].tolist() == [1, 0, 0, 0]
    assert built["step"]["obs"].tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
    assert not built["chunk"].any()
    assert built["episode"]["return"] == 0
    assert acc.counts() == {"step": 0, "chunk": 0, "episode": 0}
    assert not acc.build(partial=True).record.any()


def test_a_partial_build_of_a_full_accumulator_is_a_build() -> None:
    acc = three_rates()
    fill(acc, 100)
    check(acc.build(partial=True), 100)


def test_after_reset_the_old_rows_are_overwritten() -> None:
    acc = three_rates()
    acc.add("step", {"obs": np.ones(2), "t": 99})
    acc.reset()
    fill(acc, 5)
    check(acc.build(), 5)


def test_integer_names() -> None:
    acc = TrajectoryAccumulator({0: zeros(1), 1: zeros(2)})
    acc.add(1, 5.0)
    assert acc.counts() == {0: 0, 1: 1}
    assert acc.build(partial=True)[1].tolist() == [5, 0]
