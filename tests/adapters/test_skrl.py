"""contig's memory in skrl: the same rows, the same training, and what only ours does."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from skrl.agents.torch.ddpg import DDPG, DDPG_CFG, DDPG_RNN
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.memories.torch import Memory as Base
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model

from contig import DiskStorage, EmptyBufferError, LazyTensorStorage
from contig.adapters.skrl import Memory

NAMES = ["observations", "actions", "rewards", "terminated"]
ENVS, SIZE = 3, 5


def made(kind: Any = Memory, envs: int = ENVS, **more: Any) -> Any:
    memory = kind(memory_size=SIZE, num_envs=envs, device="cpu", **more)
    assert memory.create_tensor("observations", size=2, dtype=torch.float32)
    assert memory.create_tensor("actions", size=gymnasium.spaces.Discrete(7), dtype=torch.int64)
    assert memory.create_tensor("rewards", size=1, dtype=torch.float32)
    assert memory.create_tensor("terminated", size=1, dtype=torch.bool)
    return memory


def step_of(t: int, envs: int = ENVS) -> dict[str, torch.Tensor]:
    """Values say which step and env they are of."""
    ids = torch.arange(envs)[:, None] + 100 * t
    return {
        "observations": torch.cat([ids, -ids], 1).float(),
        "actions": ids,
        "rewards": ids / 10,
        "terminated": ids % 2 == 0,
        "truncated": ids > 0,  # nobody asked for these
    }


def same(mine: Any, other: Any) -> None:
    """All that is stored, and where it will go on."""
    assert len(mine) == len(other)
    for name in ("filled", "memory_index", "env_index"):
        assert getattr(mine, name) == getattr(other, name), name
    assert mine.get_tensor_names() == other.get_tensor_names()
    for name in NAMES:
        got, want = mine.get_tensor_by_name(name), other.get_tensor_by_name(name)
        assert got.dtype == want.dtype
        assert torch.equal(got.nan_to_num(-1), want.nan_to_num(-1)), name


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 8, 13])
def test_rows_are_where_skrl_has_them(steps):
    both = made(), made(RandomMemory)
    for t in range(steps):
        for memory in both:
            memory.add_samples(**step_of(t))
    same(*both)
    if len(both[0]):
        where = torch.tensor([len(both[0]) - 1, 0, 0])
        got, want = (memory.sample_by_index(NAMES, indexes=where)[0] for memory in both)
        assert all(map(torch.equal, got, want))
    if both[0].filled:
        for more in ({}, {"mini_batches": 2}, {"mini_batches": 2, "sequence_length": 2}):
            got, want = (memory.sample_all([*NAMES, "none"], **more) for memory in both)
            assert [x[-1] for x in got] == [x[-1] for x in want] == [None] * len(want)
            for mine, other in zip(got, want, strict=True):
                assert all(map(torch.equal, mine[:-1], other[:-1]))


def test_some_envs_at_a_time_and_several_rows_of_one():
    both = made(), made(RandomMemory)
    for memory in both:
        for t in range(7):
            rows = step_of(t)
            memory.add_samples(**{name: value[:2] for name, value in rows.items()})
            memory.add_samples(**{name: value[2] for name, value in rows.items()})
        memory.add_samples(**{name: value[:2] for name, value in step_of(7).items()})
    same(*both)
    single = made(envs=1)
    for t, rows in enumerate([4, 3, 1]):
        single.add_samples(**step_of(t, rows))
    assert single.get_tensor_by_name("actions").flatten().tolist() == [101, 102, 200, 3, 100]
    single.add_samples(**step_of(9, 12))  # more than there is room for: the newest stay
    assert sorted(single.get_tensor_by_name("actions").flatten().tolist()) == list(range(907, 912))


@pytest.mark.parametrize("steps", [2, 9])
def test_batches_with_replacement_are_those_of_skrl(steps):
    drawn = []
    for kind in (Memory, RandomMemory):
        torch.manual_seed(4)
        memory = made(kind, replacement=True)
        for t in range(steps):
            memory.add_samples(**step_of(t))
        drawn.append([memory.sample(NAMES, batch_size=8, mini_batches=2) for _ in range(3)])
        drawn[-1].append([[memory.get_sampling_indexes()]])
    for mine, other in zip(*drawn, strict=True):
        for got, want in zip(mine, other, strict=True):
            assert all(map(torch.equal, got, want))


def test_batches_without_replacement_are_distinct_uniform_and_seeded():
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        memory = made()
        for t in range(8):
            memory.add_samples(**step_of(t))
        drawn.append([memory.sample(["actions"], batch_size=6)[0][0] for _ in range(500)])
    assert all(map(torch.equal, *drawn))
    assert all(len(batch.unique()) == 6 for batch in drawn[0])
    found, counts = torch.cat(drawn[0]).unique(return_counts=True)
    assert found.tolist() == [100 * t + env for t in range(3, 8) for env in range(3)]
    expected = 500 * 6 / 15
    assert float((counts - expected).square().sum() / expected) < 40  # chi-square, 14 degrees
    assert len(memory.sample(["actions"], batch_size=99)[0][0]) == 15


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("steps", [3, 12])
def test_sequences_are_of_one_env_and_in_order(steps, replacement):
    memory = made(replacement=replacement)
    for t in range(steps):
        memory.add_samples(**step_of(t))
    starts = set()
    for _ in range(60):
        (rows,) = memory.sample(["actions"], batch_size=3, sequence_length=3)[0]
        rows = rows.view(3, 3)
        assert torch.equal(rows - rows[:, :1], torch.tensor([[0, 100, 200]] * 3))
        starts |= set(rows[:, 0].tolist())
        again = memory.sample_by_index(["actions"], indexes=memory.get_sampling_indexes())[0][0]
        assert torch.equal(again.view(3, 3), rows)
    first = max(steps - SIZE, 0)
    assert starts == {100 * t + env for t in range(first, steps - 2) for env in range(ENVS)}


class Net(DeterministicMixin, Model):
    def __init__(self, inputs: int, outputs: int, spaces: Any) -> None:
        Model.__init__(self, observation_space=spaces[0], action_space=spaces[1], device="cpu")
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs)
        )

    def compute(self, inputs: Any, role: str = "") -> Any:
        parts = [inputs["observations"], *([inputs["taken_actions"]] if "critic" in role else [])]
        return self.net(torch.cat(parts, -1)), {}


class Remembering(Net):
    """A policy with a state of 3 numbers, which it trains on in sequences of 2."""

    def get_specification(self) -> Any:
        return {"rnn": {"sequence_length": 2, "sizes": [(1, ENVS, 3)]}}

    def compute(self, inputs: Any, role: str = "") -> Any:
        state = inputs["rnn"][0]
        out = self.net(torch.cat([inputs["observations"], state[0]], -1))
        return out[:, :2], {"rnn": [torch.tanh(out[None, :, 2:])]}


class Gaussian(GaussianMixin, Net):
    """A stochastic policy: means of the actions, and one deviation each."""

    def __init__(self, inputs: int, outputs: int, spaces: Any) -> None:
        Net.__init__(self, inputs, outputs, spaces)
        GaussianMixin.__init__(self)
        self.log_std = torch.nn.Parameter(torch.zeros(outputs))

    def compute(self, inputs: Any, role: str = "") -> Any:
        means, more = Net.compute(self, inputs, role)
        return means, {**more, "log_std": self.log_std}


def agent_of(which: str, spaces: Any) -> tuple[Any, Any, dict[str, Any]]:
    """An agent's class, its settings and its networks."""
    critics = {name: Net(6, 1, spaces) for name in ("critic", "target_critic")}
    if which == "SAC":
        two = {f"{name}_{i}": Net(6, 1, spaces) for name in critics for i in (1, 2)}
        return SAC, SAC_CFG, {"policy": Gaussian(4, 2, spaces), **two}
    agent, policy, sizes = DDPG, Net, (4, 2)
    if which == "recurrent DDPG":
        agent, policy, sizes = DDPG_RNN, Remembering, (7, 5)
    policies = {name: policy(*sizes, spaces) for name in ("policy", "target_policy")}
    return agent, DDPG_CFG, {**policies, **critics}


