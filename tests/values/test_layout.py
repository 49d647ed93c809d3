"""Layout: what a record is, from any example of it."""

from __future__ import annotations

import copy
import json
import pickle
from collections import OrderedDict, namedtuple
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contig import Layout, LayoutError, ShapeDtype
from contig.tree import show_path
from tests.reference import records, trees


def described(layout: Layout) -> dict[Any, tuple[Any, ...]]:
    return {x.path: (x.shape, x.dtype.name) for x in layout.leaves}


# -- from what ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "shape", "dtype"),
    [
        (1.5, (), "float32"),
        (7, (), "int64"),
        (True, (), "bool"),
        (1j, (), "complex64"),
        (np.float64(1), (), "float64"),
        (np.bool_(True), (), "bool"),
        (np.zeros((2, 3), np.float16), (2, 3), "float16"),
        (np.zeros((2, 0), np.uint8), (2, 0), "uint8"),
        (np.zeros(3, ">i4"), (3,), "int32"),
        (np.zeros((4, 6), np.int16)[::2, ::3], (2, 2), "int16"),
        (np.zeros(2, ml_dtypes.bfloat16), (2,), "bfloat16"),
        (torch.zeros(2, 3), (2, 3), "float32"),
        (torch.zeros(2, dtype=torch.float64, requires_grad=True), (2,), "float64"),
        (torch.zeros(3, dtype=torch.bfloat16), (3,), "bfloat16"),
        (torch.zeros(3, dtype=torch.bool), (3,), "bool"),
        (torch.zeros(3, dtype=torch.uint8), (3,), "uint8"),
        (torch.zeros(3, device="meta", dtype=torch.int16), (3,), "int16"),
        (jnp.zeros((2, 2)), (2, 2), "float32"),
        (jnp.zeros((), jnp.bfloat16), (), "bfloat16"),
        (ShapeDtype((84, 84), np.uint8), (84, 84), "uint8"),
        (ShapeDtype((), "float64"), (), "float64"),
        (ShapeDtype((2,), torch.bfloat16), (2,), "bfloat16"),
        (ShapeDtype((2,), torch.int32), (2,), "int32"),
        (ShapeDtype((2,), jnp.float16), (2,), "float16"),
        (ShapeDtype((2,), np.dtype(">f8")), (2,), "float64"),
    ],
    ids=trees.label,
)
def test_an_example_may_be(example: Any, shape: tuple[int, ...], dtype: str) -> None:
    for tree, path in (({"x": example}, ("x",)), ((example,), (0,)), (example, ())):
        assert described(Layout(tree)) == {path: (shape, dtype)}


def test_specs_of_jax() -> None:
    jax = pytest.importorskip("jax")
    layout = Layout({"x": jax.ShapeDtypeStruct((2, 3), jnp.int32)})
    assert described(layout) == {("x",): ((2, 3), "int32")}


