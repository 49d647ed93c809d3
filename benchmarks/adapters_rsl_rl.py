"""rsl_rl's PPO on contig's storage and on its own, and skrl's memories, in one run.

4096 envs x 24 steps, observations of 48 and actions of 12 floats, minibatches 4 x 5 epochs (4 x 1
of recurrent networks), hidden layers of 128, states of 256. Each storage runs in a process of its
own, taking turns for several rounds; a time is the best of all rounds. After the same updates from
the same seeds the parameters must be equal, or this fails.

    add          one step into the storage
    minibatches  all of one update, without learning from them
    update       PPO.update
    memory       resident bytes at the peak, above those before the storage was made; with the
                 networks, their gradients and one minibatch's activations

skrl: a batch of 256 out of 100,000 rows of 4 envs, observations of 17 and actions of 6 floats; and
a training step of DDPG (`skrl_training.py`).

Run: `python -m benchmarks.adapters_rsl_rl [--quick]`; prints JSON, and a table to stderr with the
lines that change in a script; writes its part of `results-adapters.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.drop_ins import DropIn, Training, record
from benchmarks.results import RECORD_HELP
from benchmarks.timing import Effort, best_us

ENVS, STEPS, OBS, ACTIONS, HIDDEN = 4096, 24, 48, 12, 256
SIDES = ("contig", "original")
CASES = ("feed-forward", "recurrent", "skrl")
LINES = {
    "rsl-rl-lib": {"import and install(), before the runner is made": 2},
    "skrl": {"import, and Memory for RandomMemory": 2},
}


def resident(field: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith(field))


def make_ppo(side: str, envs: int, recurrent: bool) -> Any:
    from rsl_rl.algorithms import PPO
    from rsl_rl.models import MLPModel, RNNModel
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    from contig.adapters import rsl_rl as ours

    kind = ours.RolloutStorage if side == "contig" else RolloutStorage
    obs = TensorDict({"policy": torch.zeros(envs, OBS)}, batch_size=[envs])
    groups = {"actor": ["policy"], "critic": ["policy"]}
    options: dict[str, Any] = {"hidden_dims": [128, 128]}
    model: Any = MLPModel
    if recurrent:
        model, options = RNNModel, {**options, "rnn_type": "gru", "rnn_hidden_dim": HIDDEN}
    gauss = {"class_name": "GaussianDistribution"}
    actor = model(obs, groups, "actor", ACTIONS, **options, distribution_cfg=gauss)
    critic = model(obs, groups, "critic", 1, **options)
    storage = kind("rl", envs, STEPS, obs, [ACTIONS])
    return PPO(actor, critic, storage, num_learning_epochs=1 if recurrent else 5)


def collect(ppo: Any, draw: torch.Generator) -> float:
    """One rollout. Seconds spent in the storage."""
    from tensordict import TensorDict

    envs, spent = ppo.storage.num_envs, 0.0
    add = ppo.storage.add_transition

    def timed(transition: Any) -> None:
        nonlocal spent
        start = time.perf_counter()
        add(transition)
        spent += time.perf_counter() - start

    ppo.storage.add_transition = timed
    with torch.inference_mode():
        for _ in range(STEPS):
            new = torch.rand(envs, OBS, generator=draw)
            obs = TensorDict({"policy": new}, batch_size=[envs])
            actions = ppo.act(obs)
            dones = (torch.rand(envs, generator=draw) < 0.02).long()
            ppo.process_env_step(obs, -actions.square().mean(1), dones, {})
        ppo.compute_returns(obs)
    del ppo.storage.add_transition
    return spent


def rsl_case(side: str, recurrent: bool, quick: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    before, rounds = resident("VmRSS"), 2 if quick else 4
    ppo, draw = make_ppo(side, 256 if quick else ENVS, recurrent), torch.Generator().manual_seed(0)
    storage = ppo.storage
    generator = "recurrent_mini_batch_generator" if recurrent else "mini_batch_generator"
    times: dict[str, list[float]] = {"add": [], "minibatches": [], "update": []}
    for _ in range(rounds):
        times["add"].append(collect(ppo, draw) / STEPS)
        start = time.perf_counter()
        for batch in getattr(storage, generator)(ppo.num_mini_batches, ppo.num_learning_epochs):
            del batch
        times["minibatches"].append(time.perf_counter() - start)
        start = time.perf_counter()
        ppo.update()
        times["update"].append(time.perf_counter() - start)
    digest = hashlib.sha256()
    for value in (*ppo.actor.state_dict().values(), *ppo.critic.state_dict().values()):
        digest.update(value.numpy().tobytes())
    return {
        **{f"{name}_us": 1e6 * min(found) for name, found in times.items()},
        "memory_bytes": resident("VmHWM") - before,
        "parameters": digest.hexdigest()[:16],
    }


def skrl_case(side: str, quick: bool) -> dict[str, Any]:
    from skrl.memories.torch import RandomMemory

    from benchmarks.skrl_training import train
    from contig.adapters.skrl import Memory

    before, steps, envs = resident("VmRSS"), 2_500 if quick else 25_000, 4
    kind = Memory if side == "contig" else RandomMemory
    memory = kind(memory_size=steps, num_envs=envs, device="cpu")
    sizes = {"observations": 17, "next_observations": 17, "actions": 6, "rewards": 1}
    for name, size in sizes.items():
        memory.create_tensor(name, size=size, dtype=torch.float32)
    memory.create_tensor("terminated", size=1, dtype=torch.bool)
    step = {name: torch.rand(envs, size) for name, size in sizes.items()}
    step["terminated"] = torch.zeros(envs, 1, dtype=torch.bool)
    for _ in range(steps):
        memory.add_samples(**step)
    effort, names = Effort.of(quick), list(step)
    found = {
        "add_us": best_us(lambda: memory.add_samples(**step), effort),
        "sample_us": best_us(lambda: memory.sample(names, batch_size=256), effort),
        "memory_bytes": resident("VmHWM") - before,
    }
    training, parameters = train(kind, 400 if quick else 2000)
    return {**found, "training step_us": training, "parameters": parameters}


def side_main(case: str, side: str, quick: bool) -> None:
    torch.set_num_threads(1)  # threads of two processes would measure one another
    found = skrl_case(side, quick) if case == "skrl" else rsl_case(side, case == "recurrent", quick)
    print(json.dumps(found))


def run_side(case: str, side: str, quick: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.adapters_rsl_rl", "--case", case, "--side", side]
    done = subprocess.run(
        [*command, *(["--quick"] if quick else [])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{case} of {side} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(case: str, quick: bool) -> dict[str, dict[str, Any]]:
    """Both sides of a case, in turns."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(1 if quick else 3):
        for side in SIDES:
            found = run_side(case, side, quick)
            known = best.setdefault(side, dict(found))
            for name, value in found.items():
                if not isinstance(value, str):
                    known[name] = min(known[name], value)
                elif any(other["parameters"] != value for other in best.values()):
                    raise RuntimeError(f"{case}: parameters differ from the original's")
    return best


