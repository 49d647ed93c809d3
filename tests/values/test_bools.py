"""Bools are stored as 0 or 1, by whichever road they come: views of other bytes included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

import contig
from contig import (
    DiskStorage,
    Layout,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    SharedClient,
    TrajectoryAccumulator,
)
from contig.batch import Batch
from contig.convert import cast
from contig.rollout import RolloutStorage
from tests.client.serving import client, serving, shared

BYTES = np.array([2, 0, 255, 1, 128, 0, 64], np.uint8)
TRUTH = (BYTES != 0).view(np.uint8)
WIDE = 5000  # large leaves are copied with their checksum


def odd(n: int, width: int = 7) -> np.ndarray[Any, Any]:
    """Bools ``[n, width]`` of which many are neither 0 nor 1."""
    rows = np.stack([np.resize(np.roll(BYTES, i), width) for i in range(n)])
    return rows.view(bool)


def row(i: int, width: int = 7) -> dict[str, Any]:
    done = np.array(2 * (i % 3 == 2), np.uint8).view(bool)
    return {"n": np.int64(i), "mask": odd(i + 1, width)[i], "next": {"done": done}}


def rows(n: int, width: int = 7) -> dict[str, Any]:
    each = [row(i, width) for i in range(n)]
    return {
        "n": np.arange(n),
        "mask": np.stack([r["mask"] for r in each]),
        "next": {"done": np.stack([r["next"]["done"] for r in each])},
    }


def raw(column: Any) -> list[Any]:
    """The bytes of bools."""
    if isinstance(column, torch.Tensor):
        return list(column.contiguous().view(torch.uint8).tolist())
    return list(np.ascontiguousarray(column).view(np.uint8).tolist())


def expected(n: int, width: int = 7) -> list[list[int]]:
    return (odd(n, width).view(np.uint8) != 0).astype(int).tolist()


def as_torch(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: as_torch(v) for k, v in tree.items()}
    return torch.from_numpy(np.array(tree))


def strided(tree: Any) -> Any:
    """As rows of memory that is not contiguous: the general road."""
    if isinstance(tree, dict):
        return {k: strided(v) for k, v in tree.items()}
    tree = np.asarray(tree)
    return np.stack([tree, tree], -1)[..., 0]


FORMS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda tree: tree,
    "strided": strided,
    "torch": as_torch,
}
N = 5


def wholes() -> list[dict[str, Any]]:
    """The rows of each episode: the first one ends with row 2."""
    each = rows(N)
    ends = [slice(0, 3), slice(3, N)]
    return [
        {"n": each["n"][s], "mask": each["mask"][s], "next": {"done": each["next"]["done"][s]}}
        for s in ends
    ]


ROADS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda w, form: [w.add(form(row(i))) for i in range(N)],
    "extend": lambda w, form: w.extend(form(rows(N))),
    "add_step": lambda w, form: w.add_step(form(rows(N))),
    "add_step of some": lambda w, form: w.add_step(form(rows(N)), env_ids=np.arange(N)[::-1]),
    "extend_trajectory": lambda w, form: [w.extend_trajectory(form(each)) for each in wholes()],
    "rows": lambda w, form: w.extend([form(row(i)) for i in range(N)]),
    "batch": lambda w, form: w.extend(Batch.from_tree(form(rows(N)))),
}


def check(buffer: ReplayBuffer) -> None:
    stored = buffer[np.arange(N)]
    assert stored["n"].tolist() == list(range(N))
    assert raw(stored["mask"]) == expected(N)
    for flag in ("done", "terminated", "truncated"):
        assert set(raw(stored["next", flag])) <= {0, 1}, flag
    assert stored["next", "done"].tolist()[:4] == [False, False, True, False]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("road", ROADS)
def test_every_road_into_a_storage(road: str, form: str, tmp_path: Path) -> None:
    disk = DiskStorage(tmp_path / "disk", 20, example=row(0))
    for storage in (LazyTensorStorage(20, example=row(0)), disk):
        buffer = ReplayBuffer(storage)
        ROADS[road](storage.writer(), FORMS[form])
        storage.flush()
        check(buffer)
        storage.close()


def test_a_tensordict() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(20))
    buffer.extend(TensorDict(as_torch(rows(N)), batch_size=[N]))
    check(buffer)


@pytest.mark.parametrize("width", [7, WIDE])
def test_items_of_a_server(width: int) -> None:
    example, kinds = row(0, width), 4
    layout = Layout(example)
    assert raw(layout.unpack(layout.pack_one(row(1, width)))["mask"]) == expected(2, width)[1]
    with Server(example, kinds, contig.TcpTransport(in_process=True)) as server:
        server.submit(row(0, width))
        with client(server, example) as far:
            far.send(row(1, width))
            far.send(strided(row(2, width)))
            far.wait(20)
        acc = TrajectoryAccumulator({"steps": {"mask": np.zeros((2, width), bool)}})
        for i in range(2):
            acc.add("steps", {"mask": row(i, width)["mask"]})
        assert raw(acc.build()["steps"]["mask"]) == expected(2, width)
        server.submit(as_torch(row(3, width)))
        batch = server.sample(20).batch
        order = np.argsort(batch["n"])
        assert raw(batch["mask"][order]) == expected(4, width)


def head(buffer: ReplayBuffer) -> int:
    return int(buffer.storage.tape.snapshot()[0])


def write_far(far: Any, road: str) -> None:
    if road == "extend_trajectory":
        for each in wholes():
            far.send_trajectory(each)
    elif road == "add":
        for i in range(N):
            far.send(row(i))
    else:
        ROADS[road](far, FORMS["numpy"])
    far.wait(20)


def test_over_tcp_and_shared_memory() -> None:
    buffer = shared(100, row(0))
    with serving(buffer) as server:
        for road in ROADS:
            for make in (lambda: client(server), lambda: SharedClient(server.name)):
                with make() as far:
                    write_far(far, road)
                at = head(buffer) - N
                assert raw(buffer[np.arange(at, at + N)]["mask"]) == expected(N), road
        for make in (lambda: client(server), lambda: SharedClient(server.name)):
            with make() as far:
                with far.writer() as stream:
                    for i in range(2):
                        stream.append(row(i))
                far.wait(20)
            at = head(buffer) - 2
            assert raw(buffer[np.arange(at, at + 2)]["mask"]) == expected(2)


def test_rollout_storage() -> None:
    mask = torch.from_numpy(odd(3))
    storage = RolloutStorage(3, 2, {"mask": mask, "n": (2,)}, None, (1,))
    flags = torch.tensor([2, 0, 255], dtype=torch.uint8).view(torch.bool)
    for t in range(2):
        step = RolloutStorage.Transition()
        step.observations = {"mask": mask, "n": torch.full((3, 2), float(t))}
        step.actions, step.rewards = torch.zeros(3, 1), torch.zeros(3)
        step.dones = flags
        step.hidden_states = (mask.reshape(1, 3, 7), None)
        storage.add_transitions(step)
    assert raw(storage.observations["mask"]) == [expected(3)] * 2
    assert raw(storage.dones[..., 0]) == [[1, 0, 1]] * 2
    assert raw(storage.hidden.kept[0].tensors[0][:, 0]) == [expected(3)] * 2  # type: ignore[union-attr]
    storage.dones = flags.reshape(1, 3, 1).expand(2, 3, 1)
    assert raw(storage.dones[..., 0]) == [[1, 0, 1]] * 2


@given(st.lists(st.integers(0, 255), min_size=0, max_size=70), st.sampled_from("?bfd"))
def test_a_cast_sees_truth(values: list[int], dtype: str) -> None:
    array = np.array(values, np.uint8)
    out = cast(array.view(bool), np.dtype(dtype), ("x",))
    assert out.tobytes() == (array != 0).astype(dtype).tobytes()
    assert array.tolist() == values  # the user's own memory is as it was
