"""contig's storage in rsl_rl: training that is equal bit by bit, and what only ours does."""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from rsl_rl.storage import RolloutStorage as Theirs
from tensordict import TensorDict

from contig import LayoutError, LazyTensorStorage, ReplayBuffer
from contig.adapters import rsl_rl
from contig.adapters.rsl_rl import RolloutStorage
from tests.adapters import rsl_trainers as trainers


def agree(mine: Any, other: Any, losses: Any = None) -> None:
    """Equal parameters, of which some have moved."""
    got, want = trainers.parameters(mine), trainers.parameters(other)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert torch.equal(got[name], value), name
    assert losses is None or losses[0] == losses[1]


@pytest.mark.parametrize("per_mini_batch", [False, True])
@pytest.mark.parametrize("kind", [None, "gru", "lstm"])
def test_ppo_trains_bit_by_bit_as_on_its_own_storage(kind, per_mini_batch):
    more = {"normalize_advantage_per_mini_batch": per_mini_batch}
    both = [trainers.ppo(storage, kind, **more) for storage in (RolloutStorage, Theirs)]
    before = copy.deepcopy(trainers.parameters(both[0]))
    agree(*both, [trainers.train(one) for one in both])
    after = trainers.parameters(both[0])
    assert all(not torch.equal(before[k], after[k]) for k in before if "weight" in k)


def test_ppo_with_symmetry():
    symmetry = {
        "env": None,
        "data_augmentation_func": trainers.mirror,
        "use_data_augmentation": True,
        "use_mirror_loss": True,
        "mirror_loss_coeff": 0.5,
    }
    both = [trainers.ppo(s, symmetry_cfg=dict(symmetry)) for s in (RolloutStorage, Theirs)]
    agree(*both, [trainers.train(one) for one in both])


@pytest.mark.parametrize("recurrent", [False, True])
def test_distillation(recurrent):
    both = [trainers.distillation(s, recurrent) for s in (RolloutStorage, Theirs)]
    agree(*both, [trainers.train(one) for one in both])


@pytest.mark.parametrize(
    ("runner", "kind", "recurrent"),
    [
        (OnPolicyRunner, "rl", False),
        (OnPolicyRunner, "rl", True),
        (DistillationRunner, "distillation", True),
    ],
)
def test_runners(runner, kind, recurrent):
    mine = trainers.run(runner, trainers.runner_config(kind, recurrent), own=False)
    other = trainers.run(runner, trainers.runner_config(kind, recurrent), own=True)
    assert type(mine.alg.storage) is RolloutStorage
    assert type(other.alg.storage) is Theirs
    agree(mine.alg, other.alg)


def test_one_assignment_before_the_algorithms_are_imported(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("rsl_rl.algorithms")]:
        monkeypatch.delitem(sys.modules, name)  # as in a process that has not imported them
    package = sys.modules["rsl_rl"]
    monkeypatch.setattr(package, "algorithms", package.algorithms)  # put back at the end
    monkeypatch.setattr("rsl_rl.storage.RolloutStorage", RolloutStorage)
    for name in ("ppo", "distillation"):
        module = importlib.import_module(f"rsl_rl.algorithms.{name}")
        assert module.RolloutStorage is RolloutStorage


def test_install_and_back():
    import rsl_rl.algorithms.ppo as ppo

    places = rsl_rl.install()
    try:
        assert {"rsl_rl.storage", "rsl_rl.algorithms.ppo"} <= set(places)
        assert ppo.RolloutStorage is RolloutStorage
        assert rsl_rl.install() == []
    finally:
        assert rsl_rl.uninstall() == places
    assert ppo.RolloutStorage is Theirs


# -- the storage alone, with the step's and the env's number in every value ----------------------


def step_of(storage: Any, t: int, envs: int, dones: Any = (), hidden: Any = (None, None)) -> Any:
    ids = torch.arange(envs, dtype=torch.float32) + 100 * t
    step = storage.Transition()
    step.observations = TensorDict({"policy": ids[:, None].clone()}, batch_size=[envs])
    step.actions = ids[:, None] + 0.25
    step.rewards, step.dones = ids + 0.5, torch.zeros(envs)
    for env in dones:
        step.dones[env] = 1
    step.hidden_states = hidden
    if storage.training_type == "rl":
        step.values, step.actions_log_prob = ids[:, None] * 10, ids * 20
        step.distribution_params = (ids[:, None] * 30, torch.ones(envs, 1))
    else:
        step.privileged_actions = -step.actions
    return step


def made(envs: int, steps: int, kind: str = "rl", storage: Any = RolloutStorage) -> Any:
    obs = TensorDict({"policy": torch.zeros(envs, 1)}, batch_size=[envs])
    return storage(kind, envs, steps, obs, [1])


