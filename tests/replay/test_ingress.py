"""The one way in: every door counts rows alike, and none goes past the transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import (
    Batch,
    LazyTensorStorage,
    OverloadError,
    RateLimiter,
    RateLimitError,
    ReplayBuffer,
    Server,
    SharedClient,
    SharedStorage,
)
from contig.collect.sink import sink_of
from contig.replay import Ingress
from contig.tape.stacking import count_rows

LIMIT = 8  # rows that may be there before somebody samples


def lanes(b: int, t: int) -> dict[str, Any]:
    return {"x": np.zeros((b, t, 3), np.float32), "next": {"done": np.zeros((b, t), bool)}}


def limited() -> ReplayBuffer:
    limiter = RateLimiter(1.0, min_size=1, error_buffer=LIMIT - 1, block=False)
    row = {"x": np.zeros(3, np.float32), "next": {"done": False}}
    return ReplayBuffer(SharedStorage(100, ndim=2, example=row), limiter=limiter)


def through_buffer(buffer: ReplayBuffer, data: Any) -> Any:
    return buffer.extend(data)


def through_sink(buffer: ReplayBuffer, data: Any) -> Any:
    return sink_of(buffer).write(data)


def through_client(buffer: ReplayBuffer, data: Any) -> Any:
    with Server(buffer=buffer) as server, SharedClient(server.name, on_full="raise") as client:
        return client.extend(data)


@pytest.mark.parametrize("door", [through_buffer, through_sink, through_client])
def test_every_door_counts_lanes_as_rows(door: Callable[..., Any]) -> None:
    buffer = limited()
    door(buffer, lanes(2, LIMIT // 2))
    assert len(buffer) == LIMIT and buffer.ingress.room() == 0
    with pytest.raises((RateLimitError, OverloadError), match="cannot insert 2 rows"):
        door(buffer, lanes(2, 1))
    assert len(buffer) == LIMIT


@pytest.mark.parametrize(
    "data, ndim, rows",
    [
        (lanes(2, 3), 1, 2),
        (lanes(2, 3), 2, 6),
        (Batch.from_tree(lanes(2, 3), 2), 1, 6),
        ({"empty": {}, "x": np.zeros((4, 1))}, 1, 4),
        ((np.zeros((5, 2)), np.zeros(5)), 1, 5),
        ({"x": 1.0}, 1, 1),
        (np.zeros((0, 3)), 1, 0),
    ],
    ids=["steps", "lanes", "batch", "empty-node", "tuple", "row", "none"],
)
def test_rows_are_counted_by_batch_dims(data: Any, ndim: int, rows: int) -> None:
    assert count_rows(data, ndim) == rows


def test_a_way_apart_goes_on_with_nothing_of_the_thread() -> None:
    ingress = Ingress(LazyTensorStorage(100))
    ingress.add({"x": 0, "done": False})
    other = ingress.apart()
    other.add({"x": 1, "done": False})
    ingress.add({"x": 2, "done": True})
    other.add({"x": 3, "done": True})
    storage = ingress.storage
    found = [storage.read_episode(i)["x"].tolist() for i in storage.episodes()["id"]]
    assert found == [[0, 2], [1, 3]]


def test_a_transform_cannot_be_passed_by() -> None:
    ingress = Ingress(LazyTensorStorage(10), transform=lambda batch: batch)
    with pytest.raises(ValueError, match=r"table 'a': its buffer transforms .* in the clients"):
        ingress.check_takes_records("table 'a'")
    Ingress(LazyTensorStorage(10)).check_takes_records("table 'a'")
