"""Casts keep values: every line of the rule, both ways, through one row and through many."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import Layout
from contig.convert import cast

F32_MAX = float(np.finfo(np.float32).max)
BF16 = np.dtype(ml_dtypes.bfloat16)
INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]


def store(values: Any, dtype: Any) -> list[Any]:
    """Three ways in, which must agree: one row each, many rows, and the cast itself."""
    array = np.asarray(values)
    layout = Layout({"x": np.zeros((), dtype)})
    many = layout.unpack(layout.pack({"x": array}))["x"]
    rows = [layout.unpack(layout.pack({"x": v}))["x"] for v in array]
    direct = cast(array, np.dtype(dtype), ("x",))
    assert many.tobytes() == direct.tobytes() == np.array(rows, dtype).tobytes()
    assert many.dtype == direct.dtype == np.dtype(dtype)
    return list(many.tolist())


def refuse(values: Any, dtype: Any) -> str:
    """Refused in all three ways, the path and the value named; the text."""
    array = np.asarray(values)
    layout = Layout({"deep": {"x": np.zeros((), dtype)}})
    said = []
    for attempt in (
        lambda: layout.pack({"deep": {"x": array}}),
        lambda: [layout.pack({"deep": {"x": v}}) for v in array],
        lambda: cast(array, np.dtype(dtype), ("deep", "x")),
    ):
        with pytest.raises(ValueError) as error:
            attempt()
        said.append(str(error.value))
        assert '("deep", "x")' in said[-1]
        assert str(np.dtype(dtype)) in said[-1]
    return said[0]


# -- float to float -------------------------------------------------------------------------------


@given(st.lists(st.floats(width=32), min_size=1, max_size=5))
def test_float64_to_float32(xs: list[float]) -> None:
    assert np.array_equal(store(np.array(xs, np.float64), "f4"), xs, equal_nan=True)


def test_float64_to_float32_rounds_to_the_nearest() -> None:
    assert store([0.1, 1 / 3], "f4") == [float(np.float32(0.1)), float(np.float32(1 / 3))]


@pytest.mark.parametrize("value", [F32_MAX * 2, -F32_MAX * 2, 1e300])
def test_float64_that_float32_cannot_hold_is_refused(value: float) -> None:
    assert "overflows" in refuse([0.0, value], "f4")


def test_infinities_and_nans_stay_what_they_are() -> None:
    for dtype in FLOATS:
        got = store([np.inf, -np.inf, np.nan], dtype)
        assert got[:2] == [np.inf, -np.inf]
        assert np.isnan(got[2])


@pytest.mark.parametrize("narrow", ["f2", "f4", BF16], ids=str)
def test_a_narrower_float_widens(narrow: Any) -> None:
    xs = np.array([0.5, -1.25, 3, 2.0**-8], narrow)
    assert store(xs, "f8") == [0.5, -1.25, 3, 2.0**-8]


@pytest.mark.parametrize(("value", "dtype"), [(1e5, "f2"), (-7e4, "f2"), (3.4e39, BF16)], ids=str)
def test_floats_that_a_half_cannot_hold_are_refused(value: float, dtype: Any) -> None:
    assert "overflows" in refuse([value], dtype)


# -- int or bool to float -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", [*INTS, "?"])
def test_int_and_bool_to_float(source: str, dtype: str) -> None:
    assert store(np.array([0, 1, 1], source), dtype) == [0, 1, 1]
    if source != "?":
        assert store(np.array([100, 7], source), dtype) == [100, 7]


def test_python_int_and_bool_to_float() -> None:
    layout = Layout({"x": 0.0})
    for value in (3, -3, True, False):
        assert layout.unpack(layout.pack({"x": value}))["x"] == value


@pytest.mark.parametrize(
    ("value", "dtype"), [(100_000, "f2"), (-(2**40), "f2"), (2**17, ml_dtypes.float8_e5m2)], ids=str
)
def test_an_int_that_the_float_cannot_hold_is_refused(value: int, dtype: Any) -> None:
    refuse(np.array([value]), dtype)


# -- float to int ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("dtype", INTS)
def test_integral_floats_to_int(source: str, dtype: str) -> None:
    low = 0 if dtype.startswith("u") else -7
    assert store(np.array([low, 0, 3, 100], source), dtype) == [low, 0, 3, 100]


@pytest.mark.parametrize("value", [0.5, -0.5, 1e-30, np.nan, np.inf, -np.inf, 2.0**70])
@pytest.mark.parametrize("dtype", INTS)
def test_other_floats_to_int_are_refused(value: float, dtype: str) -> None:
    text = refuse([1.0, value], dtype)
    assert str(value) in text
    assert "integral" in text


@pytest.mark.parametrize("dtype", INTS)
def test_the_ends_of_the_range(dtype: str) -> None:
    info = np.iinfo(dtype)
    # Of the floats around each end, those that are in range and integral, and no others.
    for end in (float(info.min), float(info.max)):
        for value in (np.nextafter(end, -np.inf), end, np.nextafter(end, np.inf)):
            if value == int(value) and info.min <= int(value) <= info.max:
                assert store([value], dtype) == [int(value)]
            else:
                refuse([value], dtype)


@given(st.floats(), st.sampled_from(INTS))
def test_a_float_becomes_an_int_exactly_or_not_at_all(value: float, dtype: str) -> None:
    info = np.iinfo(dtype)
    if np.isfinite(value) and value == int(value) and info.min <= int(value) <= info.max:
        assert store([value], dtype) == [int(value)]
    else:
        refuse([value], dtype)


# -- int to int -----------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(INTS), st.sampled_from(INTS))
def test_an_int_becomes_another_int_if_it_fits(data: Any, source: str, dtype: str) -> None:
    wide, narrow = np.iinfo(source), np.iinfo(dtype)
    edges = [narrow.min - 1, narrow.min, narrow.max, narrow.max + 1, -1, 0]
    edges = [e for e in edges if wide.min <= e <= wide.max]
    value = data.draw(st.sampled_from(edges) | st.integers(int(wide.min), int(wide.max)))
    array = np.array([value], source)
    if narrow.min <= value <= narrow.max:
        assert store(array, dtype) == [value]
    else:
        refuse(array, dtype)


# -- number to bool, and back ---------------------------------------------------------------------


@pytest.mark.parametrize("source", [*INTS, *FLOATS])
def test_zero_and_one_to_bool(source: str) -> None:
    assert store(np.array([0, 1, 0], source), "?") == [False, True, False]


@pytest.mark.parametrize("value", [2, -1, 255, 0.5, -1.0, np.nan, np.inf, 1.0000001])
def test_other_numbers_to_bool_are_refused(value: Any) -> None:
    text = refuse([0, value], "?")
    assert "only 0 and 1" in text


@pytest.mark.parametrize("dtype", INTS)
def test_bool_to_int(dtype: str) -> None:
    assert store([True, False], dtype) == [1, 0]


# -- everything else ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "i8", "?"])
@pytest.mark.parametrize(
    "values",
    [
        np.array([1 + 0j]),
        np.array(["1"]),
        np.array([b"1"]),
        np.array([1], object),
        np.array([1], "M8[s]"),
        np.array([1], "m8[s]"),
    ],
    ids=lambda a: a.dtype.str,
)
def test_anything_else_is_refused(values: Any, dtype: str) -> None:
    layout = Layout({"deep": {"x": np.zeros((), dtype)}})
    for tree in ({"x": values}, {"x": values[0]} if values.dtype != object else {"x": object()}):
        with pytest.raises(ValueError, match='"deep", "x"'):
            layout.pack({"deep": tree})
    with pytest.raises(ValueError, match="convert the data first"):
        cast(values, np.dtype(dtype), ("x",))


def test_complex_that_complex64_cannot_hold_is_refused() -> None:
    refuse(np.array([1e300 + 0j]), "c8")


def test_the_first_value_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="value 2.5 of float64"):
        cast(np.array([[1.0, 2.0], [2.5, 3.5]]), np.dtype(np.int32), ("x",))


def test_the_same_dtype_is_not_copied() -> None:
    array = np.arange(3.0)
    assert cast(array, np.dtype(np.float64), ("x",)) is array