def filled(envs: int = 5, steps: int = 4, kind: str = "rl", storage: Any = RolloutStorage) -> Any:
    out = made(envs, steps, kind, storage)
    for t in range(steps):
        state = (torch.arange(envs, dtype=torch.float32) + 1000 * t)[None, :, None]
        state = state.expand(2, envs, 3)
        ends = [0] if t == 1 else [envs - 1] if t == 2 else []
        out.add_transition(step_of(out, t, envs, ends, (state, (state + 20, state + 30))))
    if kind == "rl":
        out.returns[:] = out.values * 10
        out.advantages = out.values * 100
    return out


ATTRIBUTES = {
    "rl": ("values", "actions_log_prob", "returns", "advantages"),
    "distillation": ("privileged_actions",),
}


@pytest.mark.parametrize("kind", ["rl", "distillation"])
def test_attributes_are_those_of_rsl_rl(kind):
    mine, other = filled(kind=kind), filled(kind=kind, storage=Theirs)
    for name in (*ATTRIBUTES[kind], "actions", "rewards", "dones"):
        got, want = getattr(mine, name), getattr(other, name)
        assert got.dtype == want.dtype and torch.equal(got, want), name
    assert mine.observations.batch_size == other.observations.batch_size
    assert torch.equal(mine.observations["policy"], other.observations["policy"])
    for name in ("saved_hidden_state_a", "saved_hidden_state_c"):
        got, want = getattr(mine, name), getattr(other, name)
        assert len(got) == len(want) and all(map(torch.equal, got, want))
    for name in ("training_type", "num_envs", "num_transitions_per_env", "actions_shape", "step"):
        assert getattr(mine, name) == getattr(other, name)
    assert mine.device == other.device
    absent = ATTRIBUTES["rl" if kind == "distillation" else "distillation"]
    assert not any(hasattr(x, name) for x in (mine, other) for name in absent)
    with pytest.raises(AttributeError, match=kind):
        setattr(mine, absent[0], mine.rewards)


def test_transitions_and_batches_have_its_fields():
    assert vars(RolloutStorage.Transition()) == vars(Theirs.Transition())
    assert vars(RolloutStorage.Batch()) == vars(Theirs.Batch())
    args = list(range(11))
    assert vars(RolloutStorage.Batch(*args)) == vars(Theirs.Batch(*args))
    step = step_of(made(3, 2), 0, 3, hidden=(torch.zeros(1, 3, 2), None))
    step.clear()
    assert vars(step) == vars(Theirs.Transition())


@pytest.mark.parametrize("name", ["mini_batch_generator", "recurrent_mini_batch_generator"])
def test_every_row_is_in_a_minibatch_where_the_numbers_do_not_divide(name):
    storage = filled(envs=5, steps=4)
    batches = list(getattr(storage, name)(3, 2))
    recurrent = "recurrent" in name
    everything = storage.actions.flatten().sort().values
    for epoch in (batches[:3], batches[3:]):
        seen = torch.cat([batch.actions.flatten() for batch in epoch])
        assert torch.equal(seen.sort().values, everything)
        sizes = [batch.actions.shape[1 if recurrent else 0] for batch in epoch]
        assert max(sizes) - min(sizes) == 1
    for batch in batches:
        ids = batch.actions - 0.25
        rows = batch.observations["policy"]
        if recurrent:
            rows = rows.transpose(0, 1)[batch.masks.T].view(-1, 4, 1).transpose(0, 1)
        assert torch.equal(rows, ids)
        assert torch.equal(batch.values, ids * 10)
        assert torch.equal(batch.returns, ids * 100)
        assert torch.equal(batch.advantages, ids * 1000)
        assert torch.equal(batch.old_actions_log_prob, ids * 20)
        assert torch.equal(batch.old_distribution_params[0], ids * 30)
        assert torch.equal(batch.old_distribution_params[1], torch.ones_like(ids))


def test_states_are_those_at_trajectories_starts():
    first, second = filled(envs=5, steps=4).recurrent_mini_batch_generator(2, 1)
    actor, critic = first.hidden_states
    assert actor[0, :, 0].tolist() == [0, 2000, 1, 2]  # env 0 begins anew behind its done
    assert torch.equal(critic[0], actor + 20) and torch.equal(critic[1], actor + 30)
    assert second.hidden_states[0][1, :, 0].tolist() == [3, 4, 3004]


def states_of(storage: Any, given: list[Any]) -> Any:
    """The actor's states in a batch, of steps that all begin a trajectory."""
    for t, state in enumerate(given):
        storage.add_transition(step_of(storage, t, 2, [0, 1], (state, None)))
    (batch,) = storage.recurrent_mini_batch_generator(1, 1)
    return batch.hidden_states[0]


