"""The kernels that compute advantages, beside one another: why there are three.

Rollouts ``[T, N]`` of float32, some rows timed out. `scan` is given every row's next value,
`rollout` takes the next row's; "made" is `scan` with the next values made first. For tensors that
are not on the host, the operations that torch runs count: each is one launch on a device. "loop" is
a loop over time, "doubling" what contig.learn does.

Run: `python -m benchmarks.returns [--quick]`; prints JSON, and a table to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.timing import Effort, best_us
from contig import _native
from contig.learn import vectorised

SHAPES = ((24, 4096), (128, 64))
GAMMA, LMBDA = 0.99, 0.95


class Operations(TorchDispatchMode):
    """Counts the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def host_cases(time: int, lanes: int) -> dict[str, Callable[[], Any]]:
    draw = np.random.default_rng(0)
    reward, value, final = (
        draw.standard_normal((time, lanes)).astype(np.float32) for _ in range(3)
    )
    last = draw.standard_normal(lanes).astype(np.float32)
    done = draw.random((time, lanes)) < 0.02
    late = done & (draw.random((time, lanes)) < 0.5)
    after = np.concatenate([value[1:], last[None]])
    out = np.empty_like(reward), np.empty_like(reward)

    def scan(next_value: Any, stop: Any, terminated: Any) -> None:
        three = (x[None] for x in (reward, value, next_value, stop, terminated))
        _native.scan_gae(*three, GAMMA, LMBDA, out[0][None], out[1][None])

    def made(ends: bool) -> None:
        following = np.concatenate([value[1:], last[None]])
        if ends:
            np.copyto(following, final, where=late)
        scan(following, done | late if ends else done, done & ~late if ends else done)

    def rollout(*ends: Any) -> None:
        _native.rollout_gae(reward, value, last, done, *ends, GAMMA, LMBDA, *out)

    return {
        "scan": lambda: scan(after, done, done),
        "made, scan": lambda: made(False),
        "rollout": lambda: rollout(None, None),
        "made, scan, time-outs": lambda: made(True),
        "rollout, time-outs": lambda: rollout(late, final),
    }


def operations(time: int, lanes: int) -> dict[str, int]:
    shape = (1, time, lanes)
    reward, value, after = torch.randn(shape), torch.randn(shape), torch.randn(shape)
    stop = torch.rand(shape) < 0.02

    def loop() -> None:
        advantage, alive = torch.zeros_like(reward), 1 - stop.float()
        carry = torch.zeros(1, lanes)
        for t in reversed(range(time)):
            delta = reward[:, t] + GAMMA * alive[:, t] * after[:, t] - value[:, t]
            carry = delta + GAMMA * LMBDA * alive[:, t] * carry
            advantage[:, t] = carry

    def doubling() -> None:
        vectorised.gae(reward, value, after, stop, stop, GAMMA, LMBDA)

    out = {}
    for name, run in {"loop": loop, "doubling": doubling}.items():
        with Operations() as seen:
            run()
        out[f"{name}, operations"] = seen.count
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the kernels of advantages.")
    parser.add_argument("--quick", action="store_true", help="few repeats")
    effort = Effort.of(parser.parse_args().quick)
    report: dict[str, dict[str, float]] = {}
    for time, lanes in SHAPES:
        for name, case in host_cases(time, lanes).items():
            report.setdefault(f"{name}, us", {})[f"{time} x {lanes}"] = best_us(case, effort)
        for name, count in operations(time, lanes).items():
            report.setdefault(name, {})[f"{time} x {lanes}"] = count
    shapes = [f"{time} x {lanes}" for time, lanes in SHAPES]
    print(f"{'':28}{''.join(f'{shape:>12}' for shape in shapes)}", file=sys.stderr)
    for name, row in report.items():
        print(f"{name:28}{''.join(f'{row[shape]:12.1f}' for shape in shapes)}", file=sys.stderr)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
