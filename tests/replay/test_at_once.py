"""Samples by one native call are those that come step by step: the same seed, the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import (
    DiskStorage,
    LazyTensorStorage,
    NothingEligibleError,
    NStepSampler,
    Ragged,
    RandomSampler,
    ReplayBuffer,
    Storage,
)
from contig.sample import Draw, Index, Request, Rng, Sampler

FRAME = (2, 24, 24)


class Asked(RandomSampler):
    """Has to be asked: it might draw anything."""

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        return super().draw(index, rng, request)


def vectors(n: int, rng: np.random.Generator) -> Any:
    seen = rng.standard_normal((n + 1, 9)).astype(np.float32)
    return seen[:-1], seen[1:]


def frames(n: int, rng: np.random.Generator) -> Any:
    seen = rng.integers(0, 4, (n + 2, *FRAME[1:]), np.uint8)
    stacks = np.stack([seen[:-1], seen[1:]], 1)
    return stacks[:-1], stacks[1:]


def lines(n: int, rng: np.random.Generator) -> Any:
    def column() -> Ragged:
        return Ragged.of([np.arange(k, dtype=np.int32) for k in rng.integers(0, 9, n)])

    return column(), column()


# Observations, what the storage is told of them, and whether one call reads them.
FORMS: dict[str, tuple[Callable[..., Any], dict[str, Any], bool]] = {
    "plain": (vectors, {"share_next": False}, True),
    "slots": (vectors, {"share_next": True}, True),
    "stacks": (frames, {"stack": {"observation": 2}}, True),
    "encoded slots": (
        frames,
        {"stack": {"observation": 2}, "codecs": {"observation": "lz4"}},
        True,
    ),
    "blobs": (lines, {}, True),
    "codecs": (frames, {"share_next": False, "codecs": {"observation": "lz4"}}, False),
}
forms = pytest.mark.parametrize("form", FORMS)
SAMPLERS: dict[str, Callable[[Sampler], Sampler]] = {
    "uniform": lambda inner: inner,
    "n-step": lambda inner: NStepSampler(3, 0.9, inner),
}
samplers = pytest.mark.parametrize("kind", SAMPLERS)


def episode(observations: Any, n: int, rng: np.random.Generator, number: int) -> Any:
    now, following = observations(n, rng)
    ends = np.arange(n) == n - 1
    return {
        "observation": now,
        "action": rng.standard_normal((n, 3)),
        "number": np.full(n, number),
        "next": {
            "observation": following,
            "reward": rng.standard_normal(n).astype(np.float32),
            "done": ends,
        },
    }


def columns(batch: Any) -> dict[Any, list[Any]]:
    return {
        path: [np.asarray(x).tolist() for x in batch[path]]
        if isinstance(batch[path], Ragged)
        else batch[path].tolist()
        for path in batch.layout.by_path
    }


def forbidden(*_: Any) -> Any:
    raise AssertionError("the sampler was asked")


@forms
@samplers
def test_as_step_by_step(form: str, kind: str) -> None:
    observations, options, _ = FORMS[form]
    storage = LazyTensorStorage(300, **options)
    make = SAMPLERS[kind]
    at_once = ReplayBuffer(storage, make(RandomSampler()), batch_size=50, seed=7)
    asked = ReplayBuffer(storage, make(Asked()), batch_size=50, seed=7)
    rng = np.random.default_rng(1)
    for number in range(30):  # past the capacity: the oldest are evicted, some of them in part
        at_once.extend(episode(observations, int(rng.integers(1, 60)), rng, number))
        one, other = at_once.sample(), asked.sample()
        assert one.layout == other.layout and one.extras == other.extras
        assert columns(one) == columns(other)
    assert at_once.state() == asked.state()


@forms
@samplers
def test_who_is_asked(form: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    observations, options, one_call = FORMS[form]
    inner = RandomSampler()
    buffer = ReplayBuffer(
        LazyTensorStorage(100, **options), SAMPLERS[kind](inner), batch_size=20, seed=0
    )
    buffer.extend(episode(observations, 40, np.random.default_rng(1), 0))
    monkeypatch.setattr(inner, "draw", forbidden)
    if one_call:
        assert len(buffer.sample()) == 20
    else:
        with pytest.raises(AssertionError, match="was asked"):
            buffer.sample()


@samplers
def test_those_that_do_more_are_asked(kind: str) -> None:
    make = SAMPLERS[kind]
    assert make(RandomSampler()).at_once() is not None
    assert make(Asked()).at_once() is None
    assert make(RandomSampler(2)).at_once() is None
    assert make(RandomSampler(fields=("task",))).at_once() is None
    assert NStepSampler(2, 0.5, NStepSampler(3, 0.5)).at_once() is None


def test_on_disk_rows_are_checked(tmp_path: Any) -> None:
    storage: Storage = DiskStorage(tmp_path / "rows", 100)
    with storage:
        buffer = ReplayBuffer(storage, batch_size=20, seed=3)
        buffer.extend(episode(vectors, 40, np.random.default_rng(1), 0))
        assert storage.plan((), None) is None
        assert len(buffer.sample()) == 20


def test_n_and_gamma_may_change() -> None:
    sampler = NStepSampler(3, 0.9)
    buffer = ReplayBuffer(LazyTensorStorage(100), sampler, batch_size=60, seed=0)
    buffer.extend(episode(vectors, 90, np.random.default_rng(1), 0))
    assert buffer.sample()["steps_to_next_obs"].max() == 3
    sampler.n = 5
    assert buffer.sample()["steps_to_next_obs"].max() == 5
    sampler.gamma = 0.0
    batch = buffer.sample()
    plain = buffer[batch["index"]]
    np.testing.assert_array_equal(batch["next", "reward"], plain["next", "reward"])


def test_what_cannot_be_folded_is_said() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), NStepSampler(3, 0.9), batch_size=2, seed=0)
    buffer.extend({"observation": np.zeros((4, 2), np.float32)})
    with pytest.raises(NothingEligibleError, match="reward"):
        buffer.sample()


def test_counts_and_ages_are_the_same() -> None:
    """What `stats()` and the tape say of samples does not depend on the road."""
    counts = []
    for inner in (RandomSampler(), Asked()):
        storage = LazyTensorStorage(100)
        buffer = ReplayBuffer(storage, inner, batch_size=32, seed=0)
        buffer.extend(episode(vectors, 90, np.random.default_rng(1), 0))
        for _ in range(5):
            buffer.sample()
        counts.append((buffer.stats(), int(storage.tape.sampled)))
    assert counts[0] == counts[1]
