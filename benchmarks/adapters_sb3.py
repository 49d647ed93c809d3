"""contig's buffers for stable-baselines3 beside SB3's own, in one run.

calls      add, sample, and an epoch of minibatches, on full buffers, taking turns: best of repeats
memory     bytes that a full buffer holds: SB3's arrays, contig's mapped pages with the index
training   SAC on Pendulum and DQN on CartPole, ms of processor time per environment step (others
           that use the machine are not in it), taking turns; and the part of it that is spent in
           the buffer: an add and a step's share of samples, of a full one
returns    mean return of the last ten episodes, by seed. With one seed, ReplayBuffer trains to the
           same weights as SB3's, so its returns are equal, not only alike; PrioritizedDQN's are its
           own
held       MB of such a buffer when it is full, of SB3's default size: a million steps
lines      that change in a script

Run: `python -m benchmarks.adapters_sb3 [--quick]`, some 20 minutes without; `--returns`: training
only, some 15 minutes with its 5 seeds (`--seeds`, `--steps` for less). Prints JSON, and tables to
stderr, and writes its part of `results-adapters.json`. A run whose returns with contig's
ReplayBuffer are not SB3's fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3 import HerReplayBuffer as SB3Her
from stable_baselines3.common import buffers as theirs

from benchmarks.drop_ins import DropIn, Training, record
from benchmarks.results import RECORD_HELP
from benchmarks.timing import Effort, best_us
from contig.adapters import sb3 as ours

STATE = spaces.Box(-1, 1, (17,), np.float32)
MOVE = spaces.Box(-1, 1, (6,), np.float32)
IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
GOAL = spaces.Box(-1, 1, (3,), np.float32)
GOALS = spaces.Dict({"observation": STATE, "achieved_goal": GOAL, "desired_goal": GOAL})
EPISODE = 200

LINES = {
    "replay_buffer_class=ReplayBuffer": 2,
    "replay_buffer_class=HerReplayBuffer": 1,  # its import
    "PrioritizedDQN for DQN": 2,
    "rollout_buffer_class=RolloutBuffer": 2,
}


class Judge:
    """What a VecEnv is to a HER buffer."""

    def env_method(self, name: str, achieved: Any, goal: Any, infos: Any, indices: Any) -> Any:
        return [-(np.linalg.norm(achieved - goal, axis=-1) > 0.05).astype(np.float32)]


def values(space: Any, envs: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: values(part, envs) for key, part in space.spaces.items()}
    return (np.random.default_rng(0).random((envs, *space.shape)) * 9).astype(space.dtype)


def filled(cls: Any, space: Any, rows: int, envs: int, **options: Any) -> tuple[Any, Any]:
    """A full buffer, and a function that adds one more step."""
    buffer = cls(rows, space, MOVE, device="cpu", n_envs=envs, **options)
    obs, action = values(space, envs), values(MOVE, envs)
    reward, infos = np.zeros(envs), [{"TimeLimit.truncated": False}] * envs
    go_on, end = np.zeros(envs, np.bool_), np.ones(envs, np.bool_)
    steps = 0

    def add() -> None:
        nonlocal steps
        steps += 1
        buffer.add(obs, obs, action, reward, end if steps % EPISODE == 0 else go_on, infos)

    for _ in range(rows // envs):
        add()
    return buffer, add


def held(buffer: Any) -> int:
    """Bytes: of arrays, or of the pages behind a storage."""
    storage = getattr(buffer, "storage", None)
    if storage is not None:
        return int(os.fstat(storage.fd).st_blocks * 512)
    total = 0
    for value in vars(buffer).values():
        arrays = value.values() if isinstance(value, dict) else [value]
        total += sum(x.nbytes for x in arrays if isinstance(x, np.ndarray))
    return total


def cases(rows: int) -> dict[str, tuple[Any, Any, Any, int, int, dict[str, Any]]]:
    her = {"env": Judge()}
    images = rows // 50
    return {
        "ReplayBuffer": (ours.ReplayBuffer, theirs.ReplayBuffer, STATE, rows, 1, {}),
        "ReplayBuffer, 4 envs": (ours.ReplayBuffer, theirs.ReplayBuffer, STATE, rows, 4, {}),
        "ReplayBuffer, images": (ours.ReplayBuffer, theirs.ReplayBuffer, IMAGE, images, 1, {}),
        "DictReplayBuffer": (ours.DictReplayBuffer, theirs.DictReplayBuffer, GOALS, rows, 1, {}),
        "NStepReplayBuffer": (ours.NStepReplayBuffer, theirs.NStepReplayBuffer, STATE, rows, 1, {}),
        "HerReplayBuffer": (ours.HerReplayBuffer, SB3Her, GOALS, rows, 1, her),
        "HerReplayBuffer, 4 envs": (ours.HerReplayBuffer, SB3Her, GOALS, rows, 4, her),
        "PrioritizedReplayBuffer": (ours.PrioritizedReplayBuffer, None, STATE, rows, 1, {}),
    }


def measure_calls(effort: Effort) -> dict[str, dict[str, list[float | None]]]:
    """[contig, SB3] of each."""
    out: dict[str, dict[str, list[float | None]]] = {}
    for name, (mine, other, space, rows, envs, options) in cases(effort.rows).items():
        found: dict[str, list[float | None]] = {}
        batch = 32 if space is IMAGE else 256
        for cls in (mine, other):
            row: dict[str, float | None] = dict.fromkeys(("add us", f"sample {batch} us", "MB"))
            if cls is not None:
                buffer, add = filled(cls, space, rows, envs, **options)
                row["add us"] = best_us(add, effort)
                row[f"sample {batch} us"] = best_us(lambda: buffer.sample(batch), effort)  # noqa: B023
                row["MB"] = held(buffer) / 1e6
                del buffer, add
            for key, value in row.items():
                found.setdefault(key, []).append(value)
        out[name] = found
    out["RolloutBuffer, 2048 x 4"] = measure_rollouts(effort)
    return out


def measure_rollouts(effort: Effort) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for cls in (ours.RolloutBuffer, theirs.RolloutBuffer):
        buffer = cls(2048, STATE, MOVE, device="cpu", n_envs=4)
        step = (values(STATE, 4), values(MOVE, 4), np.zeros(4), np.zeros(4))
        more = (torch.zeros(4, 1), torch.zeros(4))

        def fill(buffer: Any = buffer, step: Any = step, more: Any = more) -> None:
            buffer.reset()
            for _ in range(2048):
                buffer.add(*step, *more)

        def estimate(buffer: Any = buffer) -> None:
            buffer.compute_returns_and_advantage(torch.zeros(4), np.zeros(4))

        fill()
        estimate()
        found.setdefault("returns us", []).append(best_us(estimate, effort))
        epoch = best_us(lambda: sum(1 for _ in buffer.get(64)), effort)  # noqa: B023
        found.setdefault("epoch of 64s us", []).append(epoch)
    return found


ALGORITHMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "SAC, Pendulum": (SAC, "Pendulum-v1", {"learning_starts": 200, "buffer_size": 50_000}),
    "DQN, CartPole": (
        DQN,
        "CartPole-v1",
        {
            "learning_starts": 1000,
            "buffer_size": 50_000,
            "batch_size": 64,
            "learning_rate": 2.3e-3,
            "train_freq": 256,
            "gradient_steps": 128,
            "target_update_interval": 10,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
}


STEPS = {"SAC, Pendulum": 6000, "DQN, CartPole": 50_000}
FULL = 1_000_000
BUFFERS = {"contig": ours.ReplayBuffer, "sb3": theirs.ReplayBuffer}
QUICK_STEPS = {"SAC, Pendulum": 600, "DQN, CartPole": 1500}


def train(name: str, which: str, steps: int, seed: int) -> tuple[float, float]:
    """Milliseconds of processor time per step, and the mean return of the last ten episodes."""
    algorithm, env, options = ALGORITHMS[name]
    if which == "prioritized":
        algorithm = ours.PrioritizedDQN
    elif which == "contig":
        options = {**options, "replay_buffer_class": ours.ReplayBuffer}
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **options)
    start = time.process_time()
    model.learn(steps)
    spent = time.process_time() - start
    last = [episode["r"] for episode in model.ep_info_buffer][-10:]
    return 1e3 * spent / steps, float(np.mean(last)) if last else float("nan")


def full_buffer(name: str, cls: Any, rows: int) -> tuple[Any, Callable[[], None]]:
    """A buffer full of a training's steps, and what adds another one."""
    env = gymnasium.make(ALGORITHMS[name][1])
    buffer = cls(rows, env.observation_space, env.action_space, device="cpu")
    draw = np.random.default_rng(0)
    seen = [
        draw.random((1, *env.observation_space.shape)).astype(env.observation_space.dtype)
        for _ in range(EPISODE + 1)
    ]
    action = np.zeros((1, *env.action_space.shape), env.action_space.dtype)
    go_on, end, reward = np.zeros(1, np.bool_), np.ones(1, np.bool_), np.zeros(1, np.float32)
    steps = itertools.cycle(range(EPISODE))

    def add() -> None:
        at = next(steps)
        done = end if at == EPISODE - 1 else go_on
        buffer.add(seen[at], seen[at + 1], action, reward, done, [{}])

    for _ in range(rows):
        add()
    return buffer, add


