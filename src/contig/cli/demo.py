"""``contig demo``: actors play CartPole into one shared tape, slices are drawn from it meanwhile.

Every row carries who wrote it (actor, episode, step), so each slice can be checked: rows of one
actor's one episode, steps one after another. The summary says how many were.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

from ..batch import Batch
from ..errors import EmptyBufferError, NothingEligibleError
from ..replay import ReplayBuffer
from ..sample import SliceSampler
from ..tape import SharedStorage

__all__ = ["run"]

_SLICES, _LENGTH = 32, 32


def act(storage: SharedStorage, actor: int, stop: Event) -> None:
    """One actor: random CartPole episodes, one row a step, until told to stop."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(actor)
    writer = storage.writer()
    episode = 0
    while not stop.is_set():
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        step, done = 0, False
        while not done:
            action = int(rng.integers(2))
            following, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            writer.add(
                {
                    "observation": observation,
                    "action": action,
                    "who": {"actor": actor, "episode": episode, "step": step},
                    "next": {
                        "observation": following,
                        "reward": float(reward),
                        "terminated": terminated,
                        "truncated": truncated,
                    },
                }
            )
            observation, step = following, step + 1
        episode += 1


class Checker:
    """Counts slices, and those that are not one piece of one episode."""

    def __init__(self) -> None:
        self.batches = self.rows = self.slices = self.crossed = 0

    def check(self, batch: Batch) -> None:
        who: dict[str, Any] = batch["who"]
        starts = np.flatnonzero(batch["is_init"])
        inside = np.ones(len(batch), bool)
        inside[starts] = False
        same = (np.diff(who["actor"], prepend=-1) == 0) & (np.diff(who["episode"], prepend=-1) == 0)
        follows = np.diff(who["step"], prepend=-1) == 1
        self.crossed += int(np.count_nonzero(inside & ~(same & follows)))
        self.batches += 1
        self.rows += len(batch)
        self.slices += len(starts)


def run(seconds: float, actors: int, capacity: int) -> int:
    """Runs the demonstration; returns 0 if no slice crossed an episode."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    checker = Checker()
    with SharedStorage(capacity) as storage:
        buffer = ReplayBuffer(
            storage,
            SliceSampler(slice_len=_LENGTH, over="steps"),
            batch_size=_SLICES * _LENGTH,
        )
        workers = [
            context.Process(target=act, args=(storage, i, stop), daemon=True) for i in range(actors)
        ]
        print(
            f"{actors} actor processes play CartPole-v1 into one SharedStorage of {capacity:,} "
            f"rows ({storage.name});\nthis process draws {_SLICES} slices of {_LENGTH} steps at a "
            "time and checks every one of them.\n"
        )
        for worker in workers:
            worker.start()
        try:
            _draw(buffer, checker, workers, seconds)
        except KeyboardInterrupt:
            print("\nstopped")
        finally:
            stop.set()
            for worker in workers:
                worker.join(timeout=5)
                worker.kill()
        return _summary(storage, checker, [w.exitcode for w in workers])


def _draw(buffer: ReplayBuffer, checker: Checker, workers: list[Any], seconds: float) -> None:
    # Starting a process takes a second or two: the clock starts with the first row.
    while len(buffer) == 0:
        if any(w.exitcode not in (None, 0) for w in workers):
            raise RuntimeError("an actor died before it wrote a row; see its traceback above")
        time.sleep(0.02)
    begin = shown = time.monotonic()
    before = (0, 0)
    while (now := time.monotonic()) < begin + seconds:
        try:
            checker.check(buffer.sample())
        except (EmptyBufferError, NothingEligibleError):
            time.sleep(0.02)
        if now - shown >= 0.5:
            written = buffer.stats().rows_written
            rates = (
                (written - before[0]) / (now - shown),
                (checker.batches - before[1]) / (now - shown),
            )
            before, shown = (written, checker.batches), now
            _show(buffer, rates, (now - begin) / seconds)


def _show(buffer: ReplayBuffer, rates: tuple[float, float], share: float) -> None:
    stats = buffer.stats()
    bar = "#" * int(share * 20)
    line = (
        f"[{bar:<20}] {rates[0]:>9,.0f} rows/s in  {rates[1]:>7,.0f} batches/s out  "
        f"{stats.trajectories:>7,} episodes  {stats.rows / stats.capacity:>4.0%} full"
    )
    print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)


def _summary(storage: SharedStorage, checker: Checker, exits: list[int | None]) -> int:
    episodes = storage.episodes()
    complete = episodes[episodes["complete"]]
    print(
        f"\n\n{storage.tape.snapshot()[0]:,} rows written, {len(storage):,} kept; "
        f"{len(episodes):,} episodes on the tape, {len(complete):,} of them complete, mean return "
        f"{complete['return'].mean() if len(complete) else float('nan'):.1f}"
    )
    print(
        f"{checker.batches:,} batches, {checker.slices:,} slices, {checker.rows:,} rows drawn and "
        f"checked: {checker.crossed} rows that do not follow the one before them in their slice"
    )
    failed = [code for code in exits if code != 0]
    if failed:
        print(f"actors ended with {exits}")
    if checker.crossed or failed or not checker.slices:
        print("FAILED")
        return 1
    print("No slice crossed an episode.")
    return 0
