"""How contig's slice sampling grows: microseconds for "write 16 rows, draw 32 slices of 32".

Three curves, each with everything else held fixed:

- `rows`: stored rows, episodes of 200 steps;
- `episodes`: how many episodes the same number of 16-byte rows is divided into;
- `parts`: how many pieces each trajectory lies in, because 8 envs were written in turn.

Run: `python -m benchmarks.growth [--quick] [--only CURVE ...]`; prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.rows import WRITE_ROWS, Tree, cut
from benchmarks.timing import Effort, best_us
from benchmarks.worker import worker_arguments
from contig import LazyTensorStorage, ReplayBuffer, SliceSampler

MakeRows = Callable[[int], Tree]
Curve = dict[str, float]

CHUNK = 1_000_000
STEPS = 200
PART_STEPS = 800
ENVS_IN_TURN = 8
WRITER_FIRST_ID = 1 << 40


def small_rows(rows: int) -> Tree:
    """A CartPole-sized row: two observations of 4, action, reward, flags."""
    return {
        "observation": np.ones((rows, 4), np.float32),
        "action": np.ones(rows, np.float32),
        "next": {
            "observation": np.ones((rows, 4), np.float32),
            "reward": np.ones(rows, np.float32),
            **{flag: np.zeros(rows, np.bool_) for flag in ("done", "terminated", "truncated")},
        },
        "collector": {"traj_ids": np.zeros(rows, np.int64)},
    }


def tiny_rows(rows: int) -> Tree:
    """16 bytes per row, so that a million episodes fit."""
    return {
        "observation": np.ones(rows, np.float32),
        "next": {flag: np.zeros(rows, np.bool_) for flag in ("done", "terminated", "truncated")},
        "collector": {"traj_ids": np.zeros(rows, np.int64)},
    }


def mark_episodes(tree: Tree, first_row: int, steps: int, first_id: int = 0) -> Tree:
    """Number the rows from `first_row` into episodes of `steps`, in place."""
    ids = tree["collector"]["traj_ids"]
    position = first_row + np.arange(len(ids))
    ids[:] = first_id + position // steps
    ends = position % steps == steps - 1
    tree["next"]["done"][:] = ends
    tree["next"]["terminated"][:] = ends
    return tree


def filled(make: MakeRows, rows: int, steps: int) -> ReplayBuffer:
    """A full buffer of `rows` rows in episodes of `steps`."""
    buffer = new_buffer(rows)
    template = make(min(rows, CHUNK))
    for start in range(0, rows, CHUNK):
        chunk = cut(template, 0, min(CHUNK, rows - start))
        buffer.extend(mark_episodes(chunk, start, steps))
    return buffer


def new_buffer(capacity: int) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=SliceSampler(num_slices=32, slice_len=32),
        batch_size=32 * 32,
        seed=0,
    )


def measure(buffer: ReplayBuffer, make: MakeRows, steps: int, effort: Effort) -> float:
    """Microseconds for one write of 16 rows, in episodes of `steps`, and one batch of slices."""

    def writes() -> Iterator[Tree]:
        tree, first_row = make(WRITE_ROWS), 0
        while True:
            yield mark_episodes(tree, first_row, steps, WRITER_FIRST_ID)
            first_row += WRITE_ROWS

    write = writes().__next__

    def both() -> object:
        buffer.extend(write())
        return buffer.sample().tree()

    return best_us(both, effort)


def rows_curve(effort: Effort) -> Curve:
    sizes = (10_000, 100_000, 1_000_000) + (() if effort.quick else (10_000_000,))
    return {
        str(rows): measure(filled(small_rows, rows, STEPS), small_rows, STEPS, effort)
        for rows in sizes
    }


def episodes_curve(effort: Effort) -> Curve:
    most = 10_000 if effort.quick else 1_000_000
    rows = most * 32  # the shortest episodes still hold one slice
    counts = [count for count in (100, 1_000, 10_000, 100_000, 1_000_000) if count <= most]
    return {
        str(count): measure(
            filled(tiny_rows, rows, rows // count), tiny_rows, rows // count, effort
        )
        for count in counts
    }


def parts_curve(effort: Effort) -> Curve:
    trajectories = 128 if effort.quick else 1280
    curve = {}
    for parts in (1, 2, 5, 10, 25, 50):
        # Room for the measured writes, so that they evict nothing that is measured; they make
        # one long trajectory, one more among many.
        buffer = new_buffer(trajectories * PART_STEPS + 1_000_000)
        for append in interleaved(trajectories, parts):
            buffer.extend(append)
        curve[str(parts)] = measure(buffer, small_rows, 1 << 62, effort)
    return curve


def interleaved(trajectories: int, parts: int) -> Iterator[Tree]:
    """Appends of `PART_STEPS / parts` rows of 8 envs in turn: no two parts of one lie together."""
    rows = PART_STEPS // parts
    templates = [mark_episodes(small_rows(rows), part * rows, PART_STEPS) for part in range(parts)]
    for group in range(0, trajectories, ENVS_IN_TURN):
        for template in templates:
            for env in range(ENVS_IN_TURN):
                template["collector"]["traj_ids"][:] = group + env
                yield template


CURVES: dict[str, Callable[[Effort], Curve]] = {
    "rows": rows_curve,
    "episodes": episodes_curve,
    "parts": parts_curve,
}


def main() -> None:
    arguments = worker_arguments("Measure contig's growth curves, print JSON.")
    effort = Effort.of(arguments.quick)
    report: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for name, curve in CURVES.items():
            if not arguments.only or name in arguments.only:
                report[name] = curve(effort)
                print(f"  {name}: {report[name]}", flush=True)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