def trained(kind: Any, which: str) -> dict[str, torch.Tensor]:
    """An agent's parameters after a few updates, over the memory's end unless recurrent."""
    torch.manual_seed(6)
    spaces = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Box(-1, 1, (2,))
    rows = 12 if "recurrent" in which else SIZE
    memory = kind(memory_size=rows, num_envs=ENVS, device="cpu", replacement=True)
    agent_class, settings, nets = agent_of(which, spaces)
    config = settings(batch_size=8, learning_starts=2)
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    agent = agent_class(
        models=nets,
        memory=memory,
        observation_space=spaces[0],
        action_space=spaces[1],
        device="cpu",
        cfg=config,
    )
    agent.init()
    agent.enable_training_mode(True)
    now = torch.randn(ENVS, 4)
    for t in range(12):
        clock = {"timestep": t, "timesteps": 12}
        with torch.no_grad():
            actions = agent.act(now, None, **clock)[0]
        after = now + torch.randn(ENVS, 4)
        agent.record_transition(
            observations=now,
            states=None,
            actions=actions,
            rewards=-after.square().mean(1, keepdim=True),
            next_observations=after,
            next_states=None,
            terminated=torch.rand(ENVS, 1) < 0.2,
            truncated=torch.zeros(ENVS, 1, dtype=torch.bool),
            infos={},
            **clock,
        )
        agent.post_interaction(**clock)
        now = after
    return {f"{n}.{k}": v for n, net in nets.items() for k, v in net.state_dict().items()}