def show(case: str, found: dict[str, dict[str, Any]]) -> None:
    for name, ours in found["contig"].items():
        theirs = found["original"][name]
        if isinstance(ours, str):
            print(f"{case:13} parameters are equal", file=sys.stderr)
            continue
        unit, per = ("MB", 1e6) if name.endswith("bytes") else ("ms", 1e3)
        print(
            f"{case:13} {name.rsplit('_', 1)[0]:12}{ours / per:10.3f} {unit}  original "
            f"{theirs / per:10.3f} {unit}  {theirs / ours:5.2f} x",
            file=sys.stderr,
        )


def drop_ins(out: dict[str, dict[str, dict[str, Any]]]) -> dict[str, DropIn]:
    """The figures of the documentation's page."""

    def training(case: str, name: str, step: str) -> Training:
        sides = {side: out[case][side] for side in SIDES}
        return Training(
            step=step,
            time_ms={side: found[f"{name}_us"] / 1e3 for side, found in sides.items()},
            memory_mb={side: found["memory_bytes"] / 1e6 for side, found in sides.items()},
            note="parameters are equal",
        )

    ppo = {
        f"PPO, {case}": training(case, "update", "update") for case in ("feed-forward", "recurrent")
    }
    ddpg = {"DDPG": training("skrl", "training step", "step")}
    return {
        name: DropIn(found, LINES[name]) for name, found in (("rsl-rl-lib", ppo), ("skrl", ddpg))
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="only shows that everything runs")
    parser.add_argument("--record", action="store_true", help=RECORD_HELP)
    parser.add_argument("--case", choices=CASES, help="one case, of one --side, in this process")
    parser.add_argument("--side", choices=SIDES)
    args = parser.parse_args()
    if args.side is not None:
        side_main(args.case, args.side, args.quick)
        return
    out = {case: compare(case, args.quick) for case in CASES}
    for case, found in out.items():
        show(case, found)
    for library, found_of in drop_ins(out).items():
        for what, count in found_of.lines.items():
            print(f"{library}: {count} lines change: {what}", file=sys.stderr)
        if args.record and not args.quick:
            record(library, found_of)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
