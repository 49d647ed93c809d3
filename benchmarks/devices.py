"""Rows on a torch device, beside the same rows in host memory, and torchrl's on that device.

Steps of 4096 envs, as a simulator has them: observation and next observation (48 float32), action
(12 float32), reward and three flags, tensors of the device. A step is appended (`add_step`, of
torchrl `extend` of a TensorDict); 256 and 4096 rows are sampled, as tensors of the device; and 256
transitions of 3 steps. "late" does not wait for the step's flags.

Run: `python -m benchmarks.devices [--quick] [--device cuda]`; prints JSON, and a table to stderr.
torch has one thread. torchrl is left out where it is not installed. CUDA has not been measured yet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import Effort, best_us
from contig import DeviceStorage, LazyTensorStorage, NStepSampler, ReplayBuffer

ENVS, OBSERVATION, ACTION = 4096, 48, 12
STEPS = 16  # that are made; they are appended in turn
Case = dict[str, Callable[[], Any]]


def make_steps(device: str) -> list[dict[str, Any]]:
    """Steps of all envs, each of which ends now and then."""
    torch.manual_seed(0)
    out = []
    for _ in range(STEPS):
        done = torch.rand(ENVS) < 0.01
        after = {
            "observation": torch.randn(ENVS, OBSERVATION),
            "reward": torch.randn(ENVS),
            "done": done,
            "terminated": done,
            "truncated": torch.zeros(ENVS, dtype=torch.bool),
        }
        step = {
            "observation": torch.randn(ENVS, OBSERVATION),
            "action": torch.randn(ENVS, ACTION),
            "next": {key: value.to(device) for key, value in after.items()},
        }
        out.append({k: v if k == "next" else v.to(device) for k, v in step.items()})
    return out


def contig_cases(storage: Any, device: str, steps: list[Any]) -> Case:
    buffer = ReplayBuffer(storage, seed=0, output="torch", device=device)
    folded = ReplayBuffer(storage, NStepSampler(3, 0.99), seed=0, output="torch", device=device)
    given = itertools.cycle(steps)
    for _ in range(storage.capacity // ENVS + 2):
        buffer.add_step(next(given))
    return {
        "append a step of 4096 envs": lambda: buffer.add_step(next(given)),
        "sample 256": lambda: buffer.sample(256),
        "sample 4096": lambda: buffer.sample(4096),
        "sample 256 of 3 steps": lambda: folded.sample(256),
    }


def torchrl_cases(rows: int, device: str, steps: list[Any]) -> Case | None:
    try:
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage as Peer
        from torchrl.data import TensorDictReplayBuffer
    except ImportError:
        return None
    buffer = TensorDictReplayBuffer(storage=Peer(rows, device=device), batch_size=256)
    given = itertools.cycle([TensorDict(step, batch_size=[ENVS]) for step in steps])
    for _ in range(rows // ENVS + 2):
        buffer.extend(next(given))
    return {
        "append a step of 4096 envs": lambda: buffer.extend(next(given)),
        "sample 256": lambda: buffer.sample(256),
        "sample 4096": lambda: buffer.sample(4096),
    }


def measure(device: str, effort: Effort) -> dict[str, dict[str, float]]:
    """Microseconds by side and case."""
    rows, steps = effort.rows // ENVS * ENVS, make_steps(device)
    cuda = torch.device(device).type == "cuda"
    sides: dict[str, Callable[[], Case | None]] = {
        f"contig, {device}": lambda: contig_cases(DeviceStorage(rows, device), device, steps),
        f"contig, {device}, late": lambda: contig_cases(
            DeviceStorage(rows, device, late=True), device, steps
        ),
        "contig, host memory": lambda: contig_cases(LazyTensorStorage(rows), device, steps),
        f"torchrl, {device}": lambda: torchrl_cases(rows, device, steps),
    }
    out: dict[str, dict[str, float]] = {}
    for side, make in sides.items():
        cases = make()
        for name, call in (cases or {}).items():

            def timed(call: Callable[[], Any] = call) -> None:
                call()
                if cuda:
                    torch.cuda.synchronize()

            out.setdefault(side, {})[name] = best_us(timed, effort)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)  # of all sides: two that wait for each other measure the scheduler
    found = measure(given.device, Effort.of(given.quick))
    names = list(next(iter(found.values())))
    print(f"{'microseconds':<28}" + "".join(f"{side:>24}" for side in found), file=sys.stderr)
    for name in names:
        figures = (f"{found[side].get(name, float('nan')):>24,.1f}" for side in found)
        print(f"{name:<28}" + "".join(figures), file=sys.stderr)
    print(json.dumps({"device": given.device, "us": found}))


if __name__ == "__main__":
    main()
