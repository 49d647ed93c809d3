"""How every sampler grows: "write 16 rows, draw a batch" as the tape gets longer, in microseconds.

The tape holds short episodes and two that are long enough for a slice, whatever its size; windows
are of a fixed size, so that ever less of the tape is in them. A sampler whose cost is that of what
was written since the last draw has a flat line here, up to the caches of the processor. Measured is
the processor time of the process, prefetching threads included: lines are compared, not libraries.

Run: `python -m benchmarks.growth_samplers [--quick] [--only NAME ...]`; prints a table, and JSON
with `--json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.rows import WRITE_ROWS, Tree
from benchmarks.timing import Effort
from contig import (
    ChunkSampler,
    FifoSampler,
    LazyTensorStorage,
    LifoSampler,
    NStepSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)
from contig.sample import Sampler

SIZES = (10_000, 100_000, 1_000_000)
SHORT, LONG = 10, 64
VERSION_EVERY = 1_000  # rows
SLICE = 32
_REPEATS = 7  # each of many calls
_WARM_CALLS, _CALLS = 20, 200
Make = Callable[[], tuple[Sampler, dict[str, Any]]]


def _slices(kind: Any = SliceSampler, **options: Any) -> Make:
    return lambda: (kind(slice_len=SLICE, **options), {"batch_size": 8 * SLICE})


def _rows(kind: Any, *args: Any, batch_size: int = 64, prefetch: int = 0, **options: Any) -> Make:
    return lambda: (kind(*args, **options), {"batch_size": batch_size, "prefetch": prefetch})


# Batches of those that retire rows are smaller than what is written, so that they never run out.
PLAIN: dict[str, Make] = {
    "random": _rows(RandomSampler),
    "random, retiring": _rows(RandomSampler, 4, batch_size=8),
    "random, retiring, prefetch": _rows(RandomSampler, 4, batch_size=8, prefetch=2),
    "without replacement": _rows(SamplerWithoutReplacement),
    "prioritized": _rows(PrioritizedSampler),
    "n-step": _rows(NStepSampler, 3, 0.99),
    "chunks": _rows(ChunkSampler, 8, keys=("observation",)),
    "fifo": _rows(FifoSampler, batch_size=8),
    "fifo, prefetch": _rows(FifoSampler, batch_size=8, prefetch=2),
    "lifo": _rows(LifoSampler, batch_size=8),
    "lifo, prefetch": _rows(LifoSampler, batch_size=8, prefetch=2),
    "fifo trajectories": _rows(FifoSampler, batch_size=1, per="trajectories"),
    "lifo trajectories": _rows(LifoSampler, batch_size=1, per="trajectories"),
    "slices": _slices(),
    "slices, strict": _slices(strict_length=True),
    "slices, complete": _slices(complete_only=True),
    "slices, burn-in": _slices(burn_in=4),
    "slices, padded": _slices(pad_output=True),
    "slices over steps": _slices(over="steps"),
    "slices over steps, strict": _slices(over="steps", strict_length=True),
    "slices over steps, span": _slices(over="steps", span=True),
    "slices without replacement": _slices(SliceSamplerWithoutReplacement),
    "slices without replacement, strict": _slices(
        SliceSamplerWithoutReplacement, strict_length=True
    ),
    "prioritized slices": _slices(PrioritizedSliceSampler),
    "prioritized slices, strict": _slices(PrioritizedSliceSampler, strict_length=True),
}

WINDOWS: dict[str, dict[str, int]] = {
    "last rows": {"last_rows": 2_000},
    "last trajectories": {"last_trajectories": 200},
    "staleness": {"max_staleness": 1},
    "all three": {"last_rows": 2_000, "last_trajectories": 200, "max_staleness": 1},
}


def _windowed(make: Make, bounds: dict[str, Any]) -> Make:
    def made() -> tuple[Sampler, dict[str, Any]]:
        sampler, options = make()
        return WindowSampler(sampler, **bounds), options

    return made


def _windows() -> Iterator[tuple[str, Make]]:
    for name, make in PLAIN.items():
        for window, bounds in WINDOWS.items():
            # A window may have no long episode.
            if "prefetch" not in name and "strict" not in name:
                yield f"{name}; {window}", _windowed(make, bounds)


# Short episodes, of which new ones come with each write and old ones grow too old for one of them.
_SHORT: Any = ("steps", "<=", SHORT)
_YOUNG: Any = [("terminated", "==", True), ("age", "<", 2_000)]


def _short(columns: Any) -> Any:
    return columns["return"] <= SHORT


WHERE: dict[str, Make] = {
    "slices; where": _slices(where=_SHORT),
    "slices; where young": _slices(where=_YOUNG),
    "slices; where function": _slices(where=_short),
    "slices over steps; where": _slices(over="steps", where=_SHORT),
    "slices without replacement; where young": _slices(
        SliceSamplerWithoutReplacement, where=_YOUNG
    ),
    "prioritized slices; where young": _slices(PrioritizedSliceSampler, where=_YOUNG),
    "random; where": _rows(WindowSampler, where=_SHORT),
    "random; where young": _rows(WindowSampler, where=_YOUNG),
    "prioritized; where young": _windowed(PLAIN["prioritized"], {"where": _YOUNG}),
    "n-step; where and last rows": _windowed(
        PLAIN["n-step"], {"where": _SHORT, "last_rows": 2_000}
    ),
    "chunks; where young": _rows(ChunkSampler, 8, keys=("observation",), where=_YOUNG),
    "trajectories": _rows(TrajectorySampler, 8, batch_size=8),
    "trajectories; where young": _rows(TrajectorySampler, 8, batch_size=8, where=_YOUNG),
    "trajectories, each once": _rows(TrajectorySampler, 1, batch_size=1, consume=True),
    "trajectories, each once, prefetch": _rows(
        TrajectorySampler, 1, batch_size=1, prefetch=2, consume=True
    ),
}

CASES: dict[str, Make] = PLAIN | dict(_windows()) | WHERE


class Tape:
    """A full storage of so many rows, and the rows that come next.

    Args:
        rows: capacity.
        long_every: rows from one long episode to the next; half of the capacity if None.
    """

    def __init__(self, rows: int, long_every: int | None = None) -> None:
        self.storage = LazyTensorStorage(rows)
        self._long_every = rows // 2 if long_every is None else long_every
        self._written = self._episode = self._step = 0
        self._length, self._next_long = SHORT, self._long_every // 2
        for start in range(0, rows, 50_000):
            self.write(min(50_000, rows - start))

    def write(self, rows: int = WRITE_ROWS) -> None:
        """Appends the next rows."""
        self.storage.default_writer.extend(self._next(rows))

    def _next(self, n: int) -> Tree:
        ids, ends = np.empty(n, np.int64), np.zeros(n, np.bool_)
        at = 0
        while at < n:
            take = min(self._length - self._step, n - at)
            ids[at : at + take] = self._episode
            at += take
            self._step += take
            if self._step == self._length:
                ends[at - 1] = True
                self._episode += 1
                self._step = 0
                due = self._written + at >= self._next_long
                self._length = LONG if due else SHORT
                self._next_long += self._long_every if due else 0
        rows = self._written + np.arange(n)
        self._written += n
        return {
            "observation": rows.astype(np.float32),
            "next": {
                "reward": np.ones(n, np.float32),
                "done": ends,
                "terminated": ends,
                "truncated": np.zeros(n, np.bool_),
            },
            "collector": {"traj_ids": ids, "policy_version": rows // VERSION_EVERY},
        }


def measure(tape: Tape, make: Make, effort: Effort) -> float:
    """Microseconds for one write of 16 rows and one batch: the mean of many, best of some times."""
    sampler, options = make()
    with ReplayBuffer(tape.storage, sampler, seed=0, **options) as buffer:

        def both() -> object:
            tape.write()
            return buffer.sample().tree()

        gc.collect()
        for _ in range(_WARM_CALLS):  # the first draw looks at everything
            both()
        spent = []
        for _ in range(min(effort.repeats, _REPEATS)):
            start = time.process_time()
            for _ in range(_CALLS):
                both()
            spent.append(time.process_time() - start)
        return 1e6 * min(spent) / _CALLS


def report(results: dict[str, dict[int, float]]) -> str:
    """One line per sampler: microseconds by rows, and the largest tape's over the smallest's."""
    sizes = sorted({size for line in results.values() for size in line})
    width = max(len(name) for name in results)
    head = " ".join(f"{size:>10,}" for size in sizes)
    lines = [f"{'write 16 rows + sample, us':{width}} {head}   ratio"]
    for name, line in results.items():
        ratio = line[sizes[-1]] / line[sizes[0]]
        lines.append(
            f"{name:{width}} " + " ".join(f"{line[s]:10.1f}" for s in sizes) + f"   {ratio:.1f}x"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how every sampler grows with the tape.")
    parser.add_argument("--quick", action="store_true", help="two small sizes, few repeats")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these samplers only")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(CASES)
    if unknown:
        parser.error(f"--only: no sampler {sorted(unknown)}; there are {sorted(CASES)}")
    effort = Effort.of(arguments.quick)
    results: dict[str, dict[int, float]] = {name: {} for name in arguments.only or CASES}
    for size in SIZES[:2] if arguments.quick else SIZES:
        tape = Tape(size)
        for name, line in results.items():
            line[size] = measure(tape, CASES[name], effort)
            print(f"  {size:,} {name}: {line[size]:.1f} us", file=sys.stderr, flush=True)
    print(json.dumps(results) if arguments.json else report(results), flush=True)


if __name__ == "__main__":
    main()
