"""The snippet of seed 000 as it stands there, with a client that keeps what it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from contig import Layout
from contig.accumulate import TrajectoryAccumulator


class TcpClient:
    """A stub: copies the record before it returns, as the real one does."""

    def __init__(self, host: str, port: int, example: Any) -> None:
        self.layout = Layout(example)
        self.sent: list[Any] = []

    def send(self, tree: Any) -> None:
        assert tree.layout == self.layout
        self.sent.append(self.layout.unpack(tree.record.copy()))


class Env:
    """Observations that tell the step; rewards that are whole numbers."""

    steps = 0

    def reset(self) -> np.ndarray[Any, Any]:
        return np.full(4, self.steps, np.float64)

    def step(self) -> tuple[np.ndarray[Any, Any], float]:
        self.steps += 1
        return self.reset(), float(self.steps % 3)


def test_seed_000() -> None:
    num_rollouts, env = 3, Env()

    T = 64  # rollout length

    example = {
        # Buffered timescale: leading dim T across every leaf.
        "step": {
            "obs": np.zeros((T, 4), dtype=np.float32),
            "reward": np.zeros((T,), dtype=np.float32),
        },
        # Single-item timescale: all leaves have shape (1, ...) — capacity 1,
        # `add()` replaces the whole leaf.
        "episode": {
            "return": np.zeros((1,), dtype=np.float32),
            "length": np.zeros((1,), dtype=np.float32),
        },
        # Single-item timescale: 0-d reward means add() replaces the whole leaf
        "final_step": {
            "obs": np.zeros((4,), dtype=np.float32),
            "reward": np.zeros((), dtype=np.int32),
        },
    }

    # The server is constructed with the same example.
    client = TcpClient("localhost", 50051, example)
    buf = TrajectoryAccumulator(example)

    for _ in range(num_rollouts):
        episode_return = 0.0
        reward = 0.0
        length = 0
        obs = env.reset()
        for _ in range(T):
            buf.add("step", {"obs": obs, "reward": reward})
            obs, reward = env.step()
            episode_return += float(reward)
            length += 1

        buf.add("episode", {"return": np.array([episode_return]), "length": np.array([length])})
        buf.add("final_step", {"obs": obs, "reward": reward})
        client.send(buf.build())

    assert len(client.sent) == num_rollouts
    for i, tree in enumerate(client.sent):
        steps = np.arange(i * T, (i + 1) * T)
        assert tree["step"]["obs"].tolist() == [[s] * 4 for s in steps]
        assert tree["step"]["reward"].tolist() == [0, *(steps[1:] % 3)]
        assert tree["episode"]["return"] == [((steps + 1) % 3).sum()]
        assert tree["episode"]["length"] == [T]
        assert tree["final_step"]["obs"].tolist() == [(i + 1) * T] * 4
        assert tree["final_step"]["reward"] == (i + 1) * T % 3
