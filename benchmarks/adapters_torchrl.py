"""contig's buffers and collectors under TorchRL's names beside TorchRL's own, in one run.

calls      extend, add and sample on full buffers, taking turns: best of repeats
memory     bytes that a full buffer holds: TorchRL's tensors, contig's mapped pages with the index
collect    ms per frame of a collector with TorchRL's CartPole and a small net
training   DQN on CartPole as a TorchRL script: ms per frame, of a training step and of its sample;
           and the mean return of the last twenty episodes, by seed
lines      that change in a script

TorchRL's prioritized buffers need its native extension, which is built where the one in its wheel
does not load (`benchmarks/torchrl_extension.py`); without a compiler they are left out.

Run: `python -m benchmarks.adapters_torchrl [--quick]`, some 15 minutes without; prints JSON, and
tables to stderr; writes its part of `results-adapters.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch

from benchmarks.drop_ins import DropIn, Training, record
from benchmarks.results import RECORD_HELP
from benchmarks.timing import Effort, best_us
from benchmarks.torchrl_extension import load_extension

EPISODE = 200
LINES = {
    "buffer, storage, sampler": 1,  # their import
    "collector": 1,
    "buffer and collector": 2,
}


def libraries() -> tuple[Any, Any, bool]:
    """contig's and TorchRL's names, and whether TorchRL's priorities work."""
    warnings.simplefilter("ignore")
    try:
        load_extension()
        priorities = True
    except Exception as error:  # no compiler, for example: said, and measured without
        print(f"TorchRL's extension: {error}", file=sys.stderr)
        priorities = False
    from types import SimpleNamespace

    from torchrl import collectors, data
    from torchrl.data import replay_buffers

    from contig.adapters import torchrl as ours

    names = {**vars(replay_buffers), **vars(data), **vars(collectors)}
    return ours, SimpleNamespace(**names), priorities


def rows(n: int, images: bool) -> Any:
    """Steps of episodes, as collectors give them: each leads to what the next one sees."""
    from tensordict import TensorDict

    if images:
        seen = torch.randint(0, 255, (n + 1, 4, 84, 84), dtype=torch.uint8)
    else:
        seen = torch.randn(n + 1, 17)
    done = (torch.arange(n) % EPISODE == EPISODE - 1)[:, None]
    return TensorDict(
        {
            "observation": seen[:-1],
            "action": torch.randn(n, 6),
            "collector": {"traj_ids": torch.arange(n) // EPISODE},
            "next": {
                "observation": seen[1:],
                "reward": torch.randn(n, 1),
                "done": done,
                "terminated": done.clone(),
                "truncated": torch.zeros_like(done),
            },
        },
        batch_size=[n],
    )


def buffers(lib: Any, capacity: int, priorities: bool) -> dict[str, Any]:
    """What is measured, by name: a function that makes it."""
    made: dict[str, Any] = {
        "uniform": lambda: lib.TensorDictReplayBuffer(
            storage=lib.LazyTensorStorage(max_size=capacity), batch_size=256
        ),
        "with RewardScaling": lambda: _scaled(lib, capacity),
        "slices 32 x 32": lambda: lib.TensorDictReplayBuffer(
            storage=lib.LazyTensorStorage(max_size=capacity),
            sampler=lib.SliceSampler(slice_len=32, traj_key=("collector", "traj_ids")),
            batch_size=1024,
        ),
    }
    if priorities:
        made["priorities"] = lambda: lib.TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=lib.LazyTensorStorage(max_size=capacity), batch_size=256
        )
    return made


def _scaled(lib: Any, capacity: int) -> Any:
    from torchrl.envs import RewardScaling

    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(max_size=capacity), batch_size=256
    )
    buffer.append_transform(RewardScaling(0.0, 0.1, in_keys=[("next", "reward")]))
    return buffer


def held(buffer: Any) -> int:
    """Bytes of a full buffer."""
    fd = getattr(buffer.storage, "fd", None)
    if fd is not None:
        return int(os.fstat(fd).st_blocks * 512)
    return int(sum(x.nbytes for x in buffer.storage._storage.values(True, True)))


