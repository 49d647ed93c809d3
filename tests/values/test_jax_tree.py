"""Batches in jax: as nodes of its trees, and over the same memory."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import contig.forms as forms
from contig import (
    Blob,
    LazyTensorStorage,
    PrioritizedSampler,
    Ragged,
    ReplayBuffer,
    ReplayBufferEnsemble,
    _native,
)
from contig.batch import Batch
from contig.tree import Nested


def made(n: int = 6) -> Batch:
    x = np.arange(n, dtype=np.float32)
    return Batch.from_tree(
        {
            "obs": np.stack([x, x + 0.5], 1),
            "next": {"reward": x * 2, "done": x % 3 == 2},
            "action": np.arange(n),
        }
    )


def test_leaves_and_their_paths() -> None:
    batch = made()
    found, _ = jax.tree_util.tree_flatten_with_path(batch)
    names = [jax.tree_util.keystr(path) for path, _ in found]
    assert names == ["['action']", "['next']['done']", "['next']['reward']", "['obs']"]
    want, _ = jax.tree_util.tree_flatten_with_path(batch.tree())
    assert names == [jax.tree_util.keystr(path) for path, _ in want]
    for (_, leaf), (_, other) in zip(found, want, strict=True):
        assert np.shares_memory(leaf, other)  # nothing is copied to look at a batch
    assert len(jax.tree.leaves(batch)) == 4


def test_jit_takes_a_batch() -> None:
    traces = []

    @jax.jit
    def total(batch: Any, scale: Any) -> Any:
        traces.append(1)
        assert batch["next", "reward"] is batch["next"]["reward"]
        return scale * jnp.where(batch["next", "done"], 0.0, batch["next", "reward"]).sum()

    for seed in range(3):
        batch = made()
        batch["next", "reward"][...] += seed
        want = 2.0 * batch["next", "reward"][~batch["next", "done"]].sum()
        assert float(total(batch, 2.0)) == want
    assert len(traces) == 1  # one layout, one trace
    total(made(7), 2.0)
    assert len(traces) == 2


def test_what_comes_back_is_a_node_as_well() -> None:
    out = jax.jit(lambda batch: jax.tree.map(lambda x: x[::2], batch))(made())
    assert isinstance(out, Nested) and isinstance(out["next", "reward"], jax.Array)
    assert out["next"]["reward"].tolist() == [0.0, 4.0, 8.0]
    again = jax.tree.map(lambda x: x + 1, out)
    assert isinstance(again, Nested)
    assert again["next", "reward"].tolist() == [1.0, 5.0, 9.0]
    assert jax.tree.structure(again) == jax.tree.structure(out)


@pytest.mark.parametrize("copy", [True, False])
def test_jax_arrays_are_found_by_paths(copy: bool) -> None:
    """As in what a batch becomes inside of a function, of the same structure."""
    inside = jax.tree.map(jnp.asarray, made())
    for _ in range(3):  # one by one; then compiled; then in one piece
        out = made().jax(copy)
        assert isinstance(out, Nested) and isinstance(out, dict)
        assert out["next", "reward"] is out["next"]["reward"]
        assert jax.tree.structure(out) == jax.tree.structure(inside)
        total = jax.jit(lambda b: jnp.where(b["next", "done"], 0.0, b["next", "reward"]).sum())
        assert float(total(out)) == float(total(made()))
        same = jax.tree.map(lambda a, b: (a == b).all(), out, inside)
        assert isinstance(same, Nested) and same["next", "reward"] and all(jax.tree.leaves(same))


def test_samples_as_jax_arrays_are_found_by_paths() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(20), batch_size=4, output="jax", seed=0)
    buffer.extend({"x": np.arange(20), "next": {"reward": np.arange(20) * 2.0}})
    ensemble = ReplayBufferEnsemble(buffer, batch_size=4, seed=0)
    for one in (buffer, ensemble):
        for _ in range(3):
            out = one.sample()
            assert (out["next", "reward"] == 2 * out["x"]).all()


def test_other_transformations() -> None:
    batch = made()
    each = jax.vmap(lambda row: row["obs"].sum() + row["next", "reward"])(batch)
    assert np.allclose(each, batch["obs"].sum(1) + batch["next", "reward"])
    slope = jax.grad(lambda w, b: (w * b["next", "reward"]).sum())(1.0, batch)
    assert float(slope) == batch["next", "reward"].sum()
    moved = jax.device_put(batch)
    assert isinstance(moved["obs"], jax.Array) and isinstance(moved, Nested)
    shaped = jax.tree.map(lambda x: x.shape, batch.reshape(2, 3), is_leaf=None)
    assert shaped["obs"] == (2, 3, 2) and shaped["next", "reward"] == (2, 3)


Pair = namedtuple("Pair", ["first", "second"])


def test_trees_that_are_no_dicts() -> None:
    pair = Batch.from_tree(Pair(np.arange(3.0), {"b": np.arange(3)}))
    out = jax.tree.map(jnp.asarray, pair)
    assert isinstance(out, Pair) and out.second["b"].tolist() == [0, 1, 2]
    (path, _), _ = jax.tree_util.tree_flatten_with_path(pair)[0]
    assert jax.tree_util.keystr(path) == ".tree.first"
    one = Batch.from_tree(np.arange(4.0))
    assert float(jax.jit(lambda x: x.sum())(one)) == 6.0


def test_rows_of_different_lengths_are_values_and_offsets() -> None:
    ragged = Ragged(np.arange(5, dtype=np.float32), np.array([0, 2, 5]))
    batch = Batch.from_tree({"t": ragged, "x": np.arange(2)})
    values, offsets = jax.tree.map(jnp.asarray, batch)["t"]
    assert values.tolist() == [0, 1, 2, 3, 4] and offsets.tolist() == [0, 2, 5]
    assert float(jax.jit(lambda b: b["t"][0].sum())(batch)) == 10.0
    text = Batch.from_tree({"t": Blob.of([b"a", b"bc"]), "x": np.arange(2)})
    values, offsets = jax.tree.map(jnp.asarray, text)["t"]
    assert bytes(np.asarray(values)) == b"abc" and offsets.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    "order", ["import jax; import contig.batch", "import contig.batch; import jax"]
)
def test_whoever_is_imported_first(order: str) -> None:
    code = f"""
