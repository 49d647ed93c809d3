"""QueueRolloutStorage, ActionLabelRollout: growing, looping, untying, returns over the loop."""

from __future__ import annotations

import pytest
import torch

from contig import ActionLabelRollout, QueueRolloutStorage, RolloutStorage
from tests.rollout.steps import identity, random_dones, transition

GAMMA, LAM = 0.9, 0.8


def queue(ratio: float = 2.5, steps: int = 4, envs: int = 2, kind=QueueRolloutStorage):
    return kind(envs, steps, (3,), None, (2,), buffer_dilation_ratio=ratio, seed=0)


def rounds(storage, count: int, dones=None, **more) -> int:
    """Fills so many rounds; returns the number of steps."""
    step = 0
    for number in range(count):
        if number:
            storage.clear()
        for _ in range(storage.num_transitions_per_env):
            done = None if dones is None else dones[step]
            storage.add_transitions(transition(step, storage.num_envs, done, **more))
            step += 1
    return step


def test_grows_in_clear_and_then_loops():
    storage, sizes = queue(), []
    for number in range(4):
        if number:
            storage.clear()
        sizes.append(storage.observations.shape[0])
        for i in range(4):
            storage.add_transitions(transition(4 * number + i, 2))
    assert sizes == [4, 8, 10, 10]
    assert sorted(storage.rewards[:, 0, 0].tolist()) == [1000.0 * s for s in range(6, 16)]


def test_full_before_it_has_grown():
    storage = queue()
    rounds(storage, 1)
    with pytest.raises(OverflowError, match="4 steps are full; call clear"):
        storage.add_transitions(transition(9, 2))
    with pytest.raises(ValueError, match="buffer_dilation_ratio: .*0.5"):
        queue(0.5)


def test_a_short_round_grows_by_what_is_missing():
    storage = queue()
    for step in range(3):
        storage.add_transitions(transition(step, 2))
    storage.clear()
    assert storage.num_rows == 7
    for step in range(3, 7):
        storage.add_transitions(transition(step, 2))
    assert storage.rewards[:, 0, 0].tolist() == [1000.0 * s for s in range(7)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_returns_are_those_of_the_rows_in_time_order(count):
    dones = random_dones(20, 2, count)
    storage = queue()
    steps = rounds(storage, count, dones)
    last = torch.tensor([3.0, 4.0])
    storage.compute_returns(last, GAMMA, LAM, normalize_advantage=False)
    kept = min(steps, 10)
    plain = RolloutStorage(2, kept, (3,), None, (2,))
    for step in range(steps - kept, steps):
        plain.add_transitions(transition(step, 2, dones[step]))
    plain.compute_returns(last, GAMMA, LAM, normalize_advantage=False)
    for looped in (True, False):
        if not looped:
            storage.untie_buffer_loop()
            assert storage.rewards[:, 0, 0].tolist() == plain.rewards[:, 0, 0].tolist()
            assert torch.equal(storage.returns, plain.returns)
            assert torch.equal(storage.advantages, plain.advantages)
        order = storage.rewards[:, 0, 0].argsort()
        assert torch.equal(storage.returns[order], plain.returns)
        assert torch.equal(storage.advantages[order], plain.advantages)
        storage.compute_returns(last, GAMMA, LAM, normalize_advantage=False)  # also after untying


def test_untie_moves_everything():
    storage = queue(1.5, kind=ActionLabelRollout)
    step = 0
    for number in range(4):
        if number:
            storage.clear()
        for _ in range(4):
            hidden = (identity(step, 2, 4)[None], (identity(step, 2, 4)[None],) * 2)
            extra = {"time_outs": torch.zeros(2), "action_labels": identity(step, 2, 2)}
            params = (identity(step, 2, 1), identity(step, 2, 3))
            storage.add_transitions(
                transition(step, 2, hidden_states=hidden, distribution_params=params, **extra)
            )
            step += 1
    storage.compute_returns(torch.zeros(2), GAMMA, LAM)
    pairs = {float(r): float(x) for r, x in zip(storage.rewards[:, 0], storage.returns[:, 0])}
    storage.untie_buffer_loop()
    ids = [1000.0 * s for s in range(10, 16)]
    assert storage.rewards[:, 0, 0].tolist() == ids
    assert [float(x) for x in storage.returns[:, 0]] == [pairs[i] for i in ids]
    for name in ("observations", "actions", "values", "mu", "sigma", "actions_log_prob"):
        assert getattr(storage, name)[:, 0, 0].tolist() == ids, name
    assert storage.action_labels[:, 0, 0].tolist() == ids
    assert [p[:, 0, 0].tolist() for p in storage.distribution_params] == [ids, ids]
    for kept in storage.hidden.kept:
        assert all(t[:, 0, 0, 0].tolist() == ids for t in kept.tensors)
    storage.untie_buffer_loop()  # in order already
    assert storage.rewards[:, 0, 0].tolist() == ids
    storage.clear()
    storage.add_transitions(
        transition(16, 2, hidden_states=hidden, distribution_params=params, **extra)
    )
    assert storage.rewards[:, 0, 0].tolist() == [16000.0, *ids[1:]]  # over the oldest


def test_minibatches_have_every_row_of_all_rounds():
    storage = queue()
    rounds(storage, 4)
    seen = torch.cat([b.obs[:, 0] for b in storage.mini_batch_generator(3, 1)])
    assert torch.equal(seen.sort().values, storage.rewards.flatten().sort().values)
    assert float(storage.get_statistics().trajectory_length) == 10.0
    assert [b.obs[0, 0].item() for b in storage.generator()] == [1000.0 * s for s in range(6, 16)]


def test_action_labels():
    storage = queue(kind=ActionLabelRollout)
    for step in range(4):
        storage.add_transitions(transition(step, 2, action_labels=identity(step, 2, 2) + 0.5))
    for batch in storage.mini_batch_generator(2, 1):
        assert batch._fields[-1] == "action_labels" and len(batch) == 12
        assert torch.equal(batch.action_labels[:, 0], batch.obs[:, 0] + 0.5)
    batch = next(iter(storage.recurrent_mini_batch_generator(2, 1)))
    assert torch.equal(batch.action_labels, batch.actions + 0.5)
