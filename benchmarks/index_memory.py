"""Memory that a tape's index takes for steps of many envs: `add_step` makes an entry for each row.

Run: `python -m benchmarks.index_memory`; prints one line. What is measured is what the system gave
the tape's file, less what its rows take.
"""

from __future__ import annotations

import os

import numpy as np

from contig import LazyTensorStorage

ENVS = 4096
STEPS = 256


def step(number: int) -> dict[str, object]:
    return {
        "observation": np.full((ENVS, 2), number, np.float32),
        "next": {"reward": np.ones(ENVS, np.float32), "done": np.zeros(ENVS, np.bool_)},
    }


def main() -> None:
    storage = LazyTensorStorage(ENVS * STEPS)
    writer = storage.default_writer
    for number in range(STEPS):
        writer.add_step(step(number))
    given = os.fstat(storage.fd).st_blocks * 512
    _, data = storage.tape.data_range
    rows = ENVS * STEPS
    print(f"{ENVS} envs, {rows:,} rows: {(given - data) / rows:.1f} bytes of index per row")


if __name__ == "__main__":
    main()
