"""The seed's calls, with only the import line changed."""

from __future__ import annotations

import inspect

import numpy as np
import torch

from contig import RolloutDataset, RolloutFileBase, RolloutStorage
from contig.rollout import (
    ActionLabelRollout,
    QueueRolloutStorage,
    ReplayBuffer,
    SarsaRolloutStorage,
)
from tests.dataset.made import written


def parameters(function) -> list[str]:
    kinds = inspect.Parameter
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is kinds.POSITIONAL_OR_KEYWORD and p.name != "self"
    ]


def test_signatures():
    assert parameters(ReplayBuffer.__init__) == ["obs_dim", "buffer_size", "device"]
    assert parameters(ReplayBuffer.insert) == ["states", "next_states"]
    assert parameters(ReplayBuffer.feed_forward_generator) == ["num_mini_batch", "mini_batch_size"]
    assert parameters(RolloutDataset.__init__) == [
        "data_dir",
        "num_envs",
        "dataset_loops",
        "random_shuffle_traj_order",
        "keep_latest_n_trajs",
        "starting_frame_range",
        "device",
    ]
    verbs = ["add_transitions", "compute_returns", "mini_batch_generator", "clear"]
    for name in (*verbs, "reccurent_mini_batch_generator", "get_statistics"):
        for kind in (RolloutStorage, QueueRolloutStorage, ActionLabelRollout, SarsaRolloutStorage):
            assert callable(getattr(kind, name)), (kind, name)
    assert RolloutFileBase.__abstractmethods__ == {
        "reset_all",
        "refresh_handlers",
        "get_buffer",
        "fill_transition",
    }
    assert issubclass(RolloutFileBase, torch.utils.data.IterableDataset)


def test_replay_buffer():
    buffer = ReplayBuffer(4, 10, "cpu")
    assert buffer.states.shape == buffer.next_states.shape == (10, 4)
    assert (buffer.buffer_size, buffer.step, buffer.num_samples) == (10, 0, 0)
    buffer.insert(torch.ones(7, 4), torch.ones(7, 4))
    buffer.insert(torch.full((7, 4), 2.0), torch.full((7, 4), 2.0))
    assert (buffer.step, buffer.num_samples) == (4, 10)
    assert buffer.states[:, 0].tolist() == [2.0] * 4 + [1.0] * 3 + [2.0] * 3
    for states, next_states in buffer.feed_forward_generator(3, 5):
        assert states.shape == next_states.shape == (5, 4)


class Counting(RolloutFileBase):
    """The template with the least that makes it a dataset."""

    def reset_all(self):
        self.at = torch.zeros(self.num_envs)

    def refresh_handlers(self, env_ids):
        self.at[env_ids] = 0

    def get_buffer(self, num_transitions_per_env=None):
        from contig.dataset import Transition

        lead = () if num_transitions_per_env is None else (num_transitions_per_env,)
        return Transition(*(torch.zeros(*lead, self.num_envs) for _ in Transition._fields))

    def fill_transition(self, buffer, env_ids=None):
        if float(self.at.max()) >= 5:
            raise StopIteration
        buffer.observation[:] = self.at
        self.at += 1


def test_template():
    dataset = Counting("anywhere", 3, "cpu")
    assert dataset.get_batch().observation.tolist() == [0.0] * 3  # resets itself
    dataset.reset([1])
    s, _, _, _, info = dataset.get_transition_batch()
    assert s.tolist() == [1.0, 0.0, 1.0] and "time_outs" in info
    dataset.reset()
    assert dataset.get_batch(2).observation[:, 0].tolist() == [0.0, 1.0]
    assert len(list(dataset)) == 5


def test_dataset(tmp_path):
    written(tmp_path, [6, 6, 6])
    dataset = RolloutDataset(
        tmp_path,
        2,
        dataset_loops=1,
        random_shuffle_traj_order=False,
        keep_latest_n_trajs=0,
        starting_frame_range=[0, 1],
        device="cpu",
    )
    assert dataset.read_dataset_directory.__self__ is dataset
    assert dataset.get_frame_range("traj_100_200.pkl") == (100, 200)
    s, a, r, d, info = dataset.get_transition_batch()
    assert a.shape == (2, 2) and r.tolist() == [0.0, 1000.0]
    assert np.asarray(s).shape == (2, 3) and d.all() and not info["time_outs"].any()
