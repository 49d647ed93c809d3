"""Rollout storages as instinct_rl's runners call them."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import pytest
import torch

from contig.rollout import (
    ActionLabelRollout,
    QueueRolloutStorage,
    RolloutStorage,
    SarsaRolloutStorage,
)
from tests.rollout.steps import identity, transition

STEPS, ENVS = 4, 3


class HiddenState(NamedTuple):
    """Of an actor and a critic."""

    actor: Any
    critic: Any


class Lstm(NamedTuple):
    """The two states of an LSTM."""

    h: torch.Tensor
    c: torch.Tensor


def state(step: int, more: float = 0.0) -> torch.Tensor:
    """``[layers, envs, hidden]``, which says the step and the env."""
    return identity(step, ENVS, 2).unsqueeze(0) + more


GIVEN = {
    "a single tensor": state,
    "a pair": lambda t: (state(t), state(t, 0.5)),
    "a list": lambda t: [state(t), state(t, 0.5)],
    "a named tuple": lambda t: HiddenState(state(t), state(t, 0.5)),
    "an actor's": lambda t: HiddenState(state(t), None),
    "a critic's": lambda t: HiddenState(None, state(t)),
    "LSTMs": lambda t: HiddenState(Lstm(state(t), state(t, 0.5)), [state(t, 0.25), state(t)]),
    "pairs": lambda t: ((state(t), state(t, 0.5)), None),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor) or b is None:
        return type(a) is type(b) and (b is None or torch.equal(a, b))
    return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", [RolloutStorage, QueueRolloutStorage])
def test_hidden_states_keep_their_type(kind: Any, given: str, packed: bool) -> None:
    storage = kind(ENVS, STEPS, [3], None, [2], seed=0)
    for step in range(STEPS):
        storage.add_transitions(transition(step, ENVS, hidden_states=GIVEN[given](step)))
    storage.compute_returns(torch.zeros(ENVS, 1), 0.9, 0.8)
    for held in (storage, copy.deepcopy(storage), pickle.loads(pickle.dumps(storage))):
        (batch,) = held.reccurent_mini_batch_generator(1, 1, packed=packed)
        assert same(batch.hidden_states, GIVEN[given](0))


def test_a_named_tuple_has_its_names() -> None:
    storage = RolloutStorage(ENVS, STEPS, [3], None, [2])
    dones = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    dones[1] = True
    for step in range(STEPS):
        hidden = HiddenState(state(step), state(step, 0.5))
        storage.add_transitions(transition(step, ENVS, dones[step], hidden_states=hidden))
    (batch,) = storage.recurrent_mini_batch_generator(1, 1)
    actor, critic = batch.hidden_states.actor, batch.hidden_states.critic
    assert actor.shape == critic.shape == (1, 2 * ENVS, 2)  # of steps 0 and 2 of each env
    assert actor[0, :, 0].tolist() == [env + at for env in range(ENVS) for at in (0, 2000)]
    assert torch.equal(critic, actor + 0.5)


def test_the_minibatches_of_a_storage_are_of_its_type() -> None:
    labels = ActionLabelRollout(ENVS, STEPS, [3], None, [2])
    assert "action_labels" in ActionLabelRollout.MiniBatch._fields
    sarsa = SarsaRolloutStorage(ENVS, STEPS, [3], None, [2])
    for step in range(STEPS):
        labels.add_transitions(transition(step, ENVS, action_labels=identity(step, ENVS, 2)))
        after = identity(step + 1, ENVS, 3)
        sarsa.add_transitions(transition(step, ENVS, next_observations=after))
    queue = QueueRolloutStorage(ENVS, STEPS, [3], None, [2])
    queue.add_transitions(transition(0, ENVS))
    for storage in (labels, sarsa, queue):
        storage.compute_returns(torch.zeros(ENVS, 1), 0.9, 0.8)
        for batch in storage.mini_batch_generator(2, 1):
            assert isinstance(batch, storage.MiniBatch)
    batch = next(iter(labels.mini_batch_generator(1, 1)))
    assert torch.equal(batch.action_labels, batch.obs[:, :2])


@pytest.mark.parametrize("shape", [[None], (None,)])
@pytest.mark.parametrize("kind", [RolloutStorage, ActionLabelRollout, SarsaRolloutStorage])
def test_no_critic_observations(kind: Any, shape: Any) -> None:
    """What runners give for envs whose number of privileged observations is None."""
    storage = kind(ENVS, STEPS, [3], shape, [2])
    more: dict[str, Any] = {}
    if kind is ActionLabelRollout:
        more["action_labels"] = identity(0, ENVS, 2)
    if kind is SarsaRolloutStorage:
        more["next_observations"] = identity(1, ENVS, 3)
    storage.add_transitions(transition(0, ENVS, **more))
    storage.compute_returns(torch.zeros(ENVS, 1), 0.9, 0.8)
    batch = next(iter(storage.mini_batch_generator(1, 1)))
    assert torch.equal(batch.critic_obs, batch.obs)
