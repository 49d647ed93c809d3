"""Collectors beside a bare Gymnasium loop, one that stores its rows, and torchrl's Collector.

    python -m benchmarks.collect [--quick]

Everything steps CartPole with random actions, and then with a small torch policy beside a bare loop
that runs the same one. "bare" stores nothing; "storing" puts the same leaves
as contig into preallocated numpy columns, and a full block into the same buffer. The candidates
take turns, and each figure is the best of its rounds. torchrl runs in `.venv-peers`, if that is
there. What two workers gain over one is shown beside what two bare loops gain over one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from contig import Collector, GymEnv, LazyTensorStorage, MultiCollector, ReplayBuffer

NAME = "CartPole-v1"
BATCH = 1000

TORCHRL = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv
frames = int(sys.argv[1])
best = float("inf")
for _ in range(int(sys.argv[2])):
    buffer = ReplayBuffer(storage=LazyTensorStorage(frames + 2000))
    collector = Collector(
        GymEnv("CartPole-v1"), None, frames_per_batch=1000, total_frames=frames + 1000
    )
    turns = iter(collector)
    buffer.extend(next(turns))
    start = time.perf_counter()
    for data in turns:
        buffer.extend(data)
    best = min(best, (time.perf_counter() - start) / frames)
    collector.shutdown()
print(json.dumps(best))
"""


def make_env() -> Any:
    return gym.make(NAME)


def bare(frames: int) -> float:
    env = make_env()
    env.reset(seed=0)
    env.action_space.seed(0)
    sample = env.action_space.sample
    start = time.perf_counter()
    for _ in range(frames):
        _, _, terminated, truncated, _ = env.step(sample())
        if terminated or truncated:
            env.reset()
    return (time.perf_counter() - start) / frames


def storing(frames: int) -> float:
    """What a careful person writes: columns made once, one `extend` for a full block."""
    env = make_env()
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    sample = env.action_space.sample
    buffer = ReplayBuffer(LazyTensorStorage(frames))
    wide, flag, word = (BATCH, 4), np.bool_, np.int64
    before, after = np.zeros(wide, np.float32), np.zeros(wide, np.float32)
    action, reward = np.zeros(BATCH, word), np.zeros(BATCH, np.float32)
    init, done, ended, cut = (np.zeros(BATCH, flag) for _ in range(4))
    ids, version = np.zeros(BATCH, word), np.zeros(BATCH, word)
    rows = {
        "observation": before,
        "action": action,
        "is_init": init,
        "next": {
            "observation": after,
            "reward": reward,
            "done": done,
            "terminated": ended,
            "truncated": cut,
        },
        "collector": {"traj_ids": ids, "policy_version": version},
    }
    first, episode = True, 0
    start = time.perf_counter()
    for step in range(frames):
        t = step % BATCH
        before[t], init[t], ids[t] = obs, first, episode
        act = action[t] = sample()
        obs, reward[t], terminated, truncated, _ = env.step(act)
        after[t], ended[t], cut[t] = obs, terminated, truncated
        first = done[t] = terminated or truncated
        if first:
            obs, _ = env.reset()
            episode += 1
        if t == BATCH - 1:
            buffer.extend(rows)
    return (time.perf_counter() - start) / frames


def contig(frames: int, policy: Any = None) -> float:
    buffer = ReplayBuffer(LazyTensorStorage(frames + BATCH))
    collector = Collector(
        GymEnv(NAME),
        policy,
        frames_per_batch=BATCH,
        total_frames=frames + BATCH,
        replay_buffer=buffer,
        seed=0,
    )
    turns = iter(collector)
    next(turns)
    start = time.perf_counter()
    for _ in turns:
        pass
    return (time.perf_counter() - start) / frames


def policy() -> Any:
    """A small torch policy."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, inputs: Any) -> Any:
            return {"action": self.linear(inputs["observation"]).argmax(-1)}

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Net()


def bare_torch(frames: int) -> float:
    import torch

    env, net = make_env(), policy()
    obs, _ = env.reset(seed=0)
    start = time.perf_counter()
    with torch.no_grad():
        for _ in range(frames):
            action = net({"observation": torch.from_numpy(obs)[None]})["action"]
            obs, _, terminated, truncated, _ = env.step(action.numpy()[0])
            if terminated or truncated:
                obs, _ = env.reset()
    return (time.perf_counter() - start) / frames


def contig_torch(frames: int) -> float:
    return contig(frames, policy())


LOOP = """
import sys, time
from benchmarks.collect import bare
print("ready", flush=True)
sys.stdin.readline()
print(bare(int(sys.argv[1])), flush=True)
"""


def loops(count: int, frames: int) -> float:
    """Seconds per frame of bare loops in processes of their own: what the machine can do."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", LOOP, str(frames)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    spent = [float(process.communicate()[0]) for process in running]
    return max(spent) / count


