"""Recurrent minibatches: split at dones, padded or packed, with hidden states."""

from __future__ import annotations

import pytest
import torch

from contig import (
    ActionLabelRollout,
    LayoutError,
    QueueRolloutStorage,
    RolloutStorage,
    SarsaRolloutStorage,
)
from tests.rollout.steps import filled, identity, random_dones, transition

STEPS, ENVS, LAYERS, WIDTH = 6, 5, 2, 4


def states(step: int, offset: float = 0.0) -> torch.Tensor:
    """``[layers, envs, width]``: layer, step and env in every number."""
    layer = torch.arange(LAYERS).reshape(-1, 1, 1) * 1e6
    return layer + identity(step, ENVS, WIDTH)[None] + offset


def recurrent(dones: torch.Tensor, lstm: bool) -> RolloutStorage:
    storage = RolloutStorage(ENVS, STEPS, (3,), None, (2,), seed=0)
    for step in range(STEPS):
        actor = (states(step), states(step, 0.25)) if lstm else states(step)
        critic = (states(step, 0.5), states(step, 0.75)) if lstm else None
        storage.add_transitions(transition(step, ENVS, dones[step], hidden_states=(actor, critic)))
    return storage


def expected(dones: torch.Tensor) -> list[list[float]]:
    """Trajectories by identity, env by env."""
    out = []
    for env in range(dones.shape[1]):
        current: list[float] = []
        for step in range(dones.shape[0]):
            current.append(step * 1000.0 + env)
            if dones[step, env] or step == dones.shape[0] - 1:
                out.append(current)
                current = []
    return out


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_padded(lstm, seed):
    dones = random_dones(STEPS, ENVS, seed)
    storage = recurrent(dones, lstm)
    before = storage.dones.clone()
    found, envs = [], 0
    for batch in storage.reccurent_mini_batch_generator(2, 1):
        assert batch.obs.shape[0] == STEPS and batch.masks.shape == batch.obs.shape[:2]
        assert torch.equal(batch.obs[..., 0] * ~batch.masks, torch.zeros_like(batch.obs[..., 0]))
        first = batch.obs[0, :, 0]
        actor, critic = batch.hidden_states
        for number, state in enumerate(actor if lstm else [actor]):
            for layer in range(LAYERS):
                want = first + layer * 1e6 + 0.25 * number
                assert torch.equal(state[layer, :, 0], want)
        assert (critic is None) == (not lstm)
        found += [batch.obs[batch.masks[:, i], i, 0].tolist() for i in range(len(first))]
        assert torch.equal(
            batch.actions[..., 0], storage.actions[:, envs : envs + batch.actions.shape[1], 0]
        )
        # rows by trajectory and rows by env are the same rows
        assert torch.equal(
            batch.obs.transpose(0, 1)[batch.masks.t()][:, 0],
            batch.actions.transpose(0, 1).flatten(0, 1)[:, 0],
        )
        envs += batch.actions.shape[1]
    assert envs == ENVS  # 3 and 2: none is dropped
    assert found == expected(dones)
    assert torch.equal(storage.dones, before)


def test_packed_is_padded_without_the_padding():
    storage = recurrent(random_dones(STEPS, ENVS, 3), True)
    storage.compute_returns(torch.zeros(ENVS), 0.9, 0.8)
    padded = list(storage.recurrent_mini_batch_generator(2, 2))
    packed = list(storage.recurrent_mini_batch_generator(2, 2, packed=True))
    assert len(padded) == len(packed) == 4
    for a, b in zip(padded, packed):
        assert torch.equal(a.obs.transpose(0, 1)[a.masks.t()], b.obs)
        assert torch.equal(b.is_init, a.masks.t().cumsum(1).eq(1).__and__(a.masks.t())[a.masks.t()])
        assert b.masks is None and b.obs.is_contiguous()
        for name in ("actions", "values", "advantages", "returns", "old_mu"):
            assert torch.equal(getattr(a, name).transpose(0, 1).flatten(0, 1), getattr(b, name))
        for ours, theirs in zip(a.hidden_states, b.hidden_states):
            assert all(torch.equal(x, y) for x, y in zip(ours, theirs))


def test_without_hidden_states():
    batch = next(iter(filled().recurrent_mini_batch_generator(1, 1)))
    assert batch.hidden_states == (None, None)


def test_states_must_fit():
    storage = RolloutStorage(ENVS, STEPS, (3,), None, (2,))
    with pytest.raises(LayoutError, match=r"of the actor: shape \[5, 4\], expected \[layers, 5, h"):
        storage.add_transitions(transition(0, ENVS, hidden_states=(torch.zeros(5, 4), None)))
    with pytest.raises(LayoutError, match=r"expected \(actor, critic\)"):
        storage.add_transitions(transition(0, ENVS, hidden_states=(states(0),) * 3))
    storage.add_transitions(transition(0, ENVS, hidden_states=(states(0), None)))
    with pytest.raises(LayoutError, match="of the actor: missing at this step, given "):
        storage.add_transitions(transition(1, ENVS))
    with pytest.raises(LayoutError, match=r"of the actor: \(torch.float32 .* as at first"):
        storage.add_transitions(transition(1, ENVS, hidden_states=((states(0), states(0)), None)))
    assert storage.step == 1
    storage.clear()
    storage.add_transitions(transition(0, ENVS))  # another rollout may be another network's


