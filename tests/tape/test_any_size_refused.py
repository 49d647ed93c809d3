"""Leaves of any size that are given wrongly: an error that says so, and nothing is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import Blob, LayoutError, LazyTensorStorage, Ragged

TEXT, BYTES, NUMBERS = Blob(text=True), Blob(), Ragged(np.int32)


def blob(raw: bytes, *offsets: int, text: bool = True) -> Blob:
    return Blob(np.frombuffer(raw, np.uint8), np.array(offsets), text=text)


def storage_of(leaf: Any, ndim: int = 1) -> LazyTensorStorage:
    return LazyTensorStorage(20, ndim, {"x": leaf, "next": {"done": False}})


@pytest.mark.parametrize(
    ("column", "row"),
    [
        (blob(b"a\xff", 0, 1, 2), 1),
        (blob("é".encode(), 0, 1, 2), 0),  # whole, but cut within a character
        (blob("éa".encode(), 1, 2, 3), 0),
        (blob("é".encode(), 0, 1, 2, text=False), 0),
    ],
)
def test_text_that_is_not_utf8(column: Blob, row: int) -> None:
    storage = storage_of(TEXT)
    with pytest.raises(ValueError, match=f'"x", row {row}: bytes that are not UTF-8'):
        storage.writer().extend({"x": column, "next": {"done": np.zeros(2, bool)}})
    with pytest.raises(ValueError, match="not UTF-8"):
        storage.writer().add({"x": column[row : row + 1], "next": {"done": False}})
    assert len(storage) == 0


def test_text_that_is_utf8() -> None:
    storage = storage_of(TEXT)
    column = blob("xéé\N{OGHAM SPACE MARK}".encode(), 1, 3, 3, 8, 8)
    storage.writer().extend({"x": column, "next": {"done": np.zeros(4, bool)}})
    batch, _ = storage.gather(np.arange(4))
    assert list(batch["x"]) == ["é", "", "é\N{OGHAM SPACE MARK}", ""]


@pytest.mark.parametrize("leaf", [TEXT, BYTES, NUMBERS])
@pytest.mark.parametrize("lanes", [[1, 2], ["ab", "cd"], [b"ab", b"cd"], [None, None]])
def test_lanes_are_lists(leaf: Any, lanes: list[Any]) -> None:
    """Of text, too: characters are no rows."""
    storage = storage_of(leaf, ndim=2)
    with pytest.raises(LayoutError, match=f'"x": {type(lanes[0]).__name__} for a lane, expected a'):
        storage.writer().extend({"x": lanes, "next": {"done": np.zeros((2, 2), bool)}})
    assert len(storage) == 0


def test_lists_of_numbers_are_no_arrays() -> None:
    """The error is about them, not about the text beside them."""
    storage = LazyTensorStorage(20)
    rows = {"tokens": [[1], [2, 3]], "note": ["a", "b"], "next": {"done": np.zeros(2, bool)}}
    with pytest.raises(
        LayoutError, match=r'^"tokens": a list is a subtree: use np\.asarray.*contig.Ragged in'
    ):
        storage.writer().extend(rows)
    assert storage.layout is None
    with pytest.raises(LayoutError, match='^"reward": no leading dim; use add for a single row$'):
        storage.writer().extend({"note": ["a", "b"], "reward": 1.0})


@pytest.mark.parametrize("leaf", [Ragged, Blob, float])
def test_a_class_is_no_leaf(leaf: type) -> None:
    with pytest.raises(ValueError, match=rf'"x": .*write {leaf.__name__}\(\.\.\.\) to make one'):
        LazyTensorStorage(20, example={"x": leaf})


def test_inner_shapes() -> None:
    assert Ragged(np.int8, 3).inner_shape == Ragged(np.int8, [3]).inner_shape == (3,)
    for shape in ((-1,), "ab", (1.5,), None):
        with pytest.raises(ValueError, match="Ragged: inner shape .* expected one as numpy"):
            Ragged(np.int8, shape)


def test_how_many_bytes_to_keep() -> None:
    assert LazyTensorStorage(10, example={"x": BYTES}, blob_bytes=1e6).blob_ring == 10**6
    for wrong in (0, -5, "5", 1.5):
        with pytest.raises(ValueError, match="blob_bytes"):
            LazyTensorStorage(10, example={"x": BYTES}, blob_bytes=wrong)
