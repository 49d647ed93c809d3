"""Predicates and fields in samples while processes write, and change what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from contig import NothingEligibleError, ReplayBuffer, SharedStorage, SliceSampler, WindowSampler
from contig.errors import EmptyBufferError
from contig.sample import Index
from tests.sample.drawing import Array
from tests.tape.processes import field_workers as workers
from tests.waiting import WAIT_S
from tests.zygote import Zygote

CAPACITY = 64
FIELDS = ("key", "body")


def even(columns: Any) -> Array:
    """Records that are whole, of which every other one is let pass."""
    assert workers.wrong(columns["key"], columns["body"]) is None
    found: Array = columns["key"][:, 1] % 2 == 0
    return found


def test_nothing_is_mixed(zygote: Zygote, name: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    options = {"name": name, "stop": str(stop)}
    with SharedStorage(CAPACITY, name=name, example=workers.ROW, fields=workers.FIELDS) as storage:
        storage.tape.lock_timeout_s = WAIT_S
        writers = [zygote.start(workers.write, writer=w, **options) for w in (1, 2)]
        changer = zygote.start(workers.change, writer=3, **options)
        slices = SliceSampler(slice_len=2, where=even, fields=FIELDS)
        rows = WindowSampler(where=even, fields=FIELDS)
        buffers = [ReplayBuffer(storage, sampler, seed=0) for sampler in (slices, rows)]
        drawn = 0
        while drawn < 400 or storage.tape.snapshot()[0] < 20 * CAPACITY:
            assert all(c.alive() for c in (*writers, changer))
            for buffer in buffers:
                try:
                    batch = buffer.sample(16)
                except (EmptyBufferError, NothingEligibleError):
                    continue
                drawn += 1
                key, body = (batch["fields", f] for f in FIELDS)
                assert workers.wrong(key, body) is None
                # Each row has its own trajectory's.
                step = batch["uid"] - key[:, 0]
                assert ((step >= 0) & (step < workers.LONGEST)).all()
        stop.touch()
        for child in (*writers, changer):
            child.result(WAIT_S)
        for buffer in buffers:  # at rest, each has heard of everything
            index = buffer._index
            index.refresh()
            predicate = buffer.sampler._where  # type: ignore[attr-defined]
            passing = index.where(predicate).filters.passing(predicate)
            fresh = Index(storage)
            fresh.refresh()
            assert passing == fresh.where(predicate).filters.passing(predicate)
            table = storage.episodes()
            assert passing == np.count_nonzero(table["key"][:, 1] % 2 == 0)
            buffer.close()
