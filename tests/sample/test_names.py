"""Leaves that samplers add are theirs, whatever is stored under those names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import DiskStorage, LayoutError, LazyTensorStorage, RemoteReplayBuffer, ReplayBuffer
from contig.testing import episode, identity
from tests.client.serving import HOST, serving
from tests.replay.checkpoint.buffers import SAMPLERS

EPISODES = 12
Tree = dict[str, Any]


def plain(number: int, length: int = 12) -> Tree:
    return episode(number, length)


def poisoned(number: int, length: int = 12) -> Tree:
    """Rows as they come out of another buffer: with everything that its samplers added."""
    data = episode(number, length)
    n = np.arange(length)
    data["index"] = 5 + 2 * n  # rows that are stored, and others than these
    data["priority_weight"] = np.full(length, 777.0)
    data["steps_to_next_obs"] = np.full(length, 99, np.int8)
    data["buffer_ids"] = np.full((length, 2), 1)
    data["collector"] |= {
        "mask": n % 2 == 0,
        "burn_in": np.ones(length, bool),
        "chunk_mask": np.ones((length, 2), np.int8),
        "slice_end": np.ones((length, 1), np.float32),
    }
    return data


def fill(buffer: Any, rows: Callable[[int], Tree]) -> Any:
    for number in range(EPISODES):
        buffer.extend(rows(number))
    return buffer


def made(storage: Any, name: str, rows: Callable[[int], Tree], **options: Any) -> ReplayBuffer:
    make, batch_size = SAMPLERS[name]
    buffer = ReplayBuffer(storage, make(), batch_size=batch_size, seed=3, **options)
    return fill(buffer, rows)  # type: ignore[no-any-return]


def leaves(out: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """All leaves of any output."""
    if isinstance(out, contig.Batch):
        out = out.tree()
    found: dict[tuple[str, ...], Any] = {}
    for key in out.keys():  # noqa: SIM118 (a TensorDict's iteration is over rows)
        value = out[key]
        below = (*prefix, key)
        found |= leaves(value, below) if hasattr(value, "keys") else {below: np.asarray(value)}
    return found


def same(got: Any, expected: Any, names: Any = ()) -> None:
    """The expected leaves are all there and equal; of others, only stored ones."""
    found, wanted = leaves(got), leaves(expected)
    for path, value in wanted.items():
        assert found[path].dtype == value.dtype and found[path].shape == value.shape, path
        assert found[path].tobytes() == value.tobytes(), path
    assert found.keys() - wanted.keys() <= leaves(poisoned(0)).keys()


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler(name: str, tmp_path: Path) -> None:
    expected = made(LazyTensorStorage(100), name, plain)
    got = made(LazyTensorStorage(100), name, poisoned)
    with DiskStorage(tmp_path / "a", 100) as storage:
        stored = made(storage, name, poisoned)
        for _ in range(4):
            batch = expected.sample()
            assert batch.extras >= {("index",)}
            for other in (got, stored):
                found, info = other.sample(return_info=True)
                same(found, batch)
                assert found.extras == batch.extras
                assert (info["index"] == batch["index"]).all()


@pytest.mark.parametrize("output", ["torch", "jax", "tensordict"])
@pytest.mark.parametrize(
    "name", ["prioritized", "slices, all options", "n-step of priorities", "chunks"]
)
def test_every_output(name: str, output: str) -> None:
    pytest.importorskip(output)
    expected = made(LazyTensorStorage(100), name, plain, output=output)
    got = made(LazyTensorStorage(100), name, poisoned, output=output, prefetch=2)
    with got:
        for _ in range(3):
            same(got.sample(), expected.sample())


@pytest.mark.parametrize("name", ["prioritized", "prioritized slices", "n-step of priorities"])
def test_priorities_go_to_the_rows_that_were_drawn(name: str) -> None:
    expected = made(LazyTensorStorage(100), name, plain)
    got = made(LazyTensorStorage(100), name, poisoned)
    for _ in range(5):
        for buffer in (expected, got):
            batch = buffer.sample()
            buffer.update_priority(batch["index"], 1.0 + np.arange(len(batch)))
            assert identity(buffer[batch["index"]]) == identity(batch)
        same(got.sample(), expected.sample())
    assert repr(got.state()) == repr(expected.state())


@pytest.mark.parametrize("name", ["prioritized", "slices, all options"])
def test_from_another_process(name: str) -> None:
    expected = made(LazyTensorStorage(100), name, plain)
    got = made(LazyTensorStorage(100), name, poisoned)
    with serving(got) as server, RemoteReplayBuffer(HOST, server.port) as far:
        for _ in range(3):
            batch = far.sample(9)
            same(batch, expected.sample(9))
            if name == "prioritized":
                for buffer in (far, expected):
                    buffer.update_priority(batch["index"], 1.0 + np.arange(9))


@pytest.mark.parametrize("everywhere", [True, False])
def test_ensembles(everywhere: bool) -> None:
    def ensemble(rows: Callable[[int], Tree]) -> contig.ReplayBufferEnsemble:
        members = [
            fill(ReplayBuffer(LazyTensorStorage(200), contig.PrioritizedSampler(), seed=i), rows)
            for i in range(2)
        ]
        return contig.ReplayBufferEnsemble(
            *members, sample_from_all=everywhere, batch_size=20, seed=1
        )

    expected, got = ensemble(plain), ensemble(poisoned)
    for _ in range(3):
        batch, (found, info) = expected.sample(), got.sample(return_info=True)
        same(found, batch)
        assert (info["buffer_ids"] == batch["buffer_ids"]).all()
        assert (info["index"] == batch["index"]).all()
        for one, rows in ((expected, batch), (got, found)):
            one.update_priority(rows["index"], 1.0 + np.arange(20), rows["buffer_ids"])


def test_rows_of_one_buffer_in_another() -> None:
    """From one buffer to another and out again, as a TensorDict user does it."""
    first = made(LazyTensorStorage(100), "prioritized slices", plain)
    second = ReplayBuffer(LazyTensorStorage(100), contig.PrioritizedSampler(), batch_size=20)
    for _ in range(5):
        second.extend(first.sample().tree())
    batch = second.sample()
    second.update_priority(batch["index"], np.full(20, 1e-9))
    again = second.sample(64)
    assert not set(again["index"].tolist()) & set(batch["index"].tolist())
    # As a Batch it goes back in: into a buffer that has such leaves with them, else without.
    second.extend(batch)
    third = ReplayBuffer(LazyTensorStorage(100))
    third.extend(batch)
    assert third.storage.layout is not None and second.storage.layout is not None
    assert ("index",) in second.storage.layout.by_path
    assert identity(second[-20:]) == identity(third[:]) == identity(batch)
    assert ("priority_weight",) not in third.storage.layout.by_path


def test_a_subtree_in_its_place() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10), batch_size=2)
    buffer.extend({"index": {"x": np.arange(4)}})
    with pytest.raises(LayoutError, match="another name"):
        buffer.sample()
