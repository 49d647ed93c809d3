"""The runs of rows are found wherever they are: long, of one row each, growing, evicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage
from contig.sample import Index


def rows(ids: Any, steps: Any) -> Any:
    return {
        "id": np.asarray(ids),
        "step": np.asarray(steps),
        "collector": {"traj_ids": np.asarray(ids)},
    }


def check(storage: LazyTensorStorage, index: Index, rng: np.random.Generator) -> None:
    index.refresh()
    stored = storage.gather(np.arange(index.tail, index.head))[0]
    place = {pair: seq for seq, pair in enumerate(zip(stored["id"], stored["step"]), index.tail)}
    seqs = rng.integers(index.tail, index.head, 200)
    found, lengths = index.view.follow(seqs, 4)
    at = 0
    for seq, length in zip(seqs.tolist(), lengths.tolist()):
        number, step = stored["id"][seq - index.tail], stored["step"][seq - index.tail]
        expected = []
        while len(expected) < 4 and (number, step + len(expected)) in place:
            expected.append(place[number, step + len(expected)])
        assert found[at : at + length].tolist() == expected
        at += length


@pytest.mark.parametrize("shape", ["long", "short", "steps", "growing", "mixed"])
@pytest.mark.parametrize("capacity", [50, 64, 1000, 5000])
def test_rows_that_follow(shape: str, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    storage = LazyTensorStorage(capacity)
    index = Index(storage)
    newcomer = 1000
    envs = np.zeros(7, np.int64)  # steps of each, for runs of one row
    grown = 0
    for _ in range(40):
        kind = rng.choice(["long", "short", "steps", "growing"]) if shape == "mixed" else shape
        if kind == "steps":
            for _ in range(30):
                storage.default_writer.extend(rows(np.arange(7), envs))
                envs += 1
        elif kind == "growing":
            n = int(rng.integers(1, 150))
            storage.default_writer.extend(rows(np.full(n, 500), grown + np.arange(n)))
            grown += n
        else:
            n = int(rng.integers(65, 400) if kind == "long" else rng.integers(1, 20))
            storage.default_writer.extend(rows(np.full(n, newcomer), np.arange(n)))
            newcomer += 1
        check(storage, index, rng)
        check(storage, Index(storage), rng)  # one that sees it all at once
