"""What goes out (numpy, torch, jax, tensordict) and what transforms see."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from contig import (
    Batch,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from tests.tape.rows import pieces, row, rows


def filled(**options):
    buffer = ReplayBuffer(LazyTensorStorage(20), seed=0, **options)
    buffer.extend(rows(range(6), "..t..t", next={"reward": np.arange(6, dtype=np.float32)}))
    return buffer


def test_numpy_is_a_batch():
    batch = filled().sample(4)
    assert isinstance(batch, Batch)
    assert isinstance(batch["next", "reward"], np.ndarray)
    assert batch["next"]["reward"] is batch["next", "reward"]


def test_torch_is_nested_dicts_of_tensors_by_key_or_path():
    batch = filled(output="torch").sample(4)
    assert isinstance(batch, dict) and isinstance(batch["next", "reward"], torch.Tensor)
    assert batch["next"]["reward"] is batch["next", "reward"]
    assert batch["index"].dtype == torch.int64 and batch["next", "done"].dtype == torch.bool
    assert torch.equal(batch["uid"], batch["index"])
    assert batch["next", "reward"].shape == (4,)


def test_torch_on_a_device_is_a_copy_with_the_same_values():
    here, there = filled(output="torch"), filled(output="torch", device="meta")
    assert there.sample(4)["next", "reward"].device.type == "meta"
    assert here.sample(4)["uid"].device.type == "cpu"


def test_a_torch_sample_outlives_its_buffer_and_later_samples():
    buffer = filled(output="torch")
    batch = buffer.sample(4)
    uids = batch["uid"].clone()
    for _ in range(50):
        buffer.sample(4)
    buffer.storage.close()
    del buffer
    assert torch.equal(batch["uid"], uids)


def test_jax_is_nested_dicts_of_arrays():
    batch = filled(output="jax").sample(4)
    assert isinstance(batch["next"]["reward"], jax.Array)
    np.testing.assert_array_equal(batch["uid"], batch["index"])
    total = jax.jit(lambda b: b["next"]["reward"].sum())(batch)
    assert total == np.asarray(batch["uid"]).sum()


def test_jax_samples_do_not_change_when_the_next_one_is_drawn():
    buffer = filled(output="jax")
    batches = [buffer.sample(64) for _ in range(20)]
    for batch in batches:
        np.testing.assert_array_equal(batch["uid"], batch["index"])


def test_jax_never_changes_a_value_silently():
    """Without x64 jax has no int64: what does not fit is an error."""
    buffer = ReplayBuffer(LazyTensorStorage(20), output="jax")
    buffer.extend({"id": np.array([2**40 + 5, 2**40 + 6]), "done": np.zeros(2, bool)})
    with pytest.raises(ValueError, match='"id": int64 values .* do not fit'):
        buffer.sample(4)


@pytest.mark.parametrize("make", [filled, None])
def test_a_tensordict_shows_flags_and_rewards_with_a_trailing_dim(make):
    if make is None:
        buffer = TensorDictReplayBuffer(LazyTensorStorage(20), seed=0)
        buffer.extend(rows(range(6), "..t..t", next={"reward": np.arange(6, dtype=np.float32)}))
    else:
        buffer = make(output="tensordict")
    batch = buffer.sample(4)
    assert isinstance(batch, TensorDict) and batch.batch_size == torch.Size([4])
    for leaf in ("reward", "done", "terminated", "truncated"):
        assert batch["next", leaf].shape == (4, 1)
    assert batch["uid"].shape == (4,) and batch["obs"].shape == (4, 2)
    assert torch.equal(batch["next", "reward"][:, 0], batch["index"].float())


def test_tensordict_flags_stored_with_a_trailing_dim_keep_it():
    buffer = TensorDictReplayBuffer(LazyTensorStorage(20), SliceSampler(slice_len=2), seed=0)
    data = TensorDict(
        {"x": torch.arange(4), "next": {"done": torch.tensor([[0], [1], [0], [1]]).bool()}}, [4]
    )
    buffer.extend(data)
    batch = buffer.sample(4)
    assert batch["next", "done"].shape == (4, 1) and batch["next", "truncated"].shape == (4, 1)
    assert batch["is_init"].shape == (4, 1)
    assert buffer[:]["next", "done"].shape == (4, 1)


@pytest.mark.parametrize("output", ["numpy", "torch", "jax", "tensordict"])
def test_rows_by_seq_come_out_in_the_same_form(output):
    buffer = filled(output=output)
    assert type(buffer[[3, 1]]) is type(buffer.sample(2))
    assert buffer[[3, 1]]["uid"].tolist() == [3, 1]


def test_what_is_no_output():
    with pytest.raises(ValueError, match='"pandas"|pandas'):
        ReplayBuffer(output="pandas")
    with pytest.raises(ValueError, match="device"):
        ReplayBuffer(output="numpy", device="cpu")


@pytest.mark.parametrize("output", ["numpy", "torch", "jax", "tensordict"])
def test_return_info(output):
    buffer = filled(output=output, sampler=PrioritizedSampler())
    batch, info = buffer.sample(5, return_info=True)
    assert set(info) == {"index", "priority_weight"}
    assert info["index"].tolist() == batch["index"].tolist()
    np.testing.assert_array_equal(info["priority_weight"], np.asarray(batch["priority_weight"]))
    _, info = filled(output=output, sampler=RandomSampler()).sample(5, return_info=True)
    assert set(info) == {"index"}


# -- transforms ------------------------------------------------------------------------------------


class Doubler:
    """Remembers what it saw; doubles obs on the way in and adds 0.5 on the way out."""

    def __init__(self):
        self.written, self.sampled = [], []

    def on_write(self, batch):
        assert isinstance(batch, Batch)
        self.written.append(batch["uid"].tolist())
        return batch.with_leaves({"obs": batch["obs"] * 2})

    def on_sample(self, batch):
        assert isinstance(batch, Batch)
        self.sampled.append(batch["uid"].tolist())
        return batch.with_leaves({"obs": batch["obs"] + 0.5})


def doubled(batch):
    return batch.with_leaves({"obs": batch["obs"] * 2})


@pytest.mark.parametrize("transform", [doubled, Doubler()], ids=["callable", "object"])
def test_a_transform_sees_every_way_of_writing(transform):
    buffer = ReplayBuffer(LazyTensorStorage(40, ndim=2), transform=transform, seed=0)
    buffer.add(row(0, "."))
    buffer.add_step(rows([1, 10], ".."))
    buffer.extend(rows([2, 3], ".t"))
    buffer.extend(rows([[20, 21], [30, 31]], "...."))
    buffer.extend_trajectory(rows([40, 41], ".t"), traj_id=5)
    table = buffer.storage.episodes()
    found = [buffer.storage.read_episode(i)["uid"].tolist() for i in table["id"]]
    assert found == [[0, 2, 3], [1], [10], [20, 21], [30, 31], [40, 41]]
    stored = buffer[:]
    np.testing.assert_array_equal(stored["obs"][:, 0], 2 * stored["uid"])
    batch = buffer.sample(8)
    shift = 0.5 if isinstance(transform, Doubler) else 0.0
    np.testing.assert_array_equal(batch["obs"][:, 0], 2 * batch["uid"] + shift)
    if isinstance(transform, Doubler):
        assert transform.written[0] == [0] and transform.written[3] == [[20, 21], [30, 31]]
        assert transform.sampled == [batch["uid"].tolist()]


class OnSampleOnly:
    def on_sample(self, batch):
        return batch.with_leaves({"twice": batch["uid"] * 2})


@pytest.mark.parametrize("output", ["numpy", "torch", "tensordict"])
def test_a_transform_of_samples_only(output):
    buffer = filled(transform=OnSampleOnly(), output=output)
    batch = buffer.sample(5)
    assert batch["twice"].tolist() == (batch["index"] * 2).tolist()
    assert ("twice",) not in buffer.storage.layout.by_path


def test_a_transform_may_add_leaves_before_they_are_stored():
    buffer = ReplayBuffer(
        LazyTensorStorage(20),
        transform=lambda b: b.with_leaves({"norm": np.linalg.norm(b["obs"], axis=-1)}),
        seed=0,
    )
    buffer.add(row(3, "."))
    buffer.extend(rows(range(4, 6), ".t"))
    batch = buffer.sample(5)
    np.testing.assert_allclose(batch["norm"], np.linalg.norm(batch["obs"], axis=-1))
    assert pieces(buffer.storage) == [[3, 4, 5]]


def test_a_transform_that_fails_writes_nothing():
    def fail(batch):
        raise RuntimeError("no")

    buffer = ReplayBuffer(LazyTensorStorage(20), transform=fail)
    for call in (
        lambda: buffer.add(row(0, ".")),
        lambda: buffer.extend(rows([0], ".")),
        lambda: buffer.add_step(rows([0], ".")),
        lambda: buffer.extend_trajectory(rows([0], "t")),
    ):
        with pytest.raises(RuntimeError, match="no"):
            call()
    assert len(buffer) == 0


def test_a_transform_must_be_something_to_call():
    with pytest.raises(TypeError, match="on_write"):
        ReplayBuffer(transform=3)


def test_fewer_dims_than_ndim_are_one_run_with_a_transform_too():
    """Every leaf of a row has dims of its own, so that the row's shape decides, not the fewest."""
    example = {"x": np.zeros(3, np.float32), "next": {"done": np.zeros(1, bool)}}
    for transform in (None, lambda b: b):
        storage = LazyTensorStorage(20, ndim=2, example=example)
        buffer = ReplayBuffer(storage, transform=transform)
        buffer.extend({"x": np.ones((4, 3), np.float32), "next": {"done": np.zeros((4, 1), bool)}})
        assert storage.episodes()["steps"].tolist() == [4]


