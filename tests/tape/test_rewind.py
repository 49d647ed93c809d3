"""take_back: the newest rows off the tape again, as if they had not been written."""

from __future__ import annotations

import numpy as np
import pytest

from contig import LazyTensorStorage, ReplayBuffer, SliceSampler
from contig.tape.rewind import take_back
from contig.testing import World


def columns(storage: LazyTensorStorage) -> list[object]:
    table = storage.episodes()
    return [table[name].tolist() for name in ("steps", "terminated", "complete", "return")]


@pytest.mark.parametrize("capacity", [40, 25, 12])
def test_written_again_it_is_the_same(capacity: int) -> None:
    storage = LazyTensorStorage(capacity)
    world = World(storage)
    world.extend(9)
    world.interleave(3, 4)
    view = ReplayBuffer(storage, SliceSampler(slice_len=2), seed=0)  # one that has seen it all
    view.sample(8)
    before, rows = columns(storage), storage.gather(np.arange(21 - len(storage), 21))[0]
    taken = take_back(storage, 9)
    kept = max(21 - capacity, 9)
    assert taken["observation"].tolist() == rows["observation"][kept - 21 :].tolist()
    head, tail, _, _ = storage.tape.snapshot()
    assert (head, len(storage)) == (kept, max(kept - max(21 - capacity, 0), 0))
    if tail < head:
        assert columns(storage)[0] == [head - tail]
        assert {int(s) for s in view.sample(32)["index"]} <= set(range(tail, head))
    writer = storage.writer()
    for at in range(0, len(taken) - len(taken) % 3, 3):
        writer.add_step(taken[at : at + 3])
    if capacity >= 21:
        assert columns(storage) == before
        again = storage.gather(np.arange(21))[0]
        assert all((again[path] == rows[path]).all() for path in rows.layout.by_path)


def test_rows_with_fields_or_blobs() -> None:
    row = {"x": np.float32(0)}
    for storage in (LazyTensorStorage(9, fields={"task": 1}), LazyTensorStorage(9)):
        storage.writer().add(row if storage.fields is not None else {**row, "text": "a"})
        with pytest.raises(ValueError, match="cannot be taken back"):
            take_back(storage, 0)
        assert len(storage) == 1


def test_in_the_middle_of_a_run() -> None:
    storage = LazyTensorStorage(20)
    World(storage).extend(9)
    with pytest.raises(ValueError, match="row 4 is in the middle of a run"):
        take_back(storage, 4)
    assert len(storage) == 9
    assert len(take_back(storage, 0)) == 9
    assert len(storage) == 0
