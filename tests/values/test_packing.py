"""Layout.pack and unpack: trees to records and back, and what is refused with the leaf's path."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contig import Layout, LayoutError
from tests.reference import records, trees

batches = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(trees.trees, batches)
def test_what_is_packed_comes_back(specs: Any, batch: tuple[int, ...]) -> None:
    layout, tree = Layout(specs), trees.fill(specs, batch)
    packed = layout.pack(tree)
    assert packed.shape == (*batch, layout.record_size)
    assert packed.dtype == np.uint8
    assert trees.same(layout.unpack(packed), tree)


@given(trees.trees, st.integers(1, 4))
def test_packed_bytes_are_the_references(specs: Any, n: int) -> None:
    layout, tree = Layout(specs), trees.fill(specs, (n,))
    places, size = records.layout([(s.shape, s.dtype) for _, s in trees.walk(specs)])
    want = np.zeros((n, size), np.uint8)
    columns = [np.frombuffer(a.tobytes(), np.uint8) for _, a in trees.walk(tree)]
    records.join(columns, places, n, want)
    assert layout.pack(tree).tobytes() == want.tobytes()
    # One row alone is packed by other code into the same bytes, also between the leaves.
    np.full(size, 0xFF, np.uint8)  # what a record of uninitialised memory would show
    one = layout.pack(trees.rebuild(tree, lambda _, a: a[n - 1]))
    assert one.tobytes() == want[n - 1].tobytes()


@given(trees.trees, st.integers(1, 4), st.data())
def test_unpack_views_the_records(specs: Any, n: int, data: Any) -> None:
    layout, tree = Layout(specs), trees.fill(specs, (n,))
    packed = layout.pack(tree)
    pick = data.draw(st.sampled_from([slice(None), slice(None, None, 2), slice(None, None, -1)]))
    view = layout.unpack(packed[pick])
    assert trees.same(view, trees.rebuild(tree, lambda _, a: a[pick]))
    packed[...] = 0
    for _, leaf in trees.walk(view):
        assert not leaf.any()


def test_unpack_of_memory_that_is_not_ours() -> None:
    layout = Layout({"a": np.float32(0), "b": 0})
    rows = layout.pack({"a": np.arange(3, dtype=np.float32), "b": np.arange(3) * 10})
    want = {"a": [0, 1, 2], "b": [0, 10, 20]}
    sources = {
        "bytes": np.frombuffer(rows.tobytes(), np.uint8).reshape(rows.shape),
        "floats": rows.reshape(-1).view(np.float64).view(np.uint8).reshape(rows.shape),
        "inside": np.concatenate([np.zeros((1, 16), np.uint8), rows])[1:],
        "fortran": np.asfortranarray(rows),
        "wider": np.pad(rows, ((0, 0), (3, 5)))[:, 3:-5],
    }
    for name, source in sources.items():
        got = layout.unpack(source)
        assert {k: v.tolist() for k, v in got.items()} == want, name
    assert not layout.unpack(sources["bytes"])["a"].flags.writeable


@pytest.mark.parametrize(
    "rows", [np.zeros(15, np.uint8), np.zeros(16, np.int8), np.zeros((16, 2), np.uint8)]
)
def test_unpack_of_what_are_no_records(rows: Any) -> None:
    with pytest.raises(LayoutError, match=r"expected uint8 \[\.\.\., 16\]"):
        Layout({"a": np.float32(0), "b": 0}).unpack(rows)


def test_all_kinds_of_arrays_are_packed() -> None:
    layout = Layout({"x": np.zeros((2, 3), np.float32), "y": np.zeros((), np.int64)})
    want = np.arange(6, dtype=np.float32).reshape(2, 3)
    for x in (
        want,
        want[::-1][::-1],
        np.asfortranarray(want),
        want.astype(">f4"),
        want.astype(np.float64),
        want.astype(np.int32),
        want.astype(np.float16),
        want.astype(ml_dtypes.bfloat16),
        torch.from_numpy(want),
        torch.from_numpy(want).double().requires_grad_(),
        torch.from_numpy(want).bfloat16(),
        torch.nn.Parameter(torch.from_numpy(want)),
        torch.from_numpy(want.T.copy()).T,
        jnp.asarray(want),
        jnp.asarray(want, jnp.bfloat16),
    ):
        for y in (7, np.int64(7), np.int8(7), 7.0, torch.tensor(7), jnp.asarray(7)):
            row = layout.unpack(layout.pack({"x": x, "y": y}))
            assert row["x"].tolist() == want.tolist(), x
            assert row["y"] == 7, y


@pytest.mark.parametrize("source", ["numpy", "torch", "jax"])
def test_bfloat16_keeps_its_bits(source: str) -> None:
    bits = np.array([0x3F80, 0x7F7F, 0xFF80, 0x0001, 0x7FC0], np.uint16)
    x: Any = bits.view(ml_dtypes.bfloat16)
    if source == "torch":
        x = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    if source == "jax":
        x = jnp.asarray(x)
    layout = Layout({"x": x})
    assert layout.unpack(layout.pack({"x": x}))["x"].view(np.uint16).tolist() == bits.tolist()


def test_trees_with_none() -> None:
    tree = {"a": np.arange(3.0), "b": None, "c": (None, np.int64(4))}
    layout = Layout(tree)
    assert [x.path for x in layout.leaves] == [("a",), ("c", 1)]
    assert trees.same(layout.unpack(layout.pack(tree))["a"], tree["a"])
    many = {"a": np.ones((2, 3)), "b": None, "c": (None, np.arange(2))}
    again = layout.unpack(layout.pack(many))
    assert again["b"] is None
    assert again["c"][0] is None
    assert again["c"][1].tolist() == [0, 1]


# -- what is refused ------------------------------------------------------------------------------

ROW = {"obs": np.zeros((2, 3), np.float32), "next": {"reward": 0.0, "id": 0}, "t": (1.0, True)}


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (row(obs=np.zeros((2, 4))), ['"obs"', "shape [2, 4]", "[2, 3]", "nothing is broadcast"]),
        (row(obs=np.zeros((1, 3))), ['"obs"', "shape [1, 3]", "nothing is broadcast"]),
        (row(obs=np.zeros((3, 2))), ['"obs"', "shape [3, 2]", "nothing is broadcast"]),
        (row(obs=np.zeros(3)), ['"obs"', "shape [3]", "nothing is broadcast"]),
        (row(obs=1.0), ['"obs"', "shape []", "nothing is broadcast"]),
        (row(next={"reward": np.zeros(1), "id": 0}), ["reward", "nothing is broadcast"]),
        (row(next={"reward": np.zeros(2), "id": 0}), ["reward", "nothing is broadcast"]),
        (row(next={"reward": 0.0, "id": 1.5}), ['("next", "id")', "1.5", "int64"]),
        (row(next={"reward": 0.0, "id": 2**64}), ['("next", "id")', "int64"]),
        (row(next={"reward": "high", "id": 0}), ['("next", "reward")', "float32"]),
        (row(next={"reward": object(), "id": 0}), ['("next", "reward")', "float32"]),
        (row(next={"reward": b"high", "id": 0}), ['("next", "reward")', "float32"]),
        (row(next={"reward": 1j, "id": 0}), ['("next", "reward")', "complex"]),
        (row(next={"reward": 0.0}), ["missing", '("next", "id")', '"obs"']),
        (row(next={"reward": 0.0, "id": 0, "x": 1}), ["unexpected", '("next", "x")']),
        (row(next={"reward": None, "id": 0}), ['("next", "reward"): None', "float32"]),
        (row(next=0.0), ["missing", '("next", "reward")', "unexpected", '"next"']),
        (row(obs=[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]), ['"obs": a list', "np.asarray"]),
        (row(obs=np.array([[1, 2, 3], [4]], object)), ['"obs"', "shape [2]"]),
        (row(t=(1.0,)), ["missing", '("t", 1)']),
        (row(t=(1.0, True, 2.0)), ["unexpected", '("t", 2)']),
        (row(t={0: 1.0, 1: True}), ["containers"]),
        (list(ROW.values()), ["missing", '"obs"', "unexpected"]),
        (None, ["missing", '"obs"']),
        (np.zeros(3), ["missing", '"obs"']),
    ],
    ids=trees.label,
)
def test_errors_name_the_path(tree: Any, says: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        Layout(ROW).pack(tree)
    for words in says:
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"t": (np.ones(4), np.ones(3, bool))}, ['("t", 1)', "[3] rows", "has [4]"]),
        ({"obs": np.zeros((5, 2, 3))}, ['"obs"', "[5] rows", "[4]"]),
        ({"obs": np.zeros((1, 2, 3))}, ['"obs"', "[1] rows", "[4]"]),
        ({"obs": np.zeros((2, 3))}, ['"obs"', "shape [2, 3]", "[n, 2, 3]"]),
        ({"t": (1.0, np.ones(4, bool))}, ['("t", 0)', "shape []", "[n]"]),
        ({"t": (np.ones(4), np.full(4, 2))}, ['("t", 1)', "value 2", "only 0 and 1"]),
    ],
    ids=trees.label,
)
def test_errors_in_many_rows_name_the_path(changes: Any, says: list[str]) -> None:
    many = {
        "obs": np.zeros((4, 2, 3), np.float32),
        "next": {"reward": np.zeros(4), "id": np.zeros(4, int)},
        "t": (np.ones(4), np.ones(4, bool)),
    }
    layout = Layout(ROW)
    assert layout.pack(many).shape == (4, layout.record_size)
    with pytest.raises(ValueError) as error:
        layout.pack({**many, **changes})
    for words in says:
        assert words in str(error.value)


def test_a_namedtuple_with_its_fields_in_another_order_is_no_mix_up() -> None:
    a = namedtuple("a", "x y")
    b = namedtuple("b", "y x")
    layout = Layout(a(x=1.0, y=2.0))
    with pytest.raises(LayoutError, match="containers"):
        layout.pack(b(x=1.0, y=2.0))


@pytest.mark.parametrize(
    "given_as", [[1.0, 2.0], trees.Pair(1.0, 2.0), {0: 1.0, 1: 2.0}], ids=trees.label
)
def test_one_row_and_many_rows_in_other_containers_are_refused(given_as: Any) -> None:
    layout = Layout({"t": (0.0, 0.0)})
    for tree in (given_as, trees.rebuild(given_as, lambda _, x: np.full(3, x))):
        with pytest.raises(LayoutError):
            layout.pack({"t": tree})


@pytest.mark.parametrize("value", [b"abc", bytearray(b"abc"), memoryview(b"abc")], ids=trees.label)
def test_bytes_are_refused_both_ways(value: Any) -> None:
    layout = Layout({"x": np.zeros(3, np.uint8), "y": 0.0})
    for y in (0.0, np.int32(0)):  # an int in place of a float makes the slower path take the row
        with pytest.raises(ValueError, match='"x": expected an array'):
            layout.pack({"x": value, "y": y})
