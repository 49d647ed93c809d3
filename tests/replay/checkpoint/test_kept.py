"""Checkpoints that contig 0.1 wrote, kept in `kept/format-1`.

`said.json` has, for each, the indices of the batches drawn before the checkpoint and after it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import ReplayBuffer

from .buffers import CAPACITY, fresh

KEPT = Path(__file__).parent / "kept" / "format-1"
SAID: dict[str, Any] = json.loads((KEPT / "said.json").read_text())
TAIL, HEAD = SAID["rows"]

# Their draws did not change since.
SAME = ("random", "without replacement", "slices without replacement", "fifo", "lifo")
SIZES = (CAPACITY, 4 * CAPACITY)


def loaded(name: str, capacity: int) -> tuple[ReplayBuffer, dict[str, Any]]:
    folder = name.replace(" ", "-")
    buffer = fresh(name, capacity)
    buffer.load(KEPT / folder)
    assert [int(x) for x in buffer.storage.tape.snapshot()[:2]] == [HEAD, TAIL]
    return buffer, SAID[folder]


@pytest.mark.parametrize("capacity", SIZES)
@pytest.mark.parametrize("name", [*SAME, "fifo of trajectories"])
def test_goes_on_as_it_did(name: str, capacity: int) -> None:
    buffer, said = loaded(name, capacity)
    assert [buffer.sample()["index"].tolist() for _ in said["next"]] == said["next"]


@pytest.mark.parametrize("capacity", SIZES)
def test_rows_retire_after_as_many_draws(capacity: int) -> None:
    buffer, said = loaded("retiring", capacity)
    drawn = Counter(i for batch in said["drawn"] for i in batch)
    left = 3 * (HEAD - TAIL) - sum(drawn.values())
    for _ in range(left // 8 - 4):
        drawn.update(buffer.sample()["index"].tolist())
    assert max(drawn.values()) == 3
    assert sum(drawn.values()) > 2.5 * (HEAD - TAIL)


@pytest.mark.parametrize("capacity", SIZES)
def test_rows_keep_their_priorities(capacity: int) -> None:
    buffer, said = loaded("prioritized", capacity)
    weights = dict(said["weights"])
    found: dict[int, float] = {}
    for _ in range(400):
        batch = buffer.sample()
        found.update(zip(batch["index"].tolist(), batch["priority_weight"].tolist()))
    both = found.keys() & weights.keys()
    assert len(both) > 0.9 * (HEAD - TAIL)
    assert len({round(weights[i], 4) for i in both}) > 3  # so that a mixed-up row would show
    np.testing.assert_allclose([found[i] for i in both], [weights[i] for i in both], rtol=1e-5)
