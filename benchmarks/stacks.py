"""Steps whose observations can be stored once, as rows: of a game, stacks of four frames; of a
robot, vectors. Only numpy is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.frames import game_frames
from benchmarks.rows import fill_chunks

Tree = dict[str, Any]

FRAMES, EPISODE = 4, 200  # of a stack, and steps


def frames_for(rows: int) -> Any:
    """``[n, 84, 84]``: episodes of `EPISODE` steps have one frame more than steps."""
    return game_frames(rows // EPISODE * (EPISODE + 1))


def episodes(frames: Any) -> Iterator[Tree]:
    """Steps of one episode after another, ``[EPISODE, 4, 84, 84]``; before the first frame there is
    the first frame. All are truncated."""
    times = np.arange(EPISODE + 1)[:, None] + np.arange(1 - FRAMES, 1)
    for first in range(0, len(frames), EPISODE + 1):
        seen = frames[first + np.maximum(times, 0)]
        done = np.arange(EPISODE) == EPISODE - 1
        flags = {"reward": np.ones(EPISODE, np.float32), "done": done, "truncated": done}
        following = {"observation": seen[1:], **flags, "terminated": np.zeros_like(done)}
        action = np.zeros(EPISODE, np.int64)
        yield {"observation": seen[:-1], "action": action, "next": following}


def vectors(rows: int) -> Iterator[Tree]:
    """The rows of `fill_chunks`; each step of an episode goes on where the one before led to."""
    for chunk in fill_chunks(rows):
        now, after = chunk["observation"], chunk["next"]
        following = np.concatenate([now[1:], now[:1]])
        ends = after["done"]
        following[ends] = after["observation"][ends]
        yield {**chunk, "next": {**after, "observation": following}}
