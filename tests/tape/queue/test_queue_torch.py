"""Batches of the queue as torch tensors: the same memory, pinned as long as a tensor lives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from contig import Layout
from contig.tape.queue import BatchQueue

torch = pytest.importorskip("torch")


def test_tensors_share_and_keep_the_batch() -> None:
    queue = BatchQueue.create(Layout({"x": np.zeros(3, np.float32), "y": np.int64(0)}), 2, 2)
    for value in range(4):
        queue.submit({"x": np.full(3, value, np.float32), "y": np.int64(value)})
    batch = queue.take()
    assert batch is not None
    address = batch["x"].ctypes.data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_warn_always(True)  # or only the first tensor of the process would warn
        try:
            tensors = batch.torch()
        finally:
            torch.set_warn_always(False)
    assert tensors["x"].data_ptr() == address
    del batch
    queue.take(copy=True)
    more = {"x": np.full(3, 9, np.float32), "y": np.int64(9)}
    for _ in range(2):
        queue.submit(more, timeout=0)
    with pytest.raises(TimeoutError):
        queue.submit(more, timeout=0)
    assert tensors["x"][:, 0].tolist() == [0, 1]
    del tensors["y"]
    with pytest.raises(TimeoutError):
        queue.submit(more, timeout=0)
    del tensors
    queue.submit(more, timeout=0)
