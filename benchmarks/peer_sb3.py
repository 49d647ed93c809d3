"""stable-baselines3: ReplayBuffer of one env.

It adds one step at a time (no `extend`), keeps `done` and the time-out flag, and hands out torch
tensors. Run: `python -m benchmarks.peer_sb3 [--quick] [--only CASE ...]`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

from benchmarks.rows import (
    ACTION_DIM,
    FILL_CHUNK,
    GOAL_DIM,
    OBSERVATION_DIM,
    fill_chunks,
    make_rows,
    with_goals,
)
from benchmarks.timing import Effort, best_us, cycling
from benchmarks.worker import worker_main


def box(size: int) -> Box:
    return Box(-np.inf, np.inf, (size,), np.float32)


@cache
def uniform(rows: int) -> ReplayBuffer:
    return filled(ReplayBuffer(rows, box(OBSERVATION_DIM), box(ACTION_DIM), device="cpu"))


def filled(buffer: ReplayBuffer) -> ReplayBuffer:
    """A full buffer; filled through its arrays, as one `add` per row would take long."""
    rows = buffer.buffer_size
    for number, chunk in enumerate(fill_chunks(rows)):
        after = chunk["next"]
        place = slice(number * FILL_CHUNK, number * FILL_CHUNK + len(after["reward"]))
        buffer.observations[place, 0] = chunk["observation"]
        buffer.next_observations[place, 0] = after["observation"]
        buffer.actions[place, 0] = chunk["action"]
        buffer.rewards[place, 0] = after["reward"]
        buffer.dones[place, 0] = after["done"]
        buffer.timeouts[place, 0] = after["truncated"]
    buffer.full = True
    return buffer


def steps(count: int) -> list[tuple[Any, ...]]:
    """Arguments of `count` calls of `add`, as a VecEnv of one env gives them."""
    rows = make_rows(count, seed=60)
    after = rows["next"]
    return [
        (
            rows["observation"][index : index + 1],
            after["observation"][index : index + 1],
            rows["action"][index : index + 1],
            after["reward"][index : index + 1],
            after["done"][index : index + 1],
            [{"TimeLimit.truncated": bool(after["truncated"][index])}],
        )
        for index in range(count)
    ]


def add_1(effort: Effort) -> float:
    step = cycling(steps(1000))
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.add(*step()), effort)


def sample_256(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(256), effort)


def sample_4096(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(4096), effort)


def sample_128(effort: Effort) -> float:
    buffer = uniform(effort.rows)
    return best_us(lambda: buffer.sample(128), effort)


def nstep_128(effort: Effort) -> float:
    boxes = box(OBSERVATION_DIM), box(ACTION_DIM)
    buffer = filled(NStepReplayBuffer(effort.rows, *boxes, device="cpu", n_steps=3, gamma=0.99))
    return best_us(lambda: buffer.sample(128), effort)


class GoalEnv:
    """What HerReplayBuffer asks of the env: the reward of relabelled rows."""

    def env_method(self, name: str, achieved: Any, goal: Any, *_: Any, **__: Any) -> list[Any]:
        assert name == "compute_reward"
        return [-(np.linalg.norm(achieved - goal, axis=-1) > 0.05).astype(np.float32)]


def hindsight_256(effort: Effort) -> float:
    rows = effort.priority_slice_rows
    goal = box(GOAL_DIM)
    spaces = {
        "observation": box(OBSERVATION_DIM),
        "achieved_goal": goal,
        "desired_goal": goal,
    }
    buffer = HerReplayBuffer(
        rows, Dict(spaces), box(ACTION_DIM), env=GoalEnv(), device="cpu", n_sampled_goal=4
    )
    for number, chunk in enumerate(fill_chunks(rows)):
        tree = with_goals(chunk)
        after, ends = tree["next"], np.flatnonzero(tree["next"]["done"])
        place = slice(number * FILL_CHUNK, number * FILL_CHUNK + len(after["reward"]))
        for key in spaces:
            buffer.observations[key][place, 0] = tree[key]
            buffer.next_observations[key][place, 0] = after[key]
        buffer.actions[place, 0] = tree["action"]
        buffer.rewards[place, 0] = after["reward"]
        buffer.dones[place, 0] = after["done"]
        buffer.timeouts[place, 0] = after["truncated"]
        starts = np.concatenate(([0], ends[:-1] + 1))
        lengths = ends - starts + 1
        buffer.ep_start[place, 0] = np.repeat(starts, lengths) + place.start
        buffer.ep_length[place, 0] = np.repeat(lengths, lengths)
    buffer.full = True
    return best_us(lambda: buffer.sample(256), effort)


CASES = {
    "add_1": add_1,
    "sample_256": sample_256,
    "sample_256_torch": sample_256,
    "hindsight_256": hindsight_256,
    "sample_4096": sample_4096,
    "sample_128": sample_128,
    "nstep_128": nstep_128,
}

if __name__ == "__main__":
    worker_main("sb3", CASES, ("stable-baselines3", "torch", "numpy"))