def workers(count: int, frames: int) -> tuple[float, float]:
    """Seconds to start, and seconds per frame of workers that never wait."""
    buffer = ReplayBuffer(LazyTensorStorage(4 * frames))
    start = time.perf_counter()
    with MultiCollector(
        [make_env] * count,
        frames_per_batch=BATCH,
        total_frames=frames,
        replay_buffer=buffer,
        sync=False,
        seed=0,
    ) as collector:
        up = time.perf_counter() - start
        turns = iter(collector)
        next(turns)
        before, start = len(buffer), time.perf_counter()
        for _ in turns:
            pass
        return up, (time.perf_counter() - start) / (len(buffer) - before)


def torch_start() -> tuple[float, float]:
    """Seconds to import torch in a fresh process, and to start two workers that need it."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    alone = time.perf_counter() - start
    net = policy()
    start = time.perf_counter()
    with MultiCollector([make_env] * 2, net, frames_per_batch=100):
        return alone, time.perf_counter() - start


class Policy:
    """Ten megabytes of weights."""

    def __init__(self) -> None:
        self.weights = {f"layer{i}": np.zeros((512, 512), np.float32) for i in range(10)}

    def get_weights(self) -> Any:
        return self.weights

    def set_weights(self, tree: Any) -> None:
        self.weights = tree

    def __call__(self, inputs: Any) -> Any:
        return np.zeros(len(inputs["is_init"]), np.int64)


def weight_update(count: int) -> float:
    """Seconds of one update of the weights of that many running workers."""
    buffer = ReplayBuffer(LazyTensorStorage(100_000))
    collector = MultiCollector(
        [make_env] * count, Policy(), frames_per_batch=100, replay_buffer=buffer, sync=False
    )
    collector.start()
    buffer.sample(10)
    spent = []
    for _ in range(10):
        start = time.perf_counter()
        collector.update_policy_weights_()
        spent.append(time.perf_counter() - start)
        time.sleep(0.05)
    collector.async_shutdown()
    return min(spent)


def torchrl(frames: int, rounds: int) -> float | None:
    python = Path(".venv-peers/bin/python")
    if not python.exists():
        return None
    done = subprocess.run(
        [str(python), "-c", TORCHRL, str(frames), str(rounds)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print("torchrl failed:", done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    quick = parser.parse_args().quick
    frames, rounds = (5_000, 2) if quick else (50_000, 7)
    runs = {"bare": bare, "storing": storing, "contig": contig}
    torch_runs = {"bare torch": bare_torch, "contig torch": contig_torch}
    best = dict.fromkeys([*runs, *torch_runs], 9e9)
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], run(frames))
        for name, run in torch_runs.items():
            best[name] = min(best[name], run(frames // 2))
    for name, seconds in best.items():
        print(f"{name:12} {seconds * 1e6:6.2f} us per frame")
    print(f"contig / bare     {best['contig'] / best['bare']:6.2f}   (goal: at most 1.5)")
    print(f"contig / storing  {best['contig'] / best['storing']:6.2f}   (goal: at most 1.2)")
    ratio = best["contig torch"] / best["bare torch"]
    print(f"contig / bare     {ratio:6.2f}   with a torch policy (goal: at most 1.5)")
    peer = torchrl(2_000 if quick else 10_000, 1 if quick else 3)
    if peer is None:
        print("torchrl    not run")
    else:
        print(f"torchrl    {peer * 1e6:8.2f} us per frame")
        print(f"torchrl / contig  {peer / best['contig']:6.2f}   (goal: at least 20)")
    many = 10_000 if quick else 150_000
    ups, one, two, one_loop, two_loops = [], 9e9, 9e9, 9e9, 9e9
    for _ in range(1 if quick else 5):
        one_loop = min(one_loop, loops(1, many))
        two_loops = min(two_loops, loops(2, many))
        one = min(one, workers(1, many)[1])
        up, spent = workers(2, 2 * many)
        ups.append(up)
        two = min(two, spent)
    print(f"1 worker   {one * 1e6:8.2f} us per frame")
    print(f"2 workers  {two * 1e6:8.2f} us per frame")
    print(f"1 worker / 2      {one / two:6.2f}   (goal: at least 1.8, on two free cores)")
    print(f"1 bare loop / 2   {one_loop / two_loops:6.2f}   (what the machine can do)")
    print(f"2 workers up in   {min(ups):6.2f} s (goal: at most 1.5)")
    alone, both = torch_start()
    print(f"... with torch    {both:6.2f} s (goal: at most {alone:.2f} + 0.5, import torch here)")
    update = weight_update(2 if quick else 8)
    print(f"10 MB of weights  {update * 1e3:6.2f} ms (goal: under 10)")


if __name__ == "__main__":
    main()
