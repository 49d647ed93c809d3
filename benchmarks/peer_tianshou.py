"""tianshou: ReplayBuffer of 20k rows, a fiftieth of what the others hold.

It adds one step at a time, and filling a million rows so would take minutes; the smaller buffer
favours it. Run: `python -m benchmarks.peer_tianshou [--quick] [--only CASE ...]`.
"""

from __future__ import annotations

from functools import cache

from tianshou.data import Batch, ReplayBuffer

from benchmarks.rows import make_rows
from benchmarks.timing import Effort, best_us, cycling
from benchmarks.worker import worker_main


def steps(count: int) -> list[Batch]:
    """`count` one-step batches, as its collector makes them."""
    rows = make_rows(count, seed=60)
    after = rows["next"]
    return [
        Batch(
            obs=rows["observation"][index],
            act=rows["action"][index],
            rew=after["reward"][index],
            terminated=after["terminated"][index],
            truncated=after["truncated"][index],
            obs_next=after["observation"][index],
        )
        for index in range(count)
    ]


@cache
def uniform(rows: int) -> ReplayBuffer:
    buffer = ReplayBuffer(rows)
    for step in steps(rows):
        buffer.add(step)
    return buffer


def add_1(effort: Effort) -> float:
    step = cycling(steps(1000))
    buffer = uniform(effort.tianshou_rows)
    return best_us(lambda: buffer.add(step()), effort)


def sample_256(effort: Effort) -> float:
    buffer = uniform(effort.tianshou_rows)
    return best_us(lambda: buffer.sample(256), effort)


def sample_4096(effort: Effort) -> float:
    buffer = uniform(effort.tianshou_rows)
    return best_us(lambda: buffer.sample(4096), effort)


CASES = {"add_1": add_1, "sample_256": sample_256, "sample_4096": sample_4096}

if __name__ == "__main__":
    worker_main("tianshou", CASES, ("tianshou", "numpy"))
