"""What is between the columns of a batch that others get: zeros, not what was in memory before."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from contig import Batch, Blob, LazyTensorStorage, Ragged, ReplayBuffer, _native
from contig.collect.relay import batch_parts
from contig.layout import Layout
from contig.server.sampling_service import answer_request
from contig.wire import Type

DIRT = 0x5A
N = 5
PLAIN = {"a": np.int8(0), "b": np.float64(0), "c": np.zeros(3, np.int16)}
SIZED = {**PLAIN, "note": Blob(text=True), "tokens": Ragged(np.int32), "z": np.bool_(False)}
EMPTY = {**PLAIN, "wide": np.zeros((2, 0), np.float32)}
EXAMPLES = {"plain": PLAIN, "any size": SIZED, "no bytes": EMPTY}


def rows(example: dict[str, Any]) -> dict[str, Any]:
    """Their bytes are 1 and 0, and never what is in memory."""
    out = {k: np.ones((N, *np.shape(v)), v.dtype) for k, v in example.items() if k in EMPTY}
    if "note" in example:
        out["note"] = ["\x01" * n for n in range(N)]
        out["tokens"] = [np.ones(n, np.int32) for n in (3, 0, 1, 2, 1)]
        out["z"] = np.ones(N, bool)
    return out


class Dirty:
    """Batches of a buffer, in memory that was used for something else before."""

    def on_sample(self, batch: Batch) -> Batch:
        clean = batch.sealed_block
        block = _native.Block(len(clean))
        memory = np.frombuffer(block, np.uint8)
        memory[:] = DIRT
        columns = [batch._leaf(i) for i in range(len(batch.layout.leaves))]
        parts = [c.offsets if isinstance(c, Ragged) else c for c in columns]
        parts += [c.values for c in columns if isinstance(c, Ragged)]
        start = clean.__array_interface__["data"][0]
        for part in parts:
            at = part.__array_interface__["data"][0] - start
            if part.nbytes:
                memory[at : at + part.nbytes] = clean[at : at + part.nbytes]
        return Batch(block, batch.layout, batch.shape, batch.extras)


@pytest.fixture(params=EXAMPLES)
def buffer(request: Any) -> ReplayBuffer:
    example = EXAMPLES[request.param]
    buffer = ReplayBuffer(LazyTensorStorage(50, example=example), batch_size=N, transform=Dirty())
    buffer.extend(rows(example))
    return buffer


def same(one: Batch, two: Batch) -> bool:
    pairs = [(one[p], two[p]) for p in one.keys()]  # noqa: SIM118
    return all(
        list(map(np.ndarray.tolist, map(np.asarray, a)))
        == list(map(np.ndarray.tolist, map(np.asarray, b)))
        for a, b in pairs
    )


def test_between_columns(buffer: ReplayBuffer) -> None:
    batch = buffer.sample()
    before = Batch(bytes(batch.block), batch.layout, batch.shape, batch.extras)
    assert DIRT in batch.block
    assert DIRT not in batch.sealed_block
    assert same(batch, before) and same(before, batch)
    assert DIRT in before.sealed_block  # it cannot be written to: whoever made it has done that


def test_of_a_sample_from_afar(buffer: ReplayBuffer) -> None:
    *_, block = answer_request(buffer, Type.SAMPLE, 1, bytes(8), 1 << 20)
    assert memoryview(block).nbytes == buffer.sample().block.nbytes
    assert DIRT not in bytes(block)


def test_of_a_pickled_batch(buffer: ReplayBuffer) -> None:
    batch = buffer.sample()
    again = pickle.loads(pickle.dumps(batch))
    assert DIRT not in again.block and same(batch, again)


def test_of_a_worker_that_sends_batches_back(buffer: ReplayBuffer) -> None:
    _, block = batch_parts(buffer.sample())
    assert DIRT not in block


def test_of_no_rows() -> None:
    batch = Batch.empty(Layout(PLAIN), (0,))
    assert len(pickle.loads(pickle.dumps(batch))) == 0
