"""Value estimators and recurrent modules beside torchrl and an rsl_rl-style implementation.

- GAE of 4096 environments x 24 steps.
- A GRU (64 inputs, 64 hidden) over 1024 flat rows: 32 slices of 32, and 32 trajectories of random
  length; forward with gradients recorded, and forward and backward.

"padded" is what rsl_rl does, and only that: a loop over time for GAE; trajectories split and padded
to the longest for `nn.GRU`, whose output is unpadded again. torchrl pads too (its faster way) and
runs in the peers' environment, in a process of its own. The libraries take turns; the best repeat
of all rounds counts, with one thread of torch.

Run: `python -m benchmarks.learn [--quick] [--rounds N]`; prints JSON, and the ratios to stderr.
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

import torch

from benchmarks.timing import Effort, best_us

os.environ.setdefault("RL_WARNINGS", "0")

ENVS, STEPS, ROWS, PIECES, WIDTH = 4096, 24, 1024, 32, 64
GAMMA, LMBDA = 0.99, 0.95
ROOT = Path(__file__).parents[1]
Cases = dict[str, Callable[[], Any]]


# -- data -----------------------------------------------------------------------------------------


def rollout() -> dict[str, Any]:
    """Steps ``[T, B]``; one in 50 ends an episode."""
    torch.manual_seed(0)
    shape = (STEPS, ENVS)
    value = torch.randn(STEPS + 1, ENVS)
    done = torch.rand(shape) < 0.02
    return {
        "reward": torch.randn(shape),
        "value": value[:-1].contiguous(),
        "next_value": value[1:].contiguous(),
        "done": done,
        "terminated": done & (torch.rand(shape) < 0.5),
    }


def starts(ragged: bool) -> Any:
    """Where the pieces of the flat rows begin."""
    first = torch.zeros(ROWS, dtype=torch.bool)
    if ragged:
        generator = torch.Generator().manual_seed(0)
        first[torch.randperm(ROWS - 1, generator=generator)[: PIECES - 1] + 1] = True
        first[0] = True
    else:
        first[:: ROWS // PIECES] = True
    return first


def sequences(ragged: bool) -> dict[str, Any]:
    torch.manual_seed(1)
    x, h = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 1, WIDTH)
    return {"x": x, "h": h, "is_init": starts(ragged)}


def recurrent_cases(run: Callable[[bool], Callable[[], Any]]) -> Cases:
    """`run(ragged)` gives a forward pass that returns the outputs."""
    out: Cases = {}
    for ragged, name in ((False, "32 x 32"), (True, "ragged")):
        forward = run(ragged)

        def both(forward: Callable[[], Any] = forward) -> None:
            forward().sum().backward()

        out[f"GRU {name}, forward"] = forward
        out[f"GRU {name}, forward and backward"] = both
    return out


# -- contig ---------------------------------------------------------------------------------------


def contig_cases() -> Cases:
    from contig import GRUModule, set_recurrent_mode
    from contig.learn import gae

    steps = rollout()
    keys = {"in_keys": ["x", "h", "is_init"], "out_keys": ["y", ("next", "h")]}

    def run(ragged: bool) -> Callable[[], Any]:
        data, net = sequences(ragged), GRUModule(WIDTH, WIDTH, **keys)  # type: ignore[arg-type]

        def forward() -> Any:
            with set_recurrent_mode("recurrent"):
                return net(data)["y"]

        return forward

    return {
        "GAE 4096 x 24": lambda: gae(**steps, gamma=GAMMA, lmbda=LMBDA),
        **recurrent_cases(run),
    }


# -- padded, as rsl_rl ----------------------------------------------------------------------------


def padded_gae(steps: dict[str, Any]) -> tuple[Any, Any]:
    returns = torch.empty_like(steps["reward"])
    advantage: Any = 0
    alive, bootstraps = 1 - steps["done"].float(), 1 - steps["terminated"].float()
    for t in reversed(range(STEPS)):
        value = steps["value"][t]
        delta = steps["reward"][t] + GAMMA * bootstraps[t] * steps["next_value"][t] - value
        advantage = delta + GAMMA * LMBDA * alive[t] * advantage
        returns[t] = advantage + value
    return returns - steps["value"], returns


def padded_cases() -> Cases:
    steps = rollout()

    def run(ragged: bool) -> Callable[[], Any]:
        data, net = sequences(ragged), torch.nn.GRU(WIDTH, WIDTH)

        def forward() -> Any:
            first = data["is_init"].nonzero()[:, 0]
            lengths = torch.diff(first, append=torch.tensor([ROWS]))
            pieces = torch.split(data["x"], lengths.tolist())
            padded = torch.nn.utils.rnn.pad_sequence(pieces)
            mask = torch.arange(len(padded))[:, None] < lengths
            h0 = data["h"][first].transpose(0, 1).contiguous()
            out, _ = net(padded, h0)
            return out.transpose(0, 1)[mask.transpose(0, 1)]

        return forward

    return {"GAE 4096 x 24": lambda: padded_gae(steps), **recurrent_cases(run)}


# -- torchrl --------------------------------------------------------------------------------------


def torchrl_cases() -> Cases:
    from tensordict import TensorDict
    from torchrl.modules import GRUModule, set_recurrent_mode
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

    steps = {k: v.transpose(0, 1).unsqueeze(-1).contiguous() for k, v in rollout().items()}
    order = ("value", "next_value", "reward", "done", "terminated")
    arguments = [steps[k] for k in order]

    def run(ragged: bool) -> Callable[[], Any]:
        data = sequences(ragged)
        data["is_init"] = data["is_init"].unsqueeze(-1)
        net = GRUModule(
            WIDTH,
            WIDTH,
            in_keys=["x", "h", "is_init"],
            out_keys=["y", ("next", "h")],
            recurrent_backend="pad",
        )

        def forward() -> Any:
            with set_recurrent_mode("recurrent"):
                return net(TensorDict(data, batch_size=[ROWS]))["y"]

        return forward

    return {
        "GAE 4096 x 24": lambda: vec_generalized_advantage_estimate(GAMMA, LMBDA, *arguments),
        **recurrent_cases(run),
    }


# -- taking turns ---------------------------------------------------------------------------------

MAKERS = {"contig": contig_cases, "padded": padded_cases, "torchrl": torchrl_cases}


def measure(library: str, effort: Effort) -> dict[str, float]:
    """Microseconds of every case, in this process."""
    torch.set_num_threads(1)
    return {name: best_us(case, effort) for name, case in MAKERS[library]().items()}


def in_turn(library: str, python: Path, quick: bool) -> dict[str, float]:
    """The same in a process of another environment; {} if that cannot be."""
    command = [str(python), "-m", "benchmarks.learn", "--library", library]
    done = subprocess.run(
        command + ["--quick"] * quick, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{library} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(rounds: int, quick: bool, peers: Path) -> dict[str, dict[str, float]]:
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for library in MAKERS:
            python = peers if library == "torchrl" else Path(sys.executable)
            if not python.exists():
                continue
            for case, us in in_turn(library, python, quick).items():
                row = best.setdefault(case, {})
                row[library] = min(us, row.get(library, us))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure estimators and recurrent modules.")
    parser.add_argument("--quick", action="store_true", help="one round, few repeats")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--library", choices=MAKERS, help="measure one, in this process")
    parser.add_argument("--peers-python", type=Path, default=ROOT / ".venv-peers/bin/python")
    arguments = parser.parse_args()
    if arguments.library:
        print(json.dumps(measure(arguments.library, Effort.of(arguments.quick))))
        return
    rounds = 1 if arguments.quick else arguments.rounds
    report = run(rounds, arguments.quick, arguments.peers_python)
    head = "".join(f"{name:>12}" for name in MAKERS)
    print(f"{'microseconds':36}{head}{'of padded':>11}{'of torchrl':>11}", file=sys.stderr)
    for case, row in report.items():
        ours = row.get("contig", float("nan"))
        figures = "".join(f"{row.get(name, float('nan')):12.0f}" for name in MAKERS)
        ratios = [ours / row.get(n, float("nan")) for n in ("padded", "torchrl")]
        print(f"{case:36}{figures}{ratios[0]:10.2f}x{ratios[1]:10.2f}x", file=sys.stderr)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
