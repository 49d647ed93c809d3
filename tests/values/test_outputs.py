"""Batch as torch, jax and tensordict."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from contig import Batch, LayoutError, LazyTensorStorage, ReplayBuffer, _native
from tests.reference import trees

batch_shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def made(n: int = 4) -> Batch:
    return Batch.from_tree(
        {
            "obs": np.arange(n)[:, None] * 10 + np.arange(3, dtype=np.float32),
            "half": np.arange(n).astype(ml_dtypes.bfloat16),
            "is_init": np.arange(n) == 0,
            "next": {
                "reward": np.arange(n, dtype=np.float32),
                "done": np.arange(n) % 2 == 1,
                "terminated": (np.arange(n) % 2 == 1)[:, None],
                "truncated": np.zeros(n, bool),
                "obs": np.arange(n, dtype=np.float64),
            },
            "pair": (np.arange(n), [np.arange(n, dtype=np.uint8)]),
        }
    )


def numpy_of(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(x)


# -- torch ----------------------------------------------------------------------------------------


@given(trees.trees, batch_shapes)
def test_torch_has_the_same_values_in_the_same_memory(specs: Any, shape: tuple[int, ...]) -> None:
    batch = Batch.from_tree(trees.fill(specs, shape), len(shape))
    for device in (None, "cpu", torch.device("cpu")):
        tensors = batch.torch(device)
        assert trees.same(trees.rebuild(tensors, lambda _, t: numpy_of(t)), batch.tree())
        for (_, tensor), (_, array) in zip(trees.walk(tensors), trees.walk(batch.tree())):
            assert tensor.is_contiguous()
            if array.size:
                assert tensor.data_ptr() == array.ctypes.data


def test_bfloat16_becomes_bfloat16() -> None:
    tensors = made().torch()
    assert tensors["half"].dtype == torch.bfloat16
    assert tensors["half"].tolist() == [0, 1, 2, 3]
    assert made().jax()["half"].dtype == jnp.bfloat16


@given(trees.trees, batch_shapes)
def test_torch_on_another_device(specs: Any, shape: tuple[int, ...]) -> None:
    # "meta" goes the way of any device: the block is copied, leaves are views of the copy.
    batch = Batch.from_tree(trees.fill(specs, shape), len(shape))
    tensors = batch.torch("meta")
    here = batch.torch()
    for (path, there), (_, tensor) in zip(trees.walk(tensors), trees.walk(here)):
        assert there.device.type == "meta", path
        assert (there.shape, there.dtype) == (tensor.shape, tensor.dtype)
        assert there.is_contiguous()


def test_the_block_goes_to_the_device_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    original = torch.Tensor.to

    def counting(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copies.append(tuple(self.shape))
        return original(self, *args, **kwargs)

    batch = made()
    monkeypatch.setattr(torch.Tensor, "to", counting)
    batch.torch("meta")
    assert copies == [(len(batch.block),)]


def test_tensors_outlive_the_batch() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(40), batch_size=16, seed=0, output="torch")
    buffer.extend({"x": np.arange(40)})
    tensors = buffer.sample()
    index = tensors["index"].clone()
    x = tensors["x"]
    del tensors, buffer
    gc.collect()
    for _ in range(20):
        np.frombuffer(_native.Block(len(index) * 8 + 64), np.uint8)[:] = 0xFF
    assert torch.equal(x, index)


# -- jax ------------------------------------------------------------------------------------------


def test_jax_has_the_same_values() -> None:
    batch = made()
    arrays = batch.jax()
    assert isinstance(arrays["obs"], jax.Array)
    for (path, array), (_, want) in zip(trees.walk(arrays), trees.walk(batch.tree())):
        assert np.array_equal(np.asarray(array, want.dtype), want), path


@pytest.mark.parametrize("n", [1, 16, 1000, 100_000])
def test_jax_arrays_are_copies(n: int) -> None:
    batch = Batch.from_tree({"x": np.arange(n, dtype=np.float32)})
    x = batch.jax()["x"]
    batch["x"][...] = -1
    assert np.array_equal(np.asarray(x), np.arange(n, dtype=np.float32))


# -- tensordict -----------------------------------------------------------------------------------


def test_tensordict() -> None:
    batch = made().with_leaves({("collector", "traj_ids"): np.arange(4)})
    td = batch.to_tensordict()
    assert isinstance(td, TensorDict)
    assert td.batch_size == torch.Size([4])
    assert td["obs"].tolist() == batch["obs"].tolist()
    assert td["collector", "traj_ids"].shape == (4,)
    assert td["next", "obs"].shape == (4,)
    # Rewards and flags get the dim that TorchRL gives them, once.
    for key in ("is_init", ("next", "reward"), ("next", "done"), ("next", "truncated")):
        assert td[key].shape == (4, 1)
        assert td[key][:, 0].tolist() == batch[key].tolist()
    assert td["next", "terminated"].shape == (4, 1)
    assert td["next", "terminated"].tolist() == batch["next", "terminated"].tolist()


def test_tensordict_of_two_batch_dims() -> None:
    td = made(6).reshape(2, 3).to_tensordict()
    assert td.batch_size == torch.Size([2, 3])
    assert td["next", "done"].shape == (2, 3, 1)
    assert td["obs"].shape == (2, 3, 3)


def test_tensordict_shares_memory_and_goes_to_devices() -> None:
    batch = made()
    td = batch.to_tensordict()
    td["obs"][0] = -5
    assert batch["obs"][0].tolist() == [-5] * 3
    meta = batch.to_tensordict("meta")
    assert meta.device == torch.device("meta")
    assert meta["obs"].device.type == "meta"
    assert meta["next", "done"].shape == (4, 1)
    cpu = batch.to_tensordict("cpu")
    assert cpu.device == torch.device("cpu")
    assert cpu["obs"].tolist() == batch["obs"].tolist()


def test_a_tensordict_is_taken_back() -> None:
    td = made().to_tensordict()
    batch = Batch.from_tree(td)
    assert batch.shape == (4,)
    assert batch["next", "reward"].tolist() == [[0], [1], [2], [3]]
    two = Batch.from_tree(made(6).reshape(2, 3).to_tensordict())
    assert two.shape == (2, 3)  # its own batch dims, whatever was asked for
    assert two["obs"].tolist() == made(6).reshape(2, 3)["obs"].tolist()


def test_only_mappings_become_tensordicts() -> None:
    with pytest.raises(LayoutError, match="mapping"):
        Batch.from_tree((np.arange(3),)).to_tensordict()


def test_a_tensordict_is_as_if_checked() -> None:
    """It is made without tensordict's own checks: nothing may be missing of what they set."""
    batch = Batch.from_tree(
        {
            "observation": np.arange(12, dtype=np.float32).reshape(4, 3),
            "next": {"reward": np.zeros(4, np.float32), "deep": {"done": np.zeros(4, np.bool_)}},
        }
    )
    made = batch.to_tensordict()
    checked = TensorDict(made.to_dict(), batch_size=[4])
    assert made.batch_size == checked.batch_size == torch.Size([4])
    assert made["next", "deep"].batch_size == torch.Size([4]) and made.device is None
    assert made["next", "reward"].shape == made["next", "deep", "done"].shape == (4, 1)
    assert (made == checked).all() and not made.is_locked
    made["next", "value"] = torch.zeros(4, 1)
    assert torch.stack([made, made.clone()]).shape == (2, 4)
    with pytest.raises(RuntimeError):
        made["short"] = torch.zeros(3)
    made["observation"][0, 0] = 7  # over the batch's memory
    assert batch["observation"][0, 0] == 7
