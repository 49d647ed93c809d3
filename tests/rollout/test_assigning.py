"""Fields that are assigned from outside, and returns that belong to other rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contig import ActionLabelRollout, QueueRolloutStorage, RolloutStorage, SarsaRolloutStorage
from contig.errors import LayoutError
from tests.rollout.steps import filled, identity, transition

STEPS, ENVS = 5, 4
GAMMA, LAM = 0.9, 0.8


def grid(*shape: int, steps: int = STEPS, envs: int = ENVS) -> torch.Tensor:
    """``[steps, envs, *shape]``: value = step * 1000 + env."""
    return torch.stack([identity(step, envs, *shape) for step in range(steps)])


def make(kind: type[RolloutStorage], rewards: int = 1, steps: int = STEPS) -> RolloutStorage:
    storage = kind(ENVS, steps, (3,), None, (2,), rewards, seed=0)
    for step in range(steps):
        add(storage, step)
    return storage


def add(storage: RolloutStorage, step: int, **more: Any) -> None:
    """A step with everything that the kind of storage wants."""
    if isinstance(storage, ActionLabelRollout):
        more.setdefault("action_labels", identity(step, ENVS, 2))
    if isinstance(storage, SarsaRolloutStorage):
        more.setdefault("next_observations", identity(step + 1, ENVS, 3))
    made = transition(step, ENVS, **more)
    made.rewards = identity(step, ENVS, storage.num_rewards)
    made.values = identity(step, ENVS, storage.num_rewards)
    storage.add_transitions(made)


KINDS = [RolloutStorage, QueueRolloutStorage, ActionLabelRollout, SarsaRolloutStorage]


def every_way(storage: RolloutStorage) -> list[Any]:
    """Minibatches of each generator, all rows of each as ``[rows, ...]`` by the row's identity."""
    return [
        *storage.mini_batch_generator(2, 1),
        *storage.recurrent_mini_batch_generator(2, 1),
        *storage.recurrent_mini_batch_generator(2, 1, packed=True),
    ]


@pytest.mark.parametrize("rewards", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_assigned_advantages_are_in_every_minibatch(kind, rewards):
    storage = make(kind, rewards)
    ids = grid(rewards)
    storage.returns = ids + 0.25
    storage.advantages = storage.returns + 0.25
    assert torch.equal(storage.advantages, ids + 0.5)
    for batch in every_way(storage):
        mine = batch.actions[..., :1].expand(*batch.actions.shape[:-1], rewards)
        assert torch.equal(batch.returns, mine + 0.25)
        assert torch.equal(batch.advantages, mine + 0.5)


def test_as_rsl_rl_computes_returns():
    """Its PPO writes `returns` step by step, and assigns `advantages` twice."""
    storage, ours = filled(STEPS, ENVS), filled(STEPS, ENVS)
    for _ in range(2):  # also in the second rollout
        advantage = torch.zeros(ENVS, 1)
        for step in reversed(range(STEPS)):
            last = step == STEPS - 1
            after = torch.ones(ENVS, 1) if last else storage.values[step + 1]
            alive = 1.0 - storage.dones[step].float()
            delta = storage.rewards[step] + alive * GAMMA * after - storage.values[step]
            advantage = delta + alive * GAMMA * LAM * advantage
            storage.returns[step] = advantage + storage.values[step]
        storage.advantages = storage.returns - storage.values
        mean, std = storage.advantages.mean(), storage.advantages.std()
        storage.advantages = (storage.advantages - mean) / (std + 1e-8)
        ours.compute_returns(torch.ones(ENVS), GAMMA, LAM)
        for theirs, own in zip(storage.mini_batch_generator(3, 2), ours.mini_batch_generator(3, 2)):
            torch.testing.assert_close(theirs.advantages, own.advantages)
            torch.testing.assert_close(theirs.returns, own.returns)
        for one in (storage, ours):
            one.clear()
            for step in range(STEPS):
                one.add_transitions(transition(step + 7, ENVS))


@pytest.mark.parametrize("kind", KINDS)
def test_other_fields_take_effect_too(kind):
    storage = make(kind)
    storage.observations = grid(3) + 0.5
    storage.actions = grid(2) + 0.5
    storage.rewards = grid(1) + 0.5
    storage.values = torch.zeros(STEPS, ENVS, 1, requires_grad=True)
    storage.dones = torch.ones(STEPS, ENVS, 1, dtype=torch.uint8)
    storage.mu, storage.action_sigma = grid(2) + 0.5, grid(2) + 0.75
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM, normalize_advantage=False)
    assert torch.equal(storage.returns, grid(1) + 0.5)  # every row is an episode
    for batch in every_way(storage):
        assert torch.equal(batch.old_mu, batch.actions)
        assert torch.equal(batch.old_sigma, batch.actions + 0.25)
        assert not batch.values.any() and not batch.values.requires_grad
    assert next(storage.mini_batch_generator(1, 1)).obs.frac().eq(0.5).all()
    assert storage.critic_observations.frac().eq(0.5).all()


