"""TrajectoryReplayBuffer beside a buffer that keeps one file per trajectory, in one run.

The other buffer does what RLinf's does, and only that: `torch.save` of each trajectory and a JSON
index written whole at each add; `torch.load` of each sampled trajectory that is not among the last
five; a checkpoint that copies the files. In memory it is a tensor per field and `index_select`.

A trajectory is [64, 8] steps, 174 kB; 500 are stored, and samples of 256 come from the last 100.
"add 7.9 MB" is what the caller of an add waits for, of trajectories of 64 envs with wide
observations, when those before are stored. RLinf saves in a thread: the other one only copies here.

Run: `python -m benchmarks.trajectory [--quick] [--only CASE ...] [--folder PATH]`; prints JSON, and
the ratios to stderr.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.timing import Effort, best_us
from contig import Trajectory, TrajectoryReplayBuffer

STEPS, ENVS, CHUNKS, CACHED = 64, 8, 256, 5
FLAGS = ("dones", "terminations", "truncations")


@dataclass(frozen=True)
class Sizes:
    """How much is stored."""

    trajectories: int = 500
    window: int = 100
    warm: int = 50
    """Trajectories that are added before the clock starts."""

    @classmethod
    def of(cls, quick: bool) -> Sizes:
        return cls(trajectories=30, window=10, warm=3) if quick else cls()


def trajectory(number: int) -> Trajectory:
    """One rollout of 8 envs, with a bootstrap row."""
    draw = torch.Generator().manual_seed(number)

    def values(steps: int, *shape: int) -> torch.Tensor:
        return torch.rand(steps, ENVS, *shape, generator=draw)

    return Trajectory(
        max_episode_length=STEPS,
        model_weights_id=f"weights-{number}",
        actions=values(STEPS, 7),
        rewards=values(STEPS, 1),
        prev_logprobs=values(STEPS, 7),
        prev_values=values(STEPS + 1, 1),
        curr_obs={"states": values(STEPS, 34)},
        next_obs={"states": values(STEPS, 34)},
        **{flag: values(STEPS + 1, 1) < 0.02 for flag in FLAGS},
    )


def large_trajectory(number: int) -> Trajectory:
    """7.9 MB: 64 envs, observations of 221 numbers."""
    draw = torch.Generator().manual_seed(number)

    def values(*shape: int) -> torch.Tensor:
        return torch.rand(STEPS, 64, *shape, generator=draw)

    flags = {flag: values(1) < 0.02 for flag in FLAGS}
    obs = {"curr_obs": {"states": values(221)}, "next_obs": {"states": values(221)}}
    return Trajectory(actions=values(33), rewards=values(1), prev_values=values(1), **obs, **flags)


# -- a file per trajectory ----------------------------------------------------------------------

Flat = dict[Any, torch.Tensor]


def flat_of(loaded: dict[str, Any]) -> Flat:
    """Fields by path, [T * B, ...]."""
    out: Flat = {}
    for name, value in loaded.items():
        if isinstance(value, dict):
            out.update({(name, k): v.reshape(-1, *v.shape[2:]) for k, v in value.items()})
        elif isinstance(value, torch.Tensor):
            extra = value.shape[0] - STEPS
            if extra:
                value = value[1:] if name in FLAGS else value[:-1]
            out[name] = value.reshape(-1, *value.shape[2:])
    return out


class FilePerTrajectory:
    """What is compared with."""

    def __init__(self, folder: Path, window: int) -> None:
        self.folder, self.window = folder, window
        folder.mkdir(parents=True)
        self.index: dict[int, dict[str, Any]] = {}
        self.cache: dict[int, Flat] = {}
        self.draw = torch.Generator().manual_seed(0)

    def path(self, number: int) -> Path:
        return self.folder / f"trajectory_{number}_{self.index[number]['model_weights_id']}.pt"

    def add(self, new: Trajectory) -> None:
        number = len(self.index)
        self.index[number] = {
            "num_samples": STEPS * ENVS,
            "trajectory_id": number,
            "max_episode_length": new.max_episode_length,
            "shape": [STEPS, ENVS, 1],
            "model_weights_id": new.model_weights_id,
        }
        values = {f.name: getattr(new, f.name) for f in fields(new)}
        kept = {k: v for k, v in values.items() if v is not None}
        torch.save(kept, self.path(number))
        self.cache[number] = flat_of(kept)
        if len(self.cache) > CACHED:
            del self.cache[next(iter(self.cache))]
        self.describe(self.folder)

    def describe(self, folder: Path) -> None:
        about = {"trajectory_format": "pt", "size": len(self.index), "seed": 0}
        (folder / "metadata.json").write_text(json.dumps(about))
        listing = {"trajectory_index": self.index, "trajectory_id_list": list(self.index)}
        (folder / "trajectory_index.json").write_text(json.dumps(listing))

    def sample(self, chunks: int) -> Flat:
        rows = STEPS * ENVS
        newest = list(self.index)[-self.window :]
        drawn = torch.randint(0, len(newest) * rows, (chunks,), generator=self.draw)
        which, at = drawn // rows, drawn % rows
        order = torch.argsort(which)
        parts = []
        for place in torch.unique(which).tolist():
            number = newest[place]
            flat = self.cache.get(number)
            if flat is None:
                flat = flat_of(torch.load(self.path(number), weights_only=True))
            wanted = at[which == place]
            parts.append({k: v.index_select(0, wanted) for k, v in flat.items()})
        back = torch.argsort(order)
        return {k: torch.cat([p[k] for p in parts])[back] for k in parts[0]}

    def checkpoint(self, folder: Path) -> None:
        folder.mkdir()
        for number in self.index:
            shutil.copyfile(self.path(number), folder / self.path(number).name)
        self.describe(folder)


class InMemory:
    """The window as one tensor per field."""

    def __init__(self, window: list[Trajectory]) -> None:
        flats = [flat_of({f.name: getattr(t, f.name) for f in fields(t)}) for t in window]
        self.whole = {k: torch.cat([f[k] for f in flats]) for k in flats[0]}
        self.rows = len(self.whole["rewards"])
        self.draw = torch.Generator().manual_seed(0)

    def sample(self, chunks: int) -> Flat:
        at = torch.randint(0, self.rows, (chunks,), generator=self.draw)
        return {k: v.index_select(0, at) for k, v in self.whole.items()}


# -- cases --------------------------------------------------------------------------------------


def each_us(call: Callable[[Trajectory], Any], new: list[Trajectory]) -> list[float]:
    """Microseconds of each call."""
    out = []
    for one in new:
        start = time.perf_counter()
        call(one)
        out.append(1e6 * (time.perf_counter() - start))
    return out


def caller_us(folder: Path, sizes: Sizes) -> dict[str, float]:
    """What a caller waits for who adds 7.9 MB: to a file per trajectory, and to ours."""
    new = [large_trajectory(n) for n in range(5 if sizes.trajectories < 100 else 20)]

    def copied(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {k: copied(v) for k, v in tree.items()}
        return tree.clone() if isinstance(tree, torch.Tensor) else tree

    with ThreadPoolExecutor(1) as pool:

        def save(one: Trajectory) -> None:
            kept = copied({f.name: getattr(one, f.name) for f in fields(one)})
            written.append(pool.submit(torch.save, kept, folder / f"{len(written)}.pt"))

        def wait() -> None:
            written[-1].result()

        written: list[Future[Any]] = []
        theirs = median(spaced_us(save, new, wait))
    options: dict[str, Any] = {"auto_save": True, "auto_save_path": folder / "large"}
    with TrajectoryReplayBuffer(**options) as buffer:
        ours = median(spaced_us(lambda t: buffer.add_trajectories([t]), new, lambda: len(buffer)))
    return {"files": theirs, "contig": ours}


def spaced_us(
    call: Callable[[Trajectory], Any], new: list[Trajectory], stored: Callable[[], Any]
) -> list[float]:
    """Microseconds of each call, with what was added before stored."""
    out = []
    for one in new:
        out += each_us(call, [one])
        stored()
    return out


def once_us(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def run(folder: Path, sizes: Sizes, effort: Effort) -> dict[str, dict[str, float]]:
    """Every case for both, one after the other on the same data: microseconds."""
    new = [trajectory(n) for n in range(sizes.trajectories)]
    warm, timed = new[: sizes.warm], new[sizes.warm :]

    other = FilePerTrajectory(folder / "files", sizes.window)
    each_us(other.add, warm)
    theirs = {"add, median": median(each_us(other.add, timed))}
    theirs["add, committed, median"] = theirs["add, median"]
    theirs["sample 256, disk"] = best_us(lambda: other.sample(CHUNKS), effort)
    theirs["checkpoint"] = once_us(lambda: other.checkpoint(folder / "files-saved"))
    in_memory = InMemory(new[-sizes.window :])
    theirs["sample 256, memory"] = best_us(lambda: in_memory.sample(CHUNKS), effort)

    ours: dict[str, float] = {}
    options: dict[str, Any] = {"sample_window_size": sizes.window, "auto_save": True}
    with TrajectoryReplayBuffer(auto_save_path=folder / "plain", **options) as buffer:
        each_us(lambda t: buffer.add_trajectories([t]), warm)
        ours["add, median"] = median(each_us(lambda t: buffer.add_trajectories([t]), timed))
    with TrajectoryReplayBuffer(auto_save_path=folder / "rows", **options) as buffer:

        def add_and_commit(one: Trajectory) -> None:
            buffer.add_trajectories([one])
            buffer.flush()

        each_us(add_and_commit, warm)
        ours["add, committed, median"] = median(each_us(add_and_commit, timed))
        ours["sample 256, disk"] = best_us(lambda: buffer.sample(CHUNKS), effort)
        ours["checkpoint"] = once_us(lambda: buffer.save_checkpoint(folder / "rows-saved"))
    memory = TrajectoryReplayBuffer(sample_window_size=sizes.window)
    memory.add_trajectories(new)
    ours["sample 256, memory"] = best_us(lambda: memory.sample(CHUNKS), effort)
    cases = {case: {"files": theirs[case], "contig": ours[case]} for case in ours}
    return {**cases, "add 7.9 MB, median": caller_us(folder, sizes)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure trajectory buffers, print JSON.")
    parser.add_argument("--quick", action="store_true", help="few trajectories, few repeats")
    parser.add_argument("--only", nargs="*", default=[], metavar="CASE", help="show these cases")
    parser.add_argument("--folder", type=Path, help="where to write; default: temporary")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trajectory-", dir=arguments.folder) as name:
        sizes, effort = Sizes.of(arguments.quick), Effort.of(arguments.quick)
        report = run(Path(name), sizes, effort)
    wanted = {c: v for c, v in report.items() if not arguments.only or c in arguments.only}
    print(f"{'microseconds':26}{'files':>12}{'contig':>12}{'ratio':>9}", file=sys.stderr)
    for case, found in wanted.items():
        theirs, ours = found["files"], found["contig"]
        line = f"{case:26}{theirs:12.1f}{ours:12.1f}{theirs / ours:8.1f}x"
        print(line, file=sys.stderr)
    print(json.dumps(wanted), flush=True)


if __name__ == "__main__":
    main()
