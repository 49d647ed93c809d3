"""What is sent: four messages, each a tree of arrays as an actor makes it.

Every method sends the same trees, `DISTINCT` different ones in turn, and is credited with their
payload bytes (the leaves, no headers, no padding).

| name      | what                                                | payload   | items per batch |
| --------- | --------------------------------------------------- | --------- | --------------- |
| `sample`  | one CartPole step                                   | 24 B      | 256             |
| `rollout` | 64 CartPole steps                                   | 1,600 B   | 256             |
| `frame`   | one 84x84x4 step                                    | 28,236 B  | 32              |
| `frames`  | 16 of those, also sent as one trajectory of 16 rows | 451,776 B | 8               |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Tree = dict[str, Any]

DISTINCT = 8
"""Different messages per client, sent in turn."""

BLOCK_BYTES = 512 << 10
"""Up to here a bare socket's messages are joined where it coalesces, as contig's clients do."""

STEPS = 64
FRAMES = 16
TABLE_ITEMS = 125
"""Trajectories of `FRAMES` rows that the learner's replay buffer holds: 2000 rows."""


@dataclass(frozen=True)
class Message:
    """One kind of message: its tree, and how many of them make a batch at the consumer."""

    name: str
    title: str
    make: Callable[[int], Tree]
    """The tree number n; its `reward` leaf is filled with n."""
    batch_size: int

    @property
    def example(self) -> Tree:
        return self.make(0)

    @property
    def payload_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.example.values())

    def trees(self) -> list[Tree]:
        """The messages that a client sends in turn."""
        return [self.make(number) for number in range(DISTINCT)]

    def check(self, batch: Tree) -> None:
        """`RuntimeError` unless every item of `batch` (leaves `[B, ...]`) is one that was sent."""
        sent = self.trees()
        for item in range(self.batch_size):
            number = int(batch["reward"][item].flat[0])
            for key, leaf in sent[number].items():
                if not np.array_equal(batch[key][item], leaf):
                    raise RuntimeError(f"{self.name}: item {item}, leaf {key!r} was not sent so")


def step(number: int, shape: tuple[int, ...]) -> Tree:
    """CartPole steps with leading `shape`: 4 observations, an action, a reward."""
    rng = np.random.default_rng(number)
    return {
        "observation": rng.standard_normal((*shape, 4), dtype=np.float32),
        "action": np.full(shape, number % 2, np.int32),
        "reward": np.full(shape, number, np.float32),
    }


def make_sample(number: int) -> Tree:
    return step(number, ())


def make_rollout(number: int) -> Tree:
    return {**step(number, (STEPS,)), "done": np.zeros(STEPS, np.bool_)}


def pixels(number: int, shape: tuple[int, ...]) -> Tree:
    """Atari steps with leading `shape`; no done flag, as `send_trajectory` says how one ended."""
    rng = np.random.default_rng(number)
    return {
        "observation": rng.integers(0, 256, (*shape, 84, 84, 4), dtype=np.uint8),
        "action": np.full(shape, number, np.int32),
        "reward": np.full(shape, number, np.float32),
        "discount": np.full(shape, 0.99, np.float32),
    }


MESSAGES = {
    message.name: message
    for message in (
        Message("sample", "24 B samples", make_sample, 256),
        Message("rollout", "1.6 kB rollouts, T=64", make_rollout, 256),
        Message("frame", "28 kB frames", lambda number: pixels(number, ()), 32),
        Message("frames", "452 kB rollouts", lambda number: pixels(number, (FRAMES,)), 8),
    )
}
