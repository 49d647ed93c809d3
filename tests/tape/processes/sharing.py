"""Workers of test_sharing.py: observations whose every byte follows from env and time."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from contig import NStepSampler, ReplayBuffer, SharedStorage, SliceSampler
from contig.keys import STEPS

STACK, SIZE = 4, 40
EXAMPLE = {
    "env": np.int64(0),
    "t": np.int64(0),
    "obs": np.zeros((STACK, SIZE), np.int64),
    "next": {"obs": np.zeros((STACK, SIZE), np.int64), "reward": np.float32(0), "done": False},
}


def frames(env: Any, t: Any) -> np.ndarray[Any, Any]:
    """Frames ``[..., SIZE]``; those before the first are the first."""
    t = np.maximum(np.asarray(t, np.int64), 0)[..., None]
    return np.asarray(env, np.int64)[..., None] * 1_000_003 + t * 1009 + np.arange(SIZE)


def stacks(env: Any, t: Any) -> np.ndarray[Any, Any]:
    """``[n, STACK, SIZE]``"""
    back = np.arange(STACK) - (STACK - 1)
    return frames(np.asarray(env)[:, None], np.asarray(t)[:, None] + back)


def rows(env: np.ndarray[Any, Any], t: np.ndarray[Any, Any], done: Any) -> dict[str, Any]:
    reward = np.zeros(len(t), np.float32)
    following = {"obs": stacks(env, t + 1), "reward": reward, "done": np.asarray(done, np.bool_)}
    return {"env": env, "t": t, "obs": stacks(env, t), "next": following}


def wrong(batch: Any) -> str | None:
    """Which row of a batch has a byte of another one."""
    env, t = batch["env"].reshape(-1), batch["t"].reshape(-1)
    for path, at in ((("obs",), t), (("next", "obs"), t + 1)):
        if STEPS in batch.layout.by_path and path[0] == "next":
            at = t + batch[STEPS].reshape(-1)  # n steps on
        got = batch[path].reshape(-1, STACK, SIZE)
        bad = np.flatnonzero((got != stacks(env, at)).any((1, 2)))
        if len(bad):
            return f"env {env[bad[0]]} at {at[bad[0]]}, {path}: {got[bad[0], :, 0].tolist()}"
    return None


def write_to(storage: Any, number: int, stop: Path) -> int:
    """Episodes of one env in pieces, beside steps of four others."""
    alone, together = storage.writer(), storage.writer()
    draw = random.Random(number)
    first = number << 24
    one, many, written = [first, 0], [np.arange(4) + first + 1000, np.zeros(4, np.int64)], 0
    while not stop.exists():
        n = draw.choice((1, 2, 5, 40))
        done = draw.random() < 0.3
        ends = np.arange(n) == n - 1
        alone.extend(rows(np.full(n, one[0]), one[1] + np.arange(n), ends & done))
        one = [one[0] + 1, 0] if done else [one[0], one[1] + n]
        for _ in range(draw.choice((1, 3))):
            over = np.array([draw.random() < 0.1 for _ in range(4)])
            together.add_step(rows(many[0], many[1], over))
            many = [np.where(over, many[0] + 4, many[0]), np.where(over, 0, many[1] + 1)]
        written += n
    return written


def write(name: str, number: int, stop: str) -> dict[str, Any]:
    """Appends until it is stopped, or killed."""
    storage = SharedStorage.attach(name)
    return {"rows": write_to(storage, number, Path(stop)), "pid": os.getpid()}


def read_from(storage: Any, seed: int, stop: Path) -> dict[str, Any]:
    buffers = [
        ReplayBuffer(storage, seed=seed),
        ReplayBuffer(storage, SliceSampler(slice_len=4), seed=seed),
        ReplayBuffer(storage, NStepSampler(3, 0.9), seed=seed),
    ]
    seen = 0
    found: list[str] = []
    while not stop.exists() and not found:
        for buffer in buffers:
            if len(storage) > 50:
                batch = buffer.sample(16)
                seen += len(batch)
                bad = wrong(batch)
                found += [] if bad is None else [bad]
            time.sleep(0.001)  # writers have the lock, and few machines a core for everybody
    return {"rows": seen, "wrong": found}


def read(name: str, seed: int, stop: str) -> dict[str, Any]:
    """Samples until it is stopped; the first wrong byte it saw, if any."""
    return read_from(SharedStorage.attach(name), seed, Path(stop))


def fill(storage: Any, env: int, first: int, last: int) -> None:
    """In a worker that a storage was passed to."""
    t = np.arange(first, last)
    storage.writer().extend(rows(np.full(len(t), env), t, t == last - 1))
