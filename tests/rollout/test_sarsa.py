"""SarsaRolloutStorage, StateReplayBuffer."""

from __future__ import annotations

import pytest
import torch

import contig.rollout
from contig import EmptyBufferError, LayoutError, SarsaRolloutStorage, StateReplayBuffer
from tests.rollout.steps import identity, transition

DONES = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 0]], dtype=torch.bool)


def sarsa(critic: bool = False, every_step: bool = True) -> SarsaRolloutStorage:
    """Four steps; the next observation of a done step is its own plus 0.5."""
    storage = SarsaRolloutStorage(2, 4, (3,), (5,) if critic else None, (2,), seed=0)
    for step in range(4):
        new = transition(step, 2, DONES[step])
        after = identity(step + 1, 2, 3)
        after[DONES[step]] = identity(step, 2, 3)[DONES[step]] + 0.5
        if every_step or step == 3:
            new.next_observations = after
            new.next_critic_observations = after[:, :1].expand(2, 5) if critic else None
        if critic:
            new.critic_observations = identity(step, 2, 5)
        storage.add_transitions(new)
    return storage


def wanted(ids: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
    return torch.where(dones, ids + 0.5, ids + 1000)


def test_observations_are_views_of_one_tensor():
    storage = sarsa()
    whole = storage.all_observations
    assert whole.shape == (5, 2, 3)
    assert storage.observations.data_ptr() == whole.data_ptr()
    assert torch.equal(storage.observations[1:], whole[1:4])
    plain = SarsaRolloutStorage(2, 4, (3,), None, (2,))
    for step in range(4):
        plain.add_transitions(transition(step, 2, next_observations=identity(step + 1, 2, 3)))
    assert plain.next_observations.data_ptr() == plain.all_observations[1:].data_ptr()
    assert torch.equal(plain.next_observations, plain.observations + 1000)


@pytest.mark.parametrize("critic", [False, True])
def test_the_next_observation_at_a_done_is_the_final_one(critic):
    storage = sarsa(critic)
    ids = storage.rewards[..., 0]
    assert torch.equal(storage.next_observations[..., 0], wanted(ids, DONES))
    seen = 0
    for batch in storage.mini_batch_generator(3, 1):
        mine = wanted(batch.rewards[:, 0], batch.dones[:, 0])
        assert torch.equal(batch.next_obs[:, 0], mine)
        assert torch.equal(batch.next_critic_obs[:, 0], mine)
        assert batch.next_critic_obs.shape[1] == (5 if critic else 3)
        seen += len(batch.obs)
    assert seen == 8
    for batch in storage.recurrent_mini_batch_generator(1, 1):
        assert batch.next_obs.shape == batch.obs.shape


def test_without_next_observations_the_next_step_brings_them():
    storage = sarsa(every_step=False)
    assert torch.equal(storage.next_observations[0], identity(1, 2, 3))
    assert storage.next_observations[1, 1, 0] == 2001  # nobody gave the final one
    assert storage.next_observations[3, 0, 0] == 3000.5
    storage.clear()
    storage.add_transitions(transition(0, 2))
    with pytest.raises(LayoutError, match="next_observations: missing at the last step"):
        storage.mini_batch_generator(1, 1)
    bad = transition(1, 2, next_observations=torch.zeros(2, 4))
    with pytest.raises(LayoutError, match=r"observations: shape \[2, 4\], expected \[2, 3\]"):
        storage.add_transitions(bad)
    assert storage.step == 1


def test_final_observations_of_an_earlier_rollout_are_forgotten():
    storage = sarsa()
    storage.clear()
    for step in range(4):
        storage.add_transitions(transition(step, 2, next_observations=identity(step + 1, 2, 3)))
    assert torch.equal(storage.next_observations, storage.observations + 1000)


# -- states -------------------------------------------------------------------------------------


def pairs(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.arange(first, first + count, dtype=torch.float32)
    return ids[:, None].expand(-1, 3), (ids + 0.5)[:, None].expand(-1, 3)


def test_state_buffer_is_the_ring_of_the_newest():
    assert contig.rollout.ReplayBuffer is StateReplayBuffer
    for sizes in ([4], [10], [25], [7, 7, 7], [3, 10, 3], [10, 1], [23, 4, 19], [0, 5]):
        buffer = StateReplayBuffer(3, 10, "cpu", seed=0)
        total = 0
        for size in sizes:
            buffer.insert(*pairs(total, size))
            total += size
        kept = min(total, 10)
        assert len(buffer) == buffer.num_samples == kept and buffer.step == total % 10
        ids = buffer.states[:kept, 0]
        assert sorted(ids.tolist()) == list(range(total - kept, total)), sizes
        assert all(int(i) % 10 == place for place, i in enumerate(ids)), sizes
        assert torch.equal(buffer.next_states[:kept], buffer.states[:kept] + 0.5)


def test_state_buffer_draws_pairs():
    buffer = StateReplayBuffer(3, 10, seed=0)
    with pytest.raises(EmptyBufferError, match="insert some first"):
        buffer.feed_forward_generator(1, 4)
    buffer.insert(*pairs(0, 4))
    batches = list(buffer.feed_forward_generator(5, 64))
    assert len(batches) == 5
    for states, after in batches:
        assert states.shape == (64, 3) and torch.equal(after, states + 0.5)
    assert {int(i) for s, _ in batches for i in s[:, 0]} == {0, 1, 2, 3}


def test_state_buffer_refuses_other_shapes():
    buffer = StateReplayBuffer(3, 10)
    with pytest.raises(LayoutError, match=r"next_states: shape \[5, 3\], expected \[4, 3\]"):
        buffer.insert(pairs(0, 4)[0], pairs(0, 5)[1])
    with pytest.raises(LayoutError, match=r"states: shape \[4, 2\], expected \[4, 3\]"):
        buffer.insert(torch.zeros(4, 2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="buffer_size: .*got 0"):
        StateReplayBuffer(3, 0)
    assert len(buffer) == 0
