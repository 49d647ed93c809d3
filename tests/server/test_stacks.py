"""Stacks of frames that a client's data_sample shows: a table without a layout stores frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    DiskStorage,
    Layout,
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from contig.errors import LayoutError
from contig.tape.stacks import Stack, stacks_from_json, stacks_to_json
from contig.wire import Refused
from contig.wire.handshake import ServerHandshake
from tests.tape.observations import Env, Form, batch_bytes, stacked

FORM = Form(frames=4, image=True, state=True)
LIMIT_S = 30.0


def steps(n: int) -> list[Any]:
    """The first is a real step, in which something moves."""
    env = Env(FORM, 1, np.random.default_rng(0))
    for _ in range(6):
        row = env.row()
    rows = [row, *(env.row(i % 9 == 8) for i in range(n - 1))]
    rows[0]["next"]["obs"] = np.concatenate([rows[0]["obs"][1:], rows[0]["next"]["obs"][-1:]])
    return rows


def frames_of(storage: Any) -> dict[Any, int]:
    sharing = storage.schema.sharing
    return {} if sharing is None else {x.path: x.frames for x in sharing.leaves}


@pytest.mark.parametrize("kind", ["memory", "process", "disk"])
@pytest.mark.parametrize("client", [TcpClient, RemoteReplayBuffer])
def test_a_real_step_shows_them(kind: str, client: Any, name: str, tmp_path: Path) -> None:
    rows = steps(60)
    storages: dict[str, Any] = {
        "memory": lambda: LazyTensorStorage(100),
        "process": lambda: SharedStorage(100, name=name),
        "disk": lambda: DiskStorage(tmp_path / "runs", 100),
    }
    plain = ReplayBuffer(LazyTensorStorage(100, share_next=False))
    plain.extend(stacked(rows))
    with storages[kind]() as storage:
        buffer = ReplayBuffer(storage, batch_size=4)
        transport = TcpTransport(in_process=kind != "process")
        with Server(buffer=buffer, transport=transport) as server:
            with client("127.0.0.1", server.port, data_sample=rows[0]) as sender:
                sender.extend(stacked(rows))
                (sender.wait if client is TcpClient else sender.flush)(LIMIT_S)
            assert frames_of(storage) == {("obs",): 4, ("state",): 1}
            assert batch_bytes(buffer[:]) == batch_bytes(plain[:])


def test_what_the_server_was_told_comes_first(name: str) -> None:
    rows = steps(20)
    zeros = {**rows[0], "obs": np.zeros_like(rows[0]["obs"])}
    zeros["next"] = {**rows[0]["next"], "obs": zeros["obs"]}
    for sample, told, expected in (
        (rows[0], {"stack": {}}, {("obs",): 1, ("state",): 1}),
        (rows[0], {"share_next": False}, {}),
        (rows[0], {"codecs": {"obs": "lz4", ("next", "obs"): "lz4"}}, {("state",): 1}),
        (zeros, {}, {("obs",): 1, ("state",): 1}),
        (Layout(rows[0]), {}, {("obs",): 1, ("state",): 1}),
    ):
        with LazyTensorStorage(100, **told) as storage:
            transport = TcpTransport(in_process=True)
            with Server(buffer=ReplayBuffer(storage), transport=transport) as server:
                with TcpClient("127.0.0.1", server.port, sample) as client:
                    client.extend(stacked(rows))
                    client.wait(LIMIT_S)
                assert frames_of(storage) == expected
                batch = ReplayBuffer(storage)[:]
                assert batch["obs"].tobytes() == stacked(rows)["obs"].tobytes()


@pytest.mark.parametrize(
    "content",
    [4, [4], [[["obs"], 4]], [[["obs"], "4", True]], [[["obs"], 4, 0]], [[["obs"], 1000, True]]],
    ids=str,
)
def test_nonsense_is_refused(content: Any) -> None:
    with pytest.raises(LayoutError, match="stacks of frames"):
        stacks_from_json(content)
    with pytest.raises(Refused, match="stacks of frames"):
        ServerHandshake._stacks(content)


def test_stacks_that_a_layout_does_not_have(tmp_path: Path) -> None:
    """Whoever says so is refused, and the table is still free to take any layout."""
    row = steps(1)[0]
    with LazyTensorStorage(100) as storage:
        transport = TcpTransport(in_process=True)
        with Server(buffer=ReplayBuffer(storage), transport=transport) as server:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("contig.client.tcp.stacks_of", lambda _: [[["action"], 4, True]])
                with pytest.raises(ValueError, match="stack"):
                    TcpClient("127.0.0.1", server.port, row)
            assert storage.schema is None and storage.asked.stack is None
            with TcpClient("127.0.0.1", server.port, row) as client:
                client.extend(stacked([row]))
                client.wait(LIMIT_S)
            assert frames_of(storage)[("obs",)] == 4


def test_there_and_back() -> None:
    stacks: Any = {("obs",): Stack(4, True), ("a", "b"): Stack(3, False)}
    assert stacks_from_json(stacks_to_json(stacks)) == stacks
