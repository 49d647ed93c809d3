"""Ragged and Blob: values of columns and leaves of examples; layouts and batches with them."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import (
    Batch,
    Blob,
    Layout,
    LayoutError,
    LazyTensorStorage,
    Ragged,
    ReplayBuffer,
    ShapeDtype,
)
from contig.batch import stack_batches

Array = np.ndarray[Any, Any]

rows = st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=8)


def ragged(lists: list[list[int]]) -> Ragged:
    return Ragged.of([np.array(x, np.int32) for x in lists])


def as_lists(column: Any) -> list[list[int]]:
    return [row.tolist() for row in column]


# -- columns ---------------------------------------------------------------------------------------


@given(rows, st.data())
def test_a_column_is_its_rows(lists: list[list[int]], data: Any) -> None:
    column = ragged(lists)
    assert len(column) == len(lists) and as_lists(column) == lists
    assert column.lengths.tolist() == [len(x) for x in lists]
    assert column[-1].tolist() == lists[-1]
    some = data.draw(st.lists(st.integers(-len(lists), len(lists) - 1), max_size=6))
    assert as_lists(column[np.array(some, np.int64)]) == [lists[i] for i in some]
    mask = np.array([i % 2 == 0 for i in range(len(lists))])
    assert as_lists(column[mask]) == lists[::2] == as_lists(column[::2])
    assert as_lists(column.joined([column[1:]])) == lists + lists[1:]
    assert pickle.loads(pickle.dumps(column)) == column
    longest = max(map(len, lists))
    padded = [x + [-1] * (longest - len(x)) for x in lists]
    assert column.to_padded(-1).tolist() == padded
    with pytest.raises(IndexError):
        column[len(lists)]


def test_padding_to_a_length() -> None:
    column = Ragged(np.arange(6.0).reshape(3, 2), [0, 1, 3])
    assert column.to_padded(length=3).shape == (2, 3, 2)
    with pytest.raises(ValueError, match="2 elements, more than 1"):
        column.to_padded(length=1)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.int32, 0.5), (np.int32, np.nan), (np.uint8, -1), (np.uint8, 256), (bool, -1)],
)
def test_padding_is_a_value_that_the_rows_can_have(dtype: Any, value: Any) -> None:
    column = Ragged(np.ones(2, dtype), [0, 0, 2])
    with pytest.raises(ValueError, match=r'"to_padded", "value".* cannot be stored as'):
        column.to_padded(value)
    assert column.to_padded(1).tolist() == [[1, 1], [1, 1]]
    assert np.isnan(Ragged(np.ones(2, np.float32), [0, 0, 2]).to_padded(np.nan)[0]).all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_every_form_are_rows() -> None:
    torch = pytest.importorskip("torch")
    parts = [torch.arange(4.0).reshape(2, 2), torch.arange(6.0).reshape(3, 2)]
    wide = torch.arange(40.0).reshape(2, 10, 2)
    starts, lengths = torch.tensor([1, 3]), torch.tensor([2, 4])
    forms = {
        "jagged": torch.nested.nested_tensor(parts, layout=torch.jagged),
        "strided": torch.nested.as_nested_tensor(parts, layout=torch.strided),
        "with gaps": torch.nested.narrow(wide, 1, starts, lengths, layout=torch.jagged),
    }
    for nested in forms.values():
        expected = [x.tolist() for x in nested.unbind()]
        for example in ({"x": Ragged(np.float32, (2,)), "y": 0}, None):
            storage = LazyTensorStorage(9, example=example)
            storage.writer().extend({"x": nested, "y": np.arange(2)})
            stored = ReplayBuffer(storage)[:]["x"]
            assert [x.tolist() for x in stored] == expected
    # Rows of another inner shape, or that vary in another dim, are none of the leaf.
    square = torch.nested.nested_tensor([torch.ones(1, 3), torch.ones(2, 3)], layout=torch.jagged)
    odd = torch.nested.as_nested_tensor([torch.ones(2, 2), torch.ones(2, 3)], layout=torch.strided)
    storage = LazyTensorStorage(9, example={"x": Ragged(np.float32, (2,)), "y": 0})
    for nested in (square, square.transpose(1, 2), odd):
        with pytest.raises(ValueError, match='"x": '):
            storage.writer().extend({"x": nested, "y": np.arange(2)})
    assert len(storage) == 0


def test_values_between_the_first_and_the_last_row_only() -> None:
    column = Ragged(np.arange(10), [2, 4, 4, 7])
    assert as_lists(column.packed()) == [[2, 3], [], [4, 5, 6]]
    assert column.packed().values.tolist() == [2, 3, 4, 5, 6]
    assert column == column.packed() != Ragged(np.arange(10), [0, 2, 2, 5])


@pytest.mark.parametrize("offsets", [[], [1, 0], [-1, 2], [0, 11], [0.0, 1.0], [[0, 1]]])
def test_offsets_that_are_none(offsets: Any) -> None:
    with pytest.raises(ValueError, match="offsets"):
        Ragged(np.arange(10), offsets)


def test_blobs_are_bytes_or_text() -> None:
    raw, text = Blob.of([b"ab", b"", b"c"]), Blob.of(["é", "", "b"])
    assert list(raw) == [b"ab", b"", b"c"] and raw[1:][0] == b""
    assert list(text) == ["é", "", "b"] and text[0] == "é"
    assert pickle.loads(pickle.dumps(text)) == text != raw
    assert list(raw.joined([raw])) == [b"ab", b"", b"c"] * 2
    with pytest.raises(ValueError, match="uint8"):
        Blob(np.arange(3), [0, 3])


def test_torch_has_them_as_nested_tensors() -> None:
    torch = pytest.importorskip("torch")
    column = Ragged(np.arange(12, dtype=np.float32).reshape(6, 2), [0, 2, 2, 6])
    nested = column.torch()
    assert nested.is_nested and nested.layout == torch.jagged
    assert [x.tolist() for x in nested.unbind()] == [x.tolist() for x in column]
    values, offsets = column.torch(nested=False)
    assert values.shape == (6, 2) and offsets.tolist() == [0, 2, 2, 6]
    values[0, 0] = 7  # the same memory
    assert column[0][0, 0] == 7


# -- layouts ---------------------------------------------------------------------------------------


def test_layouts_without_them_are_as_they_were() -> None:
    """Old data must open: its JSON and its fingerprint, to the letter."""
    layout = Layout({"a": np.zeros(3, np.float32), "b": {"c": 1, "d": True}})
    assert layout.fingerprint == "e83a5ecfa1fb03cf803a7a69249cf44e"
    assert json.dumps(layout.to_json()["leaves"]) == (
        '[{"path": ["a"], "shape": [3], "dtype": "float32"}, '
        '{"path": ["b", "c"], "shape": [], "dtype": "int64"}, '
        '{"path": ["b", "d"], "shape": [], "dtype": "bool"}]'
    )


@pytest.mark.parametrize("dtype", [object, "U3", "S3"])
def test_elements_are_numbers(dtype):
    with pytest.raises(TypeError, match="Ragged: dtype .*Blob"):
        Ragged(np.dtype(dtype))


EXAMPLE = {"t": Ragged(np.int32), "v": Ragged("float32", (2, 3)), "b": b"", "s": Blob(text=True)}


def test_kinds_are_part_of_a_layout() -> None:
    layout = Layout({**EXAMPLE, "n": np.int8(0)})
    kinds = {x.path[0]: x.kind for x in layout.leaves}
    assert kinds == {"b": "blob", "n": "fixed", "s": "text", "t": "ragged", "v": "ragged"}
    again = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert again == layout == pickle.loads(pickle.dumps(layout))
    assert again.by_path["v",] == layout.by_path["v",]
    fingerprints = {
        Layout({"x": x}).fingerprint
        for x in (b"", "", Ragged("u1"), np.uint8(0), Ragged("i4"), Ragged("i4", (2,)))
    }
    assert len(fingerprints) == 6
    # Sixteen bytes of a record each, at multiples of eight.
    assert [(x.offset % 8, x.nbytes) for x in layout.variable] == [(0, 16)] * 4
    assert layout.record_size == 72
    assert Layout({x.path[0]: x.example() for x in layout.leaves}) == layout


def test_a_codec_is_part_of_a_layout() -> None:
    plain = Layout({"x": ShapeDtype((4, 4), np.uint8)})
    data = plain.to_json()
    data["leaves"][0]["codec"] = "zstd"
    del data["record_size"]
    coded = Layout.from_json(data)
    (leaf,) = coded.leaves
    assert leaf.codec == "zstd" and leaf.nbytes == 16 and leaf.shape == (4, 4)
    assert leaf.variable and not leaf.ragged  # where it is used, it has a shape
    assert coded.fingerprint != plain.fingerprint
    assert "zstd" in plain.diff(coded)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"kind": 3},
        {"kind": "blob", "dtype": "int32"},
        {"kind": "blob", "shape": [2]},
        {"kind": "ragged", "shape": [0]},
        {"kind": "ragged", "codec": "zstd"},
        {"codec": 5},
    ],
)
def test_kinds_that_are_none_are_refused(change: dict[str, Any]) -> None:
    data = Layout({"x": np.uint8(0)}).to_json()
    data["leaves"][0].update(change)
    del data["record_size"]
    with pytest.raises(LayoutError):
        Layout.from_json(data)


def test_elements_without_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match=r'"x": Ragged elements of shape \[0\]'):
        Layout({"x": Ragged(np.int32, (0,))})


@pytest.mark.parametrize(
    ("mine", "theirs", "says"),
    [
        (b"", "", "text of any length, expected bytes of any length"),
        (Ragged("i4"), np.int32(0), r"int32\[\], expected int32\[\*\]"),
        (np.uint8(0), b"", "bytes of any length, expected uint8"),
        (Ragged("i4", (2,)), Ragged("i4", (3,)), r"shape \[3\], expected \[2\]"),
        (Ragged("i4"), Ragged("i8"), "dtype int64, expected int32"),
    ],
)
def test_differences_are_worded(mine: Any, theirs: Any, says: str) -> None:
    import re

    assert re.search(says, Layout({"x": mine}).diff(Layout({"x": theirs})))


# -- batches ---------------------------------------------------------------------------------------


def batch(n: int = 5) -> Batch:
    return Batch.from_tree(
        {
            "uid": np.arange(n),
            "t": ragged([[i] * (i % 3) for i in range(n)]),
            "s": Blob.of(["é" * (i % 2) for i in range(n)]),
        }
    )


def check(found: Batch, uids: list[int]) -> None:
    assert np.asarray(found["uid"]).reshape(-1).tolist() == uids
    assert as_lists(found["t"]) == [[i] * (i % 3) for i in uids]
    assert list(found["s"]) == ["é" * (i % 2) for i in uids]


def test_rows_of_a_batch() -> None:
    whole = batch()
    check(whole, [0, 1, 2, 3, 4])
    check(whole[[4, 1, 1]], [4, 1, 1])
    check(whole[1:3], [1, 2])
    check(whole[np.array([True, False, True, False, False])], [0, 2])
    check(whole[3], [3])
    assert whole[3].shape == ()
    check(pickle.loads(pickle.dumps(whole)), [0, 1, 2, 3, 4])
    check(stack_batches([whole, whole[[2]], whole[:0]]), [0, 1, 2, 3, 4, 2])
    assert len(whole["t"]) == 5


def test_dims_of_a_batch_leave_rows_flat() -> None:
    square = batch(6).reshape(2, 3)
    assert square.shape == (2, 3) and len(square["t"]) == 6
    check(square, [0, 1, 2, 3, 4, 5])
    check(square[1], [3, 4, 5])
    check(square.reshape(-1), [0, 1, 2, 3, 4, 5])


def test_leaves_added_and_replaced() -> None:
    wide = batch().with_leaves({"t2": ragged([[1], [], [2, 2], [], []]), "y": np.ones(5)})
    check(wide, [0, 1, 2, 3, 4])
    assert as_lists(wide["t2"]) == [[1], [], [2, 2], [], []]
    fixed = wide.with_leaves({"t": np.zeros(5)})
    assert fixed["t"].shape == (5,) and list(fixed["s"]) == list(wide["s"])
    with pytest.raises(LayoutError, match="t3"):
        batch().with_leaves({"t3": ragged([[1]])})


def test_an_empty_batch_has_rows_without_elements() -> None:
    empty = Batch.empty(batch().layout, (3,))
    assert as_lists(empty["t"]) == [[], [], []]
    assert list(Batch.empty(batch().layout, (0,))["s"]) == []


def test_trees_of_a_batch() -> None:
    tree = batch().tree()
    assert isinstance(tree["t"], Ragged) and isinstance(tree["s"], Blob)
    check(Batch.from_tree(tree), [0, 1, 2, 3, 4])


def test_torch_of_a_batch() -> None:
    torch = pytest.importorskip("torch")
    for device in (None, "cpu"):
        tree = batch().torch(device)
        assert [x.tolist() for x in tree["t"].unbind()] == [[i] * (i % 3) for i in range(5)]
        assert list(tree["s"]) == list(batch()["s"])  # text is no tensor
        assert torch.equal(tree["uid"], torch.arange(5))


def test_tensordicts_of_a_batch() -> None:
    pytest.importorskip("tensordict")
    td = batch().to_tensordict()
    assert td.batch_size == (5,)
    assert td["t"].is_nested and td["s"] == list(batch()["s"])
    check(Batch.from_tree(td), [0, 1, 2, 3, 4])
    with pytest.raises(LayoutError, match=r"reshape\(-1\)"):
        batch(6).reshape(2, 3).to_tensordict()


def test_jax_of_a_batch() -> None:
    pytest.importorskip("jax")
    values, offsets = batch().jax()["t"]
    assert values.tolist() == [1, 2, 2, 4] and offsets.tolist() == [0, 0, 1, 3, 3, 4]


@pytest.mark.parametrize("form", ["jax", "torch", "numpy", "pair"])
@pytest.mark.parametrize("n", [1, 2, 3, 5])  # two rows, or values and offsets
def test_what_a_batch_gives_is_taken_back(form: str, n: int) -> None:
    pytest.importorskip(form if form != "pair" else "torch")
    whole = batch(n)
    if form == "pair":
        tree = {**whole.tree(), "t": whole["t"].torch(nested=False)}
    else:
        tree = getattr(whole, form)()
    storage = LazyTensorStorage(20, example=Batch.empty(whole.layout, (1,))[0].tree())
    storage.writer().extend(tree)
    found, _ = storage.gather(np.arange(n))
    for path in whole.keys():  # noqa: SIM118
        assert list(map(np.array_equal, found[path], whole[path])) == [True] * n


def test_a_tuple_of_rows() -> None:
    storage = LazyTensorStorage(20, example={"t": Ragged(np.int32)})
    tuples: list[Any] = [
        (np.array([1, 2, 3]), np.array([0, 1, 2])),
        (np.array([1, 2, 3]), np.array([1, 3])),
        (np.array([1]), np.array([[1]])[0]),
        (np.array([1, 2]), np.array([0, 3, 2])),
        ([1, 2], [0, 2]),
    ]
    for rows in tuples:
        seqs = storage.writer().extend({"t": rows})
        found, _ = storage.gather(seqs)
        assert as_lists(found["t"]) == [np.asarray(row).tolist() for row in rows]


def test_records_with_their_bytes_are_a_batch() -> None:
    layout = batch().layout
    records = np.zeros((2, layout.record_size), np.uint8)
    for row, (at, size) in enumerate([(0, 2), (2, 8)]):
        place = layout.by_path["t",].offset if row else layout.by_path["s",].offset
        records[row, place : place + 16] = np.array([at, size]).view(np.uint8)
    blobs = np.frombuffer("é".encode() + np.array([5, 6], np.int32).tobytes(), np.uint8)
    found = Batch.from_records(layout, records, blobs)
    assert list(found["s"]) == ["é", ""] and as_lists(found["t"]) == [[], [5, 6]]


@pytest.mark.parametrize("leaf", [b"", "", Ragged(np.int32)])
def test_what_has_leaves_of_fixed_size_only_says_so(leaf: Any) -> None:
    from contig import TrajectoryAccumulator
    from contig.weights.board import WeightsBoard

    with pytest.raises(LayoutError, match='"b".*accumulators have leaves of fixed size'):
        TrajectoryAccumulator({"step": {"a": np.zeros((4, 2)), "b": leaf}})
    with pytest.raises(LayoutError, match='"b".*weights have leaves of fixed size'):
        WeightsBoard.create({"a": np.zeros(3), "b": leaf})
