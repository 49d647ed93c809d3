"""CleanRL's scripts with contig's buffer and with theirs, in one run.

training   ms of processor time per environment step of DQN, SAC and TD3: scripts in CleanRL's
           manner (those that the tests run), or CleanRL's own (`--cleanrl CHECKOUT`), each in
           processes of its own, taking turns: what a longer run takes more than a shorter one, the
           best of rounds. What they print of their episodes must be equal, or this fails
calls      add of one step, sample of 256: full buffers, best of repeats
held       MB of a full buffer: the arrays of theirs, contig's mapped pages with the index
lines      that change in a script

Theirs is stable-baselines3's ReplayBuffer, which the scripts import, or have a copy of.

Run: `python -m benchmarks.adapters_cleanrl [--quick]`, some 5 minutes without; prints JSON, and
tables to stderr; writes its part of `results-adapters.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer as Theirs

from benchmarks.adapters_sb3 import held
from benchmarks.drop_ins import DropIn, Training, record
from benchmarks.results import RECORD_HELP
from benchmarks.timing import Effort, best_us
from contig.adapters.cleanrl import ReplayBuffer as Ours
from tools.cleanrl_suite import OPTIONS, SCRIPTS, patched, run

SIDES = ("contig", "original")
SCRIPTS_HERE = Path(__file__).parents[1] / "tests" / "adapters" / "cleanrl_scripts"
STEPS = {"dqn": 12_000, "sac_continuous_action": 2400, "td3_continuous_action": 4000}
EPISODE, BATCH = 200, 256
SPACES: dict[str, tuple[Any, Any]] = {
    "CartPole": (spaces.Box(-5, 5, (4,), np.float32), spaces.Discrete(2)),
    "Pendulum": (spaces.Box(-8, 8, (3,), np.float32), spaces.Box(-2, 2, (1,), np.float32)),
    "HalfCheetah": (spaces.Box(-9, 9, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)),
}


def measure_training(checkout: Path | None, steps: dict[str, int], rounds: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    scripts = SCRIPTS_HERE if checkout is None else checkout / "cleanrl"
    for name in SCRIPTS:
        theirs = (scripts / f"{name}.py").read_text()
        mine, lines = patched(theirs)
        texts = dict(zip(SIDES, (mine, theirs)))
        long, short = steps[name], steps[name] // 4
        best = {(side, n): float("inf") for side in SIDES for n in (long, short)}
        printed: dict[tuple[str, int], list[str]] = {}
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                for n in (long, short):
                    arguments = [*OPTIONS[name], "--seed", "1", "--total-timesteps", str(n)]
                    arguments += ["--learning-starts", str(short // 2)]
                    told, spent = run(texts[side], name, checkout or scripts, arguments)
                    best[side, n] = min(best[side, n], spent)
                    printed[side, n] = told
        if printed["contig", long] != printed["original", long] or not printed["contig", long]:
            raise RuntimeError(f"{name}: other episodes with contig's buffer than with theirs")
        out[name] = {
            "steps": long - short,
            "ms per step": {
                side: 1e3 * (best[side, long] - best[side, short]) / (long - short)
                for side in SIDES
            },
            "equal lines of episodes": len(printed["contig", long]),
            "lines changed": lines,
        }
    return out


def measure_buffer(cls: Any, space: Any, action: Any, effort: Effort) -> dict[str, float]:
    buffer = cls(effort.rows, space, action, torch.device("cpu"), handle_timeout_termination=False)
    draw = np.random.default_rng(0)
    seen = [draw.random((1, *space.shape)).astype(space.dtype) for _ in range(EPISODE + 1)]
    done, go_on = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    act, reward = np.zeros((1, *action.shape), action.dtype), np.zeros(1)
    step = 0

    def add() -> None:
        nonlocal step
        at = step % EPISODE
        end = done if at == EPISODE - 1 else go_on
        buffer.add(seen[at], seen[at + 1], act, reward, end, {})
        step += 1

    for _ in range(effort.rows):
        add()
    return {
        "add us": best_us(add, effort),
        f"sample {BATCH} us": best_us(lambda: buffer.sample(BATCH), effort),
        "held MB": held(buffer) / 1e6,
    }


def measure_calls(effort: Effort) -> dict[str, dict[str, dict[str, float]]]:
    out: dict[str, dict[str, dict[str, float]]] = {}
    for name, of in SPACES.items():
        sides = {side: measure_buffer(cls, *of, effort) for side, cls in zip(SIDES, (Ours, Theirs))}
        out[name] = {what: {s: sides[s][what] for s in SIDES} for what in sides["contig"]}
    return out


def show(results: dict[str, Any]) -> str:
    lines = [f"{'':24} {'':16} {'contig':>10} {'original':>10} {'ratio':>8}"]

    def line(name: str, what: str, found: dict[str, float], form: str) -> None:
        mine, other = found["contig"], found["original"]
        ratio = f"{other / mine:.2f}x"
        lines.append(f"{name:24} {what:16} {mine:>10{form}} {other:>10{form}} {ratio:>8}")

    for name, found in results["calls"].items():
        for what, sides in found.items():
            line(name, what, sides, ".1f")
    for name, found in results["training"].items():
        line(name, "ms per step", found["ms per step"], ".3f")
        lines.append(
            f"{'':24} {found['equal lines of episodes']} lines of episodes equal, "
            f"{found['lines changed']} line of the script changed"
        )
    return "\n".join(lines)


def drop_in(results: dict[str, Any]) -> DropIn:
    """The figures of the documentation's page."""
    trainings = {}
    for name, found in results["training"].items():
        env = "CartPole" if name == "dqn" else "Pendulum"
        trainings[f"{name}.py, {env}"] = Training(
            step="step of the env",
            time_ms=found["ms per step"],
            memory_mb=results["calls"][env]["held MB"],
            note=f"the same {found['equal lines of episodes']} returns of episodes",
        )
    lines = {f"{name}.py": x["lines changed"] for name, x in results["training"].items()}
    return DropIn(trainings, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    parser.add_argument("--record", action="store_true", help=RECORD_HELP)
    parser.add_argument("--cleanrl", type=Path, default=None, help="a checkout of CleanRL")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small nets: more threads only wait for one another
    steps = {name: n // 8 if args.quick else n for name, n in STEPS.items()}
    checkout = None if args.cleanrl is None else args.cleanrl.resolve()
    results = {
        "calls": measure_calls(Effort.of(args.quick)),
        "training": measure_training(checkout, steps, 1 if args.quick else 3),
    }
    print(show(results), file=sys.stderr)
    print(json.dumps(results, indent=1))
    if args.record and not args.quick:
        record("cleanrl", drop_in(results))


if __name__ == "__main__":
    main()
