"""Tables on disk that store observations once: clients send them once, and what comes out of the
files is what went in, whatever happens to the server."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, Server, TcpClient, TcpTransport
from tests.server.test_command import Command
from tests.tape.observations import Env, Form, batch_bytes, stacked

LIMIT_S = 30.0
FORMS = {
    "stack": Form(frames=4, image=True, state=True),
    "last axis": Form(frames=3, axis=-1, image=True),
    "next only": Form(state=True),
    "stack alone": Form(frames=4, below_next=False),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def options(form: Form) -> dict[str, Any]:
    return {"stack": form.stack} if form.frames > 1 else {"share_next": True}


@forms
@pytest.mark.parametrize("capacity", [60, 5000])
def test_the_same_as_without_sharing(form: Form, capacity: int, tmp_path: Path) -> None:
    """Rows, steps of several envs and trajectories; with evictions, other NaNs, negative zeros."""
    rnd = np.random.default_rng(1)
    one, two = Env(form, 1, rnd), [Env(form, i, rnd) for i in (2, 3)]
    plain = ReplayBuffer(LazyTensorStorage(capacity, share_next=False))
    example = one.row()
    disk = DiskStorage(tmp_path / "runs", capacity, example=example, **options(form))
    assert disk.schema is not None and disk.schema.sharing is not None
    with disk, Server(buffer=ReplayBuffer(disk), transport=TcpTransport(in_process=True)) as server:
        with TcpClient("127.0.0.1", server.port) as client:
            assert client._thread.compact
            for _ in range(40):
                rows = stacked(
                    [one.row(rnd.random() < 0.1) for _ in range(int(rnd.integers(1, 9)))]
                )
                client.extend(rows)
                plain.extend(rows)
                client.wait(LIMIT_S)  # so that both have them in this order
                step = stacked([e.row(rnd.random() < 0.1) for e in two])
                client.add_step(step)
                plain.add_step(step)
                client.wait(LIMIT_S)
        mine = batch_bytes(ReplayBuffer(disk)[:])
    assert mine == batch_bytes(plain[:])
    with DiskStorage(tmp_path / "runs", read_only=True) as again:
        assert batch_bytes(ReplayBuffer(again)[:]) == mine
        assert not again.quarantined


def test_bytes_on_the_wire(tmp_path: Path) -> None:
    """What was sent whole before is sent once."""
    n, counted = 300, {}
    seen = np.random.default_rng(0).normal(size=(n + 1, 200))
    rows = {"obs": seen[:-1], "next": {"obs": seen[1:], "done": np.arange(n) == n - 1}}
    for share in (True, False):
        storage = DiskStorage(tmp_path / str(share), 1000, share_next=share)
        with (
            storage,
            Server(buffer=ReplayBuffer(storage), transport=TcpTransport(in_process=True)) as server,
        ):
            with TcpClient("127.0.0.1", server.port, {k: v for k, v in first(rows).items()}) as c:
                c.send_trajectory(rows)
                c.wait(LIMIT_S)
            counted[share] = server.stats().bytes_in
        with DiskStorage(tmp_path / str(share), read_only=True) as again:
            assert np.array_equal(ReplayBuffer(again)[:]["next", "obs"], seen[1:])
    assert counted[True] < 0.55 * counted[False]


def first(rows: Any) -> Any:
    return {k: first(v) if isinstance(v, dict) else v[0] for k, v in rows.items()}


def test_a_frame_in_several_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that would be more than a frame if its rows were whole: part by part, in order."""
    monkeypatch.setattr("contig.server.disk_table._MOST_STAGED", 8 * 3300)
    form, rnd = FORMS["stack"], np.random.default_rng(0)
    env = Env(form, 1, rnd)
    steps = [[env.row(j == 4) for j in range(5)] for _ in range(60)]
    with DiskStorage(tmp_path / "runs", 1000, example=steps[0][0], stack=form.stack) as disk:
        transport = TcpTransport(in_process=True)
        with Server(buffer=ReplayBuffer(disk), transport=transport) as server:
            with TcpClient("127.0.0.1", server.port) as client:
                for rows in steps:
                    client.send_trajectory(stacked(rows))
                client.wait(LIMIT_S)
            assert server.stats().rows_in == 300
        plain = ReplayBuffer(LazyTensorStorage(1000, share_next=False))
        for rows in steps:
            plain.extend(stacked(rows))
        assert batch_bytes(ReplayBuffer(disk)[:]) == batch_bytes(plain[:])


def test_killed(tmp_path: Path) -> None:
    """SIGKILL again and again: nothing acked is missing, or there twice; no byte differs."""
    row = tmp_path / "row.json"
    width = 40
    both = {"number": {"shape": [width], "dtype": "int64"}}
    flags = {"reward": {"shape": [], "dtype": "float32"}, "done": {"shape": [], "dtype": "bool"}}
    row.write_text(json.dumps({**both, "next": {**both, **flags}}))
    options: list[Any] = ["--example", row, "--disk", tmp_path / "runs"]
    command = Command(*options)
    options += ["--port", command.port]
    client = TcpClient("127.0.0.1", command.port, reconnect_s=LIMIT_S)
    assert client._thread.compact
    sent = 0
    for turn in range(4):
        for _ in range(50):
            client.send_trajectory(numbered(sent, width))
            sent += 1
        if turn % 2:
            client.wait(LIMIT_S)
        command.end(signal.SIGKILL)
        command = Command(*options)
    client.close()
    command.end()
    with DiskStorage(tmp_path / "runs" / "default") as storage:
        assert not storage.quarantined
        assert storage.schema is not None and storage.schema.sharing is not None
        found = [storage.read_episode(int(line["id"])) for line in storage.episodes()]
        assert len(found) == sent
        for episode, rows in enumerate(found):
            expected = numbered(episode, width)
            assert np.array_equal(rows["number"], expected["number"])
            assert np.array_equal(rows["next", "number"], expected["next"]["number"])


def numbered(episode: int, width: int) -> Any:
    steps = 3 + episode % 5
    number = np.repeat(1000 * episode + np.arange(steps)[:, None], width, 1)
    reward = np.zeros(steps, np.float32)
    done = np.arange(steps) == steps - 1
    return {"number": number, "next": {"number": number + 1, "reward": reward, "done": done}}