def calls_of(buffer: Any, data: Any, effort: Effort) -> dict[str, float]:
    few, one = data[:16].clone(), data[0].clone()

    def write_and_sample() -> None:
        buffer.extend(few)
        buffer.sample()

    out = {
        "extend 1000 us": best_us(lambda: buffer.extend(data), effort),
        "add us": best_us(lambda: buffer.add(one), effort),
        "sample us": best_us(buffer.sample, effort),
        "extend 16, sample us": best_us(write_and_sample, effort),
    }
    if hasattr(buffer, "prioritized_sampler") or getattr(buffer, "has_priorities", False):
        sample = buffer.sample()
        sample["td_error"] = torch.rand(len(sample))
        out["update us"] = best_us(lambda: buffer.update_tensordict_priority(sample), effort)
    return out


def measure_calls(libs: Any, effort: Effort) -> dict[str, Any]:
    ours, theirs, priorities = libs
    out: dict[str, Any] = {}
    data = rows(1000, images=False)
    for name in buffers(ours, 1, priorities):
        found: dict[str, list[float]] = {}
        for lib in (ours, theirs):
            buffer = buffers(lib, effort.rows, priorities)[name]()
            for _ in range(effort.rows // 1000):
                buffer.extend(data)
            full = held(buffer) / 1e6  # before calls that write single rows: each is a run
            row = {**calls_of(buffer, data, effort), "memory MB": full}
            for key, value in row.items():
                found.setdefault(key, []).append(value)
        out[name] = found
    images: dict[str, list[float]] = {}
    data = rows(500, images=True)
    for lib in (ours, theirs):
        buffer = buffers(lib, effort.rows // 100, False)["uniform"]()
        for _ in range(max(effort.rows // 100 // 500, 1)):
            buffer.extend(data)
        images.setdefault("sample 256 us", []).append(best_us(buffer.sample, effort))
        images.setdefault("memory MB", []).append(held(buffer) / 1e6)
    out["images 4x84x84"] = images
    return out


# -- training ---------------------------------------------------------------------------------


def make_env() -> Any:
    from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv

    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))


def agent(frames: int) -> tuple[Any, Any, Any]:
    from tensordict.nn import TensorDictSequential
    from torchrl.modules import MLP, EGreedyModule, QValueActor

    spec = make_env().action_spec
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    actor = QValueActor(net, in_keys=["observation"], spec=spec)
    explore = EGreedyModule(spec=spec, eps_end=0.05, annealing_num_steps=max(frames // 2, 1))
    return actor, explore, TensorDictSequential(actor, explore)


def collect_ms(lib: Any, frames: int) -> float:
    _, _, policy = agent(frames)
    collector = lib.Collector(make_env, policy, frames_per_batch=100, total_frames=frames + 100)
    batches = iter(collector)
    next(batches)
    start = time.perf_counter()
    for _ in batches:
        pass
    spent = time.perf_counter() - start
    collector.shutdown()
    return 1e3 * spent / frames


def train(lib: Any, frames: int, seed: int) -> dict[str, float]:
    """Times per frame, and the mean return of the last twenty episodes."""
    from torchrl.objectives import DQNLoss, SoftUpdate

    torch.manual_seed(seed)
    actor, explore, policy = agent(frames)
    collector = lib.Collector(
        make_env, policy, frames_per_batch=100, total_frames=frames, init_random_frames=500
    )
    collector.set_seed(seed)
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(max_size=50_000), batch_size=128
    )
    loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target, optim = SoftUpdate(loss, eps=0.99), torch.optim.Adam(loss.parameters(), lr=1e-3)
    returns: list[float] = []
    sampling, learning, updates = 0.0, 0.0, 0
    start = time.perf_counter()
    for data in collector:
        before = time.perf_counter()
        buffer.extend(data.reshape(-1))
        explore.step(data.numel())
        returns.extend(data["next", "episode_reward"][data["next", "done"]].tolist())
        for _ in range(16 if len(buffer) > 500 else 0):
            begun = time.perf_counter()
            sample = buffer.sample()
            sampling += time.perf_counter() - begun
            optim.zero_grad()
            loss(sample)["loss"].backward()
            optim.step()
            target.step()
            updates += 1
        learning += time.perf_counter() - before
    spent = time.perf_counter() - start
    collector.shutdown()
    return {
        "ms per frame": 1e3 * spent / frames,
        "collecting ms per frame": 1e3 * (spent - learning) / frames,
        "training step ms": 1e3 * learning / max(updates, 1),
        "sampling ms per step": 1e3 * sampling / max(updates, 1),
        "return": float(np.mean(returns[-20:])),
    }


def measure_training(libs: Any, frames: int, seeds: int) -> dict[str, Any]:
    sides = {"contig": libs[0], "torchrl": libs[1]}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    train(libs[1], 700, 0)  # what comes first pays for imports and first calls
    for seed in range(seeds):
        for name in list(sides)[:: 1 if seed % 2 == 0 else -1]:  # nobody is always first
            found[name].append(train(sides[name], frames, seed))
    out: dict[str, Any] = {"frames": frames}
    for name, runs in found.items():
        times = [k for k in runs[0] if k != "return"]
        out[name] = {k: min(run[k] for run in runs) for k in times}
        out[name]["returns by seed"] = [run["return"] for run in runs]
    return out


def show(results: dict[str, Any]) -> str:
    lines = [f"{'':20} {'':22} {'contig':>10} {'torchrl':>10} {'torchrl/contig':>14}"]
    for name, found in results["calls"].items():
        for what, (mine, other) in found.items():
            shown = f"{mine:>10.1f} {other:>10.1f} {other / mine:>13.2f}x"
            lines.append(f"{name:20} {what:22} {shown}")
    mine, other = results["collect ms per frame"]
    lines.append(f"{'collect':20} {'ms per frame':22} {mine:>10.3f} {other:>10.3f}")
    training = results["training"]
    lines.append(f"\nDQN on CartPole, {training['frames']} frames")
    for name in ("contig", "torchrl"):
        shown = ", ".join(f"{k} {v:.3f}" for k, v in training[name].items() if "seed" not in k)
        returns = " ".join(f"{r:.0f}" for r in training[name]["returns by seed"])
        lines.append(f"  {name:8} {shown}; returns by seed {returns}")
    lines.append("\nlines that change: " + ", ".join(f"{k}: {n}" for k, n in LINES.items()))
    return "\n".join(lines)


def drop_in(results: dict[str, Any]) -> DropIn:
    """The figures of the documentation's page."""
    sides = {"contig": "contig", "original": "torchrl"}
    found, held_mb = results["training"], results["calls"]["uniform"]["memory MB"]
    training = Training(
        step="training step",
        time_ms={side: found[name]["training step ms"] for side, name in sides.items()},
        memory_mb=dict(zip(sides, held_mb)),
        returns={side: found[name]["returns by seed"] for side, name in sides.items()},
        note=f"{found['frames']} frames; memory: 200,000 rows of 17 floats",
    )
    return DropIn({"DQN, CartPole": training}, results["lines"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    parser.add_argument("--record", action="store_true", help=RECORD_HELP)
    parser.add_argument("--seeds", type=int, default=None, help="3, or 1 with --quick")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small nets: more threads only wait for one another
    full = Effort.of(args.quick)
    effort = Effort(
        rows=20_000 if args.quick else 200_000,
        repeats=full.repeats,
        seconds_per_repeat=full.seconds_per_repeat,
        quick=args.quick,
    )
    libs = libraries()
    frames = 1000 if args.quick else 10_000
    results = {
        "calls": measure_calls(libs, effort),
        "collect ms per frame": [collect_ms(lib, 300 if args.quick else 2000) for lib in libs[:2]],
        "training": measure_training(libs, frames, args.seeds or (1 if args.quick else 3)),
        "lines": LINES,
    }
    print(show(results), file=sys.stderr)
    print(json.dumps(results, indent=1))
    if args.record and not args.quick:
        record("torchrl", drop_in(results))


if __name__ == "__main__":
    main()
