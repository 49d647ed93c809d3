"""Environments whose observations may be shared, or nearly: stacks that begin in several ways, next
observations that are other bytes of the same value, frames that come twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

NAN = np.frombuffer(np.array([0x7FC00001, 0x7FC00002], np.uint32).tobytes(), np.float32)


@dataclass(frozen=True)
class Form:
    """What observations are.

    Attributes:
        frames: of a stack; 1: none.
        axis: of the stack.
        image: whether frames have two dims.
        state: whether there is a second leaf, without a stack.
        below_next: whether rows have next observations.
    """

    frames: int = 1
    axis: int = 0
    image: bool = False
    state: bool = False
    below_next: bool = True

    @property
    def stack(self) -> dict[str, Any]:
        return {"obs": (self.frames, self.axis)} if self.frames > 1 else {}


class Env:
    """One env; every frame has the env's number and its own number in it."""

    def __init__(self, form: Form, number: int, rnd: np.random.Generator) -> None:
        self.form, self.number, self.rnd = form, number, rnd
        self.count = self.step = 0
        self.frames: list[Any] = []
        self.reset()

    def frame(self) -> Any:
        self.count += 1
        shape = (3, 2) if self.form.image else (5,)
        frame = np.full(shape, self.number, np.float32)
        frame.flat[1], frame.flat[2] = self.count, self.rnd.choice([0.0, -0.0])
        frame.flat[3] = self.rnd.choice(NAN)
        return frame

    def reset(self) -> None:
        """The edge is filled as wrappers do it: with the first frame, or with zeros."""
        first = self.frame()
        before = np.zeros_like(first) if self.rnd.random() < 0.3 else first
        self.frames = [before] * (self.form.frames - 1) + [first]
        self.step = 0

    def seen(self, frames: list[Any]) -> dict[str, Any]:
        if self.form.frames == 1:
            obs = frames[0]
        elif self.form.axis == 0:
            obs = np.stack(frames)
        else:  # channels of the last axis, as VecFrameStack has them
            obs = np.concatenate(frames, -1)
        out = {"obs": obs}
        if self.form.state:
            out["state"] = frames[-1].reshape(-1)[:4].astype(np.float64)
        return out

    def row(self, end: bool = False) -> dict[str, Any]:
        """The next step; sometimes what it leads to is not where the next one begins."""
        now = self.seen(self.frames)
        kind = self.rnd.choice(["new", "new", "new", "new", "same", "odd", "nan"])
        new = self.frames[-1] if kind == "same" else self.frame()
        frames = [*self.frames[1:], new]
        following = self.seen(frames)
        if kind == "odd":  # bytes of the same values, but others: zeros and NaNs
            following["obs"] = following["obs"].copy()
            flat = following["obs"].reshape(-1).view(np.uint32)
            flat[np.flatnonzero(flat == 0)] = 0x80000000
        elif kind == "nan":  # no stack, after all
            following["obs"] = self.rnd.permutation(following["obs"].reshape(-1)).reshape(
                following["obs"].shape
            )
        self.frames, self.step = frames, self.step + 1
        row: dict[str, Any] = {
            **now,
            "action": np.int64(self.number << 32 | self.count),
            "next": {"reward": np.float32(self.step), "done": np.bool_(end)},
        }
        if self.form.below_next:
            row["next"] |= following
        if end:
            self.reset()
        return row


def stacked(rows: list[Any]) -> Any:
    """Rows as columns."""
    if isinstance(rows[0], dict):
        return {k: stacked([r[k] for r in rows]) for k in rows[0]}
    return np.stack(rows)


def batch_bytes(batch: Any) -> dict[Any, bytes]:
    """All leaves of a batch, bit by bit."""
    paths = [leaf.path for leaf in batch.layout.leaves]
    return {path: np.ascontiguousarray(batch[path]).tobytes() for path in paths}
