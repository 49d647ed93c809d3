"""torchrl's RayReplayBuffer: one actor with a LazyTensorStorage, from the process that made it.

Run: `python -m benchmarks.peer_torchrl_ray [--quick]`; prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from torchrl.data import LazyTensorStorage, RayReplayBuffer

from benchmarks.peer_torchrl import to_tensordict
from benchmarks.rows import make_rows
from benchmarks.timing import Effort, best_us

BATCH, STEPS = 256, 100


def measure(effort: Effort) -> dict[str, float]:
    rows = [to_tensordict(make_rows(STEPS, seed=i)) for i in range(20)]
    storage = partial(LazyTensorStorage, 3 * effort.rows // 10)
    buffer = RayReplayBuffer(storage=storage, batch_size=BATCH)
    for trajectory in rows:
        buffer.extend(trajectory)
    began, n = time.perf_counter(), 0
    while time.perf_counter() - began < (0.5 if effort.quick else 2.0):
        for trajectory in rows:
            buffer.extend(trajectory)
        n += len(rows)
    rate = n * STEPS / (time.perf_counter() - began)
    sample_us = best_us(buffer.sample, effort)
    buffer.close()
    return {"torchrl_rows_added_per_s": rate, "torchrl_sample_us": sample_us}


def main() -> None:
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    out, sys.stdout = sys.stdout, sys.stderr  # torchrl prints
    try:
        found = measure(Effort.of("--quick" in sys.argv))
    finally:
        ray.shutdown()
    print(json.dumps(found), file=out)


if __name__ == "__main__":
    main()