@pytest.mark.parametrize("which", ["DDPG", "recurrent DDPG", "SAC"])
def test_agents_train_bit_by_bit_as_on_skrls_memory(which):
    mine, other = trained(Memory, which), trained(RandomMemory, which)
    assert all(torch.equal(mine[name], other[name]) for name in other)
    critic = "critic_1" if which == "SAC" else "critic"
    learnt, target = (mine[f"{name}.net.0.weight"] for name in (critic, f"target_{critic}"))
    assert not torch.equal(learnt, target)


def test_tensors_that_are_not_given():
    memory = made()
    memory.add_samples(observations=torch.ones(ENVS, 2))
    rewards, actions, observations = memory.sample_by_index(
        ["rewards", "actions", "observations"], indexes=[0]
    )[0]
    assert rewards.isnan().all() and not actions.any() and observations.tolist() == [[1, 1]]


def test_a_storage_of_ones_own_and_a_checkpoint(tmp_path):
    with DiskStorage(tmp_path / "rows", capacity=SIZE * ENVS) as storage:
        memory = made(storage=storage)
        for t in range(7):
            memory.add_samples(**step_of(t))
        memory.buffer.save(tmp_path / "saved")
        expected = sorted(memory.get_tensor_by_name("actions").flatten().tolist())
    other = made()
    other.add_samples(**step_of(50))
    other.load(str(tmp_path / "saved"))
    assert sorted(other.get_tensor_by_name("actions").flatten().tolist()) == expected
    other.add_samples(**step_of(7))
    assert sorted(other.get_tensor_by_name("actions").flatten().tolist())[0] == 300
    with pytest.raises(ValueError, match="buffer.save"):
        other.load("memory.pt")


def test_reset_forgets():
    memory = made()
    for t in range(7):
        memory.add_samples(**step_of(t))
    memory.reset()
    assert isinstance(memory, Base)
    same(memory, made(RandomMemory))
    with pytest.raises(EmptyBufferError, match="add_samples"):
        memory.sample(NAMES, batch_size=1)
    memory.add_samples(**step_of(20))
    assert memory.get_tensor_by_name("actions")[0].flatten().tolist() == [2000, 2001, 2002]


def test_exports_when_it_is_full(tmp_path):
    memory = made(export=True, export_directory=str(tmp_path), export_format="npz")
    for t in range(SIZE - 1):
        memory.add_samples(**step_of(t))
    assert not list(tmp_path.rglob("*.npz"))
    memory.add_samples(**step_of(SIZE - 1))
    (path,) = tmp_path.rglob("*.npz")
    written = np.load(path)
    assert sorted(written) == sorted(NAMES)
    assert np.array_equal(written["actions"], memory.get_tensor_by_name("actions").numpy())


def test_refusals():
    memory = made()
    with pytest.raises(ValueError, match="no samples"):
        memory.add_samples()
    with pytest.raises(ValueError, match="4 rows, expected at most 3"):
        memory.add_samples(**step_of(0, 4))
    with pytest.raises(ValueError, match="size"):
        memory.create_tensor("rewards", size=2)
    assert not memory.create_tensor("rewards", size=1)
    memory.add_samples(**step_of(0))
    with pytest.raises(ValueError, match="log_prob: rows without it"):
        memory.create_tensor("log_prob", size=1)
    with pytest.raises(IndexError, match="of 3 that are stored"):
        memory.sample_by_index(NAMES, indexes=[3])
    with pytest.raises(EmptyBufferError, match="no sequence of 2"):
        memory.sample(NAMES, batch_size=1, sequence_length=2)
    with pytest.raises(NotImplementedError, match="RandomMemory"):
        memory.set_tensor_by_name("rewards", memory.get_tensor_by_name("rewards"))
    with pytest.raises(ValueError, match="expected memory_size"):
        made(storage=LazyTensorStorage(4))
