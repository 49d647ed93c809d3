"""What other libraries store of observations, and how long they take to sample them.

    python -m benchmarks.peer_memory sb3 cpprb torchrl [--quick]

In the peers' environment. Each case has a process of its own: its bytes are what the process has
more when the buffer is full. Prints JSON: bytes a step, and microseconds to sample 32 and 256; of a
library that is missing, why.
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

from benchmarks.rows import ACTION_DIM, FILL_CHUNK, OBSERVATION_DIM
from benchmarks.stacks import FRAMES, episodes, frames_for, vectors
from benchmarks.timing import Effort, best_us

SIZES = {"frames": (20_000, 2_000), "vectors": (1_000_000, 100_000)}  # rows, and of --quick
SHAPE = (FRAMES, 84, 84)

Filled = tuple[Any, Callable[[int], Any]]


def rows_of(case: str, quick: bool) -> int:
    return SIZES[case][int(quick)]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- stable-baselines3 -----------------------------------------------------------------------------


def sb3(case: str, rows: int, optimized: bool) -> Callable[[], Filled]:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    if case == "frames":
        spaces_of: Any = spaces.Box(0, 255, SHAPE, np.uint8), spaces.Discrete(4)
    else:
        spaces_of = tuple(
            spaces.Box(-np.inf, np.inf, (n,), np.float32) for n in (OBSERVATION_DIM, ACTION_DIM)
        )

    def fill() -> Filled:
        options = {"optimize_memory_usage": optimized, "handle_timeout_termination": not optimized}
        buffer = ReplayBuffer(rows, *spaces_of, device="cpu", **options)
        at = 0
        for chunk in chunks(case, rows):  # through its arrays: `add` is for one step at a time
            n = len(chunk["action"])
            buffer.observations[at : at + n, 0] = chunk["observation"]
            if not optimized:
                buffer.next_observations[at : at + n, 0] = chunk["next"]["observation"]
            buffer.actions[at : at + n, 0] = chunk["action"].reshape(n, -1)
            buffer.rewards[at : at + n, 0] = chunk["next"]["reward"]
            buffer.dones[at : at + n, 0] = chunk["next"]["done"]
            buffer.timeouts[at : at + n, 0] = chunk["next"]["truncated"]
            at += n
        buffer.full = True
        return buffer, buffer.sample

    return fill


# -- cpprb -----------------------------------------------------------------------------------------


def cpprb(case: str, rows: int, optimized: bool) -> Callable[[], Filled]:
    import cpprb as library

    observation: dict[str, Any] = (
        {"shape": (84, 84, FRAMES), "dtype": np.uint8}  # it compresses stacks of the last axis
        if case == "frames"
        else {"shape": OBSERVATION_DIM, "dtype": np.float32}
    )
    columns: dict[str, Any] = {
        "obs": observation,
        "act": {"dtype": np.int64} if case == "frames" else {"shape": ACTION_DIM},
        "rew": {},
        "done": {"dtype": np.bool_},
    }
    options: dict[str, Any] = {}
    if optimized:
        options = {"next_of": "obs"}
        if case == "frames":
            options["stack_compress"] = "obs"
    else:
        columns["next_obs"] = observation

    def fill() -> Filled:
        buffer = library.ReplayBuffer(rows, columns, **options)
        for chunk in chunks(case, rows):
            now, following = chunk["observation"], chunk["next"]["observation"]
            if case == "frames":
                now, following = (
                    np.ascontiguousarray(np.moveaxis(x, 1, -1)) for x in (now, following)
                )
            after = chunk["next"]
            for start, stop in spans(after["done"]):
                part = slice(start, stop)
                buffer.add(
                    obs=now[part],
                    next_obs=following[part],
                    act=chunk["action"][part],
                    rew=after["reward"][part],
                    done=after["done"][part],
                )
                buffer.on_episode_end()
        return buffer, buffer.sample

    return fill


def spans(done: Any) -> list[tuple[int, int]]:
    ends = np.flatnonzero(done) + 1
    return list(zip([0, *ends[:-1].tolist()], ends.tolist()))


# -- torchrl ---------------------------------------------------------------------------------------


def torchrl(case: str, rows: int, optimized: bool) -> Callable[[], Filled]:
    os.environ.setdefault("RL_WARNINGS", "0")
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    def fill() -> Filled:
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(rows))
        for chunk in chunks(case, rows):
            tensors = {
                key: {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in value.items()}
                if isinstance(value, dict)
                else torch.from_numpy(np.ascontiguousarray(value))
                for key, value in chunk.items()
            }
            buffer.extend(TensorDict(tensors, batch_size=[len(chunk["action"])]))
        return buffer, buffer.sample

    return fill


# -- one case in a process of its own --------------------------------------------------------------

LIBRARIES = {"sb3": sb3, "cpprb": cpprb, "torchrl": torchrl}
KINDS = {"sb3": ("plain", "optimized"), "cpprb": ("plain", "optimized"), "torchrl": ("plain",)}
_frames: list[Any] = []


def chunks(case: str, rows: int) -> Any:
    return episodes(_frames[0]) if case == "frames" else vectors(rows)


def measure(library: str, kind: str, case: str, quick: bool) -> dict[str, float]:
    rows, effort = rows_of(case, quick), Effort.of(quick)
    if case == "frames":
        _frames.append(frames_for(rows))
    fill = LIBRARIES[library](case, rows, kind == "optimized")
    assert SIZES["vectors"][1] >= FILL_CHUNK
    before = resident()
    buffer, sample = fill()
    # What else was touched while it was filled is a chunk of rows, which is let go of.
    found = {"bytes": (resident() - before) / rows}
    for n in (32, 256):
        found[f"sample_{n}"] = best_us(lambda n=n: sample(n), effort)  # type: ignore[misc]
    del buffer
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", nargs="*", choices=[*LIBRARIES, []])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("LIBRARY", "KIND", "CASE"))
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one, arguments.quick)))
        return
    found: dict[str, Any] = {}
    for library in arguments.libraries or LIBRARIES:
        for kind in KINDS[library]:
            for case in SIZES:
                command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peer_memory"]
                command += ["--one", library, kind, case, *(["--quick"] * arguments.quick)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                said = done.stderr.strip().splitlines()
                found[f"{library} {kind} {case}"] = (
                    said[-1][:200] if done.returncode else json.loads(done.stdout.splitlines()[-1])
                )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
