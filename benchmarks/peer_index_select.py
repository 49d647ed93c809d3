"""The least a column-per-leaf buffer does: `randint`, then one `index_select` per leaf, in torch.

No library is involved and nothing is returned but the tensors; it is the floor of that layout.
Run: `python -m benchmarks.peer_index_select [--quick] [--only CASE ...]`.
"""

from __future__ import annotations

from functools import cache

import torch

from benchmarks.cases import REFERENCE
from benchmarks.rows import make_rows
from benchmarks.timing import Effort, best_us
from benchmarks.worker import worker_main


@cache
def leaves(rows: int) -> list[torch.Tensor]:
    tree = make_rows(rows)
    arrays = [tree["observation"], tree["action"], *tree["next"].values()]
    return [torch.from_numpy(array) for array in arrays]


def sample(effort: Effort, size: int) -> float:
    columns = leaves(effort.rows)

    def draw() -> list[torch.Tensor]:
        index = torch.randint(0, effort.rows, (size,))
        return [column.index_select(0, index) for column in columns]

    return best_us(draw, effort)


def sample_256(effort: Effort) -> float:
    return sample(effort, 256)


def sample_4096(effort: Effort) -> float:
    return sample(effort, 4096)


def chunks_128(effort: Effort) -> float:
    """The actions of the next 16 rows, whatever episode they are of."""
    observation, action, *rest = leaves(effort.rows)
    ahead = torch.arange(16)

    def draw() -> list[torch.Tensor]:
        index = torch.randint(0, effort.rows - 16, (128,))
        chunk = action.index_select(0, (index[:, None] + ahead).reshape(-1)).reshape(128, 16, -1)
        return [chunk, *(column.index_select(0, index) for column in (observation, *rest))]

    return best_us(draw, effort)


CASES = {"sample_256": sample_256, "sample_4096": sample_4096, "chunks_128": chunks_128}

if __name__ == "__main__":
    worker_main(REFERENCE, CASES, ("torch",))
