"""A client's writer follows the marks of its steps, and loses none when its client is closed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import LayoutError, SharedClient, SliceSampler
from contig.testing import steps
from tests.client.serving import client, serving, shared

KINDS = pytest.mark.parametrize("kind", ["tcp", "shared"])


def clients(kind: str, server: Any) -> Any:
    return client(server) if kind == "tcp" else SharedClient(server.name)


def found(buffer: Any) -> list[tuple[list[tuple[int, int]], bool]]:
    """The steps of each trajectory, and whether it is complete."""
    storage = buffer.storage
    return [
        (steps.identity(storage.read_episode(int(e["id"]))), bool(e["complete"]))
        for e in storage.episodes()
    ]


def whole(number: int, length: int) -> list[tuple[int, int]]:
    return [(number, t) for t in range(length)]


@KINDS
@pytest.mark.parametrize("ids", [True, False])
def test_a_done_step_ends_the_trajectory(kind: str, ids: bool) -> None:
    """A hundred steps with ten episodes are ten trajectories, and no slice crosses them."""
    example = steps.first(steps.episode(0, 1, ids=ids))
    buffer = shared(example=example, sampler=SliceSampler(slice_len=4), batch_size=64)
    with serving(buffer) as server, clients(kind, server) as far:
        writer = far.writer()
        for number in range(10):
            data = steps.episode(number, 10, ids=ids)
            for t in range(10):
                writer.append(steps.first(data, t))
        far.wait(20)
        assert found(buffer) == [(whole(number, 10), True) for number in range(10)]
        for _ in range(20):
            rows = np.array(steps.identity(buffer.sample()))
            assert (rows[:, 0].reshape(-1, 4) == rows[::4, :1]).all()


@KINDS
def test_a_done_step_is_sent_at_once(kind: str) -> None:
    buffer = shared()
    with serving(buffer) as server, clients(kind, server) as far:
        writer = far.writer()
        writer.append(steps.row(0, 0))
        writer.append(steps.row(0, 1, end="truncated"))
        far.wait(20)
        assert found(buffer) == [(whole(0, 2), True)]
        writer.append(steps.row(1, 0, end="terminated"))
        far.wait(20)
        assert found(buffer)[1] == (whole(1, 1), True)


@KINDS
def test_another_id_and_is_init_begin_a_trajectory(kind: str) -> None:
    buffer = shared(example={**steps.row(0, 0), "is_init": False})
    rows = [(1, 0, True), (1, 1, False), (2, 0, True), (2, 1, False), (1, 2, False), (2, 0, True)]
    with serving(buffer) as server:
        with clients(kind, server) as far:
            writer = far.writer()
            for number, t, init in rows:
                writer.append({**steps.row(number, t), "is_init": init})
        assert [s for s, _ in found(buffer)] == [whole(1, 3), whole(2, 2), whole(2, 1)]
        assert buffer.storage.episodes()["traj_id"].tolist() == [1, 2, 2]


@KINDS
def test_two_writers_of_a_client_do_not_share_ids(kind: str) -> None:
    buffer = shared()
    with serving(buffer) as server, clients(kind, server) as far:
        writers = far.writer(), far.writer()
        for t in range(3):
            for number, writer in enumerate(writers):
                writer.append(steps.row(7, 10 * number + t, end="terminated" if t == 2 else None))
        far.wait(20)
        assert found(buffer) == [
            ([(7, t) for t in range(3)], True),
            ([(7, 10 + t) for t in range(3)], True),
        ]


@KINDS
def test_a_traj_key_decides_alone(kind: str) -> None:
    sampler = SliceSampler(slice_len=2, traj_key=("collector", "traj_ids"))
    buffer = shared(example=None, sampler=sampler, batch_size=2)
    buffer.storage.publish_example(steps.row(0, 0))
    with serving(buffer) as server, clients(kind, server) as far:
        writer = far.writer()
        for t in range(4):
            writer.append(steps.row(5, t, end="truncated" if t == 1 else None))
        writer.append(steps.row(6, 0))
        writer.close()
        far.wait(20)
        assert [s for s, _ in found(buffer)] == [whole(5, 4), whole(6, 1)]


@KINDS
def test_end_episode_behind_a_done_step_only_checks(kind: str) -> None:
    buffer = shared()
    with serving(buffer) as server, clients(kind, server) as far:
        writer = far.writer()
        writer.append(steps.row(0, 0, end="terminated"))
        with pytest.raises(LayoutError, match=r"end_episode\(truncated=True\)"):
            writer.end_episode(truncated=True)
        with pytest.raises(ValueError, match="append"):
            writer.end_episode(fields={"task": 1})
        writer.end_episode(terminated=True)
        writer.append(steps.row(1, 0, end="terminated"))
        far.wait(20)
        assert found(buffer) == [(whole(0, 1), True), (whole(1, 1), True)]


@KINDS
def test_after_end_episode_the_same_id_is_another_trajectory(kind: str) -> None:
    row = {"episode": 3, "k": 0}
    buffer = shared(example=row)
    with serving(buffer) as server, clients(kind, server) as far:
        writer = far.writer()
        for k in range(4):
            writer.append({"episode": 3, "k": k})
            if k % 2:
                writer.end_episode(terminated=True)
        far.wait(20)
        assert buffer.storage.episodes()["steps"].tolist() == [2, 2]
        assert buffer.storage.episodes()["complete"].all()


@KINDS
def test_closing_a_client_sends_what_its_writers_hold(kind: str) -> None:
    buffer = shared()
    with serving(buffer) as server:
        far = clients(kind, server)
        writers = [far.writer() for _ in range(3)]
        for number, writer in enumerate(writers):
            writer.append(steps.row(number, 0))
            writer.append(steps.row(number, 1))
        far.close()
        far.close()
        assert found(buffer) == [(whole(number, 2), False) for number in range(3)]
        for writer in writers:
            with pytest.raises(Exception, match="closed"):
                writer.append(steps.row(9, 0))
        assert len(buffer) == 6
