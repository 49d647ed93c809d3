"""Leaves without elements beside observations that are stored once: their place in a row is also
that of the leaf behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, NStepSampler, PrioritizedSampler, RandomSampler, ReplayBuffer
from tests.tape.observations import batch_bytes


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler,
        PrioritizedSampler,
        lambda: NStepSampler(3, 0.9),
        lambda: NStepSampler(3, 0.9, PrioritizedSampler()),
    ],
)
def test_samples_are_those_of_a_plain_storage(sampler: Callable[[], Any]) -> None:
    state = np.arange(41 * 14).reshape(41, 14).astype(np.int8)
    empty = np.zeros((40, 0))
    ends: dict[str, Any] = {"reward": np.ones(40, np.float32), "done": np.arange(40) % 9 == 8}
    rows = {"a": empty, "b": state[:-1], "next": {"a": empty, "b": state[1:], **ends}}
    found = []
    for share in (False, True):
        storage = LazyTensorStorage(100, share_next=share, stack={})
        storage.writer().extend(rows)
        buffer = ReplayBuffer(storage, sampler(), batch_size=16, seed=0)
        found.append([batch_bytes(buffer.sample()) for _ in range(4)])
    assert found[0] == found[1]
