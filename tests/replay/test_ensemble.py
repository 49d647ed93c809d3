"""ReplayBufferEnsemble: shares, ids, routing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from contig import (
    HindsightRelabel,
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    WindowSampler,
)
from tests.tape.rows import rows


def members(n=3, make=lambda: None, **options):
    out = []
    for i in range(n):
        buffer = ReplayBuffer(LazyTensorStorage(50), make(), seed=i, **options)
        buffer.extend(rows(np.arange(100 * i, 100 * i + 20), "...." * 4 + "...t"))
        out.append(buffer)
    return out


def test_an_equal_share_of_every_member():
    ensemble = ReplayBufferEnsemble(*members(), sample_from_all=True, batch_size=12)
    batch = ensemble.sample()
    assert batch.shape == (12,)
    assert batch["buffer_ids"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    np.testing.assert_array_equal(batch["uid"] // 100, batch["buffer_ids"])
    np.testing.assert_array_equal(batch["uid"] % 100, batch["index"])
    assert len(ensemble) == 60


def test_a_batch_that_cannot_be_shared():
    ensemble = ReplayBufferEnsemble(*members(), sample_from_all=True)
    with pytest.raises(ValueError, match="not a multiple of 3"):
        ensemble.sample(10)
    with pytest.raises(ValueError, match="no batch size"):
        ensemble.sample()


@pytest.mark.parametrize(("p", "expected"), [(None, [1 / 3] * 3), ([1, 0, 3], [0.25, 0, 0.75])])
def test_members_by_their_probability(p, expected):
    ensemble = ReplayBufferEnsemble(*members(), p=p, batch_size=300, seed=0)
    counts = Counter()
    for _ in range(30):
        batch = ensemble.sample()
        assert len(batch) == 300
        np.testing.assert_array_equal(batch["uid"] // 100, batch["buffer_ids"])
        counts.update(batch["buffer_ids"].tolist())
    for member, share in enumerate(expected):
        assert abs(counts[member] / 9000 - share) < 0.02


@pytest.mark.parametrize("from_all", [True, False])
def test_slices_stay_whole(from_all):
    buffers = members(2, lambda: SliceSampler(slice_len=3, strict_length=True))
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=from_all, batch_size=12, seed=0)
    for _ in range(20):
        batch = ensemble.sample()
        assert len(batch) == 12
        assert (np.diff(batch["uid"].reshape(4, 3)) == 1).all()


def test_num_slices_is_of_the_members_share():
    buffers = members(2, lambda: SliceSampler(num_slices=2, strict_length=True))
    batch = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=12).sample()
    assert np.flatnonzero(batch["is_init"]).tolist() == [0, 3, 6, 9]


def test_priorities_are_routed_by_buffer_ids():
    buffers = members(2, PrioritizedSampler)
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=400)
    batch, info = ensemble.sample(return_info=True)
    assert info["buffer_ids"].tolist() == batch["buffer_ids"].tolist()
    target = {0: 5, 1: 117}
    priority = np.array([float(target[b] == u) for b, u in zip(batch["buffer_ids"], batch["uid"])])
    ensemble.update_priority(batch["index"], priority, batch["buffer_ids"])
    assert set(ensemble.sample()["uid"].tolist()) == {5, 117}
    with pytest.raises(ValueError):
        ensemble.update_priority([0, 1], [1.0], [0, 0])


def test_worker_i_writes_to_member_i_mod_n():
    ensemble = ReplayBufferEnsemble(*members(3))
    assert [ensemble.member_for(i) for i in (0, 4, 8)] == list(ensemble.buffers)
    ensemble.extend(rows([999], "t"), member=4)
    assert ensemble[1][:]["uid"][-1] == 999


@pytest.mark.parametrize("output", ["torch", "tensordict"])
def test_outputs(output):
    ensemble = ReplayBufferEnsemble(*members(2, output=output), sample_from_all=True, batch_size=4)
    assert ensemble.sample()["buffer_ids"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "options", [{"p": [1, 2]}, {"p": [1, -1, 1]}, {"p": [0, 0, 0]}, {"p": [1, 1, 1], "all": True}]
)
def test_probabilities_are_checked(options):
    with pytest.raises(ValueError):
        ReplayBufferEnsemble(*members(), p=options["p"], sample_from_all=options.get("all", False))


def test_empty_empties_every_member():
    ensemble = ReplayBufferEnsemble(*members())
    ensemble.empty()
    assert len(ensemble) == 0 and [s.rows for s in ensemble.stats()] == [0, 0, 0]


def goal_rows(first):
    """One episode of ten rows, which say whose and which they are."""
    at = first + np.arange(10, dtype=np.float32)
    after = {"achieved_goal": at + 1, "reward": np.zeros(10, np.float32), "done": at == first + 9}
    return {"achieved_goal": at, "desired_goal": np.full(10, -1, np.float32), "next": after}


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: WindowSampler(s, last_rows=10)])
@pytest.mark.parametrize("options", [{"sample_from_all": True}, {"p": [0.1, 0.9]}])
def test_hindsight_beside_demonstrations(wrap, options):
    """Rows of the others are not relabelled, and every batch says so, whoever is in it."""

    def reward(achieved, goal, rows):
        return achieved == goal

    sampler = wrap(HindsightRelabel("final", k=4, reward_fn=reward))
    online = ReplayBuffer(LazyTensorStorage(50), sampler, seed=0)
    demos = ReplayBuffer(LazyTensorStorage(50), seed=1)
    online.extend(goal_rows(0))
    demos.extend(goal_rows(100))
    ensemble = ReplayBufferEnsemble(online, demos, batch_size=8, seed=0, **options)
    seen = set()
    for _ in range(40):
        batch = ensemble.sample()
        relabeled, theirs = batch["collector", "relabeled"], batch["buffer_ids"] == 1
        assert relabeled.dtype == np.bool_ and not relabeled[theirs].any()
        assert (batch["desired_goal"][relabeled] == 10).all()
        assert (batch["desired_goal"][~relabeled] == -1).all()
        assert ("collector", "relabeled") in batch.extras
        seen.add(theirs.all())
    assert seen == ({False} if "sample_from_all" in options else {False, True})
    plain = ReplayBufferEnsemble(demos, batch_size=8, seed=0).sample()
    assert ("collector", "relabeled") not in plain


@pytest.mark.parametrize("output", ["torch", "tensordict", "numpy"])
def test_batches_go_where_those_of_its_members_go(output):
    device = None if output == "numpy" else "meta"
    buffers = members(2, output=output, device=device)
    for options in ({}, {"output": output}):
        batch = ReplayBufferEnsemble(*buffers, batch_size=4, seed=0, **options).sample()
        assert output == "numpy" or batch["uid"].is_meta
    if device is not None:
        elsewhere = ReplayBufferEnsemble(*buffers, batch_size=4, device="cpu").sample()
        assert elsewhere["uid"].device.type == "cpu"
        plain = ReplayBufferEnsemble(*buffers, batch_size=4, output="numpy").sample()
        assert isinstance(plain["uid"], np.ndarray)
