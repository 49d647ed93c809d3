"""Collectors of environments that stack frames: storages store each frame once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from contig import (
    Collector,
    LazyTensorStorage,
    MultiAsyncCollector,
    MultiSyncCollector,
    ReplayBuffer,
    SerialEnv,
    SharedStorage,
)
from tests.collect.envs import Steps, plan

FRAMES, LONGEST = 4, 6


class Pictures(Steps):
    """The same steps as planes of a picture: env, episode and time."""

    def __init__(self) -> None:
        super().__init__(LONGEST)
        self.observation_space = gym.spaces.Box(-1, 2**40, (3, 8), np.int64)

    def _obs(self) -> Any:
        return np.broadcast_to(super()._obs()[:, None], (3, 8)).copy()


def make_stack(padding: str = "reset") -> Any:
    return FrameStackObservation(Pictures(), FRAMES, padding_type=padding)


def make_zeros() -> Any:
    return make_stack("zero")


def check(storage: Any, zeros: bool = False) -> None:
    """Every stack is what the wrapper gave, by what its newest frame says."""
    batch = ReplayBuffer(storage)[:]
    back = np.arange(FRAMES) - (FRAMES - 1)
    for path in (("observation",), ("next", "observation")):
        seen = batch[path][..., 0]  # [n, frames, 3]
        env, episode, t = np.moveaxis(seen[:, -1], -1, 0)
        times = t[:, None] + back
        want = np.stack(np.broadcast_arrays(env[:, None], episode[:, None], times), -1)
        early = times < 0
        want[early] = 0 if zeros else np.stack([env, episode, 0 * t], -1)[np.nonzero(early)[0]]
        np.testing.assert_array_equal(seen, want)
    lengths = {
        int(e): plan(int(v), int(e), LONGEST)[0] for v, e, _ in batch["observation"][:, -1, :, 0]
    }
    assert min(lengths.values()) < LONGEST  # or nothing ended


CASES: dict[str, Any] = {
    "one": Collector,
    "lanes": lambda env, **more: Collector(SerialEnv(3, env), **more),
    "sync": lambda env, **more: MultiSyncCollector([env] * 2, **more),
    "async": lambda env, **more: MultiAsyncCollector([env] * 2, **more),
}


@pytest.mark.parametrize("kind", [LazyTensorStorage, SharedStorage])
@pytest.mark.parametrize("how", CASES)
def test_stacks_of_collectors(how: str, kind: Any) -> None:
    with kind(2000) as storage:
        buffer = ReplayBuffer(storage, batch_size=8)
        options = {"frames_per_batch": 60, "total_frames": 300, "replay_buffer": buffer, "seed": 0}
        with CASES[how](make_stack, **options) as collector:
            for _ in collector:
                buffer.sample()
        sharing = storage.schema.sharing
        assert [(x.path, x.frames) for x in sharing.leaves] == [(("observation",), FRAMES)]
        rows, episodes = len(storage), len(storage.episodes())
        assert rows >= 300
        # A frame for each step, and one for each reset; a little more where batches meet.
        assert storage.tape.slots_given <= rows + 2 * episodes + 40
        check(storage)


def test_edges_of_zeros() -> None:
    with LazyTensorStorage(2000) as storage:
        buffer = ReplayBuffer(storage)
        options = {"frames_per_batch": 60, "total_frames": 300, "replay_buffer": buffer, "seed": 0}
        with MultiSyncCollector([make_zeros] * 2, **options) as collector:
            list(collector)
        assert storage.schema is not None and storage.schema.sharing is not None
        assert storage.schema.sharing.leaves[0].frames == FRAMES
        check(storage, zeros=True)
