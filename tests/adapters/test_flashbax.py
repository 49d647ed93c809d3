"""What flashbax's buffers return, from contig's samplers: the recipes of docs/guides/jax.md, some
of them beside flashbax itself, which `make` installs without what only its vaults need."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contig import LazyTensorStorage, PrioritizedSampler, RandomSampler, ReplayBuffer, SliceSampler

ENVS, STEPS, KEPT, LENGTH = 2, 13, 10, 4


def step(t: int) -> dict[str, Any]:
    """Of all envs; a value is 100 * env + t. An episode ends in it, which only `discount` says."""
    value = 100 * np.arange(ENVS) + t
    return {"x": value.astype(np.int32), "discount": np.full(ENVS, t % 5 != 4, np.float32)}


def stored(sampler: Any, **flags: bool) -> ReplayBuffer:
    """All steps in a ring of the last `KEPT`."""
    buffer = ReplayBuffer(LazyTensorStorage(ENVS * KEPT), sampler, seed=0)
    for t in range(STEPS):
        rows = step(t)
        if flags.get("done"):
            rows["done"] = rows["discount"] == 0
        buffer.storage.default_writer.add_step(rows)
    return buffer


def windows(buffer: ReplayBuffer, length: int, draws: int) -> Counter[tuple[int, ...]]:
    """Sequences that a buffer draws, in flashbax's form: [batch, time, ...]."""
    batch = buffer.sample(draws * length).reshape(draws, length)
    out = jax.tree.map(jnp.asarray, batch)
    assert out["x"].shape == out["discount"].shape == (draws, length)
    return Counter(map(tuple, np.asarray(out["x"]).tolist()))


def kept_windows(length: int) -> set[tuple[int, ...]]:
    first = STEPS - KEPT
    return {
        tuple(range(100 * env + t, 100 * env + t + length))
        for env in range(ENVS)
        for t in range(first, STEPS - length + 1)
    }


def even(found: Counter[Any]) -> bool:
    """Whether all are drawn about as often."""
    expected = found.total() / len(found)
    return all(abs(n - expected) < 6 * expected**0.5 for n in found.values())


@pytest.mark.parametrize("length", [1, 2, LENGTH])
def test_sequences_that_know_no_episodes(length: int) -> None:
    """Rows without done flags: an env's steps are one trajectory, which goes on for ever."""
    sampler = SliceSampler(slice_len=length, over="steps", strict_length=True)
    found = windows(stored(sampler), length, 4000)
    assert set(found) == kept_windows(length) and even(found)


def test_sequences_of_one_episode() -> None:
    sampler = SliceSampler(slice_len=LENGTH, over="steps", strict_length=True)
    found = windows(stored(sampler, done=True), LENGTH, 2000)
    within = {w for w in kept_windows(LENGTH) if all(t % 5 != 4 for t in w[:-1])}
    assert set(found) == within and 0 < len(within) < len(kept_windows(LENGTH))


def probabilities(sampler: PrioritizedSampler, priorities: np.ndarray) -> np.ndarray:
    """Of all rows, from the weights that come with a batch (beta=1: the least likely has 1)."""
    n = len(priorities)
    buffer = ReplayBuffer(LazyTensorStorage(n), sampler, seed=0)
    index = buffer.extend({"x": np.arange(n)})
    buffer.update_priority(index, priorities)
    batch = buffer.sample(20_000)
    weight = np.full(n, np.nan, np.float64)
    weight[batch["x"]] = batch["priority_weight"]
    return 1 / weight / (1 / weight).sum()


PRIORITIES = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 3.0], np.float32)


def test_probabilities_from_weights() -> None:
    found = probabilities(PrioritizedSampler(alpha=0.6, beta=1.0, eps=0.0), PRIORITIES)
    want = PRIORITIES**0.6 / (PRIORITIES**0.6).sum()
    assert np.allclose(found, want, rtol=1e-4)


# -- beside flashbax ------------------------------------------------------------------------------


@pytest.fixture
def fbx() -> Any:
    return pytest.importorskip("flashbax", reason="`make` installs it, without its dependencies")