def test_trajectories_of_a_queue_do_not_cross_its_seam():
    storage = QueueRolloutStorage(2, 3, (3,), None, (2,), buffer_dilation_ratio=1.0, seed=0)
    for step in range(5):
        if step == 3:
            storage.clear()
        hidden = (identity(step, 2, 4)[None], None)
        storage.add_transitions(transition(step, 2, hidden_states=hidden))
    batch = next(iter(storage.recurrent_mini_batch_generator(1, 1)))
    assert batch.obs[:, 0, 0].tolist() == [2000.0, 3000.0, 4000.0]
    assert batch.hidden_states[0][0, :, 0].tolist() == [2000.0, 2001.0]


KINDS = [RolloutStorage, QueueRolloutStorage, ActionLabelRollout, SarsaRolloutStorage]
EMPTY = [None, (None, None), ((None, None), (None, None)), "only the critic's"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", EMPTY, ids=str)
def test_no_state_before_the_first_forward_means_zeros(kind, start):
    """As recurrent policies have it: None, until they have run once."""
    storage = kind(2, 4, (3,), None, (2,), seed=0)
    ends = torch.tensor([True, False])  # env 0 has a trajectory per step
    for rollout in range(1 if issubclass(kind, QueueRolloutStorage) else 2):
        for step in range(4 * rollout, 4 * rollout + 4):
            gru, lstm = identity(step, 2, 4)[None] + 1, (identity(step, 2, 5)[None] + 1,) * 2
            first = step % 4 < 2  # of two steps, the states are zeros
            hidden = (gru, lstm) if not first else start
            if start == EMPTY[-1] and first:
                hidden = (gru, None)
            more = {}
            if kind is ActionLabelRollout:
                more["action_labels"] = identity(step, 2)
            if kind is SarsaRolloutStorage:
                more["next_observations"] = identity(step + 1, 2, 3)
            storage.add_transitions(transition(step, 2, ends, hidden_states=hidden, **more))
        ids = [1000 * step + 1 for step in range(4 * rollout, 4 * rollout + 4)]
        ids.append(ids[0] + 1)  # env 1's only trajectory
        late = [0, 0, ids[2], ids[3], 0]
        for packed in (False, True):
            batch = next(iter(storage.recurrent_mini_batch_generator(1, 1, packed=packed)))
            actor, (h, c) = batch.hidden_states
            assert actor[0, :, 0].tolist() == (ids if start == EMPTY[-1] else late)
            assert h[0, :, 0].tolist() == c[0, :, 4].tolist() == late
        storage.clear()


def test_a_state_that_is_forgotten_later_is_refused():
    storage = RolloutStorage(2, 4, (3,), None, (2,))
    storage.add_transitions(transition(0, 2, hidden_states=None))
    storage.add_transitions(transition(1, 2, hidden_states=(identity(1, 2, 4)[None], None)))
    for hidden in (None, (None, None), ((None, None), None)):
        with pytest.raises(LayoutError, match="actor: missing at this step.*pass zeros"):
            storage.add_transitions(transition(2, 2, hidden_states=hidden))
    for wrong in ("x", (identity(2, 2, 4)[None], None), 3):
        with pytest.raises(LayoutError, match="hidden_states of the actor: expected"):
            storage.add_transitions(transition(2, 2, hidden_states=(wrong, None)))
    assert storage.step == 2


def test_states_keep_their_dtype() -> None:
    """A new rollout may bring another one; within one it may not change."""
    storage = RolloutStorage(2, 3, (1,), None, (1,))

    def add(state: torch.Tensor) -> None:
        t = RolloutStorage.Transition()
        t.observations, t.actions = torch.zeros(2, 1), torch.zeros(2, 1)
        t.rewards, t.dones, t.values = torch.ones(2), torch.zeros(2), torch.zeros(2, 1)
        t.actions_log_prob, t.hidden_states = torch.zeros(2), (state, None)
        storage.add_transitions(t)

    exact = torch.full((1, 2, 4), 1 / 3)
    for _ in range(3):
        add(exact.bfloat16())
    storage.clear()
    add(exact)
    with pytest.raises(LayoutError, match=r"bfloat16 .*expected torch.float32"):
        add(exact.bfloat16())
    add(exact)
    add(exact)
    storage.compute_returns(torch.zeros(2, 1), 0.9, 0.9)
    (batch,) = storage.recurrent_mini_batch_generator(1, 1)
    assert batch.hidden_states[0].dtype == torch.float32
    assert (batch.hidden_states[0] == exact[0, 0, 0]).all()