def full_mb(name: str, cls: Any, rows: int) -> float:
    return held(full_buffer(name, cls, rows)[0]) / 1e6


def buffer_us(name: str, cls: Any, effort: Effort) -> float:
    """What an environment's step costs in a full buffer of the training's size."""
    options = ALGORITHMS[name][2]
    buffer, add = full_buffer(name, cls, options["buffer_size"])
    size = options.get("batch_size", 256)
    samples = options.get("gradient_steps", 1) / options.get("train_freq", 1)
    return best_us(add, effort) + samples * best_us(lambda: buffer.sample(size), effort)


def measure_training(effort: Effort, seeds: int, given_steps: int | None) -> dict[str, Any]:
    quick, out = effort.quick, {}
    for name in ALGORITHMS:
        steps = QUICK_STEPS[name] if quick else STEPS[name]
        steps = given_steps or steps
        sides = ["contig", "sb3", *(["prioritized"] if name.startswith("DQN") else [])]
        times: dict[str, list[float]] = {side: [] for side in sides}
        returns: dict[str, list[float]] = {side: [] for side in sides}
        train(name, "sb3", 1100, 0)  # what comes first pays for imports and first calls
        for seed in range(seeds):
            for side in sides if seed % 2 == 0 else sides[::-1]:  # nobody is always first
                ms, last = train(name, side, steps, seed)
                times[side].append(ms)
                returns[side].append(last)
        if not np.array_equal(returns["contig"], returns["sb3"], equal_nan=True):
            raise RuntimeError(f"{name}: returns {returns}; expected contig's to be SB3's")
        out[name] = {
            "steps": steps,
            "ms per step": {side: min(found) for side, found in times.items()},
            "buffer us": {k: buffer_us(name, cls, effort) for k, cls in BUFFERS.items()},
            "held MB": {
                k: full_mb(name, cls, FULL // 50 if quick else FULL) for k, cls in BUFFERS.items()
            },
            "returns by seed": returns,
        }
    return out


def show(results: dict[str, Any]) -> str:
    lines = []
    if results["calls"]:
        lines = [f"{'':26} {'':16} {'contig':>10} {'SB3':>10} {'SB3/contig':>10}"]
    for name, found in results["calls"].items():
        for what, (mine, other) in found.items():
            beside = ["-", "-"] if other is None else [f"{other:.1f}", f"{other / mine:.2f}x"]
            lines.append(f"{name:26} {what:16} {mine:>10.1f} {beside[0]:>10} {beside[1]:>10}")
    for name, found in results["training"].items():
        lines.append(f"\n{name}, {found['steps']} steps")
        for side, ms in found["ms per step"].items():
            returns = found["returns by seed"][side]
            shown = " ".join(f"{r:8.1f}" for r in returns)
            lines.append(
                f"  {side:12} {ms:7.3f} ms per step; returns by seed {shown}, mean "
                f"{np.mean(returns):8.1f} (deviation {np.std(returns):.1f})"
            )
        calls = ", ".join(f"{side} {us:.1f} us" for side, us in found["buffer us"].items())
        lines.append(f"  of a step, in the buffer: {calls}")
        full = ", ".join(f"{side} {mb:.1f} MB" for side, mb in found["held MB"].items())
        lines.append(f"  a full buffer holds: {full}")
    lines.append("\nlines that change: " + ", ".join(f"{k}: {n}" for k, n in LINES.items()))
    return "\n".join(lines)


def drop_in(results: dict[str, Any]) -> DropIn:
    """The figures of the documentation's page."""
    names = {"sb3": "original", "prioritized": "contig, PrioritizedDQN"}
    trainings = {
        name: Training(
            step="step of the env",
            time_ms={names.get(k, k): v for k, v in found["ms per step"].items()},
            buffer_us={names.get(k, k): v for k, v in found["buffer us"].items()},
            memory_mb={names.get(k, k): v for k, v in found["held MB"].items()},
            returns={names.get(k, k): v for k, v in found["returns by seed"].items()},
            note=f"{found['steps']} steps",
        )
        for name, found in results["training"].items()
    }
    return DropIn(trainings, results["lines"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    parser.add_argument("--record", action="store_true", help=RECORD_HELP)
    parser.add_argument("--returns", action="store_true", help="only train")
    parser.add_argument("--seeds", type=int, default=None, help="5, or 1 with --quick")
    parser.add_argument("--steps", type=int, default=None, help="of each training")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small nets: more threads only wait for one another
    effort = Effort.of(args.quick)
    effort = Effort(
        rows=20_000 if args.quick else 200_000,
        repeats=effort.repeats,
        seconds_per_repeat=effort.seconds_per_repeat,
        quick=args.quick,
    )
    seeds = args.seeds or (1 if args.quick else 5)
    results = {
        "calls": {} if args.returns else measure_calls(effort),
        "training": measure_training(effort, seeds, args.steps),
        "lines": LINES,
    }
    print(show(results), file=sys.stderr)
    print(json.dumps(results, indent=1))
    # Trainings cut short are no figures of the page.
    if args.record and not args.quick and args.steps is None:
        record("stable-baselines3", drop_in(results))


if __name__ == "__main__":
    main()
