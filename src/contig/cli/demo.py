"""``contig demo``: actors fill a shared tape while a recurrent agent learns from it.

examples:
  contig demo
  contig demo --actors 4 --envs 16 --plot curve.png

    actor 0: CartPoles --append--> +--------+
    actor 1: CartPoles --append--> |  tape  | --slices of the newest rows--> learner
        ^                          +--------+                                   |
        +------------------------- weights, versioned --------------------------+

Nobody waits for anybody, but for a limiter that keeps reading and writing in proportion. CartPole
shows positions only, so the agent must remember. It is solved when the last 50 episodes return 400
on average. Every slice is checked: each row must go on where the one before it ended.

exit status: 0; 1 a slice crossed an episode; 2 something needed is missing.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ContigError
from ..keys import INIT, TRAJ_IDS, VERSION
from ..lazy import install_hint
from ..replay import ReplayBuffer
from ..sample import RateLimiter, SliceSampler, WindowSampler
from ..tape import SharedStorage
from .failure import ends, fail
from .picture import save_picture
from .values import MOST_ROWS, above, picture, whole

__all__ = ["Checker", "TrainingPoint", "Returns", "add_arguments", "run"]

Array = np.ndarray[Any, Any]

SOLVED, LAST = 400.0, 50
_SLICES, _LENGTH = 16, 32
_STEPS = 32  # of each environment, between two appends
_WINDOW, _STALEST = 2048, 16  # rows, and versions, behind the newest
_REUSE, _AHEAD = 4, 1024  # how often a row is drawn; how many rows either side may be ahead
_PUBLISH = 8  # updates between two versions of the weights
_LOOK_S = 1.0  # between two looks at the tape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, many = parser.add_argument, whole(_WINDOW, MOST_ROWS)
    add("--seconds", type=above(0, 1e9), default=180.0, help="at most (default: 180)")
    add("--rows", type=whole(1), help="at most so many rows (default: any number)")
    add("--actors", type=whole(1, 1024), default=2, help="actor processes (default: 2)")
    add("--envs", type=whole(1, 1 << 16), default=8, help="environments of each (default: 8)")
    add("--capacity", type=many, default=100_000, help="rows kept (default: 100000)")
    add("--seed", type=whole(0, (1 << 32) - 1), default=0, help="of all of it (default: 0)")
    add(
        "--plot", type=picture, default=Path("contig-demo.png"), metavar="PNG",
        help="the learning curve (default: contig-demo.png)",
    )  # fmt: skip


class Checker:
    """Counts slices, and rows that do not follow the one before them."""

    def __init__(self) -> None:
        self.batches = self.rows = self.slices = self.crossed = 0

    def check(self, batch: Any) -> None:
        """Within a slice, a row's observation is what the step before it led to."""
        inside = ~batch[INIT][1:]
        ids = batch[TRAJ_IDS]
        goes_on = (batch["observation"][1:] == batch["next", "observation"][:-1]).all(-1)
        goes_on &= ids[1:] == ids[:-1]
        self.crossed += int(np.count_nonzero(inside & ~goes_on))
        self.batches += 1
        self.rows += len(batch)
        self.slices += int(np.count_nonzero(batch[INIT]))


class Returns:
    """The returns of episodes, in the order in which they ended."""

    def __init__(self) -> None:
        self.returns: list[float] = []
        self.rows: list[float] = []  # about how many rows had been written when each ended
        self._seen = 0
        self._known: Array = np.empty(0, np.int64)

    def look(self, episodes: Array, written: int) -> None:
        """Takes in what ended since the last look."""
        complete = episodes[episodes["complete"]]
        fresh = complete[~np.isin(complete["id"], self._known)]
        fresh = fresh[np.argsort(fresh["time"], kind="stable")]
        self.returns.extend(fresh["return"].tolist())
        self.rows.extend(np.linspace(self._seen, written, len(fresh) + 1)[1:].tolist())
        self._seen, self._known = written, complete["id"].copy()

    @property
    def mean(self) -> float:
        """Of the last 50; NaN if there are none."""
        return float(np.mean(self.returns[-LAST:])) if self.returns else float("nan")

    @property
    def solved(self) -> bool:
        return len(self.returns) >= LAST and self.mean >= SOLVED


class TrainingPoint(NamedTuple):
    """One line of the live display."""

    seconds: float
    rows: int
    rows_in: float  # per second
    rows_out: float
    staleness: float  # versions that drawn rows were behind, on average
    episodes: int
    mean: float

    def line(self) -> str:
        bar = "#" * int(20 * min(max(self.mean, 0.0) / SOLVED, 1.0)) if self.episodes else ""
        return (
            f"{self.seconds:4.0f} s  {self.rows:>9,} rows  {self.rows_in:>7,.0f} rows/s in  "
            f"{self.rows_out:>7,.0f} out  {self.staleness:4.1f} versions stale  "
            f"return {self.mean:5.1f} [{bar:<20}]"
        )