def test_containers() -> None:
    tree = {
        "pair": trees.Pair(second=1.0, first={"deep": [2, (True,)]}),
        "spec": trees.Pair(ShapeDtype((2,), "u1"), [ShapeDtype((), "i2")]),
        "ordered": OrderedDict(b=1.0, a=2.0),
        "proxy": MappingProxyType({"k": 1}),
        3: 1.0,
    }
    assert described(Layout(tree)) == {
        (3,): ((), "float32"),
        ("ordered", "a"): ((), "float32"),
        ("ordered", "b"): ((), "float32"),
        ("pair", "second"): ((), "float32"),
        ("pair", "first", "deep", 0): ((), "int64"),
        ("pair", "first", "deep", 1, 0): ((), "bool"),
        ("proxy", "k"): ((), "int64"),
        ("spec", "second"): ((2,), "uint8"),
        ("spec", "first", 0): ((), "int16"),
    }


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (np.array(["a", "bc"]), ["<U2", "token ids"]),
        (np.array([b"a"]), ["S1", "token ids"]),
        (np.array([[1, 2], [3]], dtype=object), ["object", "ragged", "pad it"]),
        (np.zeros(2, [("x", "f4")]), ["no fixed-size"]),
        (object(), ["object", "expected an array"]),
        ({1, 2}, ["set"]),
    ],
    ids=trees.label,
)
def test_leaves_that_records_cannot_hold(leaf: Any, says: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        Layout({"obs": 1.0, "next": {"bad": leaf}})
    for words in ['("next", "bad")', *says]:
        assert words in str(error.value)


@pytest.mark.parametrize("tree", [{}, [], (), None, {"a": {}, "b": [None]}])
def test_an_example_without_leaves_is_refused(tree: Any) -> None:
    with pytest.raises(LayoutError, match="no leaves"):
        Layout(tree)


def test_keys_that_are_neither_str_nor_int_are_refused() -> None:
    with pytest.raises(ValueError, match='"a": mapping keys must be str or int, got float 1.5'):
        Layout({"a": {1.5: 1.0}})


# -- places ---------------------------------------------------------------------------------------


@given(trees.trees)
def test_offsets_are_canonical(specs: Any) -> None:
    layout = Layout(specs)
    leaves = trees.walk(specs)
    assert [x.path for x in layout.leaves] == [path for path, _ in leaves]
    places, size = records.layout([(s.shape, s.dtype) for _, s in leaves])
    assert [(x.offset, x.nbytes) for x in layout.leaves] == places
    assert layout.record_size == size
    assert layout.table.tolist() == [n for place in places for n in place]
    for leaf in (x for x in layout.leaves if x.nbytes):  # each can be viewed in place, in any row
        assert leaf.offset % leaf.dtype.alignment == 0
        assert layout.record_size % leaf.dtype.alignment == 0


def test_offsets_of_a_known_record() -> None:
    layout = Layout({"flag": True, "obs": np.zeros(3, np.float32), "id": 1, "a": np.float16(0)})
    assert [(x.path[0], x.offset) for x in layout.leaves] == [
        ("a", 0),
        ("flag", 2),
        ("id", 8),
        ("obs", 16),
    ]
    assert layout.record_size == 32
    assert repr(layout) == (
        'Layout(32 B; "a": float16[], "flag": bool[], "id": int64[], "obs": float32[3])'
    )


# -- sameness -------------------------------------------------------------------------------------


@given(trees.trees, st.randoms(use_true_random=False))
def test_the_fingerprint_ignores_the_order_of_mappings(specs: Any, random: Any) -> None:
    def shuffled(node: Any) -> Any:
        if isinstance(node, dict):
            items = list(node.items())
            random.shuffle(items)
            return {k: shuffled(v) for k, v in items}
        if isinstance(node, list):
            return [shuffled(v) for v in node]
        return node

    a, b = Layout(specs), Layout(shuffled(specs))
    assert a.fingerprint == b.fingerprint
    assert a == b
    assert hash(a) == hash(b)
    assert a.diff(b) == ""


BASE = {"obs": np.zeros((2, 3), np.float32), "next": {"done": True}}


@pytest.mark.parametrize(
    "other",
    [
        {"obs": np.zeros((3, 2), np.float32), "next": {"done": True}},
        {"obs": np.zeros(6, np.float32), "next": {"done": True}},
        {"obs": np.zeros((2, 3), np.int32), "next": {"done": True}},
        {"obs": np.zeros((2, 3), np.float32), "next": {"done": np.uint8(1)}},
        {"obs2": np.zeros((2, 3), np.float32), "next": {"done": True}},
        {"obs": np.zeros((2, 3), np.float32), "done": True},
        {"obs": np.zeros((2, 3), np.float32), "next": {"done": True, "x": 1}},
        {"obs": np.zeros((2, 3), np.float32)},
    ],
    ids=trees.label,
)
def test_the_fingerprint_changes_with_path_shape_and_dtype(other: Any) -> None:
    a, b = Layout(BASE), Layout(other)
    assert a.fingerprint != b.fingerprint
    assert a != b
    assert a.diff(b) != ""


def test_the_fingerprint_is_the_same_in_every_process_and_version() -> None:
    # It is stored and sent: a change of it is a change of format.
    assert Layout(BASE).fingerprint == "9037efb3c1c6da5822b121d73b94fd26"


def test_a_layout_is_no_other_thing() -> None:
    assert Layout({"x": 1.0}) != "Layout"
    assert Layout({0: 1.0}) != Layout({"0": 1.0})


# -- JSON and pickle ------------------------------------------------------------------------------


def same_layout(a: Layout, b: Layout) -> bool:
    return a == b and a.leaves == b.leaves and a.record_size == b.record_size


@given(trees.trees)
def test_json_and_pickle_keep_everything(specs: Any) -> None:
    layout = Layout(specs)
    text = json.dumps(layout.to_json())
    copies = [
        Layout.from_json(json.loads(text)),
        pickle.loads(pickle.dumps(layout)),
        copy.deepcopy(layout),
    ]
    tree = trees.fill(specs)
    for again in copies:
        assert same_layout(again, layout)
        assert again.structure == layout.structure
        assert trees.same(again.unpack(layout.pack(tree)), tree)


def test_json_keeps_dtypes_that_numpy_does_not_know() -> None:
    layout = Layout({"x": np.zeros(3, ml_dtypes.bfloat16), "y": np.zeros(2, ml_dtypes.float8_e5m2)})
    assert same_layout(Layout.from_json(json.loads(json.dumps(layout.to_json()))), layout)


def test_a_namedtuple_that_is_not_loaded_comes_back_by_its_fields() -> None:
    layout = Layout({"p": trees.Pair(1.0, 2)})
    text = json.dumps(layout.to_json()).replace("tests.reference.trees", "gone.module")
    again = Layout.from_json(json.loads(text))
    point = again.unpack(layout.pack({"p": trees.Pair(1.5, 4)}))["p"]
    assert type(point) is not trees.Pair
    assert (point._fields, float(point.second), int(point.first)) == (("second", "first"), 1.5, 4)


def test_a_namedtuple_of_a_function_comes_back_by_its_fields() -> None:
    local = namedtuple("local", "y x")
    layout = Layout(local(1.0, 2))
    point = layout.unpack(layout.pack(local(1.5, 4)))
    assert point._fields == ("y", "x")
    assert (float(point.y), int(point.x)) == (1.5, 4)


# -- differences ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "lines"),
    [
        (
            {"obs": np.zeros(4, np.float32), "next": {"done": True}},
            ['"obs": shape [4], expected [2, 3]'],
        ),
        (
            {"obs": np.zeros((2, 3)), "next": {"done": True}},
            ['"obs": dtype float64, expected float32'],
        ),
        (
            {"obs": np.zeros((2, 3), np.float32), "done": True},
            [
                '("next", "done"): missing, expected bool[] (there is "done": renamed or nested?)',
                '"done": not expected (bool[]); leave it out',
            ],
        ),
        (
            {"next": {"done": True}},
            ['"obs": missing, expected float32[2, 3]'],
        ),
        (
            {**BASE, "extra": 1},
            ['"extra": not expected (int64[]); leave it out'],
        ),
    ],
    ids=trees.label,
)
def test_diff_names_the_leaf_and_what_to_do(theirs: Any, lines: list[str]) -> None:
    assert sorted(Layout(BASE).diff(Layout(theirs)).splitlines()) == sorted(lines)