import sys
{order}
import numpy as np
assert not [f for f in sys.meta_path if type(f).__module__.startswith("contig")]
batch = contig.batch.Batch.from_tree({{"x": np.arange(3.0)}})
assert float(jax.jit(lambda b: b["x"].sum())(batch)) == 3.0
assert jax.__spec__.loader.get_filename("jax") == jax.__file__
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("how", ["sys.modules['jax'] = None", "sys.path[:] = []"])
def test_without_jax(how: str) -> None:
    """Whether it is forbidden, or not installed."""
    before, after = (how, "") if "modules" in how else ("", how)
    code = f"""
import sys
{before}
import contig.batch, numpy as np
assert contig.batch.Batch.from_tree({{"x": np.arange(3.0)}})["x"].sum() == 3
{after}
try:
    import jax
except ImportError:
    raise SystemExit(0)
raise SystemExit("jax was found")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# -- over the same memory -----------------------------------------------------------------------


def address(array: Any) -> int:
    return int(array.unsafe_buffer_pointer())


LARGE = 80_000


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_, np.float16])
def test_large_columns_are_not_copied_if_asked(dtype: Any) -> None:
    batch = Batch.from_tree({"x": np.ones((LARGE, 4), dtype)})
    shared, copied = batch.jax(copy=False)["x"], batch.jax()["x"]
    assert shared.dtype == copied.dtype == dtype
    assert address(shared) == batch["x"].ctypes.data != address(copied)
    small = Batch.from_tree({"x": np.ones((16, 4), dtype)})  # cheaper copied
    assert address(small.jax(copy=False)["x"]) != small["x"].ctypes.data
    assert bool((shared == copied).all())


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_numbers_that_jax_has_not_are_copied_and_checked(dtype: Any) -> None:
    batch = Batch.from_tree({"x": np.arange(LARGE, dtype=dtype)})
    out = batch.jax(copy=False)["x"]
    assert out.dtype.itemsize == 4 and out[-1] == LARGE - 1
    if dtype is np.int64:
        batch["x"][7] = 2**40
        with pytest.raises(ValueError, match='"x": int64 values .* do not fit'):
            batch.jax(copy=False)


def test_bfloat16_is_copied() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    batch = Batch.from_tree({"x": np.arange(LARGE).astype(bfloat16)})
    assert batch.jax(copy=False)["x"].dtype == jnp.bfloat16


def test_memory_that_is_not_aligned_is_copied() -> None:
    block = _native.Block(4 * LARGE + 64)
    moved = memoryview(block)[4:]
    layout = Batch.from_tree({"x": np.ones(2, np.float32)}).layout
    batch = Batch(moved, layout, (LARGE,))
    batch["x"][...] = 5
    out = batch.jax(copy=False)["x"]
    assert address(out) != batch["x"].ctypes.data and float(out.sum()) == 5.0 * LARGE


def test_arrays_outlive_their_batch() -> None:
    """A block is used again only when nothing refers to it."""
    batch = Batch.from_tree({"x": np.arange(LARGE, dtype=np.float32)})
    x = batch.jax(copy=False)["x"]
    where, size = address(x), len(batch.block)
    del batch
    gc.collect()
    others = [_native.Block(size) for _ in range(20)]
    for other in others:
        np.frombuffer(other, np.uint8)[:] = 0xFF
    assert np.array_equal(np.asarray(x), np.arange(LARGE, dtype=np.float32))
    assert all(np.frombuffer(other, np.uint8).ctypes.data != where for other in others)
    del x
    gc.collect()
    again = [_native.Block(size) for _ in range(21)]
    assert any(np.frombuffer(other, np.uint8).ctypes.data == where for other in again)


def test_samples_of_a_buffer_are_not_copied_and_stay_as_they_are() -> None:
    rows = 3000
    buffer = ReplayBuffer(
        LazyTensorStorage(rows), PrioritizedSampler(), batch_size=rows, output="jax", seed=0
    )
    x = np.repeat(np.arange(rows, dtype=np.float32)[:, None], 8, 1)
    buffer.extend({"x": x, "done": np.zeros(rows, bool)})
    batch, info = buffer.sample(return_info=True)
    info["index"][:] = 0  # the caller's own
    kept = [buffer.sample() for _ in range(20)]
    buffer.extend({"x": x + 0.5, "done": np.zeros(rows, bool)})  # over all rows
    for one in (batch, *kept):
        assert bool((one["x"] == one["index"][:, None]).all())
    weights = np.asarray(batch["priority_weight"]).copy()
    info["priority_weight"][:] = -1
    assert np.array_equal(batch["priority_weight"], weights)


# -- small batches, in one piece ------------------------------------------------------------------


def mixed(rows: int) -> dict[str, Any]:
    """Leaves of every size of number, shapes with and without further dims, one of no elements."""
    count = np.arange(rows)
    return {
        "flags": count % 3 == 0,
        "wide_flags": np.stack([count % 2, count % 5], 1).astype(np.bool_),
        "byte": count.astype(np.uint8),
        "signed_byte": (-count).astype(np.int8),
        "short": (count * 300).astype(np.int16),
        "half": (count / 8).astype(np.float16),
        "float": np.stack([count, -count, count / 3], 1).astype(np.float32),
        "int": (-count).astype(np.int32),
        "unsigned": (count + 2**31).astype(np.uint32),
        "long": -count,
        "nothing": np.zeros((rows, 0), np.float32),
        "next": {"x": np.full((rows, 2, 2), np.nan, np.float32)},
    }


@pytest.mark.parametrize("rows", [1, 7, 256])
def test_a_batch_that_comes_again_goes_over_in_one_piece(rows: int) -> None:
    first, again, third = (Batch.from_tree(mixed(rows)) for _ in range(3))
    known = set(forms._splitters)
    want = first.jax()
    for batch in (first, again, third):  # one by one; then compiled; then once more
        got = batch.jax(copy=False)
        for path in list(batch.keys()):
            a, b = got, want
            for key in path:
                a, b = a[key], b[key]
            assert a.dtype == b.dtype and a.shape == b.shape, path
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path
    (key,) = forms._splitters.keys() - known
    assert forms._splitters[key] is not None


def test_in_one_piece_what_does_not_fit_is_said() -> None:
    for turn in range(4):
        batch = Batch.from_tree({"x": np.arange(9), "y": np.zeros(9, np.float32)})
        if turn == 3:
            batch["x"][4] = 2**31
            with pytest.raises(ValueError, match='"x": int64 values from 0 to 2147483648 do not'):
                batch.jax(copy=False)
        else:
            assert batch.jax(copy=False)["x"].tolist() == list(range(9))


def test_numbers_that_cannot_be_cut_go_one_by_one() -> None:
    for _ in range(3):
        batch = Batch.from_tree({"x": np.arange(5) / 3, "z": np.full(5, 1j, np.complex64)})
        got = batch.jax(copy=False)
        assert got["x"].dtype == np.float32 and got["z"].dtype == np.complex64
        assert np.allclose(got["x"], np.arange(5) / 3) and complex(got["z"][3]) == 1j


def test_what_is_remembered_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_MOST_SPLITTERS", 4)
    for rows in range(1, 30):
        Batch.from_tree({"x": np.zeros(rows, np.float32)}).jax(copy=False)
        assert len(forms._splitters) <= 4


def test_samples_in_one_piece_stay_as_they_are() -> None:
    """Blocks are used again; what came out of them is nobody else's."""
    buffer = ReplayBuffer(LazyTensorStorage(1000), batch_size=64, output="jax", seed=0)
    x = np.repeat(np.arange(1000, dtype=np.float32)[:, None], 8, 1)
    buffer.extend({"x": x, "done": np.zeros(1000, bool)})
    kept = [buffer.sample() for _ in range(50)]
    for batch in kept:
        assert bool((batch["x"] == batch["index"][:, None]).all())
