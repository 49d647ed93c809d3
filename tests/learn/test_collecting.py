"""A recurrent policy in a collector: what it did step by step is what the learner computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contig import (
    Collector,
    GRUModule,
    GymEnv,
    LazyTensorStorage,
    LSTMModule,
    ReplayBuffer,
    SerialEnv,
    SliceSampler,
    set_recurrent_mode,
)


class Policy(torch.nn.Module):
    def __init__(self, lstm: bool) -> None:
        super().__init__()
        states = ["h", "c"] if lstm else ["h"]
        self.states = states
        self.memory = (LSTMModule if lstm else GRUModule)(
            4,
            8,
            2,
            in_keys=["observation", *states, "is_init"],
            out_keys=["features", *(("next", s) for s in states)],
        )
        self.head = torch.nn.Linear(8, 2)

    def forward(self, rows: Any) -> Any:
        out = self.memory(rows)
        out["action"] = self.head(out["features"]).argmax(-1)
        return out


def same(policy: Policy, batch: Any) -> None:
    """In recurrent mode the module gives what was stored when it acted."""
    with set_recurrent_mode("recurrent"):
        out = policy.memory(batch)
    for path in ("features", *(("next", s) for s in policy.states)):
        np.testing.assert_allclose(out[path].detach(), batch[path], atol=1e-6)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("where", ["env", "collector", "both"])
def test_what_was_stored_is_what_is_computed(where: str, lstm: bool) -> None:
    torch.manual_seed(0)
    policy = Policy(lstm)
    env = GymEnv("CartPole-v1", policy=None if where == "collector" else policy)
    collector = Collector(
        env,
        policy,
        frames_per_batch=80,
        total_frames=160,
        auto_register_policy_transforms=where != "env",
        seed=0,
    )
    buffer = ReplayBuffer(LazyTensorStorage(500), SliceSampler(slice_len=7), batch_size=70, seed=0)
    for batch in collector:
        same(policy, batch)
        first = batch["is_init"]
        assert first.sum() > 2 and not batch["h"][first].any()  # the primer's zeros
        assert np.abs(batch["h"][~first]).sum(-1).all()
        buffer.extend(batch)
    collector.shutdown()
    sample = buffer.sample()
    assert np.abs(sample["h"][sample["is_init"]]).any()  # slices begin in the middle
    same(policy, sample)


def test_lanes_of_several_environments() -> None:
    torch.manual_seed(0)
    policy = Policy(lstm=False)
    collector = Collector(
        SerialEnv(3, lambda: GymEnv("CartPole-v1")),
        policy,
        frames_per_batch=120,
        total_frames=120,
        auto_register_policy_transforms=True,
        seed=0,
    )
    (batch,) = list(collector)
    collector.shutdown()
    assert batch.shape == (3, 40)
    same(policy, batch)
    same(policy, batch.reshape(-1))
