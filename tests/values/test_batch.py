"""Batch: one block, one contiguous column per leaf; valid and unchanged while referenced."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contig import Batch, Layout, LayoutError, LazyTensorStorage, ReplayBuffer, _native
from contig.batch import stack_batches
from tests.reference import trees
from tests.values import remote

batch_shapes = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


def made(n: int = 5) -> Batch:
    """Rows 0..n-1, each of whose values says which row it is."""
    return Batch.from_tree(
        {
            "obs": np.arange(n)[:, None] * 10 + np.arange(3.0),
            "next": {"reward": np.arange(n, dtype=np.float32), "done": np.arange(n) % 2 == 1},
            "pair": trees.Pair(np.arange(n, dtype=np.int16), [np.arange(n) * 100]),
        }
    )


def rows_of(batch: Batch) -> Any:
    """Which rows a batch of `made` has; fails unless all leaves agree."""
    rows = batch["next", "reward"].astype(int)
    assert np.array_equal(batch["obs"], rows[..., None] * 10 + np.arange(3.0))
    assert np.array_equal(batch["next", "done"], rows % 2 == 1)
    assert np.array_equal(batch["pair", "second"], rows)
    assert np.array_equal(batch["pair", "first", 0], rows * 100)
    return rows.tolist()


# -- memory ---------------------------------------------------------------------------------------


@given(trees.trees, batch_shapes)
def test_columns_are_contiguous_aligned_and_in_one_block(
    specs: Any, shape: tuple[int, ...]
) -> None:
    tree = trees.fill(specs, shape)
    batch = Batch.from_tree(tree, len(shape))
    assert batch.shape == shape
    assert len(batch) == shape[0]
    assert trees.same(batch.tree(), tree)
    columns = batch.layout.block_columns(int(np.prod(shape)))
    assert memoryview(batch.memory).nbytes == columns.nbytes
    for path, leaf in trees.walk(batch.tree()):
        assert leaf.flags.c_contiguous
        if leaf.size:
            assert leaf.ctypes.data % 64 == 0, path
            inside = leaf.ctypes.data - batch.block.ctypes.data
            assert 0 <= inside <= inside + leaf.nbytes <= columns.nbytes


@given(trees.trees, st.integers(0, 5))
def test_from_records(specs: Any, n: int) -> None:
    layout, tree = Layout(specs), trees.fill(specs, (n,))
    columns, _ = layout.columns(tree, 1)
    packed = np.zeros((n, layout.record_size), np.uint8)
    for leaf, column in zip(layout.leaves, columns):
        assert column is not None
        raw = np.frombuffer(column.tobytes(), np.uint8).reshape(n, leaf.nbytes)
        packed[:, leaf.offset : leaf.offset + leaf.nbytes] = raw
    assert trees.same(Batch.from_records(layout, packed).tree(), tree)


def test_a_batch_is_a_copy_of_its_tree() -> None:
    obs = np.arange(6.0).reshape(3, 2)
    batch = Batch.from_tree({"obs": obs})
    obs[...] = -1
    assert batch["obs"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_arrays_share_the_block() -> None:
    batch = made()
    batch["next", "reward"][2] = 42
    assert batch.tree()["next"]["reward"][2] == 42
    assert batch["next"]["reward"][2] == 42
    batch.block[:] = 0
    assert batch["next", "reward"].tolist() == [0] * 5


def test_arrays_outlive_batch_and_buffer() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(50), batch_size=8, seed=0)
    buffer.extend({"x": np.arange(50), "y": np.arange(50.0)[:, None] * [1, 2, 3]})
    batch = buffer.sample()
    index = batch["index"].copy()
    x, y = batch["x"], batch["y"][2:, 1]
    del batch, buffer
    gc.collect()
    scribbles = [np.frombuffer(_native.Block(n), np.uint8) for n in range(100, 4000, 100)]
    for s in scribbles:
        s[:] = 0xFF
    assert x.tolist() == index.tolist()
    assert y.tolist() == (2.0 * index[2:]).tolist()


def test_later_writes_and_samples_leave_a_batch_alone() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(20), batch_size=16, seed=0)
    buffer.extend({"x": np.arange(20)})
    taken = []
    for step in range(1, 60):
        batch = buffer.sample()
        taken.append((batch if step % 2 else batch["x"], batch["index"].copy()))
        del batch
        buffer.extend({"x": np.arange(7) + 13 + 7 * step})
    for kept, index in taken:
        x = kept["x"] if isinstance(kept, Batch) else kept
        assert x.tolist() == index.tolist()


# -- access ---------------------------------------------------------------------------------------


def test_leaves_by_key_and_tuple_key() -> None:
    batch = made()
    assert rows_of(batch) == [0, 1, 2, 3, 4]
    assert batch["obs"].shape == (5, 3)
    assert batch["next", "reward"].dtype == np.float32
    assert batch[["next", "reward"]] is batch["next", "reward"]
    assert list(batch.keys()) == [
        ("next", "done"),
        ("next", "reward"),
        ("obs",),
        ("pair", "second"),
        ("pair", "first", 0),
    ]


def test_subtrees() -> None:
    batch = made()
    assert sorted(batch["next"]) == ["done", "reward"]
    assert batch["next"]["reward"].tolist() == [0, 1, 2, 3, 4]
    assert type(batch["pair"]) is trees.Pair
    assert batch["pair"].second.tolist() == [0, 1, 2, 3, 4]
    assert batch["pair", "first"][0].tolist() == [0, 100, 200, 300, 400]


def test_in_and_get() -> None:
    batch = made()
    for key in ("obs", "next", ("next", "done"), ("pair", "first", 0)):
        assert key in batch
        assert batch.get(key) is not None
    for key in ("reward", ("next", "obs"), ("obs", 0), "done"):
        assert key not in batch
        assert batch.get(key) is None
        assert batch.get(key, 7) == 7


@pytest.mark.parametrize("key", ["reward", ("next", "obs"), ("next", "done", 0), ("pair", 0)])
def test_a_missing_key_says_what_there_is(key: Any) -> None:
    with pytest.raises(KeyError) as error:
        made()[key]
    text = error.value.args[0]
    assert "no leaf" in text
    for part in key if isinstance(key, tuple) else (key,):
        assert str(part) in text
    for known in ('"obs"', '("next", "done")', '("next", "reward")', '("pair", "first", 0)'):
        assert known in text


@given(st.data())
def test_rows_by_number_slice_and_array(data: Any) -> None:
    batch = made(6)
    picks: Any = st.one_of(
        st.integers(-6, 5),
        st.integers(-6, 5).map(np.int64),
        st.slices(6),
        st.lists(st.integers(-6, 5), max_size=8).map(lambda xs: np.array(xs, np.int64)),
        st.lists(st.booleans(), min_size=6, max_size=6).map(np.array),
        st.just(np.array([[0, 5], [2, 3]])),
    )
    pick = data.draw(picks)
    got = batch[pick]
    want = np.arange(6)[pick]
    assert isinstance(got, Batch)
    assert got.shape == want.shape
    assert rows_of(got) == want.tolist()
    got.block[:] = 0  # a copy: the batch it came from stays
    assert rows_of(batch) == list(range(6))


@pytest.mark.parametrize("pick", [6, -7, np.array([6])])
def test_a_row_there_is_not(pick: Any) -> None:
    with pytest.raises(IndexError):
        made(6)[pick]


def test_rows_of_two_batch_dims() -> None:
    batch = made(6).reshape(2, 3)
    assert rows_of(batch[1]) == [3, 4, 5]
    assert rows_of(batch[np.array([1, 0])]) == [[3, 4, 5], [0, 1, 2]]


def test_repr_names_shape_and_leaves() -> None:
    text = repr(made(4))
    assert "shape=[4]" in text
    assert '("next", "reward"): float32[]' in text
    assert '"obs": float64[3]' in text


# -- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "want"),
    [((2, 3), (2, 3)), ((-1,), (6,)), ((3, -1), (3, 2)), ((6,), (6,)), ((1, 6, 1), (1, 6, 1))],
)
def test_reshape_shares_the_block(shape: tuple[int, ...], want: tuple[int, ...]) -> None:
    batch = made(6)
    got = batch.reshape(*shape)
    assert got.shape == want
    assert got["obs"].shape == (*want, 3)
    assert rows_of(got.reshape(-1)) == list(range(6))
    got["next", "reward"][...] = -1
    assert (batch["next", "reward"] == -1).all()


def test_reshape_to_another_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError):
        made(6).reshape(4)
    with pytest.raises(ValueError):
        made(6).reshape(4, -1)


@pytest.mark.parametrize(
    ("shape", "want"), [((-1,), (0,)), ((0,), (0,)), ((2, 0), (2, 0)), ((-1, 3), (0, 3))]
)
def test_reshape_of_no_rows(shape: tuple[int, ...], want: tuple[int, ...]) -> None:
    got = made(6)[:0].reshape(*shape)
    assert got.shape == want
    assert got["obs"].shape == (*want, 3)
    assert len(got) == want[0]


def test_no_rows_cannot_become_some() -> None:
    with pytest.raises(ValueError):
        made(6)[:0].reshape(2)


def test_a_batch_of_one_row_without_dims() -> None:
    row = made(6)[4]
    assert row.shape == ()
    assert len(row) == 1
    assert row["obs"].tolist() == [40, 41, 42]
    assert rows_of(row.reshape(1)) == [4]
    one = Batch.one({"a": 1.5, "b": {"c": True, "d": 3}, "e": np.arange(2)})
    assert one.shape == (1,)
    assert one["a"].tolist() == [1.5]
    assert one["a"].dtype == np.float32
    assert one["b", "d"].dtype == np.int64
    assert one["e"].tolist() == [[0, 1]]


def test_from_tree_needs_the_batch_dims_everywhere() -> None:
    with pytest.raises(LayoutError, match='"b": shape \\[3\\] has fewer than the 2 batch dims'):
        Batch.from_tree({"a": np.zeros((3, 2)), "b": np.zeros(3)}, 2)
    with pytest.raises(LayoutError, match='"b": \\[4\\] rows, but "a" has \\[3\\]'):
        Batch.from_tree({"a": np.zeros(3), "b": np.zeros(4)})
    batch = made()
    assert Batch.from_tree(batch) is batch


# -- derived batches ------------------------------------------------------------------------------


def test_with_leaves_adds_and_replaces() -> None:
    batch = made(4)
    wide = batch.with_leaves(
        {
            ("next", "value"): np.arange(4) * 2.0,
            "obs": np.arange(4, dtype=np.int32),
            ("deep", "new", "leaf"): np.full((4, 2), 7),
        }
    )
    assert wide["next", "value"].tolist() == [0, 2, 4, 6]
    assert wide["obs"].tolist() == [0, 1, 2, 3]
    assert wide["obs"].dtype == np.int32
    assert wide["deep"]["new"]["leaf"].tolist() == [[7, 7]] * 4
    assert wide["next", "reward"].tolist() == [0, 1, 2, 3]
    assert wide["pair"].first[0].tolist() == [0, 100, 200, 300]
    assert wide.extras == frozenset()
    assert rows_of(batch) == [0, 1, 2, 3]  # as it was
    assert ("next", "value") not in batch


def test_with_leaves_below_a_tuple() -> None:
    wide = made(4).with_leaves({("pair", "first", 0): np.arange(4.0)})
    assert wide["pair", "first", 0].dtype == np.float64
    assert type(wide["pair"]) is trees.Pair


def test_with_leaves_of_a_tree_that_is_no_mapping() -> None:
    batch = Batch.from_tree((np.arange(3), [np.arange(3) * 2]))
    wide = batch.with_leaves({"index": np.arange(3) + 5}, extra=True)
    assert wide["index"].tolist() == [5, 6, 7]
    assert wide[1, 0].tolist() == [0, 2, 4]
    assert trees.same(wide.tree(), batch.tree())  # the tree keeps its form
    assert trees.same(wide.stored(), batch.tree())


@pytest.mark.parametrize("value", [np.zeros(1), np.zeros(3), np.zeros((1, 4)), np.zeros(())])
def test_with_leaves_broadcasts_nothing(value: Any) -> None:
    with pytest.raises(ValueError, match="x"):
        made(4).with_leaves({"x": value})


@pytest.mark.parametrize("key", ["next", ("obs", "x"), ("pair", "third")])
def test_with_leaves_where_no_leaf_can_be(key: Any) -> None:
    with pytest.raises(ValueError, match=f"{key if isinstance(key, str) else key[-1]}"):
        made(4).with_leaves({key: np.zeros(4)})


def test_stored_leaves_out_what_a_sampler_added() -> None:
    batch = made(4).with_leaves(
        {"index": np.arange(4), ("collector", "mask"): np.ones(4, bool)}, extra=True
    )
    assert batch.extras == {("index",), ("collector", "mask")}
    assert ("collector", "mask") in batch
    stored = batch.stored()
    assert trees.same(stored, made(4).tree())
    assert np.shares_memory(stored["obs"], batch["obs"])
    assert batch[1:3].extras == batch.reshape(2, 2).extras == batch.extras


def test_a_sample_can_be_stored_again() -> None:
    rows = {"pair": trees.Pair(np.arange(9), [np.arange(9.0)]), "x": np.arange(9)}
    source = ReplayBuffer(LazyTensorStorage(9), batch_size=6, seed=0)
    source.extend(rows)
    row = {"pair": trees.Pair(0, [np.float64(0)]), "x": 0}
    sink = ReplayBuffer(LazyTensorStorage(9, example=row), batch_size=6)
    sample = source.sample()
    sink.extend(sample)
    again, _ = sink.storage.gather(np.arange(6))
    assert again["x"].tolist() == sample["x"].tolist()
    assert again["pair", "first", 0].tolist() == sample["x"].tolist()


def test_batches_one_after_another() -> None:
    parts = [made(6)[:2], made(6)[2:2], made(6)[3:]]
    assert rows_of(stack_batches(parts)) == [0, 1, 3, 4, 5]
    assert stack_batches(parts[:1]) is parts[0]
    with pytest.raises(LayoutError, match='"obs": shape \\[4\\], expected \\[3\\]'):
        stack_batches([made(2), made(2).with_leaves({"obs": np.zeros((2, 4))})])


# -- pickle ---------------------------------------------------------------------------------------


@given(trees.trees, batch_shapes, st.sampled_from([2, 4, 5]))
def test_pickle_keeps_everything(specs: Any, shape: tuple[int, ...], protocol: int) -> None:
    tree = trees.fill(specs, shape)
    batch = Batch.from_tree(tree, len(shape))
    again = pickle.loads(pickle.dumps(batch, protocol))
    assert again.shape == shape
    assert again.layout == batch.layout
    assert trees.same(again.tree(), tree)


def test_a_pickled_batch_is_a_whole_batch() -> None:
    batch = made(4).with_leaves({"index": np.arange(4)}, extra=True)
    again = pickle.loads(pickle.dumps(batch))
    assert again.extras == {("index",)}
    assert rows_of(again) == [0, 1, 2, 3]
    again["obs"][...] = 0  # writable, and its own memory
    assert rows_of(batch) == [0, 1, 2, 3]
    for _ in range(4):
        again = pickle.loads(pickle.dumps(batch))
        assert all(again[path].ctypes.data % 64 == 0 for path in again.layout.by_path)


def test_through_a_real_process() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    batch = made(5).with_leaves({"index": np.arange(5) + 70}, extra=True)
    process = context.Process(target=remote.echo, args=(there, batch))
    process.start()
    there.close()
    assert here.poll(100), "the process did not answer"
    seen, back = here.recv()
    process.join(100)
    assert process.exitcode == 0
    assert seen == {
        "rows": [0.0, 1.0, 2.0, 3.0, 4.0],
        "extras": [("index",)],
        "pair": "Pair",
        "layout": batch.layout.fingerprint,
    }
    # It sent the rows back in reverse, with the obs of each negated.
    assert back["index"].tolist() == [74, 73, 72, 71, 70]
    assert np.array_equal(back["obs"], -batch["obs"][::-1])
    assert type(back["pair"]) is trees.Pair
    assert rows_of(batch) == [0, 1, 2, 3, 4]


def index_cases() -> list[Any]:
    mask = np.array([True, False, True, False, False, True])
    return [
        [0, 2, 5],
        [np.int64(0), 2, 5],
        [True, False, True, False, False, True],
        mask,
        np.array([0, 2, 5], np.uint8),
        np.array([-6, -4, 5]),
    ]


@pytest.mark.parametrize("form", ["numpy", "torch", "jax"])
def test_rows_by_any_index(form: str) -> None:
    batch = Batch.from_tree({"x": np.arange(6), "next": {"y": np.arange(12).reshape(6, 2)}}, 1)
    for index in index_cases():
        if form == "torch":
            torch = pytest.importorskip("torch")
            index = torch.tensor(np.asarray(index))
        elif form == "jax":
            index = pytest.importorskip("jax.numpy").asarray(np.asarray(index))
        picked = batch[index]
        assert picked.shape == (3,)
        assert picked["x"].tolist() == [0, 2, 5]
        assert picked["next", "y"].tolist() == [[0, 1], [4, 5], [10, 11]]
    for one in (np.array(3), np.int32(3), 3):
        assert batch[one]["x"] == 3
    assert batch[[]].shape == (0,)
    assert batch[["next", "y"]].shape == (6, 2)  # a path
    assert batch.reshape(2, 3)[[1, 0]]["x"].tolist() == [[3, 4, 5], [0, 1, 2]]
    assert batch.reshape(2, 3)[np.array([[True, False, True], [False] * 3])]["x"].tolist() == [0, 2]


@pytest.mark.parametrize("index", [[6], [-7], np.array([0.0, 1.0]), 1.5, True, [True, False]])
def test_no_such_rows(index: Any) -> None:
    batch = Batch.from_tree({"x": np.arange(6)}, 1)
    with pytest.raises((IndexError, KeyError)):
        batch[index]


def test_rows_by_what_is_no_number() -> None:
    batch = Batch.from_tree({"x": np.arange(5)})
    for key in ([1.0], [0, 1.5], 1.5, np.float32(1), [None], [[0.5]], True):
        with pytest.raises(IndexError, match="expected whole numbers, a slice"):
            batch[key]
    assert batch[range(1, 4)]["x"].tolist() == [1, 2, 3]
    assert batch[range(4, 0, -2)]["x"].tolist() == [4, 2]
    assert len(batch[range(0)]) == 0
    assert batch[[[0, 1], [3, 4]]]["x"].tolist() == [[0, 1], [3, 4]]
    with pytest.raises(KeyError, match="no leaf"):
        batch[["y"]]


# -- what people reach for ------------------------------------------------------------------------


def test_items_are_columns_by_their_paths() -> None:
    batch = made(6)
    found = dict(batch.items())
    assert list(found) == list(batch.keys())
    for path, column in found.items():
        np.testing.assert_array_equal(column, batch[path])


def test_batch_size_is_the_shape() -> None:
    batch = made(6)
    assert batch.batch_size == (6,) and batch.reshape(2, 3).batch_size == (2, 3)
    tensors = torch.zeros(4)[: batch.batch_size[0] // 3]
    assert len(tensors) == 2


@pytest.mark.parametrize(
    ("size", "lengths"), [(2, [2, 2, 2]), (4, [4, 2]), (9, [6]), ([1, 5], [1, 5]), ((6,), [6])]
)
def test_split(size: Any, lengths: list[int]) -> None:
    parts = made(6).split(size)
    assert [len(part) for part in parts] == lengths
    assert rows_of(stack_batches(parts)) == list(range(6))
    lanes = made(6).reshape(2, 3).split(1)
    assert [part.shape for part in lanes] == [(1, 3), (1, 3)]


@pytest.mark.parametrize("size", [0, -1, 2.5, [1, 2], [7], [-1, 7], [], "2"])
def test_split_refuses(size: Any) -> None:
    with pytest.raises(ValueError, match="split: .*rows"):
        made(6).split(size)


def test_to_a_device() -> None:
    moved = made(6).to("cpu")
    assert isinstance(moved["obs"], torch.Tensor) and moved["obs"].shape == (6, 3)
