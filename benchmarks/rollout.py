"""Rollout storages beside rsl_rl's, in one run, and how fast RolloutDataset reads.

4096 envs x 24 steps, observations of 48 and actions of 12 floats; hidden states of 256 for the
recurrent cases (actor and critic). rsl_rl runs in the peers' environment, taking turns with contig
for several rounds; a figure is the best of all rounds. Where rsl_rl is not installed there, its
column says so: nothing takes its place.

The dataset case reads files of 4096 trajectories, 500 frames of the same sizes each, that are in
the page cache; its figure is transitions a second, loading included. One such file is also read by
itself, from memory: natively, and by Python's zipfile.

Run: `python -m benchmarks.rollout [--quick] [--peers-python PATH]`; prints JSON, and a table to
stderr.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Effort, best_us
from contig import RolloutDataset, RolloutStorage
from contig.dataset import frames

ENVS, STEPS, OBS, ACTIONS, HIDDEN = 4096, 24, 48, 12, 256
GOALS_US = {
    "gae": 250.0,
    "minibatches": 130_000.0,
    "recurrent": None,
    "recurrent packed": 40_000.0,
}


def storage(envs: int, hidden: int = 0) -> RolloutStorage:
    draw = torch.Generator().manual_seed(0)

    def new(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=draw)

    out = RolloutStorage(envs, STEPS, (OBS,), None, (ACTIONS,), seed=0)
    for _ in range(STEPS):
        step = RolloutStorage.Transition()
        step.observations = new(envs, OBS)
        step.actions, step.rewards, step.values = new(envs, ACTIONS), new(envs), new(envs, 1)
        step.dones = new(envs) < 0.02
        step.actions_log_prob = new(envs)
        step.action_mean, step.action_sigma = new(envs, ACTIONS), new(envs, ACTIONS)
        if hidden:
            step.hidden_states = (new(1, envs, hidden), new(1, envs, hidden))
        out.add_transitions(step)
    return out


def consume(batches: Any) -> None:
    for _ in batches:
        pass


def contig_cases(effort: Effort, envs: int) -> dict[str, float]:
    flat, last = storage(envs), torch.zeros(envs, 1)
    deep = storage(envs, HIDDEN)
    recurrent = deep.recurrent_mini_batch_generator
    return {
        "gae": best_us(lambda: flat.compute_returns(last, 0.99, 0.95), effort),
        "minibatches": best_us(lambda: consume(flat.mini_batch_generator(4, 5)), effort),
        "recurrent": best_us(lambda: consume(recurrent(4, 1)), effort),
        "recurrent packed": best_us(lambda: consume(recurrent(4, 1, packed=True)), effort),
    }


def peer_cases(python: Path, quick: bool) -> dict[str, float] | str:
    if not python.exists():
        return "not run"
    command = [str(python), "-m", "benchmarks.peer_rsl_rl", *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return "rsl_rl is not installed" if "rsl_rl" in done.stderr else done.stderr[-500:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_files(folder: Path, trajectories: int, count: int) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        "observations": draw.random((count, OBS), np.float32),
        "actions": draw.random((count, ACTIONS), np.float32),
        "rewards": draw.random(count, np.float32),
        "dones": np.zeros(count, bool),
        "timeouts": np.zeros(count, bool),
    }
    first = folder / "trajectory_0" / f"traj_0_{count}.npz"
    first.parent.mkdir()
    frames.save_frames(first, arrays)
    data = first.read_bytes()
    for number in range(1, trajectories):
        other = folder / f"trajectory_{number}"
        other.mkdir()
        (other / first.name).write_bytes(data)


def file_us(effort: Effort) -> dict[str, float]:
    """Microseconds for one file's bytes to become arrays."""
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), 1, 500)
        data = next(Path(name).glob("*/*.npz")).read_bytes()
    return {
        "native": best_us(lambda: frames.read_npz(data), effort),
        "zipfile": best_us(lambda: frames.unzip(data), effort),
    }


def dataset_rate(quick: bool) -> float:
    """Transitions a second of a whole loop, the best of some."""
    envs, count = (256, 100) if quick else (ENVS, 500)
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), envs, count)
        dataset = RolloutDataset(name, envs, device="cpu")
        best = 0.0
        for _ in range(2 if quick else 3):
            start, rows = time.perf_counter(), 0
            for batch in dataset:
                rows += len(batch.reward)
            best = max(best, rows / (time.perf_counter() - start))
            assert rows == envs * count
    return best


def show(out: dict[str, Any]) -> None:
    for name, ours in out["contig_us"].items():
        peer = out["rsl_rl_us"]
        goal = GOALS_US[name]
        theirs = f"{peer[name] / 1e3:9.2f} ms" if isinstance(peer, dict) else f"{peer:>12}"
        ratio = f"{peer[name] / ours:5.1f} x" if isinstance(peer, dict) else ""
        wanted = "" if goal is None else f"goal {goal / 1e3:g} ms"
        print(f"{name:18}{ours / 1e3:9.2f} ms  rsl_rl {theirs} {ratio}  {wanted}", file=sys.stderr)
    rate = out["dataset_transitions_per_s"]
    print(f"RolloutDataset    {rate:12,.0f} transitions/s  goal 1,000,000", file=sys.stderr)
    file = out["frames_file_us"]
    print(
        f"a file of frames  {file['native']:9.1f} us  zipfile {file['zipfile']:9.1f} us",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="only shows that everything runs")
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"))
    args = parser.parse_args()
    effort, envs = Effort.of(args.quick), 256 if args.quick else ENVS
    ours: dict[str, float] = {}
    theirs: dict[str, float] | str = "not run"
    for _ in range(1 if args.quick else 3):
        for name, value in contig_cases(effort, envs).items():
            ours[name] = min(value, ours.get(name, value))
        found = peer_cases(args.peers_python, args.quick)
        if isinstance(found, dict) and isinstance(theirs, dict):
            theirs = {name: min(value, theirs[name]) for name, value in found.items()}
        else:
            theirs = found
    out = {
        "envs": envs,
        "torch_threads": torch.get_num_threads(),
        "contig_us": ours,
        "rsl_rl_us": theirs,
        "dataset_transitions_per_s": dataset_rate(args.quick),
        "frames_file_us": file_us(effort),
    }
    show(out)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
