"""Leaves without elements beside observations that are stored once: their place in a row is also
that of the leaf behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import (
    LazyTensorStorage,
    NStepSampler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
)
from tests.tape.observations import batch_bytes

STEPS = 40
EMPTY = ((0,), (3, 0))
FORMS: tuple[dict[str, tuple[tuple[int, ...], Any]], ...] = (  # no bytes between two leaves
    {"a": ((0,), np.float64), "b": ((14,), np.int8)},
    {
        "a": ((0,), np.bool_),
        "b": ((0,), np.float32),
        "c": ((5,), np.float64),
        "d": ((3, 0), np.float32),
    },
    {
        "a": ((3, 0), np.bool_),
        "b": ((0,), np.float32),
        "c": ((0,), np.bool_),
        "d": ((14,), np.bool_),
    },
    {
        "a": ((3, 0), np.float32),
        "b": ((5,), np.float64),
        "c": ((16,), np.bool_),
        "d": ((0,), np.float32),
    },
)


def steps(form: dict[str, tuple[tuple[int, ...], Any]]) -> Any:
    rnd = np.random.default_rng(0)
    walk = {k: rnd.integers(0, 100, (STEPS + 1, *s)).astype(d) for k, (s, d) in form.items()}
    ends: dict[str, Any] = {"reward": np.ones(STEPS, np.float32), "done": np.arange(STEPS) % 9 == 8}
    return {
        **{k: v[:-1] for k, v in walk.items()},
        "next": {**{k: v[1:] for k, v in walk.items()}, **ends},
    }


@pytest.mark.parametrize(
    "form", FORMS, ids=lambda form: "".join("-" if s in EMPTY else "x" for s, _ in form.values())
)
@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler,
        PrioritizedSampler,
        lambda: NStepSampler(3, 0.9),
        lambda: NStepSampler(3, 0.9, PrioritizedSampler()),
        lambda: SliceSampler(slice_len=4),
    ],
    ids=["uniform", "prioritized", "n-step", "prioritized n-step", "slices"],
)
def test_samples_are_those_of_a_plain_storage(sampler: Callable[[], Any], form: Any) -> None:
    found = []
    for share in (False, True):
        storage = LazyTensorStorage(100, share_next=share, stack={})
        storage.writer().extend(steps(form))
        buffer = ReplayBuffer(storage, sampler(), batch_size=16, seed=0)
        found.append([batch_bytes(buffer.sample()) for _ in range(4)])
    assert found[0] == found[1]