# -- tensors that come in --------------------------------------------------------------------------


STEP = {"obs": torch.zeros(3), "next": {"reward": 1.0, "done": False}}
ROWS = {"obs": torch.zeros(2, 3), "next": {"reward": np.ones(2), "done": np.zeros(2, bool)}}
TENSORS = TensorDict({"obs": torch.zeros(2, 3), "next": {"done": torch.zeros(2, 1).bool()}}, [2])
FIRST_WRITES = {
    "add": ("torch", lambda b: b.add(STEP)),
    "add_step": ("torch", lambda b: b.add_step(ROWS)),
    "extend": ("torch", lambda b: b.extend(ROWS)),
    "extend_trajectory": ("torch", lambda b: b.extend_trajectory(ROWS)),
    "a TensorDict": ("tensordict", lambda b: b.extend(TENSORS)),
    "one of a TensorDict": ("tensordict", lambda b: b.add(TENSORS[0])),
    "a list of TensorDicts": ("tensordict", lambda b: b.extend([TENSORS[0], TENSORS[1]])),
}


def said(caplog):
    return [x.getMessage() for x in caplog.records if x.name == "contig.replay"]


@pytest.mark.parametrize("verb", FIRST_WRITES)
def test_the_first_tensors_say_which_output_would_be_tensors(verb, caplog):
    kind, write = FIRST_WRITES[verb]
    buffer = ReplayBuffer(LazyTensorStorage(20), batch_size=2)
    write(buffer)
    write(buffer)
    assert len(said(caplog)) == 1
    assert f'ReplayBuffer(..., output="{kind}")' in said(caplog)[0]
    assert isinstance(buffer.sample(), Batch)  # the type stays


@pytest.mark.parametrize("options", [{"output": "numpy"}, {"output": "torch"}, {"device": "cpu"}])
def test_who_says_the_output_is_told_nothing(options, caplog):
    buffer = ReplayBuffer(LazyTensorStorage(20), batch_size=2, **options)
    buffer.extend(ROWS)
    TensorDictReplayBuffer(LazyTensorStorage(20)).extend(TENSORS)
    ReplayBuffer(LazyTensorStorage(20)).extend(rows(range(6), "..t..t"))
    assert not said(caplog)
