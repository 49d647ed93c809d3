"""Minibatches in an order that the caller gives."""

from __future__ import annotations

import pytest
import torch

from contig import RolloutStorage

ENVS, STEPS = 3, 4


@pytest.fixture
def storage() -> RolloutStorage:
    """Observations are the numbers of their rows."""
    out = RolloutStorage(ENVS, STEPS, (1,), None, (1,), seed=0)
    for t in range(STEPS):
        step = RolloutStorage.Transition()
        step.observations = (torch.arange(ENVS) + ENVS * t).float()[:, None]
        step.actions, step.rewards = -step.observations, torch.zeros(ENVS)
        step.dones = torch.zeros(ENVS)
        out.add_transitions(step)
    return out


def test_rows_come_in_the_order_given_in_every_epoch(storage):
    order = torch.tensor([7, 0, 11, 3, 3])
    batches = list(storage.mini_batch_generator(2, 2, order=order))
    seen = [batch.obs.flatten().tolist() for batch in batches]
    assert seen == [[7, 0, 11], [3, 3]] * 2
    assert all(torch.equal(batch.actions, -batch.obs) for batch in batches)


def test_a_given_order_draws_nothing_from_the_storage(storage):
    def next_order() -> list[float]:
        return [x for batch in storage.mini_batch_generator(1, 2) for x in batch.obs.flatten()]

    state = storage._random.get_state()
    expected = next_order()
    storage._random.set_state(state)
    list(storage.mini_batch_generator(1, 1, order=torch.arange(12)))
    assert next_order() == expected


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (torch.tensor([0, 12]), "rows 0 to 12, expected 0 to 11"),
        (torch.tensor([-1]), "rows -1 to -1"),
        (torch.tensor([0.0]), "vector of torch.int64"),
        (torch.tensor([[0]]), "vector of torch.int64"),
    ],
)
def test_orders_that_are_none(storage, order, message):
    with pytest.raises(ValueError, match=message):
        storage.mini_batch_generator(1, 1, order=order)


def test_more_minibatches_than_rows_chosen(storage):
    with pytest.raises(ValueError, match="num_mini_batches=3"):
        storage.mini_batch_generator(3, 1, order=torch.tensor([1, 2]))
