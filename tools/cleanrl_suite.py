"""Runs CleanRL's DQN, SAC and TD3 with contig's buffer in the place of theirs, and compares.

    git clone https://github.com/vwxyzjn/cleanrl    and what its scripts need: gymnasium 0.29, tyro,
                                                    tensorboard; older ones stable-baselines3
    python tools/cleanrl_suite.py cleanrl [--steps 3000] [--seed 1] [--only dqn]

Each script runs twice, as it is and with another import, with the same seed: all returns of
episodes that they print must be equal. Nothing of CleanRL is kept here, and nothing is fetched.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = ("dqn", "sac_continuous_action", "td3_continuous_action")
# Small tasks that need no other package, buffers that are full within a few thousand steps.
OPTIONS = {
    "dqn": ["--env-id", "CartPole-v1", "--buffer-size", "1000"],
    "sac_continuous_action": ["--env-id", "Pendulum-v1", "--buffer-size", "1000"],
    "td3_continuous_action": ["--env-id", "Pendulum-v1", "--buffer-size", "1000"],
}
# Newer scripts import CleanRL's buffer, older ones that of stable-baselines3.
_IMPORT = re.compile(
    r"^from (cleanrl_utils\.buffers|stable_baselines3\.common\.buffers) import ReplayBuffer$", re.M
)
OURS = "from contig.adapters.cleanrl import ReplayBuffer"


def patched(text: str) -> tuple[str, int]:
    """A script with contig's buffer, and how many lines are other ones.

    Raises:
        ValueError: it imports no buffer that is known here.
    """
    out, places = _IMPORT.subn(OURS, text)
    if places == 0:
        raise ValueError(
            "no import of ReplayBuffer from cleanrl_utils.buffers or stable_baselines3 found; is "
            "this one of CleanRL's off-policy scripts?"
        )
    pairs = zip(text.splitlines(), out.splitlines(), strict=True)
    return out, sum(a != b for a, b in pairs)


def run(text: str, name: str, checkout: Path, arguments: list[str]) -> tuple[list[str], float]:
    """What a script prints of its episodes, and the seconds of processor time that it took.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="contig-cleanrl-") as folder:
        script = Path(folder, f"{name}.py")
        script.write_text(text)
        paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment["OMP_NUM_THREADS"] = "1"  # of such small nets, threads only wait for each other
        before = _processor_s()
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        spent = _processor_s() - before
    if done.returncode:
        raise RuntimeError(f"{name}.py failed:\n{done.stderr[-3000:]}")
    return [line for line in done.stdout.splitlines() if line.startswith("global_step=")], spent


def _processor_s() -> float:
    """Of all children that have ended: what others do on the machine is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(checkout: Path, folder: Path, name: str, steps: int, seed: int) -> bool:
    """Runs both; prints what came of it."""
    text = (folder / f"{name}.py").read_text()
    mine, lines = patched(text)
    arguments = [*OPTIONS[name], "--seed", str(seed), "--total-timesteps", str(steps)]
    arguments += ["--learning-starts", str(steps // 5)]
    before, their_time = run(text, name, checkout, arguments)
    after, our_time = run(mine, name, checkout, arguments)
    same = before == after and len(before) > 0
    print(
        f"{name:24} {lines} line changed, {len(before)} lines of episodes "
        f"{'equal' if same else 'DIFFERENT'}; theirs {their_time:.1f} s, contig {our_time:.1f} s"
    )
    for a, b in itertools.zip_longest(before, after, fillvalue="nothing"):
        if a != b:
            print(f"  theirs {a}\n  contig {b}")
            break
    return same


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SCRIPTS, action="append")
    args = parser.parse_args(argv)
    checkout = args.checkout.resolve()
    folder = checkout / "cleanrl" if (checkout / "cleanrl").is_dir() else checkout
    found = [
        compare(checkout, folder, name, args.steps, args.seed) for name in args.only or SCRIPTS
    ]
    return 0 if all(found) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