def test_states_that_are_none_are_zeros():
    ones = torch.ones(1, 2, 1)
    storage = made(2, 3)
    assert states_of(storage, [None, ones, 2 * ones])[0, :, 0].tolist() == [0, 1, 2, 0, 1, 2]
    storage.clear()
    # rsl_rl keeps what an earlier rollout left: 0, 1, 4.
    assert states_of(storage, [3 * ones, None, 4 * ones])[0, :, 0].tolist() == [3, 0, 4, 3, 0, 4]
    storage.clear()
    assert states_of(storage, [None, None, 5 * ones])[0, :, 0].tolist() == [0, 0, 5, 0, 0, 5]
    storage.clear()
    assert states_of(storage, [None, None, None]) is None


def test_a_pair_of_states_that_is_none_within_a_rollout():
    storage, ones = made(2, 2), torch.ones(1, 2, 1)
    states = states_of(storage, [(ones, 2 * ones), None])
    assert [part[0, :, 0].tolist() for part in states] == [[1, 0, 1, 0], [2, 0, 2, 0]]


def test_states_written_in_inference_mode_are_overwritten_outside_of_it():
    storage, ones = made(2, 1), torch.ones(1, 2, 1)
    with torch.inference_mode():
        storage.add_transition(step_of(storage, 0, 2, hidden=(ones, None)))
    storage.clear()
    storage.add_transition(step_of(storage, 0, 2, hidden=(2 * ones, None)))
    assert storage.saved_hidden_state_a[0].unique().item() == 2


def test_what_is_done_to_a_minibatch_stays_there():
    storage = filled()
    before = storage.observations["policy"].clone()
    for batch in storage.mini_batch_generator(2, 2):
        assert (batch.observations["policy"] >= 0).all()
        batch.observations["policy"].fill_(-1)
        batch.actions.fill_(-1)
    assert torch.equal(storage.observations["policy"], before)
    assert (storage.actions > 0).all()


def test_steps_of_distillation():
    storage = filled(kind="distillation")
    steps = list(storage.generator())
    assert len(steps) == 4
    for t, batch in enumerate(steps):
        assert torch.equal(batch.observations["policy"], storage.observations["policy"][t])
        assert torch.equal(batch.privileged_actions, -storage.actions[t])
        assert torch.equal(batch.dones, storage.dones[t])
        assert batch.actions is None and batch.hidden_states == (None, None)


def test_without_returns_batches_have_zeros():
    storage = made(3, 1)
    storage.add_transition(step_of(storage, 0, 3))
    (batch,) = storage.mini_batch_generator(1, 1)
    assert not batch.returns.any() and not batch.advantages.any()


def test_columns_are_float32_whatever_comes():
    storage = made(3, 1)
    step = step_of(storage, 0, 3)
    step.rewards, step.values = torch.arange(3), step.values.double()
    step.actions, step.dones = step.actions.bfloat16(), torch.tensor([True, False, True])
    step.distribution_params = tuple(p.half() for p in step.distribution_params)
    storage.add_transition(step)
    for value in (storage.rewards, storage.values, storage.actions, *storage.distribution_params):
        assert value.dtype == torch.float32
    assert storage.rewards.flatten().tolist() == [0, 1, 2]
    assert storage.dones.flatten().tolist() == [1, 0, 1]


def test_refusals():
    with pytest.raises(ValueError, match="training_type='bc'"):
        made(2, 1, "bc")
    storage = made(2, 1)
    step = step_of(storage, 0, 2)
    step.values = None
    with pytest.raises(LayoutError, match="values: the transition has none"):
        storage.add_transition(step)
    assert storage.step == 0
    storage.add_transition(step_of(storage, 0, 2))
    with pytest.raises(OverflowError, match="clear"):
        storage.add_transition(step_of(storage, 0, 2))
    with pytest.raises(ValueError, match="distillation"):
        next(storage.generator())
    with pytest.raises(ValueError, match="num_mini_batches=3"):
        next(storage.mini_batch_generator(3))
    for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
        with pytest.raises(ValueError, match="'rl'"):
            next(getattr(filled(kind="distillation"), name)(1))


def test_a_rollout_goes_on_to_a_replay_buffer():
    buffer = ReplayBuffer(LazyTensorStorage(100))
    filled(envs=5, steps=4).rollout.to_replay(buffer)
    assert len(buffer) == 20
    episodes = buffer.storage.episodes()
    assert sorted(episodes["steps"].tolist()) == [1, 2, 2, 3, 4, 4, 4]
