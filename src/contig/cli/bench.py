"""``contig bench``: how fast the installed package is on this machine, in a few seconds.

examples:
  contig bench
  contig bench --seconds 0.5 --rows 100000
  contig bench --json | python -m json.tool

Rows are of observations of 17 numbers, actions of 6, reward and flags, in memory; every figure is
the best of several rounds, so that what else runs here disturbs it little. It is for a look at an
installation and to compare machines; benchmarks against other libraries are in benchmarks/.

exit status: 0; 2 there is no memory for so many rows.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import __version__
from ..replay import ReplayBuffer
from ..sample import PrioritizedSampler, SliceSampler
from ..tape import LazyTensorStorage
from .failure import OK, fail, one_line
from .progress import Progress
from .values import MOST_ROWS, number, whole

__all__ = ["Figure", "add_arguments", "measure", "run"]

_BATCH, _SLICE, _EXTEND = 256, 32, 1000
_ROUNDS = 5
_EPISODE = 200


class Figure(NamedTuple):
    """One measurement.

    Attributes:
        name: what was done.
        rows_per_s: the best round's.
        us_per_call: the same, of one call.
        rows: of a call.
    """

    name: str
    rows_per_s: float
    us_per_call: float
    rows: int


class _Case(NamedTuple):
    name: str
    rows: int  # of a call
    call: Callable[[], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=number(0, 86400), default=0.3, metavar="S",
        help="for each figure, about",
    )  # fmt: skip
    parser.add_argument(
        "--rows", type=whole(_EXTEND, MOST_ROWS), default=200_000, metavar="N",
        help="rows of the buffer, full",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="figures as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Prints figures; returns the exit status."""
    try:
        figures = _figures(args)
    except (OSError, MemoryError) as error:
        fail(one_line(error))
    if args.json:
        machine = {"contig": __version__, "python": platform.python_version(),
                   "machine": platform.machine(), "rows": args.rows}  # fmt: skip
        print(json.dumps({**machine, "figures": [f._asdict() for f in figures]}, indent=2))
        return OK
    for f in figures:
        print(f"{f.name:<36} {f.rows_per_s:>14,.0f} rows/s {f.us_per_call:>10,.1f} us a call")
    return OK


def _figures(args: argparse.Namespace) -> list[Figure]:
    cases = list(_cases(args.rows))
    figures = []
    with Progress(sys.stderr, "figures", show=not args.quiet) as progress:
        for done, case in enumerate(cases, 1):
            figures.append(measure(case.name, case.rows, case.call, args.seconds))
            progress(done, len(cases))
    return figures


def measure(name: str, rows: int, call: Callable[[], Any], seconds: float) -> Figure:
    """Calls something for about so long; the best of some rounds."""
    began = time.perf_counter()
    call()
    once = max(time.perf_counter() - began, 1e-7)
    count = max(int(seconds / _ROUNDS / once), 1)
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - began) / count)
    return Figure(name, rows / best, 1e6 * best, rows)


def _rows(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((n + 1, 17), np.float32)
    return {
        "observation": obs[:-1],
        "action": rng.standard_normal((n, 6), np.float32),
        "next": {
            "observation": obs[1:],
            "reward": np.ones(n, np.float32),
            "done": np.arange(1, n + 1) % _EPISODE == 0,
        },
    }


def _cases(capacity: int) -> Iterator[_Case]:
    rows = _rows(_EXTEND)
    one = {
        "observation": rows["observation"][0],
        "action": rows["action"][0],
        "next": {"observation": rows["observation"][1], "reward": np.float32(1), "done": False},
    }
    buffer = ReplayBuffer(LazyTensorStorage(capacity), batch_size=_BATCH, seed=0)
    yield _Case(f"append {_EXTEND} rows", _EXTEND, lambda: buffer.extend(rows))
    for _ in range(capacity // _EXTEND):
        buffer.extend(rows)
    yield _Case("append one row", 1, lambda: buffer.add(one))
    yield _Case(f"sample {_BATCH} rows", _BATCH, buffer.sample)
    slices = SliceSampler(slice_len=_SLICE)
    sliced = ReplayBuffer(buffer.storage, slices, batch_size=_BATCH, seed=0)
    name = f"sample {_BATCH // _SLICE} slices of {_SLICE} rows"
    yield _Case(name, _BATCH, sliced.sample)
    ranked = ReplayBuffer(buffer.storage, PrioritizedSampler(), batch_size=_BATCH, seed=0)

    def update() -> None:
        batch = ranked.sample()
        ranked.update_priority(batch["index"], batch["next", "reward"])

    yield _Case(f"sample and rank {_BATCH} rows", _BATCH, update)
