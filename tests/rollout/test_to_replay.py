"""RolloutStorage.to_replay: rollouts as trajectories on a tape."""

from __future__ import annotations

import numpy as np
import torch

from contig import LazyTensorStorage, ReplayBuffer, RolloutStorage, SliceSampler
from tests.rollout.steps import filled, identity, transition
from tests.rollout.test_sarsa import DONES, sarsa


def episodes(buffer: ReplayBuffer) -> list[tuple[list[float], bool, bool]]:
    """Identities of each trajectory's rows, and how it ended."""
    out = []
    for line in buffer.storage.episodes():
        rows = buffer.storage.read_episode(int(line["id"]))
        ended = bool(line["terminated"]), bool(line["truncated"])
        out.append((rows["next", "reward"].tolist(), *ended))
    return sorted(out)


def test_trajectories_are_cut_at_dones_and_nowhere_else():
    buffer = ReplayBuffer(LazyTensorStorage(1000), SliceSampler(slice_len=2), seed=0)
    storage = RolloutStorage(2, 4, (3,), None, (2,))
    late = torch.zeros(4, 2, dtype=torch.bool)
    late[1, 1] = True
    for step in range(4):
        storage.add_transitions(transition(step, 2, DONES[step], time_outs=late[step]))
    seqs = storage.to_replay(buffer)
    assert np.asarray(seqs).size == 8 and len(buffer) == 8
    assert episodes(buffer) == [
        ([0.0, 1000.0, 2000.0, 3000.0], True, False),
        ([1.0, 1001.0], False, True),
        ([2001.0, 3001.0], False, False),
    ]
    batch = buffer.sample(64)
    assert batch["observation"].shape == (64, 3)
    assert np.array_equal(batch["observation"][:, 0], batch["next", "reward"])
    assert np.array_equal(batch["action"][:, 0], batch["value"])


def test_open_episodes_go_on():
    buffer = ReplayBuffer(LazyTensorStorage(1000))
    first = filled(3, 2)
    first.to_replay(buffer)
    second = RolloutStorage(2, 3, (3,), None, (2,))
    for step in range(3, 6):
        second.add_transitions(transition(step, 2))
    second.to_replay(buffer, continues=True)
    assert [rows for rows, *_ in episodes(buffer)] == [
        [1000.0 * s for s in range(6)],
        [1000.0 * s + 1 for s in range(6)],
    ]
    second.to_replay(buffer)
    assert len(episodes(buffer)) == 4


def test_next_observations_and_several_rewards():
    buffer = ReplayBuffer(LazyTensorStorage(1000))
    sarsa(critic=True).to_replay(buffer)
    batch = buffer[:]
    ids = batch["next", "reward"]
    wanted = np.where(batch["next", "done"], ids + 0.5, ids + 1000)
    assert np.array_equal(batch["next", "observation"][:, 0], wanted)
    assert np.array_equal(batch["next", "critic_observation"][:, 4], wanted)
    storage = RolloutStorage(2, 1, {"a": (1,), "b": {"c": (2,)}}, None, (2,), num_rewards=2)
    new = transition(0, 2)
    new.observations = {"a": identity(0, 2, 1), "b": {"c": identity(0, 2, 2)}}
    new.rewards = new.values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    storage.add_transitions(new)
    other = ReplayBuffer(LazyTensorStorage(10))
    storage.to_replay(other)
    assert other[:]["next", "reward"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert other[:]["observation", "a"].shape == (2, 1)
