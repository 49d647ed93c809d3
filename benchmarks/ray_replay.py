"""A sharded buffer on Ray, beside plain Ray actors with pickled dicts, in one run.

    contig    RayReplayBuffer of 3 shards: an actor adds trajectories of 100 rows, 256 are sampled
    plain     an actor with a list of dicts of arrays per shard: `add` and `sample` by `ray.get`
    torchrl   its RayReplayBuffer, one actor, if `.venv-peers` is there
    local     ReplayBuffer over one SharedStorage: what 3 shards on one machine are compared with

Run: `python -m benchmarks.ray_replay [--quick] [--peers-python PATH]`; prints JSON. Goals: 5x
plain actors in rows added and sampled; a sample over 3 shards at most 3x the local one, and hidden
by prefetch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import Tree, cut, make_rows
from benchmarks.timing import Effort, best_us

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

SHARDS, BATCH, STEPS = 3, 256, 100


class PlainShard:
    """What one writes first: rows as dicts in a list, random ones stacked."""

    def __init__(self, capacity: int) -> None:
        self.rows: list[Tree] = []
        self.capacity = capacity
        self.rng = np.random.default_rng(0)

    def add(self, trajectory: Tree) -> None:
        self.rows += [row(trajectory, i) for i in range(STEPS)]
        del self.rows[: -self.capacity]

    def size(self) -> int:
        return len(self.rows)

    def sample(self, n: int) -> Tree:
        return stack([self.rows[i] for i in self.rng.integers(len(self.rows), size=n)])


def row(tree: Tree, i: int) -> Tree:
    return {k: row(v, i) if isinstance(v, dict) else v[i] for k, v in tree.items()}


def stack(rows: list[Tree]) -> Tree:
    return {
        k: stack([r[k] for r in rows]) if isinstance(v, dict) else np.stack([r[k] for r in rows])
        for k, v in rows[0].items()
    }


class Writer:
    """An actor that adds trajectories for a while; rows per second."""

    def __init__(self) -> None:
        self.trajectories = [make_rows(STEPS, seed=i) for i in range(20)]

    def plain(self, shard: Any, seconds: float) -> float:
        import ray

        return self._run(lambda t: ray.get(shard.add.remote(t)), seconds)

    def contig(self, handle: Any, seconds: float) -> tuple[float, bool]:
        with handle.connect() as producer:

            def add(trajectory: Tree) -> None:
                producer.extend_trajectory(trajectory)

            rate = self._run(add, seconds, producer.flush)
            return rate, producer.shared

    def _run(self, add: Any, seconds: float, flush: Any = None) -> float:
        for trajectory in self.trajectories:
            add(trajectory)
        began, n = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for trajectory in self.trajectories:
                add(trajectory)
            n += len(self.trajectories)
        if flush is not None:
            flush(60)
        return n * STEPS / (time.perf_counter() - began)


def measure(effort: Effort) -> dict[str, Any]:
    import ray

    from contig import RayReplayBuffer, ReplayBuffer, SharedStorage

    capacity = effort.rows // 10
    seconds = 0.5 if effort.quick else 2.0
    writer = ray.remote(num_cpus=0)(Writer).remote()
    out: dict[str, Any] = {}

    shards = [ray.remote(num_cpus=0)(PlainShard).remote(capacity) for _ in range(SHARDS)]
    out["plain_rows_added_per_s"] = ray.get(writer.plain.remote(shards[0], seconds))
    for shard in shards[1:]:
        ray.get(writer.plain.remote(shard, 0.2))

    def plain_sample() -> Tree:
        sizes = ray.get([s.size.remote() for s in shards])
        share = np.random.default_rng(1).multinomial(BATCH, np.array(sizes) / sum(sizes))
        return join(ray.get([s.sample.remote(int(n)) for s, n in zip(shards, share)]))

    out["plain_sample_us"] = best_us(plain_sample, effort)

    local = ReplayBuffer(SharedStorage(SHARDS * capacity), batch_size=BATCH, seed=0)
    data = make_rows(SHARDS * capacity)
    local.extend(data)
    with RayReplayBuffer(SHARDS, capacity, batch_size=BATCH, seed=0, placement="local") as buffer:
        rate, shared = ray.get(writer.contig.remote(buffer.client(), seconds))
        out["contig_rows_added_per_s"], out["through_shared_memory"] = rate, shared
        for shard in range(SHARDS):
            buffer.extend(cut(data, shard * capacity, (shard + 1) * capacity), shard=shard)
        times = [(best_us(local.sample, effort), best_us(buffer.sample, effort)) for _ in range(3)]
        out["local_sample_us"], out["contig_sample_us"] = (min(t) for t in zip(*times))
    out["prefetched_us"] = prefetched(data, capacity, effort)
    out["ratios"] = {
        "rows added, contig / plain": rate / out["plain_rows_added_per_s"],
        "rows sampled, contig / plain": out["plain_sample_us"] / out["contig_sample_us"],
        "sample, 3 shards / local": out["contig_sample_us"] / out["local_sample_us"],
    }
    return out


def add_torchrl(out: dict[str, Any], python: Path, quick: bool) -> None:
    """Runs torchrl's in its own environment, and adds how ours compares."""
    if not python.exists():
        out["torchrl"] = f"not run: {python} is not there (make bench makes it)"
        return
    command = [str(python), "-m", "benchmarks.peer_torchrl_ray", *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        out["torchrl"] = f"failed: {done.stderr.strip().splitlines()[-1]}"
        return
    theirs = json.loads(done.stdout.splitlines()[-1])  # libraries print before it
    out |= theirs
    added = out["contig_rows_added_per_s"] / theirs["torchrl_rows_added_per_s"]
    out["ratios"]["rows added, contig / torchrl"] = added
    sampled = theirs["torchrl_sample_us"] / out["contig_sample_us"]
    out["ratios"]["rows sampled, contig / torchrl"] = sampled


def prefetched(data: Tree, capacity: int, effort: Effort) -> dict[str, float]:
    """A step of training that leaves the interpreter alone, and the same with a sample before."""
    from contig import RayReplayBuffer

    def train() -> None:
        time.sleep(0.001)

    out = {"step": best_us(train, effort)}
    for prefetch in (0, 2):
        with RayReplayBuffer(
            SHARDS, capacity, batch_size=BATCH, placement="local", prefetch=prefetch
        ) as buffer:
            for shard in range(SHARDS):
                buffer.extend(cut(data, shard * capacity, (shard + 1) * capacity), shard=shard)

            def step(buffer: Any = buffer) -> None:
                buffer.sample()
                train()

            out[f"step and sample, prefetch={prefetch}"] = best_us(step, effort)
    return out


def join(parts: list[Tree]) -> Tree:
    return {
        k: (join if isinstance(v, dict) else np.concatenate)([p[k] for p in parts])
        for k, v in parts[0].items()
    }


def main() -> None:
    import ray

    parser = argparse.ArgumentParser(description="Measure sharded buffers on Ray.")
    parser.add_argument("--quick", action="store_true", help="only shows that everything runs")
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"))
    args = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    try:
        out = measure(Effort.of(args.quick))
    finally:
        ray.shutdown()
    add_torchrl(out, args.peers_python, args.quick)
    json.dump(out, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