_leaf = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype),
    st.sampled_from(["bool", "int64", "float32"]),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
)
_trees = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=2),
        st.tuples(inner, inner),
    ),
    max_leaves=5,
)


@given(_trees, _trees)
def test_any_two_layouts_have_a_readable_difference(one: Any, two: Any) -> None:
    """A bare array, too, whose path is empty."""
    a, b = Layout(one), Layout(two)
    for x, y in ((a, b), (b, a)):
        text = x.diff(y)
        assert (text == "") == ({leaf.path: leaf.describe() for leaf in x.leaves}
                                == {leaf.path: leaf.describe() for leaf in y.leaves})  # fmt: skip
        for leaf in x.leaves:
            if leaf.path not in y.by_path:
                assert f"{show_path(leaf.path)}: missing" in text


@pytest.mark.parametrize("name", ["(,)f4", "f4,,f4", ",f4", "(2,3)f4", "f4,f4", "(1)f4", " f4", ""])
def test_dtypes_that_are_no_names(name: str) -> None:
    """numpy fails at some of them by a SyntaxError of its own."""
    told = Layout({"x": np.float32(0)}).to_json()
    told["leaves"][0]["dtype"] = name
    with pytest.raises(LayoutError):
        Layout.from_json(told)


@pytest.mark.parametrize("shape", [(-4,), (3, -1), (10**20,), (1 << 24, 1 << 24)])
def test_sizes_that_no_row_has(shape: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match='"x": '):
        Layout({"x": ShapeDtype(shape, "float32"), "y": 1.0})