def test_groups_and_what_only_the_critic_sees():
    groups = {"a": (3,), "b": {"c": (2,)}}
    storage = RolloutStorage(ENVS, STEPS, groups, (3,), (2,), seed=0)
    for step in range(STEPS):
        made = transition(step, ENVS, critic_observations=identity(step, ENVS, 3))
        made.observations = {"a": identity(step, ENVS, 3), "b": {"c": identity(step, ENVS, 2)}}
        storage.add_transitions(made)
    storage.observations = {"a": grid(3) + 0.5, "b": {"c": grid(2) + 0.75}}
    storage.critic_observations = grid(3) + 0.25
    batch = next(storage.mini_batch_generator(2, 1))
    assert torch.equal(batch.obs["a"][:, :2], batch.actions + 0.5)
    assert torch.equal(batch.obs["b"]["c"], batch.actions + 0.75)
    assert torch.equal(batch.critic_obs[:, :2], batch.actions + 0.25)
    storage.privileged_observations = grid(3) + 0.5
    assert torch.equal(storage.critic_observations, grid(3) + 0.5)
    with pytest.raises(LayoutError, match="observations: expected the tensors .*a.*got"):
        storage.observations = {"a": grid(3)}
    with pytest.raises(LayoutError, match=r"observations\['b'\]\['c'\]: shape \[5, 4, 3\]"):
        storage.observations = {"a": grid(3), "b": {"c": grid(3)}}
    assert torch.equal(storage.observations["a"], grid(3) + 0.5), "nothing was written"


def test_fields_that_steps_did_not_bring():
    """Values of all steps at once, after the rollout."""
    storage = RolloutStorage(ENVS, STEPS, (3,), None, (2,), seed=0)
    for step in range(STEPS):
        made = transition(step, ENVS)
        made.values = None
        storage.add_transitions(made)
    with pytest.raises(LayoutError, match="values: the transitions have none"):
        storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    storage.values = grid(1)
    storage.time_outs = torch.zeros(STEPS, ENVS, 1, dtype=torch.bool)
    storage.privileged_actions = grid(2) + 0.5
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    for batch in every_way(storage):
        assert torch.equal(batch.values, batch.actions[..., :1])
        assert torch.equal(batch.privileged_actions, batch.actions + 0.5)
    want = filled(STEPS, ENVS)
    want.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    assert torch.equal(storage.returns, want.returns)
    # They belong to these rows; the next ones have none again.
    storage.clear()
    made = transition(0, ENVS)
    made.values = None
    storage.add_transitions(made)
    storage.advantages = grid(1)
    batch = next(storage.mini_batch_generator(1, 1))
    assert batch.values is None and not hasattr(batch, "privileged_actions")


def test_what_does_not_fit_is_refused():
    storage = make(RolloutStorage)
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    before = storage.advantages.clone()
    for wrong in (grid(1)[:-1], grid(1)[:, :-1], grid(2), grid(), torch.zeros(1)):
        with pytest.raises(LayoutError, match=r"advantages: shape .*expected \[5, 4, 1\]"):
            storage.advantages = wrong
    for wrong in (grid(1).to(torch.complex64), [1.0], None, 3.0):
        with pytest.raises(LayoutError, match="advantages(: | at .*: expected a tensor)"):
            storage.advantages = wrong
    with pytest.raises(LayoutError, match=r"values: torch.complex64, but torch.float32 is stored"):
        storage.values = grid(1).to(torch.complex64)
    with pytest.raises(LayoutError, match=r"time_outs: shape \[5, 3, 1\], expected \[T, 4, "):
        storage.time_outs = torch.zeros(STEPS, ENVS - 1, 1)
    assert torch.equal(storage.advantages, before) and storage.time_outs is None
    storage.advantages = grid(1).double()  # as a step's float64
    assert storage.advantages.dtype == torch.float32 and torch.equal(storage.advantages, grid(1))


@pytest.mark.parametrize("kind", KINDS)
def test_returns_of_the_last_rollout_are_not_handed_out(kind):
    storage = make(kind)
    assert next(storage.mini_batch_generator(1, 1)).returns is None, "none were computed"
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    assert next(storage.mini_batch_generator(1, 1)).returns is not None
    storage.clear()
    for step in range(STEPS, 2 * STEPS):
        add(storage, step)
    for generator in (storage.mini_batch_generator, storage.recurrent_mini_batch_generator):
        with pytest.raises(LayoutError, match="returns and advantages .* call compute_returns"):
            generator(2, 1)
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    assert len(every_way(storage)) == 6


