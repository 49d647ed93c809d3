"""What instinct_rl and rsl_rl were seen to do wrong, one test each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contig import (
    LayoutError,
    NothingEligibleError,
    QueueRolloutStorage,
    RolloutDataset,
    RolloutStorage,
    RolloutWriter,
    SarsaRolloutStorage,
)
from tests.dataset.made import identities, trajectory, written
from tests.rollout.steps import filled, identity, random_dones, transition

GAMMA, LAM = 0.9, 0.8


def test_rows_lost_where_minibatches_do_not_divide():
    """There: 35 rows in 4 minibatches were 32."""
    batches = list(filled(5, 7).mini_batch_generator(4, 1))
    assert sum(len(b.obs) for b in batches) == 35
    batches = list(filled(5, 7).recurrent_mini_batch_generator(2, 1))
    assert sum(b.actions.shape[1] for b in batches) == 7  # nor envs


def test_the_same_permutation_in_every_epoch():
    storage = filled(8, 8)
    epochs = [tuple(b.obs[:, 0].tolist()) for b in storage.mini_batch_generator(1, 4)]
    assert len(set(epochs)) == 4


def test_statistics_that_write_into_dones():
    storage = filled(6, 3, random_dones(6, 3))
    storage.compute_returns(torch.zeros(3), GAMMA, LAM, normalize_advantage=False)
    dones, returns = storage.dones.clone(), storage.returns.clone()
    storage.get_statistics()
    assert torch.equal(storage.dones, dones) and not dones[-1].all()
    storage.compute_returns(torch.zeros(3), GAMMA, LAM, normalize_advantage=False)
    assert torch.equal(storage.returns, returns)


def looped() -> QueueRolloutStorage:
    """Room for 6 steps; steps 2 to 7 are there, of which 6 and 7 are in the first rows."""
    storage = QueueRolloutStorage(1, 4, (3,), None, (2,), buffer_dilation_ratio=1.5, seed=0)
    for step in range(8):
        if step == 4:
            storage.clear()
        storage.add_transitions(transition(step, 1))
    assert storage.rewards[:, 0, 0].tolist() == [6e3, 7e3, 2e3, 3e3, 4e3, 5e3]
    return storage


def test_returns_that_flow_over_the_seam():
    storage = looped()
    storage.compute_returns(torch.zeros(1), GAMMA, LAM, normalize_advantage=False)
    # The newest step, in row 1, is followed by the last values and not by row 2, the oldest.
    assert float(storage.returns[1]) == 7e3
    # The step before row 0 is in row 5, the last.
    ahead = float(storage.returns[0]) - 6e3
    expected = 5e3 + GAMMA * 6e3 - 5e3 + GAMMA * LAM * ahead + 5e3
    assert float(storage.returns[5]) == pytest.approx(expected)


def test_returns_left_behind_by_untying():
    storage = looped()
    storage.compute_returns(torch.zeros(1), GAMMA, LAM, normalize_advantage=False)
    pairs = {float(r): float(x) for r, x in zip(storage.rewards[:, 0], storage.returns[:, 0])}
    storage.untie_buffer_loop()
    assert storage.rewards[:, 0, 0].tolist() == [2e3, 3e3, 4e3, 5e3, 6e3, 7e3]
    assert {float(r): float(x) for r, x in zip(storage.rewards[:, 0], storage.returns[:, 0])} == (
        pairs
    )


def test_the_next_episodes_observation_at_a_done(tmp_path):
    storage = SarsaRolloutStorage(1, 2, (3,), None, (2,), seed=0)
    done = torch.tensor([True])
    storage.add_transitions(transition(0, 1, done, next_observations=identity(0, 1, 3) + 0.5))
    storage.add_transitions(transition(1, 1, next_observations=identity(2, 1, 3)))
    assert storage.next_observations[:, 0, 0].tolist() == [0.5, 2000.0]
    written(tmp_path, [3, 3])
    for batch in RolloutDataset(tmp_path, device="cpu"):
        trajectory_now = float(batch.observation[0, 0]) // 1000
        assert float(batch.next_observation[0, 0]) // 1000 == trajectory_now


@pytest.mark.parametrize("loops", [1, 3])
def test_dataset_loops_that_are_ignored(tmp_path, loops):
    written(tmp_path, [4, 2])
    dataset = RolloutDataset(tmp_path, dataset_loops=loops, device="cpu")
    assert [float(b.reward) for b in dataset] == identities([4, 2]) * loops


def test_time_outs_that_are_dropped(tmp_path):
    late = np.array([False, False, True])
    with RolloutWriter(tmp_path) as writer:
        writer.add_trajectory(trajectory(0, 3, done=late, timeout=late))
        writer.add_trajectory(trajectory(1, 3, done=late, timeout=~late & late))
    dataset = RolloutDataset(tmp_path, device="cpu")
    infos = [dataset.get_transition_batch()[4]["time_outs"].item() for _ in range(6)]
    assert infos == [False, False, True, False, False, False]


def test_an_endless_wait_for_data(tmp_path):
    with pytest.raises(NothingEligibleError, match="waited 0.05 s; record more"):
        RolloutDataset(tmp_path, device="cpu", wait_s=0.05).get_batch()


@pytest.mark.parametrize("field", ["dones", "time_outs"])
@pytest.mark.parametrize("bad", [0.3, -1.0, 2.0, float("nan"), 255])
def test_flags_that_are_no_flags_are_refused(field: str, bad: float) -> None:
    """Cast to bool, 0.3 would be a done; rsl_rl's flags are 0 and 1 of some dtype."""
    storage = RolloutStorage(3, 2, (2,), None, (1,))
    step = RolloutStorage.Transition()
    step.observations, step.actions = torch.zeros(3, 2), torch.zeros(3, 1)
    step.rewards, step.dones = torch.zeros(3), torch.zeros(3)
    step.time_outs = torch.zeros(3)
    odd = torch.tensor([0, bad, 1])
    for flags in (odd, odd.unsqueeze(1)):
        setattr(step, field, flags)
        with pytest.raises(LayoutError, match=rf"{field}: .* in env 1.*0 or 1.*> 0"):
            storage.add_transitions(step)
        assert storage.step == 0
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8):
        setattr(step, field, torch.tensor([0, 1, 1], dtype=dtype))
        storage.add_transitions(step)
        assert getattr(storage, field)[0, :, 0].tolist() == [False, True, True]
        storage.clear()
    storage.add_transitions(step)
    storage.add_transitions(step)
    before = getattr(storage, field).clone()
    with pytest.raises(LayoutError, match=f"{field}: .*0 or 1"):
        setattr(storage, field, odd.reshape(1, 3, 1).repeat(2, 1, 1))
    assert torch.equal(getattr(storage, field), before)
