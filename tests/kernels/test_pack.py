"""Plan.pack: one tree into one record, or False for what the slower path must look at."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import _native
from contig.layout import Layout
from contig.tape.boundaries import complete_flags
from contig.tape.schema import Schema
from tests.reference import flags, records, trees

Array = np.ndarray[Any, Any]
F32_MAX = float(np.finfo(np.float32).max)


def pack(layout: Layout, tree: Any, fill: int = 0xAA) -> Array | None:
    """The record, with `fill` where nothing was written; None if the plan says no."""
    record = np.full(layout.record_size, fill, np.uint8)
    return record if layout.plan.pack(tree, record) else None


def expected(tree: Any, fill: int = 0xAA) -> Array:
    arrays = [np.asarray(leaf) for _, leaf in trees.walk(tree)]
    leaves, size = records.layout([(a.shape, a.dtype) for a in arrays])
    out = np.full((1, size), fill, np.uint8)
    records.join([np.frombuffer(a.tobytes(), np.uint8) for a in arrays], leaves, 1, out)
    return out[0]


@given(trees.trees)
def test_packs_what_the_reference_packs(specs: Any) -> None:
    tree = trees.fill(specs)
    record = pack(Layout(tree), tree)
    assert record is not None
    assert record.tobytes() == expected(tree).tobytes()


@given(trees.trees, st.randoms(use_true_random=False))
def test_the_order_of_a_mapping_does_not_matter(specs: Any, random: Any) -> None:
    tree = trees.fill(specs)

    def shuffled(node: Any) -> Any:
        if isinstance(node, dict):
            items = list(node.items())
            random.shuffle(items)
            return {k: shuffled(v) for k, v in items}
        return node

    record = pack(Layout(tree), shuffled(tree))
    assert record is not None
    assert record.tobytes() == expected(tree).tobytes()


@given(
    st.sampled_from(["f4", "f8"]),
    st.floats(allow_nan=False, width=32),
)
def test_a_python_float_is_a_float_leaf(dtype: str, value: float) -> None:
    layout = Layout({"x": trees.Spec((), dtype)})
    record = pack(layout, {"x": value})
    assert record is not None
    assert record.view(dtype)[0] == value


@given(st.integers(-(2**70), 2**70))
def test_a_python_int_is_an_int64_leaf_if_it_fits(value: int) -> None:
    record = pack(Layout({"x": 0}), {"x": value})
    if -(2**63) <= value < 2**63:
        assert record is not None
        assert record.view(np.int64)[0] == value
    else:
        assert record is None


@pytest.mark.parametrize("value", [True, False])
def test_a_python_bool_is_a_bool_leaf(value: bool) -> None:
    record = pack(Layout({"x": True}), {"x": value})
    assert record is not None
    assert record.tolist() == [int(value)]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i4", 1.0),
        ("i8", 1.0),
        ("f4", 1),
        ("f4", True),
        ("?", 1),
        ("?", 1.0),
        ("u1", 1),
        ("f2", 1.0),
    ],
)
def test_other_python_scalars_are_left_to_the_slower_path(dtype: str, value: Any) -> None:
    assert pack(Layout({"x": trees.Spec((), dtype)}), {"x": value}) is None


@given(st.lists(st.floats(allow_subnormal=True), min_size=1, max_size=8))
def test_float64_narrows_to_float32_unless_it_overflows(xs: list[float]) -> None:
    wide = np.array(xs, np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    overflows = bool(np.any(np.isfinite(wide) & ~np.isfinite(narrow)))
    record = pack(Layout({"x": trees.Spec(wide.shape, "f4")}), {"x": wide})
    assert (record is None) == overflows
    if record is not None:
        assert np.array_equal(record.view(np.float32), narrow, equal_nan=True)


@pytest.mark.parametrize("value", [F32_MAX, -F32_MAX, np.inf, -np.inf, np.nan])
def test_the_largest_and_non_finite_values_pass(value: float) -> None:
    record = pack(Layout({"x": 0.0}), {"x": value})
    assert record is not None
    assert np.array_equal(record.view(np.float32)[0], np.float32(value), equal_nan=True)


@pytest.mark.parametrize("value", [F32_MAX * 2, -1e300, np.float64(1e39)])
def test_a_scalar_that_overflows_is_refused(value: float) -> None:
    assert pack(Layout({"x": 0.0}), {"x": value}) is None


@given(st.data(), st.sampled_from(trees.DTYPES))
def test_a_strided_array_is_packed_right_or_not_at_all(data: Any, dtype: str) -> None:
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    big = trees.values(trees.Spec((8, 8), dtype), 3)
    views = {
        "step": big[::2, ::2][: shape[0], : shape[1]],
        "reversed": big[: shape[0], : shape[1]][::-1, ::-1],
        "transposed": big[: shape[1], : shape[0]].T,
        "broadcast": np.broadcast_to(big[:1, : shape[1]], shape),
    }
    view = views[data.draw(st.sampled_from(sorted(views)))]
    layout = Layout({"x": trees.Spec(shape, dtype)})
    record = pack(layout, {"x": view})
    if record is not None or view.flags.c_contiguous:
        assert record is not None
        assert record.tobytes() == np.ascontiguousarray(view).tobytes()


_ROW = {"a": np.arange(3, dtype=np.float32), "t": (np.int64(4), [np.bool_(True)])}


@pytest.mark.parametrize(
    "tree",
    [
        {**_ROW, "a": np.arange(4, dtype=np.float32)},
        {**_ROW, "a": np.zeros((1, 3), np.float32)},
        {**_ROW, "a": np.zeros((3, 1), np.float32)},
        {**_ROW, "a": np.float32(1)},
        {**_ROW, "a": 1.0},
        {**_ROW, "a": np.zeros(3, np.int32)},
        {**_ROW, "a": np.zeros(3, np.float16)},
        {**_ROW, "a": np.zeros(3, ">f4")},
        {**_ROW, "a": np.zeros(3, object)},
        {**_ROW, "a": np.array(["x", "y", "z"])},
        {**_ROW, "a": np.zeros(3, "M8[s]")},
        {**_ROW, "a": "abc"},
        {**_ROW, "a": b"0123456789ab"},
        {**_ROW, "a": None},
        {**_ROW, "a": object()},
        {**_ROW, "a": [0.0, 1.0, 2.0]},
        {**_ROW, "t": (np.int64(4),)},
        {**_ROW, "t": (np.int64(4), [np.bool_(True)], 1)},
        {**_ROW, "t": {0: np.int64(4), 1: [np.bool_(True)]}},
        {**_ROW, "t": (np.int64(4), [np.uint8(1)])},
        {**_ROW, "t": (np.uint64(4), [np.bool_(True)])},
        {**_ROW, "t": np.int64(4)},
        {"a": _ROW["a"]},
        {**_ROW, "surplus": 1.0},
        {"b": _ROW["a"], "t": _ROW["t"]},
        [_ROW["a"], _ROW["t"]],
        _ROW["a"],
        None,
    ],
    ids=trees.label,
)
def test_what_does_not_fit_is_refused(tree: Any) -> None:
    layout = Layout(_ROW)
    assert pack(layout, _ROW) is not None
    assert pack(layout, tree) is None


def test_a_record_may_be_larger_but_not_smaller() -> None:
    layout = Layout({"x": np.zeros(4, np.float32)})
    tree = {"x": np.arange(4, dtype=np.float32)}
    larger = np.full(20, 7, np.uint8)
    assert layout.plan.pack(tree, larger)
    assert larger[:16].view(np.float32).tolist() == [0, 1, 2, 3]
    assert larger[16:].tolist() == [7] * 4
    with pytest.raises(ValueError, match="too small"):
        layout.plan.pack(tree, np.zeros(15, np.uint8))


# -- flags ----------------------------------------------------------------------------------------


def flag(name: str, value: bool, dtype: str, shape: tuple[int, ...]) -> Array:
    return np.full(shape, value, dtype)


GIVEN = [c for k in (1, 2, 3) for c in itertools.combinations(flags.NAMES, k)]


@pytest.mark.parametrize("names", GIVEN, ids="+".join)
@pytest.mark.parametrize("parent", ["next", None])
@given(
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from(["?", "u1", "i8", "f4", "f8"]),
    st.sampled_from([(), (1,)]),
)
def test_missing_flags_are_completed(
    parent: str | None, names: tuple[str, ...], bits: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    told = dict(zip(names, bits))
    inner = {n: np.full(shape, v, dtype) for n, v in told.items()}
    tree = {"obs": np.float32(3), **(inner if parent is None else {parent: inner})}
    layout = complete_flags(Layout(tree))
    schema = Schema(layout, None, None)
    prefix = () if parent is None else (parent,)
    missing = frozenset((*prefix, n) for n in flags.NAMES if n not in told)
    record = np.zeros(layout.record_size, np.uint8)
    want = flags.complete(told)
    assert schema.plan(missing).pack(tree, record) == (want is not None)
    if want is not None:
        row = layout.unpack(record)
        got = row if parent is None else row[parent]
        assert {n: got[n].astype(bool).all() for n in flags.NAMES} == want
        assert {got[n].dtype for n in flags.NAMES} == {np.dtype(dtype)}
        assert row["obs"] == 3


@pytest.mark.parametrize("names", [c for c in GIVEN if len(c) == 2], ids="+".join)
@pytest.mark.parametrize(
    "dtypes", [("?", "f4"), ("f4", "?"), ("u1", "i8"), ("i8", "?")], ids="-".join
)
@given(st.tuples(st.booleans(), st.booleans()))
def test_flags_of_different_dtypes_are_completed_too(
    names: tuple[str, ...], dtypes: tuple[str, str], bits: Any
) -> None:
    told = dict(zip(names, bits))
    tree = {"next": {n: np.array(v, t) for (n, v), t in zip(told.items(), dtypes)}}
    layout = complete_flags(Layout(tree))
    missing = frozenset(("next", n) for n in flags.NAMES if n not in told)
    record = np.zeros(layout.record_size, np.uint8)
    # The packer may leave such rows to the slower path; it may not store other flags.
    if Schema(layout, None, None).plan(missing).pack(tree, record):
        got = layout.unpack(record)["next"]
        assert {n: bool(got[n]) for n in flags.NAMES} == flags.complete(told)


def test_a_negative_zero_is_a_flag_that_is_not_set() -> None:
    tree = {"next": {"done": np.float32(1), "truncated": np.float32(-0.0)}}
    layout = complete_flags(Layout(tree))
    record = np.zeros(layout.record_size, np.uint8)
    missing = frozenset({("next", "terminated")})
    if Schema(layout, None, None).plan(missing).pack(tree, record):
        assert layout.unpack(record)["next"]["terminated"] == 1


def test_plans_of_one_layout_are_independent() -> None:
    layout = complete_flags(Layout({"done": True}))
    schema = Schema(layout, None, None)
    partial = schema.plan(frozenset({("terminated",), ("truncated",)}))
    whole = schema.plan(frozenset())
    record = np.zeros(layout.record_size, np.uint8)
    assert isinstance(partial, _native.Plan)
    assert not whole.pack({"done": True}, record)
    assert partial.pack({"done": True}, record)
    assert not partial.pack({"done": True, "terminated": True, "truncated": False}, record)
