"""contig's buffers under TorchRL's names, beside TorchRL's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrl import data as theirs
from torchrl.data import replay_buffers as their_parts

import contig
from contig.adapters import torchrl as ours
from tests.adapters.torchrl_side import steps


def same(a: Any, b: Any) -> None:
    """Equal TensorDicts, in shape, keys, dtypes and values; seqs and places aside."""
    a, b = a.exclude("index"), b.exclude("index")
    assert a.batch_size == b.batch_size
    assert set(a.keys(True, True)) == set(b.keys(True, True))
    for key, value in a.items(True, True):
        assert value.dtype == b[key].dtype, key
        torch.testing.assert_close(value, b[key], rtol=0, atol=0, msg=str(key))


def test_arguments_that_scripts_give(tmp_path: Path) -> None:
    buffer = ours.TensorDictReplayBuffer(
        pin_memory=False,
        prefetch=3,
        storage=ours.LazyMemmapStorage(max_size=100, scratch_dir=tmp_path / "rows", device="cpu"),
        batch_size=8,
        sampler=ours.RandomSampler(),
        writer=ours.TensorDictRoundRobinWriter(),
        collate_fn=lambda x: x,
        priority_key="td_error",
        shared=False,
        compilable=False,
    )
    assert buffer.storage.max_size == 100
    assert isinstance(buffer, theirs.ReplayBuffer) and isinstance(buffer, contig.ReplayBuffer)
    assert isinstance(buffer, theirs.TensorDictReplayBuffer)
    assert not isinstance(buffer, theirs.TensorDictPrioritizedReplayBuffer)
    assert buffer.extend(steps(20)).tolist() == list(range(20))
    assert buffer.add(steps(1, uid=20)[0]) == 20
    assert len(buffer) == 21 and buffer.write_count == 21
    sample, info = buffer.sample(return_info=True)
    assert sample.batch_size == (8,)
    assert torch.equal(info["index"], sample["index"])
    assert torch.equal(sample["uid"], sample["index"])
    assert buffer.sample(batch_size=5).batch_size == (5,)
    buffer.update_tensordict_priority(sample)  # nothing to do, and no error
    buffer.empty()
    assert len(buffer) == 0
    assert buffer.extend(steps(2)).tolist() == [21, 22]
    buffer.close()
    buffer.storage.close()


@pytest.mark.parametrize("kind", ["ReplayBuffer", "TensorDictReplayBuffer"])
def test_rows_come_out_as_theirs(kind: str) -> None:
    """The same data through both: all of it, rows, keys."""
    mine = getattr(ours, kind)(storage=ours.LazyTensorStorage(30), batch_size=4)
    other = getattr(theirs, kind)(storage=theirs.LazyTensorStorage(30), batch_size=4)
    for buffer in (mine, other):
        buffer.extend(steps(20))
    same(mine[:], other[:])
    same(mine[3], other[3])
    same(mine[torch.tensor([4, 2, 9])], other[torch.tensor([4, 2, 9])])
    assert torch.equal(mine["next", "reward"], other["next", "reward"])
    assert torch.equal(mine[:, "uid"], other[:]["uid"])
    sample, info = mine.sample(return_info=True)
    same(sample, other[info["index"]])
    assert set(info) == set(other.sample(return_info=True)[1])


def test_items_of_several_steps() -> None:
    """Data with more batch dims than the storage is items of the rest of its shape."""
    data = steps(24).reshape(4, 6)
    mine = ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(10), batch_size=3)
    other = theirs.TensorDictReplayBuffer(storage=theirs.LazyTensorStorage(10), batch_size=3)
    for buffer in (mine, other):
        buffer.extend(data.clone())
    assert len(mine) == len(other) == 4
    same(mine[:], other[:])
    sample = mine.sample()
    assert sample.batch_size == (3, 6)
    assert sample["index"].shape == other.sample()["index"].shape == (3, 6)
    same(sample, other[sample["index"][:, 0]])
    mine.add(steps(6, uid=100))
    assert mine[4]["uid"].tolist() == list(range(100, 106))
    with pytest.raises(ValueError, match=r"items of shape \[3\], before they were \[6\]"):
        mine.extend(steps(12).reshape(4, 3))


def test_lanes_with_ndim_2() -> None:
    mine = ours.ReplayBuffer(
        storage=ours.LazyTensorStorage(max_size=60, ndim=2),
        sampler=ours.SliceSampler(slice_len=5, traj_key=("collector", "traj_ids")),
        batch_size=20,
        dim_extend=1,
    )
    mine.extend(steps(30).reshape(3, 10))
    sample = mine.sample()
    assert sample.batch_size == (20,)
    slices = sample["uid"].reshape(4, 5)
    assert (slices.diff(dim=1) == 1).all() and (slices[:, 0] % 5 == 0).all()


# -- samplers ---------------------------------------------------------------------------------


def test_epochs_end() -> None:
    for drop_last in (False, True):
        mine = ours.ReplayBuffer(
            storage=ours.LazyTensorStorage(50),
            sampler=ours.SamplerWithoutReplacement(drop_last=drop_last),
            batch_size=8,
            prefetch=2,
        )
        other = theirs.ReplayBuffer(
            storage=theirs.LazyTensorStorage(50),
            sampler=their_parts.SamplerWithoutReplacement(drop_last=drop_last),
            batch_size=8,
        )
        for buffer in (mine, other):
            buffer.extend(steps(20))
        for _ in range(3):
            found = [b["uid"].tolist() for b in mine]
            assert [len(x) for x in found] == [len(b) for b in other]
            seen = [uid for batch in found for uid in batch]
            assert len(set(seen)) == len(seen)
            assert drop_last or sorted(seen) == list(range(20))
        mine.close()


def test_epochs_begin_anew_and_of_slices() -> None:
    buffer = ours.TensorDictReplayBuffer(
        storage=ours.LazyTensorStorage(100),
        sampler=ours.SliceSamplerWithoutReplacement(slice_len=5),
        batch_size=10,
    )
    buffer.extend(steps(35))
    for _ in range(2):
        found = torch.cat([b["uid"] for b in buffer])
        assert sorted(found.tolist()) == list(range(35))
    rows = ours.ReplayBuffer(
        storage=ours.LazyTensorStorage(100), sampler=ours.SamplerWithoutReplacement(), batch_size=6
    )
    rows.extend(steps(12))
    next(iter(rows))  # an epoch that nobody finishes
    assert sum(len(b) for b in rows) == 12
    assert [len(b) for b in iter(rows.next, None)] == [6, 6] and rows.next() is not None
    with pytest.raises(RuntimeError, match="no batch size"):
        next(iter(ours.ReplayBuffer(storage=ours.LazyTensorStorage(5))))


def test_strict_length_is_their_default() -> None:
    buffer = ours.ReplayBuffer(
        storage=ours.LazyTensorStorage(100),
        sampler=ours.SliceSampler(slice_len=4, cache_values=True, compile=False),
        batch_size=8,
    )
    data = steps(8)  # the second trajectory has three steps
    buffer.extend(data)
    for _ in range(10):
        assert buffer.sample()["uid"].max() < 5
    loose = ours.SliceSampler(num_slices=2, strict_length=False)
    short = ours.ReplayBuffer(storage=ours.LazyTensorStorage(100), sampler=loose, batch_size=8)
    short.extend(data)
    assert any(len(short.sample()) < 8 for _ in range(20))


def errors_of(n: int) -> Any:
    return torch.linspace(0.5, 5.0, n)


def test_priorities() -> None:
    buffer = ours.TensorDictPrioritizedReplayBuffer(
        alpha=0.7,
        beta=0.5,
        priority_key="error",
        storage=ours.LazyTensorStorage(max_size=64),
        batch_size=4000,
    )
    assert isinstance(buffer, theirs.TensorDictPrioritizedReplayBuffer)
    buffer.extend(steps(10, error=errors_of(10)))
    sample = buffer.sample()
    share = torch.bincount(sample["uid"], minlength=10) / 4000
    q = (errors_of(10) + 1e-8) ** 0.7
    torch.testing.assert_close(share, q / q.sum(), rtol=0, atol=0.04)
    weight = (q / q.min()) ** -0.5
    torch.testing.assert_close(
        sample["priority_weight"], weight[sample["uid"]].double(), check_dtype=False
    )
    some = buffer.sample(16)
    some["error"] = -torch.stack([torch.full((16,), 30.0), torch.full((16,), 3.0)], -1)
    buffer.update_tensordict_priority(some)  # of several, the largest; signs do not count
    found = buffer.sample()
    boosted = torch.isin(found["uid"], some["uid"]).float().mean()
    q[some["uid"].unique()] = 30**0.7
    rest = q[some["uid"].unique()].sum() / q.sum()
    torch.testing.assert_close(boosted, rest, rtol=0, atol=0.04)


@pytest.mark.parametrize(("reduction", "value"), [("mean", 2.0), ("min", 1.0), ("max", 3.0)])
def test_reduction(reduction: str, value: float) -> None:
    sampler = ours.PrioritizedSampler(max_capacity=64, alpha=1.0, beta=1.0, reduction=reduction)
    buffer = ours.TensorDictReplayBuffer(
        storage=ours.LazyTensorStorage(64), sampler=sampler, batch_size=2000
    )
    buffer.extend(steps(2))
    td = buffer[:].clone()
    td["index"] = torch.arange(2)
    td["td_error"] = torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]])
    buffer.update_tensordict_priority(td)
    share = (buffer.sample()["uid"] == 0).float().mean()
    torch.testing.assert_close(share, torch.tensor(value / (value + 4)), rtol=0, atol=0.05)


def test_prioritized_slices_and_plain_priorities() -> None:
    sampler = ours.PrioritizedSliceSampler(100, 0.9, 0.4, num_slices=2)
    buffer = ours.TensorDictReplayBuffer(
        storage=ours.LazyTensorStorage(100), sampler=sampler, batch_size=10
    )
    buffer.extend(steps(30))
    sample = buffer.sample()
    assert (sample["uid"].reshape(2, 5).diff(dim=1) == 1).all()
    sample["td_error"] = torch.rand(10)
    buffer.update_tensordict_priority(sample)
    plain = ours.PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=ours.LazyTensorStorage(10))
    plain.extend(steps(5))
    plain.update_priority(torch.arange(5), torch.tensor([0.0, 0.0, 7.0, 0.0, 0.0]))
    assert set(plain.sample(20)["uid"].tolist()) == {2}


def test_seeds_are_torch_s() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(4)
        before = torch.get_rng_state()
        buffer = ours.ReplayBuffer(storage=ours.LazyTensorStorage(50), batch_size=8)
        assert torch.equal(torch.get_rng_state(), before)
        buffer.extend(steps(50))
        found.append(buffer.sample()["uid"])
    assert torch.equal(*found)
    other = ours.ReplayBuffer(
        storage=ours.LazyTensorStorage(50),
        batch_size=8,
        generator=torch.Generator().manual_seed(9),
    )
    other.extend(steps(50))
    assert not torch.equal(other.sample()["uid"], found[0])


# -- saving -----------------------------------------------------------------------------------


def prioritized() -> Any:
    return ours.TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=ours.LazyTensorStorage(64), batch_size=6
    )


@pytest.mark.parametrize("how", ["dumps", "state_dict"])
def test_saved_and_loaded(tmp_path: Path, how: str) -> None:
    buffer, again = prioritized(), prioritized()
    buffer.extend(steps(30, td_error=errors_of(30)))
    buffer.sample()
    if how == "dumps":
        buffer.dumps(tmp_path / "kept")
        again.loads(tmp_path / "kept")
    else:
        torch.save(buffer.state_dict(), tmp_path / "kept.pt")
        again.load_state_dict(torch.load(tmp_path / "kept.pt"))
    same(buffer[:], again[:])
    for _ in range(5):
        assert torch.equal(buffer.sample()["index"], again.sample()["index"])


def test_items_keep_their_shape_when_loaded(tmp_path: Path) -> None:
    buffer = ours.ReplayBuffer(storage=ours.LazyTensorStorage(9), batch_size=2)
    buffer.extend(steps(12).reshape(3, 4))
    buffer.dump(tmp_path / "kept")
    again = ours.ReplayBuffer(storage=ours.LazyTensorStorage(9), batch_size=2)
    again.loads(tmp_path / "kept")
    assert again.sample().batch_size == (2, 4)


def test_a_scratch_dir_is_not_taken_over(tmp_path: Path) -> None:
    place = tmp_path / "rows"
    storage = ours.LazyMemmapStorage(20, scratch_dir=place)
    ours.ReplayBuffer(storage=storage).extend(steps(5))
    storage.close()
    with pytest.raises(FileExistsError, match="existsok=True"):
        ours.LazyMemmapStorage(20, scratch_dir=place)
    storage = ours.LazyMemmapStorage(20, scratch_dir=place, existsok=True)
    assert len(ours.ReplayBuffer(storage=storage)) == 5
    storage.close()


# -- ensembles --------------------------------------------------------------------------------


def test_ensemble() -> None:
    members = [
        ours.TensorDictReplayBuffer(storage=ours.LazyTensorStorage(50), batch_size=4)
        for _ in range(2)
    ]
    for i, member in enumerate(members):
        member.extend(steps(20, uid=100 * i))
    both = ours.ReplayBufferEnsemble(
        *members,
        p=torch.tensor([0.25, 0.75]),
        batch_size=400,
        transform=lambda td: td.set("x", td["uid"]),
    )
    sample = both.sample()
    assert torch.equal(sample["uid"] // 100, sample["buffer_ids"])
    assert torch.equal(sample["x"], sample["uid"])
    assert 240 < int(sample["buffer_ids"].sum()) < 360
    members[0].append_transform(lambda td: td)
    with pytest.raises(ValueError, match=r"rbs\[0\].*give them to the ensemble"):
        ours.ReplayBufferEnsemble(*members, batch_size=4)


# -- what is refused --------------------------------------------------------------------------


def test_parts_of_the_wrong_library() -> None:
    with pytest.raises(TypeError, match=r"storage: .*LazyTensorStorage of TorchRL's own; import"):
        ours.ReplayBuffer(storage=theirs.LazyTensorStorage(5))
    with pytest.raises(TypeError, match="sampler: .*of TorchRL's own"):
        ours.ReplayBuffer(sampler=their_parts.RandomSampler())
    with pytest.raises(TypeError, match="writer: TensorDictMaxValueWriter"):
        ours.ReplayBuffer(writer=theirs.TensorDictMaxValueWriter())
    for writer in (
        their_parts.RoundRobinWriter(),
        ours.RoundRobinWriter,
        partial(theirs.TensorDictRoundRobinWriter, compilable=True),
    ):
        ours.ReplayBuffer(storage=partial(ours.LazyTensorStorage, 5), writer=writer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ours.SamplerWithoutReplacement(shuffle=False), "shuffle=False"),
        (lambda: ours.SliceSampler(slice_len=2, ends=torch.ones(3)), "ends=.*traj_key or end_key"),
        (lambda: ours.PrioritizedSampler(5, 0.5, 0.5, reduction="sum"), "reduction: expected one"),
        (lambda: ours.PrioritizedSliceSampler(5, 0.5, 0.5, slice_len=2, span=1), "span"),
        (lambda: ours.ReplayBuffer(consume_after_n_samples=2), "max_times_sampled"),
        (lambda: ours.ReplayBuffer(transform=abs, transform_factory=abs), "two ways"),
        (lambda: ours.ReplayBuffer(transform=3), "transform: expected"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_priorities_that_do_not_fit() -> None:
    buffer = prioritized()
    buffer.extend(steps(10))
    td = buffer.sample()
    td.batch_size = []
    td["td_error"] = torch.rand(4)
    with pytest.raises(ValueError, match=r"shape \[4\] for 6 rows"):
        buffer.update_tensordict_priority(td)
    assert np.isclose(float(buffer.sample()["priority_weight"].min()), 1.0)
