"""Observations stored once: bytes a step, and what it costs to write and to sample them.

    python -m benchmarks.memory              some minutes, 4 GB of memory
    python -m benchmarks.memory --quick      shows that everything runs

Frames: stacks of four, [4, 84, 84] uint8 (benchmarks/stacks.py), with next observations, in
episodes of 200. Vectors: 17 float32 with next observations and 6 actions (benchmarks/rows.py). Each
is stored plain, with next observations once, and with frames once, beside stable-baselines3
(`optimize_memory_usage`), cpprb (`next_of`, `stack_compress`) and TorchRL, which run in the peers'
environment; where it is not there, in this one. Bytes of contig are all that its memory has, the
index included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_memory import rows_of
from benchmarks.stacks import EPISODE, episodes, frames_for, vectors
from benchmarks.table import aligned, number
from benchmarks.timing import Effort, best_us, cycling
from contig import LayoutError, LazyTensorStorage, RandomSampler, ReplayBuffer

ENVS = 64
HOW: dict[str, dict[str, dict[str, Any]]] = {
    "frames": {
        "plain": {"share_next": False},
        "next once": {"stack": {}},
        "frames once": {"stack": {"observation": 4}},
        "frames once, lz4": {"stack": {"observation": 4}, "codecs": {"observation": "lz4"}},
    },
    "vectors": {"plain": {"share_next": False}, "next once": {}},
}
GOALS = {
    ("frames", "frames once"): 1 / 7,
    ("frames", "frames once, lz4"): 1 / 30,
    ("vectors", "next once"): 0.65,
}
Figures = dict[str, float]


def filled(case: str, rows: int, frames: Any, options: dict[str, Any]) -> ReplayBuffer:
    buffer = ReplayBuffer(LazyTensorStorage(rows, **options), RandomSampler(), seed=0)
    for chunk in episodes(frames) if case == "frames" else vectors(rows):
        buffer.extend(chunk)
    return buffer


def ours(case: str, quick: bool) -> dict[str, Figures | str]:
    """Figures of each way to store a case; those that are compared are measured in turns."""
    rows, effort = rows_of(case, quick), Effort.of(quick)
    frames = frames_for(rows) if case == "frames" else None
    buffers: dict[str, ReplayBuffer] = {}
    found: dict[str, Figures | str] = {}
    for how, options in HOW[case].items():
        try:
            buffers[how] = filled(case, rows, frames, options)
        except LayoutError as error:
            found[how] = str(error)
    for how, buffer in buffers.items():
        stored = os.fstat(buffer.storage.fd).st_blocks * 512
        found[how] = {"bytes": stored / len(buffer), "sample_32": np.inf, "sample_256": np.inf}
    for _ in range(1 if quick else 3):
        for how, buffer in buffers.items():
            figures = found[how]
            assert isinstance(figures, dict)
            for n in (32, 256):
                took = best_us(lambda b=buffer, n=n: b.sample(n), effort)  # type: ignore[misc]
                figures[f"sample_{n}"] = min(figures[f"sample_{n}"], took)
    return found


def peers(python: Path, quick: bool) -> dict[str, Any]:
    command = [str(python if python.exists() else sys.executable), "-m", "benchmarks.peer_memory"]
    done = subprocess.run(
        command + ["--quick"] * quick, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(case: str, mine: dict[str, Figures | str], theirs: dict[str, Any]) -> list[list[str]]:
    head = [case, "bytes a step", "of plain", "goal", "sample 32 us", "sample 256 us"]
    rows, plain = [head], mine["plain"]
    assert isinstance(plain, dict)
    every = {f"contig, {how}": figures for how, figures in mine.items()}
    every |= {name.rsplit(" ", 1)[0]: x for name, x in theirs.items() if name.endswith(case)}
    for name, figures in every.items():
        goal = GOALS.get((case, name.removeprefix("contig, ")))
        if isinstance(figures, str):
            rows.append([name, "not run", "", "", figures[:60], ""])
            continue
        part = figures["bytes"] / plain["bytes"]
        said = "" if goal is None else f"<= {goal:.3f} {'met' if part <= goal else 'missed'}"
        times = [number(figures[f"sample_{n}"]) for n in (32, 256)]
        rows.append([name, f"{figures['bytes']:,.0f}", f"{part:.3f}", said, *times])
    return rows


def verdicts(case: str, mine: dict[str, Figures | str], theirs: dict[str, Any]) -> list[str]:
    """The goals of time."""
    best = mine["frames once" if case == "frames" else "next once"]
    plain = mine["plain"]
    assert isinstance(best, dict) and isinstance(plain, dict)
    out = []
    if case == "vectors":
        for n in (32, 256):
            ratio = best[f"sample_{n}"] / plain[f"sample_{n}"]
            out.append(f"sample {n}: {ratio:.2f}x the plain form, goal <= 1.25x")
        return out
    for name, figures in theirs.items():
        if name.endswith(case) and isinstance(figures, dict):
            ratios = [figures[f"sample_{n}"] / best[f"sample_{n}"] for n in (32, 256)]
            shown = " and ".join(f"{x:.1f}x" for x in ratios)
            out.append(f"{shown} as fast as {name} at 32 and 256, goal > 1x")
    return out


# -- writing ---------------------------------------------------------------------------------------


def env_steps(case: str) -> list[Any]:
    """Steps of all envs, each going on where the one before led to."""
    if case == "frames":
        rows = next(episodes(frames_for(EPISODE)))
        many = [np.roll(np.arange(EPISODE), -at) for at in range(20)]
        picks = [x[np.arange(ENVS) * 3 % EPISODE] for x in many]
    else:
        rows = next(vectors(100_000))
        picks = [np.arange(ENVS) * 200 + at for at in range(200)]
    return [_picked(rows, at) for at in picks]


def _picked(tree: Any, at: Any) -> Any:
    if isinstance(tree, dict):
        out = {k: _picked(v, at) for k, v in tree.items()}
        for flag in ("done", "terminated", "truncated"):
            if flag in out:
                out[flag] = np.zeros(len(at), np.bool_)
        return out
    return np.ascontiguousarray(tree[at])


def add_steps(case: str, effort: Effort) -> dict[str, float]:
    """Microseconds of a step of all envs, in turns."""
    steps, rows = env_steps(case), 6400 if case == "frames" else 640_000
    ways = {k: v for k, v in HOW[case].items() if "codecs" not in v}
    calls: dict[str, Callable[[], Any]] = {}
    for how, options in ways.items():
        writer = LazyTensorStorage(rows, **options).writer()
        step = cycling(steps)
        calls[how] = lambda w=writer, s=step: w.add_step(s())  # type: ignore[misc]
        for _ in range(rows // ENVS + 1):  # memory is taken once
            calls[how]()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(1 if effort.quick else 5):
        for how, call in calls.items():
            best[how] = min(best[how], best_us(call, effort))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure observations that are stored once.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"))
    arguments = parser.parse_args()
    theirs = peers(arguments.peers_python, arguments.quick)
    for case in HOW:
        mine = ours(case, arguments.quick)
        print(f"{rows_of(case, arguments.quick):,} rows\n")
        print(aligned(table(case, mine, theirs)), "\n")
        print("\n".join(verdicts(case, mine, theirs)), "\n")
    rows = [[f"add_step of {ENVS} envs, us", *HOW["frames"]][:4] + ["least / plain", "goal"]]
    for case in HOW:
        took = add_steps(case, Effort.of(arguments.quick))
        shown = [number(x) for x in took.values()] + [""] * (3 - len(took))
        last = list(took.values())[-1]
        rows.append([case, *shown, f"{last / took['plain']:.2f}x", "<= 1.2x"])
    print(aligned(rows))


if __name__ == "__main__":
    main()
