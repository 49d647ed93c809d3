"""`extend_trajectory` and `send_trajectory` take one trajectory, and versions are those of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from contig import (
    DiskStorage,
    LayoutError,
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    SharedClient,
    SharedStorage,
    SliceSampler,
    TcpClient,
    WindowSampler,
)
from contig.testing import steps
from tests.client.serving import HOST, serving

ROUTES = pytest.mark.parametrize("route", ["memory", "disk", "tcp", "far", "shared"])


@contextlib.contextmanager
def writing(
    route: str, tmp_path: Any, example: Any = None, **options: Any
) -> Iterator[tuple[ReplayBuffer, Callable[..., Any], Callable[[], Any]]]:
    """A buffer, what writes a whole trajectory to it, and what waits until that is in it."""
    if route == "memory":
        buffer = ReplayBuffer(LazyTensorStorage(200), **options)
    elif route == "disk":
        buffer = ReplayBuffer(DiskStorage(tmp_path / "rows", 200), **options)
    else:
        buffer = ReplayBuffer(SharedStorage(200), **options)
    if route in ("memory", "disk"):
        with buffer:
            yield buffer, buffer.extend_trajectory, lambda: None
        return
    row = steps.row(0, 0) if example is None else example
    with serving(buffer) as server:
        if route == "shared":
            near = SharedClient(server.name, row)
            with near:
                yield buffer, near.send_trajectory, near.wait
        elif route == "tcp":
            with TcpClient(HOST, server.port, row) as far:
                yield buffer, far.send_trajectory, lambda: far.wait(20)
        else:
            with RemoteReplayBuffer(HOST, server.port, data_sample=row) as there:
                yield buffer, there.extend_trajectory, lambda: there.flush(20)


def several(mark: str) -> tuple[Any, str]:
    """Rows of more than one trajectory, and what the error says of them."""
    data = steps.episode(1, 6, ids=mark == "id")
    if mark == "id":
        data["collector"]["traj_ids"][4:] = 2
        return data, r"traj_ids.*row 4"
    if mark == "is_init":
        return {**data, "is_init": np.arange(6) % 3 == 0}, r"is_init.*row 3"
    flags = {name: data["next"][name].copy() for name in ("done", "terminated", "truncated")}
    flags["done"][2] = flags[mark][2] = True
    data["next"].update(flags)
    return data, r"done.*row 2"


@ROUTES
@pytest.mark.parametrize("mark", ["terminated", "truncated", "is_init", "id"])
def test_rows_of_several_trajectories_are_refused(route: str, mark: str, tmp_path: Any) -> None:
    data, match = several(mark)
    with writing(route, tmp_path, steps.first(data)) as (buffer, whole, wait):
        for told in ({}, {"terminated": True}, {"policy_version": 3}):
            with pytest.raises(LayoutError, match=f"{match}.*several episodes: use extend"):
                whole(data, **told)
        if route in ("memory", "disk"):
            assert buffer.storage.layout is None, "what is refused fixes nothing"
        good = {**steps.episode(1, 3, ids=mark == "id")}
        if mark == "is_init":
            good["is_init"] = np.arange(3) == 0
        whole(good)
        wait()
        assert buffer.storage.episodes()["steps"].tolist() == [3]


@pytest.mark.parametrize("route", ["memory", "tcp"])
def test_dones_inside_are_no_ends_where_a_traj_key_decides_alone(route: str, tmp_path: Any) -> None:
    data = steps.episode(1, 6)
    data["next"]["done"][2] = data["next"]["terminated"][2] = True
    sampler = SliceSampler(slice_len=2, traj_key=("collector", "traj_ids"))
    with writing(route, tmp_path, sampler=sampler, batch_size=2) as (buffer, whole, wait):
        whole(data)
        with pytest.raises(LayoutError, match="traj_ids"):
            whole({**data, "collector": {**data["collector"], "traj_ids": np.arange(6)}})
        wait()
        assert buffer.storage.episodes()["steps"].tolist() == [6]


@ROUTES
def test_a_trajectory_of_several_versions_is_several_runs(route: str, tmp_path: Any) -> None:
    data = steps.episode(1, 8)
    data["collector"]["policy_version"][:] = [0, 0, 0, 3, 3, 2, 2, 2]
    sampler = WindowSampler(max_staleness=0)
    with writing(route, tmp_path, sampler=sampler, batch_size=64) as (buffer, whole, wait):
        whole(data)
        whole(steps.episode(2, 2, version=1))
        wait()
        storage = buffer.storage
        assert storage.episodes()["steps"].tolist() == [8, 2]
        assert storage.episodes()["complete"].tolist() == [True, True]
        first = storage.episodes()[0]
        assert steps.identity(storage.read_episode(int(first["id"]))) == [(1, t) for t in range(8)]
        assert first["return"] == data["next"]["reward"].sum()
        drawn = buffer.sample()["collector", "policy_version"]
        assert set(drawn.tolist()) == {3}


@ROUTES
def test_a_version_that_is_told_is_every_rows(route: str, tmp_path: Any) -> None:
    sampler = WindowSampler(max_staleness=0)
    with writing(route, tmp_path, sampler=sampler, batch_size=64) as (buffer, whole, wait):
        whole(steps.episode(1, 4, version=2), policy_version=9)
        wait()
        assert buffer.storage.episodes()["policy_version"].tolist() == [9]
        assert len(buffer.sample()) == 64


def test_a_writers_steps_have_their_own_versions() -> None:
    buffer = ReplayBuffer(SharedStorage(200), WindowSampler(max_staleness=0), batch_size=64)
    with serving(buffer) as server, TcpClient(HOST, server.port, steps.row(0, 0)) as far:
        writer = far.writer()
        for t in range(6):
            end = "terminated" if t == 5 else None
            writer.append(steps.row(1, t, version=3 if t in (1, 2) else 0, end=end))
        far.wait(20)
        assert buffer.storage.episodes()["steps"].tolist() == [6]
        drawn = buffer.sample()["collector", "policy_version"]
        assert set(drawn.tolist()) == {3}
