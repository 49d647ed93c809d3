"""RolloutStorage: what goes in comes out; returns; minibatches."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from contig import EmptyBufferError, LayoutError, MiniBatch, RolloutStorage, Transition
from contig.rollout.returns import gae, normalize
from tests.rollout.steps import filled, identity, random_dones, transition

GAMMA, LAM = 0.9, 0.8


def naive_gae(rewards, values, last, done, time_out=None, final=None):
    """Step by step and env by env."""
    steps, envs, kinds = rewards.shape
    out = torch.zeros_like(rewards)
    for env in range(envs):
        for kind in range(kinds):
            ahead = 0.0
            for t in reversed(range(steps)):
                after = values[t + 1, env, kind] if t + 1 < steps else last[env, kind]
                if done[t, env, 0]:
                    ahead, after = 0.0, 0.0
                    if time_out is not None and time_out[t, env, 0]:
                        after = (values if final is None else final)[t, env, kind]
                delta = rewards[t, env, kind] + GAMMA * after - values[t, env, kind]
                ahead = delta + GAMMA * LAM * ahead
                out[t, env, kind] = ahead
    return out


def advantages(rewards, values, last, done, late=None, final=None):
    out = torch.empty_like(rewards), torch.empty_like(rewards)
    gae(rewards, values, last, done, GAMMA, LAM, late, final, advantages=out[0], returns=out[1])
    return out


@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("ends", ["done", "time_out", "final"])
def test_gae_is_the_recursion(kinds, ends):
    torch.manual_seed(1)
    rewards, values, final = (torch.randn(7, 5, kinds, dtype=torch.float64) for _ in range(3))
    last = torch.randn(5, kinds, dtype=torch.float64)
    done = random_dones(7, 5)[..., None]
    late = None if ends == "done" else done & random_dones(7, 5, 3, 0.5)[..., None]
    after = final if ends == "final" else None
    ours, targets = advantages(rewards, values, last, done, late, after)
    want = naive_gae(rewards, values, last, done, late, after)
    assert torch.allclose(ours, want) and torch.allclose(targets, want + values)
    # Memory that the native scan cannot use: the same by tensor operations.
    odd = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (rewards, values)]
    ours, targets = advantages(*odd, last, done, late, after)
    assert torch.allclose(ours, want) and torch.allclose(targets, want + values)


def test_final_values_count_only_where_something_timed_out():
    done = torch.tensor([False, True, False]).reshape(3, 1, 1)
    final = torch.full((3, 1, 1), float("nan"))
    ones = torch.ones(3, 1, 1)
    out, targets = advantages(ones, ones, ones[0], done, torch.zeros_like(done), final)
    assert torch.isfinite(out).all() and torch.isfinite(targets).all()


def test_compute_returns_fills_both_and_leaves_the_rest_alone():
    dones = random_dones(6, 3)
    storage = filled(6, 3, dones)
    rewards, flags = storage.rewards.clone(), storage.dones.clone()
    last = torch.full((3,), 7.0)
    for _ in range(2):  # a second time gives the same
        storage.compute_returns(last, GAMMA, LAM, normalize_advantage=False)
        expected = naive_gae(rewards, storage.values, last[:, None], flags)
        assert torch.allclose(storage.advantages, expected)
        assert torch.allclose(storage.returns, expected + storage.values)
    assert torch.equal(storage.rewards, rewards) and torch.equal(storage.dones, flags)
    storage.compute_returns(last, GAMMA, LAM)
    assert storage.advantages.mean().abs() < 1e-6 and (storage.advantages.std() - 1).abs() < 1e-5
    assert torch.allclose(
        storage.advantages, (expected - expected.mean()) / (expected.std() + 1e-8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 33, 1), (4, 5, 3), (1, 2, 1)])
def test_normalized_advantages(dtype, shape):
    given = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype) * 7 + 300
    out = given.clone()
    normalize(out)
    exact = given.double()
    want = (exact - exact.mean((0, 1))) / (exact.std((0, 1)) + 1e-8)
    loose = 0.5 if dtype == torch.bfloat16 else 1e-4
    assert torch.allclose(out.double(), want, atol=loose)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_row_is_normalized_to_zero(dtype):
    row = torch.full((1, 1, 2), 3.0, dtype=dtype)
    normalize(row)
    assert torch.equal(row, torch.zeros(1, 1, 2, dtype=dtype))


def test_time_outs_bootstrap():
    def run(**more):
        storage = RolloutStorage(1, 1, (3,), None, (2,))
        step = transition(0, 1, torch.tensor([True]), **more)
        step.values, step.rewards = torch.tensor([5.0]), torch.tensor([1.0])
        storage.add_transitions(step)
        storage.compute_returns(torch.tensor([99.0]), GAMMA, LAM)
        return float(storage.returns)

    late = torch.tensor([1])
    assert run() == 1.0
    assert run(time_outs=late) == pytest.approx(1 + GAMMA * 5)
    assert run(time_outs=late, final_values=torch.tensor([2.0])) == pytest.approx(1 + GAMMA * 2)
    assert run(time_outs=torch.tensor([0]), final_values=torch.tensor([2.0])) == 1.0


def test_rows_of_minibatches_stay_together_and_none_is_lost():
    storage = filled(5, 7)  # 35 rows: no multiple of 4
    storage.compute_returns(torch.zeros(7), GAMMA, LAM)
    epochs = []
    batches = list(storage.mini_batch_generator(4, 3))
    assert len(batches) == 12 and all(type(b) is MiniBatch for b in batches)
    assert sorted(len(b.obs) for b in batches[:4]) == [8, 9, 9, 9]
    flat = storage.rewards.flatten()
    for epoch in range(3):
        seen = []
        for batch in batches[4 * epoch : 4 * epoch + 4]:
            ids = batch.obs[:, 0]
            for name in ("actions", "values", "old_actions_log_prob", "old_mu", "old_sigma"):
                assert torch.equal(getattr(batch, name)[:, 0], ids), name
            where = (flat[None] == ids[:, None]).nonzero()[:, 1]
            assert torch.equal(batch.returns[:, 0], storage.returns.flatten()[where])
            assert torch.equal(batch.advantages[:, 0], storage.advantages.flatten()[where])
            assert batch.critic_obs is batch.obs
            assert batch.masks is None and batch.hidden_states == (None, None)
            seen.append(ids)
        epochs.append(torch.cat(seen))
        assert torch.equal(epochs[-1].sort().values, flat.sort().values)
    assert not torch.equal(epochs[0], epochs[1]) and not torch.equal(epochs[1], epochs[2])


def test_same_seed_same_minibatches_whatever_else_draws():
    def draws():
        storage = filled()
        torch.randn(3)
        return torch.cat([b.obs for b in storage.mini_batch_generator(2, 2)])

    assert torch.equal(draws(), draws())


def test_documented_fields():
    fields = "obs critic_obs actions values advantages returns old_actions_log_prob old_mu"
    assert MiniBatch._fields == (*fields.split(), "old_sigma", "hidden_states", "masks")
    assert RolloutStorage.Transition is Transition and RolloutStorage.MiniBatch is MiniBatch
    step = RolloutStorage.Transition()
    step.observations = 1
    step.clear()
    assert step.observations is None


def test_statistics_are_pure():
    dones = torch.zeros(6, 2, dtype=torch.bool)
    dones[2, 0] = True
    storage = filled(6, 2, dones)
    before = storage.dones.clone()
    length, reward = storage.get_statistics()
    assert torch.equal(storage.dones, before)
    assert float(length) == 4.0  # 3, 3 and 6
    assert float(reward) == float(storage.rewards.mean())


@pytest.mark.parametrize("kind", ["dict", "tensordict"])
def test_observation_groups(kind):
    envs, steps = 3, 4

    def groups(step):
        tree = {
            "policy": identity(step, envs, 3),
            "camera": {"depth": identity(step, envs, 2, 2).to(torch.uint8)},
        }
        return tree if kind == "dict" else TensorDict(tree, batch_size=[envs])

    example = groups(0)
    storage = RolloutStorage(envs, steps, example, {"all": (5,)}, (2,), seed=0)
    for step in range(steps):
        new = transition(step, envs)
        new.observations = groups(step)
        new.critic_observations = {"all": identity(step, envs, 5)}
        storage.add_transitions(new)
    assert type(storage.observations) is type(example)
    assert storage.observations["camera"]["depth"].dtype == torch.uint8
    for batch in storage.mini_batch_generator(2, 1):
        assert type(batch.obs) is type(example)
        ids = batch.actions[:, 0]
        assert torch.equal(batch.obs["policy"][:, 0], ids)
        assert torch.equal(batch.obs["camera"]["depth"][:, 0, 0], ids.to(torch.uint8))
        assert torch.equal(batch.critic_obs["all"][:, 0], ids)
        if kind == "tensordict":
            assert batch.obs.batch_size == torch.Size([len(ids)])
    for batch in storage.recurrent_mini_batch_generator(2, 1):
        assert batch.obs["camera"]["depth"].shape[0] == steps
    with pytest.raises(LayoutError, match='observations: expected the tensors .*"depth"'):
        new.observations = {"policy": identity(0, envs, 3)}
        storage.clear()
        storage.add_transitions(new)


def test_dtype_is_kept():
    storage = RolloutStorage(2, 3, (3,), (4,), (), seed=0)
    for step in range(3):
        new = Transition(
            observations=identity(step, 2, 3).to(torch.float16),
            critic_observations=identity(step, 2, 4).double(),
            actions=torch.tensor([step, step]),
            rewards=torch.tensor([1, 2]),
            dones=torch.tensor([0, 1]),
            values=torch.zeros(2, dtype=torch.float64),
            distribution_params=(torch.full((2, 6), float(step)),),
        )
        storage.add_transitions(new)
    assert storage.observations.dtype == torch.float16
    assert storage.critic_observations.dtype == torch.float64
    assert storage.actions.dtype == torch.int64 and storage.actions.shape == (3, 2)
    assert storage.rewards.dtype == torch.float32 and storage.dones.dtype == torch.bool
    storage.compute_returns(torch.zeros(2, dtype=torch.float64), GAMMA, LAM)
    assert storage.values.dtype == storage.returns.dtype == torch.float64
    batch = next(iter(storage.mini_batch_generator(1, 1)))
    assert batch.old_mu is None and batch.old_sigma is None
    assert torch.equal(batch.distribution_params[0][:, 0], batch.actions.float())
    assert batch[:11] == tuple(getattr(batch, n) for n in MiniBatch._fields)
    new.observations = new.observations.to(torch.complex64)
    storage.clear()
    with pytest.raises(LayoutError, match="complex64, but torch.float16 is stored"):
        storage.add_transitions(new)


def test_several_rewards():
    storage = RolloutStorage(2, 3, (3,), None, (2,), num_rewards=3)
    for step in range(3):
        new = transition(step, 2)
        new.rewards = torch.randn(2, 3)
        new.values = torch.randn(2, 3)
        storage.add_transitions(new)
    storage.compute_returns(torch.zeros(2, 3), GAMMA, LAM)
    assert torch.allclose(storage.advantages.mean((0, 1)), torch.zeros(3), atol=1e-6)
    assert storage.get_statistics().reward.shape == (3,)
    assert next(iter(storage.mini_batch_generator(1, 1))).returns.shape == (6, 3)
    new.rewards = torch.randn(2)
    storage.clear()
    with pytest.raises(LayoutError, match=r"rewards: shape \[2, 1\], expected \[2, 3\]"):
        storage.add_transitions(new)


def test_distillation():
    storage = RolloutStorage(3, 4, (3,), None, (2,))
    for step in range(4):
        storage.add_transitions(transition(step, 3, privileged_actions=identity(step, 3, 2) + 0.5))
    steps = list(storage.generator())
    assert len(steps) == 4
    for step, batch in enumerate(steps):
        assert torch.equal(batch.obs, identity(step, 3, 3))
        assert torch.equal(batch.privileged_actions, identity(step, 3, 2) + 0.5)
        assert batch.dones.shape == (3, 1) and batch.critic_obs.shape == (3, 3)
    batch = next(iter(storage.mini_batch_generator(2, 1)))
    assert torch.equal(batch.privileged_actions[:, 0], batch.obs[:, 0] + 0.5)


def test_a_rollout_that_is_not_full():
    storage = RolloutStorage(2, 5, (3,), None, (2,), seed=0)
    for step in range(3):
        storage.add_transitions(transition(step, 2))
    storage.compute_returns(torch.zeros(2), GAMMA, LAM)
    assert sum(len(b.obs) for b in storage.mini_batch_generator(2, 1)) == 6
    assert next(iter(storage.recurrent_mini_batch_generator(1, 1))).obs.shape == (3, 2, 3)


def test_gradients_are_not_kept():
    new = transition(0, 2)
    new.values = torch.zeros(2, requires_grad=True) * 2
    storage = RolloutStorage(2, 1, (3,), None, (2,))
    storage.add_transitions(new)
    assert not storage.values.requires_grad


def test_refusals_change_nothing():
    storage = filled(3, 2)
    with pytest.raises(OverflowError, match="3 steps are full; call clear"):
        storage.add_transition(transition(9, 2))
    storage.clear()
    with pytest.raises(EmptyBufferError, match="empty"):
        storage.compute_returns(torch.zeros(2), GAMMA, LAM)
    with pytest.raises(EmptyBufferError):
        storage.mini_batch_generator(1, 1)
    before = storage.observations.clone()
    bad = transition(9, 2)
    bad.actions = torch.zeros(2, 5)
    with pytest.raises(LayoutError, match=r"actions: shape \[2, 5\], expected \[2, 2\]"):
        storage.add_transitions(bad)
    bad = transition(9, 2)
    bad.rewards = None
    with pytest.raises(LayoutError, match="rewards: the transition has none"):
        storage.add_transitions(bad)
    bad.rewards = [1.0, 2.0]
    with pytest.raises(LayoutError, match="rewards: expected a tensor, got list"):
        storage.add_transitions(bad)
    assert storage.step == 0 and torch.equal(storage.observations, before)
    storage.add_transitions(transition(0, 2))
    with pytest.raises(LayoutError, match="time_outs: given at this step, missing at"):
        storage.add_transitions(transition(1, 2, time_outs=torch.zeros(2)))
    with pytest.raises(LayoutError, match=r"last_values: shape \[3, 1\], expected \[2, 1\]"):
        storage.compute_returns(torch.zeros(3), GAMMA, LAM)
    with pytest.raises(ValueError, match="num_mini_batches=3: expected 1 to 2"):
        storage.mini_batch_generator(3, 1)
    with pytest.raises(ValueError, match="num_mini_batches=3: expected 1 to 2, .* envs"):
        storage.recurrent_mini_batch_generator(3, 1)
    with pytest.raises(LayoutError, match='"observations".*expected a shape'):
        RolloutStorage(2, 3, "three")
    with pytest.raises(ValueError, match="at least 1"):
        RolloutStorage(0, 3, (3,))


def test_fields_of_an_earlier_rollout_do_not_stay():
    storage = RolloutStorage(2, 1, (3,), None, (2,))
    late = torch.ones(2, dtype=torch.bool)
    storage.add_transitions(transition(0, 2, late, time_outs=late))
    storage.clear()
    storage.add_transitions(transition(1, 2, late))
    storage.compute_returns(torch.zeros(2), GAMMA, LAM)
    assert torch.equal(storage.returns, storage.rewards)  # no bootstrap of old time-outs


def test_not_finite_names_env_and_step():
    storage = RolloutStorage(3, 4, {"a": (2,), "b": (2,)}, None, (2,), check_finite=True)
    for step in range(3):
        new = transition(step, 3)
        new.observations = {"a": identity(step, 3, 2), "b": identity(step, 3, 2)}
        if step == 2:
            new.observations["b"][1, 0] = float("nan")
            with pytest.raises(
                ValueError, match=r"observations\['b'\]: not finite in env 1 at step 2"
            ):
                storage.add_transitions(new)
            assert storage.step == 2
        else:
            storage.add_transitions(new)