class Run:
    """A run of the demonstration: who writes, who learns, and how it goes."""

    def __init__(self, args: argparse.Namespace, storage: SharedStorage) -> None:
        import torch

        from ..collect import MultiAsyncCollector
        from .demo_agent import Agent, Learner, make_envs

        torch.manual_seed(args.seed)
        torch.set_num_threads(1)  # the other cores are the actors'
        self.storage = storage
        # Slices may be cut by an episode's edges (span): without that, the rows near an edge lie in
        # fewer slices than others, and those are where the pole falls.
        slices = SliceSampler(slice_len=_LENGTH, over="steps", span=True)
        self.buffer = ReplayBuffer(
            storage,
            WindowSampler(slices, last_rows=_WINDOW, max_staleness=_STALEST),
            batch_size=_SLICES * _LENGTH,
            limiter=RateLimiter(_REUSE, _WINDOW, _AHEAD * _REUSE, timeout_s=600),
            seed=args.seed,
        )
        self.agent = Agent()
        self.learner = Learner(self.agent)
        self.checker, self.returns = Checker(), Returns()
        self.progress: list[TrainingPoint] = []
        self._updates = 0
        self._drawn = 0  # rows, when the last line was shown
        self._stale: list[float] = []
        self.collector = MultiAsyncCollector(
            [functools.partial(make_envs, args.envs)] * args.actors,
            self.agent,
            frames_per_batch=_STEPS * args.envs,
            replay_buffer=self.buffer,
            auto_register_policy_transforms=True,
            seed=args.seed,
            max_restarts=2,
            step_timeout_s=30.0,
        )

    def train(self, seconds: float, rows: int | None) -> None:
        """Until it is solved, or a limit is reached."""
        self.collector.start()
        begin = shown = time.monotonic()
        while True:
            self._update()
            now = time.monotonic()
            written = self.buffer.stats().rows_written
            over = now - begin >= seconds or (rows is not None and written >= rows)
            if over or now - shown >= _LOOK_S:
                self._look(now - begin, now - shown)
                self._show(over)
                shown = now
            if over or self.returns.solved:
                return

    def _update(self) -> None:
        batch = self.buffer.sample()
        self.checker.check(batch)
        versions = batch[VERSION]
        self._stale.append(self.collector.policy_version - float(versions.mean()))
        self.learner.step(batch)
        self._updates += 1
        if self._updates % _PUBLISH == 0:
            self.collector.update_policy_weights_()

    def _look(self, seconds: float, since: float) -> None:
        written = self.buffer.stats().rows_written
        self.returns.look(self.storage.episodes(), written)
        before = self.progress[-1].rows if self.progress else 0
        self.progress.append(
            TrainingPoint(
                seconds,
                written,
                (written - before) / since,
                (self.checker.rows - self._drawn) / since,
                float(np.mean(self._stale)),
                len(self.returns.returns),
                self.returns.mean,
            )
        )
        self._stale, self._drawn = [], self.checker.rows

    def _show(self, last: bool) -> None:
        if sys.stdout.isatty():
            print(self.progress[-1].line(), end="\r", flush=True)
        elif last or self.returns.solved or len(self.progress) % 5 == 0:
            print(self.progress[-1].line(), flush=True)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, or 1 if a slice crossed an episode, or 2 if something needed is missing."""
    try:
        import gymnasium  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        fail(f"{error}: {install_hint('torch', 'gymnasium', 'plot')}")
    try:
        return _run(args)
    except (ContigError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        fail(ends(error))


def _run(args: argparse.Namespace) -> int:
    with SharedStorage(args.capacity) as storage:
        print(
            f"{args.actors} actors with {args.envs} CartPoles each, velocities hidden, write to "
            f"one shared tape of {args.capacity:,} rows;\nthis process trains a GRU on slices of "
            f"{_LENGTH} steps from it and publishes weights every {_PUBLISH} updates.\n"
            f"Solved: the last {LAST} episodes return {SOLVED:.0f} on average.\n",
            flush=True,
        )
        demo = Run(args, storage)
        try:
            demo.train(args.seconds, args.rows)
        except KeyboardInterrupt:
            print("\nstopped")
        finally:
            demo.collector.async_shutdown()
        return _summary(demo, args.plot)


def _summary(demo: Run, plot: Path) -> int:
    checker, returns = demo.checker, demo.returns
    if sys.stdout.isatty():
        print()
    if demo.progress:
        last = demo.progress[-1]
        took = f"after {last.rows:,} rows, {last.episodes:,} episodes and {last.seconds:.0f} s"
        count = min(LAST, last.episodes)
        outcome = f"mean return {returns.mean:.1f} over the last {count} episodes {took}"
        print(f"\n{'Solved' if returns.solved else 'Not solved'}: {outcome}.")
        if _draw(demo, plot):
            print(f"Learning curve: {plot}")
    print(
        f"{checker.slices:,} slices, {checker.rows:,} rows drawn and checked: "
        f"{checker.crossed} rows do not follow the one before them."
    )
    if checker.crossed:
        print("FAILED")
        return 1
    print("No slice crossed an episode.")
    return 0


def _draw(demo: Run, path: Path) -> bool:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print(f"No learning curve: {install_hint('plot')}")
        return False
    figure, (top, middle, low) = pyplot.subplots(
        3, 1, sharex=True, figsize=(9, 8), layout="constrained", height_ratios=(3, 1, 1)
    )
    returns = np.array(demo.returns.returns)
    rows = np.array(demo.returns.rows)
    top.plot(rows, returns, ".", markersize=3, alpha=0.4, label="episodes")
    if len(returns) >= LAST:
        mean = np.convolve(returns, np.ones(LAST) / LAST, "valid")
        top.plot(rows[LAST - 1 :], mean, linewidth=2, label=f"mean of {LAST}")
    top.axhline(SOLVED, color="grey", linestyle="--", linewidth=1, label="solved")
    top.set_ylabel("return")
    top.set_title("CartPole without velocities: recurrent agent, asynchronous actors")
    top.legend(loc="upper left")
    at = [p.rows for p in demo.progress]
    middle.plot(at, [p.rows_in for p in demo.progress], label="written")
    middle.plot(at, [p.rows_out for p in demo.progress], label="drawn")
    middle.set_ylabel("rows/s")
    middle.legend(loc="lower right")
    low.plot(at, [p.staleness for p in demo.progress])
    low.set_ylabel("versions stale")
    low.set_xlabel("rows written (steps of the environments)")
    for axis in (top, middle, low):
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
    save_picture(figure, path)
    pyplot.close(figure)
    return True
