"""What may be written: dicts, Batches, TensorDicts, torch and jax arrays, other trees."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import Batch, LayoutError, LazyTensorStorage, ReplayBuffer, SliceSampler
from tests.tape.rows import pieces, row, rows


def as_torch(tree):
    return {
        k: as_torch(v) if isinstance(v, dict) else torch.from_numpy(np.array(v))
        for k, v in tree.items()
    }


def as_jax(tree):
    return {k: as_jax(v) if isinstance(v, dict) else jnp.asarray(v) for k, v in tree.items()}


def same(tree):
    return tree


CONVERT = {"numpy": same, "torch": as_torch, "jax": as_jax}


@pytest.mark.parametrize("convert", CONVERT.values(), ids=CONVERT.keys())
def test_every_way_of_writing_takes_every_array(convert):
    storage = LazyTensorStorage(40, ndim=2, example=row(0, "."))
    writer = storage.writer()
    writer.add(convert(row(0, ".")))
    writer.extend(convert(rows([1, 2], ".t")))
    writer.add_step(convert(rows([10, 20], "..")))
    writer.add_step(convert(rows([11, 21], "tt")))
    writer.extend(convert(rows([[30, 31], [40, 41]], "....")))
    writer.extend_trajectory(convert(rows([50, 51], ".t")))
    assert pieces(storage) == [[0, 1, 2], [10, 11], [20, 21], [30, 31], [40, 41], [50, 51]]


def test_tensors_that_need_grad_are_detached():
    storage = LazyTensorStorage(10)
    storage.writer().extend({"x": torch.ones(3, 2, requires_grad=True), "done": torch.zeros(3)})
    assert storage.gather(np.arange(3))[0]["x"].tolist() == [[1.0, 1.0]] * 3


def test_a_tensordict_has_its_own_batch_shape_whatever_ndim():
    for ndim in (1, 2, 3):
        storage = LazyTensorStorage(40, ndim=ndim)
        writer = storage.writer()
        flat = TensorDict(as_torch(rows(range(3), "..t")), batch_size=[3])
        writer.extend(flat)
        lanes = TensorDict(as_torch(rows([[10, 11], [20, 21]], "....")), batch_size=[2, 2])
        writer.extend(lanes)
        writer.add(TensorDict(as_torch(row(30, "t")), batch_size=[]))
        assert pieces(storage) == [[0, 1, 2], [10, 11], [20, 21], [30]]


def test_a_nested_tensordict():
    storage = LazyTensorStorage(10)
    data = TensorDict(
        {
            "uid": torch.arange(2),
            "obs": torch.tensor([[0, 0.25], [1, 1.25]]),
            "next": TensorDict(
                {
                    "obs": torch.tensor([[0, 0.75], [1, 1.75]]),
                    "done": torch.tensor([[False], [True]]),
                },
                batch_size=[2],
            ),
        },
        batch_size=[2],
    )
    storage.writer().extend(data)
    assert pieces(storage) == [[0, 1]]
    assert storage.layout.by_path["next", "done"].shape == (1,)


def test_a_tensordict_without_batch_dims_is_for_add():
    storage = LazyTensorStorage(10)
    with pytest.raises(LayoutError, match="use add"):
        storage.writer().extend(TensorDict(as_torch(row(0, ".")), batch_size=[]))
    with pytest.raises(LayoutError, match="use extend"):
        storage.writer().add(TensorDict(as_torch(rows([0], ".")), batch_size=[1]))


def test_a_batch_has_its_own_batch_shape_whatever_ndim():
    for ndim in (1, 2):
        storage = LazyTensorStorage(40, ndim=ndim)
        storage.writer().extend(Batch.from_tree(rows([[0, 1], [10, 11]], "...."), 2))
        storage.writer().extend(Batch.from_tree(rows(range(20, 23), "..t"), 1))
        assert pieces(storage) == [[0, 1], [10, 11], [20, 21, 22]]


def test_a_sample_is_written_without_what_the_sampler_added():
    first = ReplayBuffer(LazyTensorStorage(40), SliceSampler(slice_len=3), seed=0)
    first.extend(rows(range(6), ".....t", episode=np.array([7] * 6)))
    second = ReplayBuffer(LazyTensorStorage(40))
    batch = first.sample(3)
    second.extend(batch)
    assert second.storage.layout == first.storage.layout
    np.testing.assert_array_equal(second[:]["uid"], batch["uid"])


@pytest.mark.parametrize(
    "form",
    [
        np.asfortranarray,
        lambda a: np.repeat(a, 2, 0)[::2],
        lambda a: a[::-1][::-1],
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        lambda a: a.astype(np.float64),
        lambda a: torch.from_numpy(np.repeat(a, 2, 0))[::2],
    ],
    ids=["fortran", "strided", "reversed", "big-endian", "wider", "strided tensor"],
)
@pytest.mark.parametrize("times", [1, 2])
def test_arrays_in_any_memory_order(form, times):
    storage = LazyTensorStorage(40)
    value = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    for _ in range(times):  # the second write meets a packer that knows the layout
        storage.writer().extend({"x": value, "done": np.zeros(4, bool)})
        storage.writer().extend({"x": form(value), "done": np.zeros(4, bool)})
    batch, _ = storage.gather(np.arange(8 * times))
    np.testing.assert_array_equal(batch["x"], np.concatenate([value] * 2 * times))


class Step(NamedTuple):
    obs: np.ndarray
    done: np.ndarray


@pytest.mark.parametrize("times", [1, 2])
def test_trees_that_are_no_mappings(times):
    """Tuples, lists and namedtuples; what a sampler adds is reached by key."""
    for tree in (
        (np.arange(4), [np.arange(4) * 2.0]),
        Step(np.arange(4), np.array([False, True] * 2)),
    ):
        buffer = ReplayBuffer(LazyTensorStorage(40), seed=0)
        for _ in range(times):
            buffer.extend(tree)
        batch = buffer.sample(6)
        assert type(batch.tree()) is type(tree)
        first = batch.tree()[0]
        np.testing.assert_array_equal(first, batch["index"] % 4)


def test_bfloat16_tensors():
    buffer = ReplayBuffer(LazyTensorStorage(10), output="torch", seed=0)
    x = torch.arange(4).to(torch.bfloat16)
    for _ in range(2):
        buffer.extend({"x": x, "done": torch.zeros(4, dtype=torch.bool)})
    batch = buffer.sample(8)
    assert batch["x"].dtype == torch.bfloat16
    assert batch["x"].float().tolist() == (batch["index"] % 4).tolist()


def test_empty_leaves():
    """A leaf of no elements, such as the observation of an env that has none."""
    buffer = ReplayBuffer(LazyTensorStorage(10), seed=0)
    for _ in range(2):
        buffer.extend({"x": np.zeros((3, 0)), "n": np.arange(3), "done": np.zeros(3, bool)})
    batch = buffer.sample(5)
    assert batch["x"].shape == (5, 0)
    np.testing.assert_array_equal(batch["n"], batch["index"] % 3)


def test_a_capacity_by_torchrls_name() -> None:
    assert LazyTensorStorage(max_size=7).capacity == LazyTensorStorage(7).capacity == 7
    with pytest.raises(TypeError, match="capacity, or max_size"):
        LazyTensorStorage(7, max_size=7)
    with pytest.raises(ValueError, match="capacity"):
        LazyTensorStorage()
