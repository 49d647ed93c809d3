"""cpprb: ReplayBuffer and PrioritizedReplayBuffer.

cpprb has no slices of trajectories. Run: `python -m benchmarks.peer_cpprb [--quick] [--only CASE]`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cpprb
import numpy as np

from benchmarks.rows import (
    ACTION_DIM,
    OBSERVATION_DIM,
    Tree,
    fill_chunks,
    make_rows,
    row_at,
)
from benchmarks.timing import Effort, best_us, cycling
from benchmarks.worker import worker_main

FLAGS = ("done", "terminated", "truncated")
COLUMNS: dict[str, dict[str, Any]] = {
    "obs": {"shape": OBSERVATION_DIM, "dtype": np.float32},
    "next_obs": {"shape": OBSERVATION_DIM, "dtype": np.float32},
    "act": {"shape": ACTION_DIM, "dtype": np.float32},
    "rew": {"dtype": np.float32},
    **{flag: {"dtype": np.bool_} for flag in FLAGS},
}


def columns(tree: Tree) -> dict[str, Any]:
    """The nested dict under cpprb's flat names."""
    after = tree["next"]
    return {
        "obs": tree["observation"],
        "next_obs": after["observation"],
        "act": tree["action"],
        "rew": after["reward"],
        **{flag: after[flag] for flag in FLAGS},
    }


@cache
def uniform(rows: int) -> cpprb.ReplayBuffer:
    buffer = cpprb.ReplayBuffer(rows, COLUMNS)
    for chunk in fill_chunks(rows):
        buffer.add(**columns(chunk))
    return buffer


@cache
def prioritized(rows: int) -> cpprb.PrioritizedReplayBuffer:
    buffer = cpprb.PrioritizedReplayBuffer(rows, COLUMNS, alpha=0.6)
    rng = np.random.default_rng(2)
    for chunk in fill_chunks(rows):
        priorities = rng.random(len(chunk["observation"])) + 0.01
        buffer.add(priorities=priorities, **columns(chunk))
    return buffer


def extend_1000(effort: Effort) -> float:
    batches = cycling([columns(make_rows(1000, seed=seed)) for seed in range(50, 58)])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.add(**batches()), effort)


def add_1(effort: Effort) -> float:
    rows = make_rows(1000, seed=60)
    row = cycling([columns(row_at(rows, index)) for index in range(1000)])
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.add(**row()), effort)


def sample_256(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(256), effort)


def sample_4096(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(4096), effort)


def priority_sample_256(effort: Effort) -> float:
    buffer = prioritized(effort.rows)
    return best_us(lambda: buffer.sample(256, beta=0.4), effort)


def priority_update_256(effort: Effort) -> float:
    buffer = prioritized(effort.rows)
    rng = np.random.default_rng(3)
    # The indexes are copied: what cpprb returns is slower to take back than a plain array.
    update = cycling(
        [(np.array(buffer.sample(256)["indexes"]), rng.random(256) + 0.01) for _ in range(64)]
    )
    return best_us(lambda: buffer.update_priorities(*update()), effort)


CASES = {
    "extend_1000": extend_1000,
    "add_1": add_1,
    "sample_256": sample_256,
    "sample_4096": sample_4096,
    "priority_sample_256": priority_sample_256,
    "priority_update_256": priority_update_256,
}

if __name__ == "__main__":
    worker_main("cpprb", CASES, ("cpprb", "numpy"))
