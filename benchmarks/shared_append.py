"""Appending from one process to a shared-memory storage that another one made.

The parent makes a `contig.SharedStorage`, a child process attaches to it by name and appends, and
is timed once the ring has been filled a first time (before that, the kernel is clearing pages).
Beside each figure stands a plain numpy copy of the same bytes from the same source into a private
buffer of the ring's size: the most this machine's memory allows.

Run: `python -m benchmarks.shared_append [--quick] [--only RECORD ...]`; prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.rows import Tree, cut, row_at
from benchmarks.timing import Effort, best_us, cycling
from benchmarks.worker import worker_arguments
from contig import ReplayBuffer, SharedStorage

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Plan:
    """One measured append: what a record is, and how many go into one call."""

    record: str
    rows_per_append: int
    ring_bytes: int
    source_bytes: int

    @property
    def label(self) -> str:
        return f"{self.record} x{self.rows_per_append}"


def frame_rows(rows: int) -> Tree:
    """One 84x84x4 uint8 observation per row: 28 kB."""
    return {"observation": pixels((rows, 84, 84, 4)), "next": outcome(rows)}


def rollout_rows(rows: int) -> Tree:
    """16 such observations per row: 452 kB, one rollout as one record."""
    return {"observation": pixels((rows, 16, 84, 84, 4)), "next": outcome(rows)}


def small_rows(rows: int) -> Tree:
    """A CartPole-sized row: 24 bytes."""
    return {"observation": np.ones((rows, 4), np.float32), "next": outcome(rows)}


def pixels(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)


def outcome(rows: int) -> Tree:
    return {
        "reward": np.ones(rows, np.float32),
        **{flag: np.zeros(rows, np.bool_) for flag in ("done", "terminated", "truncated")},
    }


MAKERS: dict[str, Callable[[int], Tree]] = {
    "frame_28kB": frame_rows,
    "rollout_452kB": rollout_rows,
    "small_24B": small_rows,
}

PLANS = (
    Plan("frame_28kB", 1, 256 * MEGABYTE, 128 * MEGABYTE),
    Plan("frame_28kB", 16, 256 * MEGABYTE, 128 * MEGABYTE),
    Plan("rollout_452kB", 1, 256 * MEGABYTE, 128 * MEGABYTE),
    *(Plan("small_24B", rows, 24 * MEGABYTE, 12 * MEGABYTE) for rows in (64, 256, 1024)),
)


def row_bytes(tree: Tree) -> int:
    """Bytes of one row's leaves."""
    return sum(
        row_bytes(leaf) if isinstance(leaf, dict) else leaf[:1].nbytes for leaf in tree.values()
    )


def measure(plan: Plan, name: str, effort: Effort) -> dict[str, float]:
    """In the child: attach, fill the ring once, then time appends and plain copies."""
    make = MAKERS[plan.record]
    size = row_bytes(make(1))
    rows = plan.rows_per_append
    source = make(max(rows, plan.source_bytes // size // rows * rows))
    count = len(source["observation"])
    if rows == 1:
        pieces = [row_at(source, index) for index in range(count)]
    else:
        pieces = [cut(source, start, start + rows) for start in range(0, count, rows)]
    piece = cycling(pieces)

    storage = SharedStorage(capacity_of(plan), name=name)
    buffer = ReplayBuffer(storage=storage)
    append = buffer.add if rows == 1 else buffer.extend
    for _ in range(capacity_of(plan) // rows + 1):
        append(piece())
    append_us = best_us(lambda: append(piece()), effort)
    storage.close()
    copy_us = best_us(plain_copy(source["observation"], rows, capacity_of(plan)), effort)
    return {
        "rows_per_s": 1e6 * rows / append_us,
        "gb_per_s": size * rows / append_us / 1e3,
        "memcpy_gb_per_s": source["observation"][:rows].nbytes / copy_us / 1e3,
    }


def plain_copy(source: Any, rows: int, ring_rows: int) -> Callable[[], None]:
    """Copies of `rows` rows at a time between two buffers, both walked through in order."""
    ring = np.zeros((ring_rows // rows * rows, *source.shape[1:]), source.dtype)
    ring.fill(1)  # touch every page before the clock starts
    read = cycling([source[at : at + rows] for at in range(0, len(source), rows)])
    write = cycling([ring[at : at + rows] for at in range(0, len(ring), rows)])
    return lambda: np.copyto(write(), read())


def capacity_of(plan: Plan) -> int:
    return plan.ring_bytes // row_bytes(MAKERS[plan.record](1))


def child(plan: Plan, name: str, quick: bool, answer: Any) -> None:
    """The writer process."""
    answer.send(measure(plan, name, Effort.of(quick)))


def run_plan(plan: Plan, quick: bool) -> dict[str, float]:
    """Make the storage, start the writer, and check that its rows arrived."""
    name = f"contig-bench-{os.getpid()}"
    example = row_at(MAKERS[plan.record](1), 0)
    storage = SharedStorage(capacity_of(plan), name=name, example=example)
    try:
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=child, args=(plan, name, quick, there))
        process.start()
        there.close()  # so that a child that dies ends the wait below
        result: dict[str, float] = here.recv()
        process.join()
        held = len(ReplayBuffer(storage=storage))
        if held != capacity_of(plan):
            raise RuntimeError(f"{plan.label}: {capacity_of(plan)} rows expected, {held} held")
        return result
    finally:
        storage.close()


def main() -> None:
    arguments = worker_arguments("Measure appends to shared memory, print JSON.")
    report: dict[str, dict[str, float]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for plan in PLANS:
            if not arguments.only or plan.record in arguments.only:
                report[plan.label] = run_plan(plan, arguments.quick)
                print(f"  {plan.label}: {report[plan.label]}", flush=True)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