def test_a_step_after_the_returns():
    storage = RolloutStorage(ENVS, STEPS, (3,), None, (2,), seed=0)
    for step in range(STEPS - 1):
        storage.add_transitions(transition(step, ENVS))
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    storage.add_transitions(transition(STEPS - 1, ENVS))
    with pytest.raises(LayoutError, match="call compute_returns"):
        storage.mini_batch_generator(1, 1)


def test_one_of_both_is_enough():
    """Some losses need advantages only: what was not made for these rows is None."""
    storage = make(RolloutStorage)
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    storage.clear()
    for step in range(STEPS):
        add(storage, step)
    storage.advantages = grid(1)
    batch = next(storage.mini_batch_generator(1, 1))
    assert batch.returns is None and torch.equal(batch.advantages, batch.actions[:, :1])


def test_a_storage_made_in_inference_mode():
    """Its tensors count their writes all the same."""
    with torch.inference_mode():
        storage = make(RolloutStorage)
        storage.returns[:] = grid(1)
        storage.advantages = grid(1) + 0.5
        assert next(storage.mini_batch_generator(1, 1)).returns is not None


def test_a_copy_of_a_storage_knows_what_is_old():
    storage = make(RolloutStorage)
    storage.compute_returns(torch.zeros(ENVS), GAMMA, LAM)
    assert next(copy.deepcopy(storage).mini_batch_generator(1, 1)).returns is not None
    storage.clear()
    for step in range(STEPS):
        storage.returns[:] = 0.0
        add(storage, step)
    with pytest.raises(LayoutError, match="call compute_returns"):
        copy.deepcopy(storage).mini_batch_generator(1, 1)


def test_labels_are_not_optional():
    storage = ActionLabelRollout(ENVS, STEPS, (3,), None, (2,))
    with pytest.raises(LayoutError, match="action_labels: the transition has none"):
        storage.add_transitions(transition(0, ENVS))
    assert storage.step == 0 and storage.action_labels is None
    storage.add_transitions(transition(0, ENVS, action_labels=identity(0, ENVS, 2)))
    with pytest.raises(LayoutError, match="action_labels: the transition has none"):
        storage.add_transitions(transition(1, ENVS))
    assert storage.step == 1


class Assigned(RuleBasedStateMachine):
    """A queue that grows and goes around: what was assigned stays with its row."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = QueueRolloutStorage(
            2, 3, (3,), None, (2,), buffer_dilation_ratio=2.5, seed=0
        )
        self.step, self.offset, self.made = 0, 0.0, False
        self.ever = False

    @rule()
    def add(self) -> None:
        try:
            self.storage.add_transitions(transition(self.step, 2))
        except OverflowError:
            self.storage.clear()
            self.storage.add_transitions(transition(self.step, 2))
        self.step += 1
        self.made = False

    @rule()
    def clear(self) -> None:
        self.storage.clear()

    @rule()
    def untie(self) -> None:
        self.storage.untie_buffer_loop()

    @precondition(lambda self: self.step)
    @rule(offset=st.integers(1, 5), in_place=st.booleans())
    def assign(self, offset: int, in_place: bool) -> None:
        ids = self.storage.actions[..., :1]
        if in_place:
            self.storage.returns[:] = ids + offset
        else:
            self.storage.returns = ids + offset
        self.storage.advantages = ids - offset
        self.offset, self.made, self.ever = offset, True, True

    @precondition(lambda self: self.step)
    @rule()
    def compute(self) -> None:
        self.storage.compute_returns(torch.zeros(2), 0.0, 0.0, normalize_advantage=False)
        rows = self.storage.window.rows
        assert torch.equal(self.storage.returns[:rows], self.storage.rewards[:rows])
        self.offset, self.made, self.ever = 0.0, True, True
        self.storage.advantages = self.storage.actions[..., :1]

    @invariant()
    def minibatches(self) -> None:
        if not self.step:
            return
        if not self.made and self.ever:
            with pytest.raises(LayoutError, match="call compute_returns"):
                self.storage.mini_batch_generator(1, 1)
            return
        for batch in (
            *self.storage.mini_batch_generator(2, 1),
            *self.storage.recurrent_mini_batch_generator(2, 1),
        ):
            if not self.made:
                assert batch.returns is None and batch.advantages is None
                continue
            assert torch.equal(batch.returns, batch.actions[..., :1] + self.offset)
            assert torch.equal(batch.advantages, batch.actions[..., :1] - self.offset)


TestAssigned = Assigned.TestCase
TestAssigned.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
