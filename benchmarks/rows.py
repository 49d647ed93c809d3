"""The rows that every library stores: made from a seed, the same numbers for all of them.

A row is a step of a HalfCheetah-like task: observation and next observation (17 float32), action
(6 float32), reward (float32) and three flags. Within an episode a row's next observation is the
observation of the row behind it, as in every environment. As a nested dict of arrays `[N, ...]`:

    {"observation", "action", "next": {"observation", "reward", "done", "terminated", "truncated"}}

plus `("collector", "traj_ids")` (int64) where trajectories matter. Only numpy is imported here, so
the module is usable in the peers' environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tree = dict[str, Any]

OBSERVATION_DIM = 17
ACTION_DIM = 6
GOAL_DIM = 3
FILL_CHUNK = 100_000
EPISODE_STEPS = (64, 336)  # lengths drawn for stored episodes: all hold a slice of 32
WRITE_ROWS = 16
WRITES_PER_EPISODE = 10


def map_tree(function: Any, tree: Tree) -> Tree:
    """Apply `function` to every array of a nested dict."""
    return {
        key: map_tree(function, value) if isinstance(value, dict) else function(value)
        for key, value in tree.items()
    }


def cut(tree: Tree, start: int, stop: int) -> Tree:
    """Rows `[start, stop)` of every leaf, as views."""
    return map_tree(lambda leaf: leaf[start:stop], tree)


def row_at(tree: Tree, index: int) -> Tree:
    """One row: the leaves lose their leading dim, flags and reward become 0-d arrays."""
    return map_tree(lambda leaf: np.asarray(leaf[index]), tree)


def episode_ends(rows: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """`[rows]`, True on the last row of each episode; the last row of all ends an episode."""
    low, high = EPISODE_STEPS
    lengths = rng.integers(low, high, size=rows // low + 1)
    last = np.cumsum(lengths) - 1
    ends = np.zeros(rows, dtype=np.bool_)
    ends[last[last < rows - low]] = True
    ends[-1] = True
    return ends


def next_observations(
    observation: NDArray[np.float32], ends: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.float32]:
    """What each row led to: the observation of the next one, or, where an episode ends, another."""
    after = np.roll(observation, -1, axis=0)
    after[ends] = rng.standard_normal((int(ends.sum()), OBSERVATION_DIM), dtype=np.float32)
    return after


def make_rows(rows: int, *, seed: int = 0, ids: bool = False, first_id: int = 0) -> Tree:
    """`rows` steps of whole episodes; with `ids` also their trajectory ids from `first_id` on."""
    rng = np.random.default_rng(seed)
    ends = episode_ends(rows, rng)
    truncated = ends & (rng.random(rows) < 0.5)
    observation = rng.standard_normal((rows, OBSERVATION_DIM), dtype=np.float32)
    tree: Tree = {
        "observation": observation,
        "action": rng.standard_normal((rows, ACTION_DIM), dtype=np.float32),
        "next": {
            "observation": next_observations(observation, ends, rng),
            "reward": rng.standard_normal(rows, dtype=np.float32),
            "done": ends,
            "terminated": ends & ~truncated,
            "truncated": truncated,
        },
    }
    if ids:
        before = np.concatenate(([0], np.cumsum(ends[:-1], dtype=np.int64)))
        tree["collector"] = {"traj_ids": first_id + before}
    return tree


def with_goals(tree: Tree) -> Tree:
    """The rows as those of a task with goals: the first three numbers of an observation are what
    it has achieved, and one goal is for all."""
    goal = np.zeros((len(tree["observation"]), GOAL_DIM), np.float32)

    def goals(observation: Any) -> Tree:
        return {"achieved_goal": observation[:, :GOAL_DIM].copy(), "desired_goal": goal}

    after = {**tree["next"], **goals(tree["next"]["observation"])}
    return {**tree, **goals(tree["observation"]), "next": after}


def fill_chunks(rows: int, *, ids: bool = False, seed: int = 1) -> Iterator[Tree]:
    """`rows` rows in chunks small enough to be made, copied and forgotten."""
    first_id = 0
    for start in range(0, rows, FILL_CHUNK):
        chunk = make_rows(
            min(FILL_CHUNK, rows - start), seed=seed + start, ids=ids, first_id=first_id
        )
        if ids:
            first_id = int(chunk["collector"]["traj_ids"][-1]) + 1
        yield chunk


def write_stream(episodes: int, *, seed: int = 7, first_id: int = 1_000_000_000) -> list[Tree]:
    """The 16-row writes that go between samples, in the order of one env's collection.

    Each episode has `WRITES_PER_EPISODE` writes and ends with its last one, so a list that is
    cycled through never continues a trajectory that has ended.
    """
    steps = WRITE_ROWS * WRITES_PER_EPISODE
    rows = make_rows(episodes * steps, seed=seed, ids=True)
    position = np.arange(episodes * steps)
    ends = position % steps == steps - 1
    rng = np.random.default_rng(seed)
    rows["next"]["observation"] = next_observations(rows["observation"], ends, rng)
    rows["next"]["done"] = ends
    rows["next"]["terminated"] = ends
    rows["next"]["truncated"] = np.zeros_like(ends)
    rows["collector"]["traj_ids"] = first_id + position // steps
    return [cut(rows, start, start + WRITE_ROWS) for start in range(0, len(position), WRITE_ROWS)]