@pytest.mark.filterwarnings("ignore")  # of the libraries that it brings
@pytest.mark.parametrize("length", [2, LENGTH])
def test_trajectory_buffer(fbx: Any, length: int) -> None:
    theirs = fbx.make_trajectory_buffer(
        add_batch_size=ENVS,
        sample_batch_size=4000,
        sample_sequence_length=length,
        period=1,
        min_length_time_axis=length,
        max_length_time_axis=KEPT,
    )
    state = theirs.init(jax.tree.map(lambda x: jnp.asarray(x[0]), step(0)))
    for t in range(STEPS):
        state = theirs.add(state, jax.tree.map(lambda x: jnp.asarray(x)[:, None], step(t)))
    drawn = theirs.sample(state, jax.random.key(0)).experience
    assert drawn["x"].shape == (4000, length)
    expected = Counter(map(tuple, np.asarray(drawn["x"]).tolist()))
    sampler = SliceSampler(slice_len=length, over="steps", strict_length=True)
    found = windows(stored(sampler), length, 4000)
    assert set(found) == set(expected) and even(found) and even(expected)


def many(theirs: Any, state: Any, batches: int = 100) -> Any:
    """Samples, one behind another; each is at most as large as the buffer."""
    sample = jax.jit(theirs.sample)
    drawn = [sample(state, jax.random.key(k)) for k in range(batches)]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *drawn)


@pytest.mark.filterwarnings("ignore")
def test_item_buffer(fbx: Any) -> None:
    theirs = fbx.make_item_buffer(
        max_length=ENVS * KEPT, min_length=1, sample_batch_size=ENVS * KEPT, add_batches=True
    )
    state = theirs.init(jax.tree.map(lambda x: jnp.asarray(x[0]), step(0)))
    for t in range(STEPS):
        state = theirs.add(state, jax.tree.map(jnp.asarray, step(t)))
    drawn = many(theirs, state).experience
    batch = jax.tree.map(jnp.asarray, stored(RandomSampler()).sample(len(drawn["x"])))
    assert batch["x"].shape == drawn["x"].shape and batch["x"].dtype == drawn["x"].dtype
    assert set(batch["x"].tolist()) == set(drawn["x"].tolist())


@pytest.mark.filterwarnings("ignore")
def test_flat_buffer(fbx: Any) -> None:
    theirs = fbx.make_flat_buffer(
        max_length=ENVS * KEPT, min_length=2, sample_batch_size=KEPT, add_batch_size=ENVS
    )
    state = theirs.init(jax.tree.map(lambda x: jnp.asarray(x[0]), step(0)))
    for t in range(STEPS):
        state = theirs.add(state, jax.tree.map(jnp.asarray, step(t)))
    pair = many(theirs, state).experience
    expected = set(zip(pair.first["x"].tolist(), pair.second["x"].tolist()))
    sampler = SliceSampler(slice_len=2, over="steps", strict_length=True)
    batch = stored(sampler).sample(2000).reshape(1000, 2)
    first, second = (jax.tree.map(lambda x, at=at: x[:, at], batch) for at in (0, 1))
    assert first["x"].shape == pair.first["x"].shape
    assert set(zip(first["x"].tolist(), second["x"].tolist())) == expected


@pytest.mark.filterwarnings("ignore")
def test_prioritised_buffer(fbx: Any) -> None:
    n = len(PRIORITIES)
    theirs = fbx.make_prioritised_item_buffer(
        max_length=n, min_length=1, sample_batch_size=n, add_batches=True, priority_exponent=0.6
    )
    state = theirs.init({"x": jnp.zeros((), jnp.int32)})
    state = theirs.add(state, {"x": jnp.arange(n, dtype=jnp.int32)})
    everything = many(theirs, state)
    place = dict(zip(everything.experience["x"].tolist(), everything.indices.tolist()))
    assert len(place) == n
    rows = jnp.asarray([place[x] for x in range(n)])
    state = theirs.set_priorities(state, rows, jnp.asarray(PRIORITIES))
    drawn = many(theirs, state)
    expected = dict(zip(drawn.experience["x"].tolist(), drawn.probabilities.tolist()))
    found = probabilities(PrioritizedSampler(alpha=0.6, beta=1.0, eps=0.0), PRIORITIES)
    assert np.allclose(found, [expected[x] for x in range(n)], rtol=1e-3)
