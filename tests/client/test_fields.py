"""Fields of trajectories from clients: what a server's buffer has then is what one would have that
was written to here.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest

from contig import (
    LayoutError,
    LazyTensorStorage,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    SharedClient,
    SharedStorage,
    TcpClient,
    TcpTransport,
    wire,
)
from contig.layout import Layout
from contig.tape.fields import fields_layout, pack_fields
from contig.wire import Refused
from tests.client.scripts import Script, writing
from tests.client.serving import HOST, client, serving
from tests.wire.independent_client import Client as OldClient

ROW = {"n": np.int64(0), "next": {"done": False, "terminated": False, "truncated": False}}
FIELDS = {
    "task": np.int32(0),
    "success": False,
    "group": {"id": np.int64(0), "scores": np.zeros(2, np.float32)},
}
SHOWN = ("steps", "terminated", "truncated", "task", "success", "group.id")
SHOWN += ("group.scores",)


def buffer_of(kind: type = LazyTensorStorage, **options: Any) -> ReplayBuffer:
    options.setdefault("fields", FIELDS)
    return ReplayBuffer(kind(5000, example=ROW, **options), batch_size=4, seed=0)


def shown(storage: Any) -> list[Any]:
    """Everything that can be seen of trajectories, without ids of writers; and their rows."""
    table = storage.episodes()
    rows = [storage.read_episode(int(e))["n"].tolist() for e in table["id"]]
    seen = [[table[name][i].tolist() for name in SHOWN] for i in range(len(table))]
    return [(a, b) for a, b in zip(seen, rows)]


@pytest.mark.parametrize("envs", [False, True], ids=["rows", "envs"])
@pytest.mark.parametrize("kind", ["tcp", "remote", "shared"])
def test_what_clients_write(kind: str, envs: bool) -> None:
    """Whatever is called in whatever order: as if it had been written here."""
    for seed in range(3):
        here = buffer_of(ndim=2)
        script = Script(seed, envs)
        for _ in range(60):
            script.call(here)
        buffer = buffer_of(SharedStorage, ndim=2)
        with serving(buffer, process=seed == 0) as server, writing(kind, server) as far:
            again = Script(seed, envs)
            for _ in range(60):
                again.call(far)
        assert shown(buffer.storage) == shown(here.storage)
        assert any(task for (*_, task, _, _, _), _ in shown(here.storage))
        for b in (here, buffer):
            b.storage.close()


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_step_by_step(kind: str) -> None:
    """What is given last counts, with a step or with the end."""
    buffer = buffer_of(SharedStorage)
    with serving(buffer) as server:
        make = (lambda: TcpClient(HOST, server.port)) if kind == "tcp" else None
        with make() if make else SharedClient(server.name) as far:
            with far.writer() as writer:
                writer.append({"n": 0}, fields={"task": 1, "success": True})
                writer.append({"n": 1})
                writer.append({"n": 2}, fields={"task": 2})
                writer.end_episode(terminated=True, fields={"group": {"id": 7}})
                writer.append({"n": 3}, fields={"task": 3, "group": {"id": 4}})
                writer.end_episode(truncated=True, fields={"task": 5})
                with pytest.raises(LayoutError, match="tusk"):
                    writer.append({"n": 9}, fields={"tusk": 1})
                writer.append({"n": 4})
                with pytest.raises(ValueError, match="task"):
                    writer.end_episode(fields={"task": 0.5})
            far.wait(60)
        table = buffer.storage.episodes()
        assert table["task"].tolist() == [2, 5, 0] and table["steps"].tolist() == [3, 1, 1]
        assert table["success"].tolist() == [True, False, False]
        assert table["group.id"].tolist() == [7, 4, 0]
    buffer.storage.close()


def test_a_done_row_ends_what_fields_are_of() -> None:
    """Rows that are sent together: what one gives is not its neighbour's in another trajectory."""
    buffer = buffer_of()
    with serving(buffer) as server, client(server) as far:
        for n in range(60):
            given = {"task": n} if n % 3 == 0 else None
            far.send({"n": n, "next": {"done": n % 3 == 1}}, fields=given)
        far.wait(60)
        table = buffer.storage.episodes()
        # (0), 1 done | 2, (3), 4 done | 5, (6), 7 done ...
        assert table["task"].tolist() == list(range(0, 60, 3)) + [0]
        assert table["steps"].tolist() == [2] + [3] * 19 + [1]


def test_what_does_not_fit_sends_nothing() -> None:
    buffer = buffer_of()
    with serving(buffer) as server, client(server) as far:
        for bad, named in (
            ({"nope": 1}, '"nope"'),
            ({"task": 0.5}, '"task"'),
            ({"group": {"scores": [1.0]}}, '"scores"'),
        ):
            with pytest.raises(ValueError, match=named):
                far.send({"n": 0, "next": {"done": False}}, fields=bad)
            with pytest.raises(ValueError, match=named):
                far.send_trajectory({"n": np.arange(3)}, fields=bad)
        assert far.pending == 0 and far.acked == 0
    queue = Server({"x": np.float32(0)}, 2, TcpTransport(in_process=True))
    with queue, TcpClient(HOST, queue.port) as far, SharedClient(queue.name) as near:
        for one in (far, near):
            with pytest.raises(TypeError, match="queue of single items"):
                one.send({"x": 1.0}, fields={"task": 1})
        with pytest.raises(TypeError, match="queue of single items"):
            SharedClient(queue.name, fields=FIELDS)
        with pytest.raises(LayoutError, match="no trajectories; use a table"):
            TcpClient(HOST, queue.port, fields=FIELDS)


# -- the handshake --------------------------------------------------------------------------------


def test_layouts_of_fields_are_compared() -> None:
    """A client says what it will give, or takes what is there."""
    other = {**FIELDS, "task": np.int64(0), "group": {"id": np.int64(0)}}
    with serving(buffer_of(SharedStorage)) as server:
        for make in (client, lambda s, **o: SharedClient(s.name, **o)):
            with make(server, fields=FIELDS) as far:
                far.send_trajectory({"n": np.arange(2)}, fields={"task": 1})
            with pytest.raises(LayoutError, match=r'"task": dtype int64, expected int32') as wrong:
                make(server, fields=other)
            assert '("group", "scores"): missing' in str(wrong.value)
    with serving(buffer_of(SharedStorage, fields=None)) as server:
        for make in (client, lambda s, **o: SharedClient(s.name, **o)):
            with pytest.raises(LayoutError, match="no fields of trajectories"):
                make(server, fields=FIELDS)
            with make(server) as far, pytest.raises(LayoutError, match="no fields"):
                far.send_trajectory({"n": np.arange(2)}, fields={"task": 1})


def test_a_table_without_a_layout_takes_the_first_clients() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(100), batch_size=4)
    with serving(buffer) as server:
        with client(server, ROW, fields=FIELDS) as far:
            far.send_trajectory({"n": np.arange(2)}, fields={"task": 1})
        assert buffer.storage.fields == fields_layout(FIELDS)
        assert buffer.storage.episodes()["task"].tolist() == [1]
        with client(server, ROW) as far:  # does not say, and may give them all the same
            far.send_trajectory({"n": np.arange(2)}, fields={"task": 2})
        assert buffer.storage.episodes()["task"].tolist() == [1, 2]
    with pytest.raises(LayoutError, match="another name"):
        TcpClient(HOST, 1, ROW, fields={"steps": np.int64(0)})  # nobody is asked


class Downgrade:
    """Makes a client's hello, or a server's, that of version 1, which knew no other one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        new = wire.Hello.new
        monkeypatch.setattr(wire.Hello, "new", lambda: new()._replace(newest=0))


def test_a_server_of_the_old_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with version 1, as one does that never heard of another."""
    Downgrade(monkeypatch)
    with serving(buffer_of(fields=None)) as server:
        with client(server, ROW) as far:
            far.send_trajectory({"n": np.arange(3)}, terminated=True)
            far.wait(60)
        with pytest.raises(ValueError, match=r"speaks protocol 1, and fields of trajectories need"):
            client(server, ROW, fields=FIELDS)
        assert len(server.buffers["default"]) == 3


def test_a_client_of_the_old_version() -> None:
    """Tables without fields are as ever; of one that has some it is told what to do."""
    layout = Layout(ROW)
    with serving({"old": buffer_of(fields=None), "new": buffer_of()}) as server:
        old = OldClient(HOST, server.port, table="old", layout=layout.to_json())
        record = layout.pack_one(ROW).tobytes()
        old.send_runs([([record, record], 1 | 2, 5, -1, 0)])
        old.wait()
        assert old.sample(1, 2)[("n",)] == [0, 0]
        old.bye()
        for said in (layout.to_json(), None):
            with pytest.raises(PermissionError) as refused:
                OldClient(HOST, server.port, table="new", layout=said)
            (answer,) = refused.value.args
            assert answer["reason"] == "version"
            assert "fields of trajectories" in answer["message"]
            assert "update contig" in answer["message"]


def test_an_old_client_that_came_before_the_layout() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(100), batch_size=1)
    with serving(buffer) as server:
        old = OldClient(HOST, server.port)
        with client(server, ROW, fields=FIELDS) as far:
            far.send_trajectory({"n": np.arange(2)}, fields={"task": 1})
        with pytest.raises(PermissionError, match="fields of trajectories"):
            old.sample(1)


# -- set_fields -----------------------------------------------------------------------------------


def test_set_fields_from_afar() -> None:
    buffer = buffer_of()
    with serving(buffer, token="secret", process=True) as server:
        with RemoteReplayBuffer(HOST, server.port, token="secret") as far:
            for n in range(4):
                far.extend_trajectory({"n": np.arange(n + 1)}, fields={"task": n})
            far.flush(60)
            ids = buffer.storage.episodes()["id"]
            with pytest.raises(TypeError, match=r"`episodes\(\)"):
                far.set_fields([0.5], {"success": True})
            assert far.set_fields(ids, {"success": True}) == 4
            assert far.set_fields(ids[:2], {"task": [10, 11], "group": {"scores": [1, 2]}}) == 2
            assert far.set_fields([*ids[2:], 999], [{"task": 12}, None, {"task": 9}]) == 2
            assert far.set_fields(int(ids[3]), {"group": {"id": 5}}) == 1
            assert far.set_fields([], {"task": 1}) == 0 and far.set_fields(ids, {}) == 0
            table = buffer.storage.episodes()
            assert table["task"].tolist() == [10, 11, 12, 3] and table["success"].all()
            assert table["group.scores"].tolist() == [[1, 2], [1, 2], [0, 0], [0, 0]]
            assert table["group.id"].tolist() == [0, 0, 0, 5]
            for bad in ({"nope": 1}, {"task": [1, 2, 3]}, {"task": 0.5}):
                with pytest.raises(ValueError):
                    far.set_fields(ids, bad)
        with pytest.raises(ValueError, match="token"):
            RemoteReplayBuffer(HOST, server.port, token="wrong")
    with serving(buffer_of(fields=None)) as server:
        with RemoteReplayBuffer(HOST, server.port) as far:
            with pytest.raises(LayoutError, match="no fields of trajectories"):
                far.set_fields([0], {"task": 1})


def test_set_fields_of_an_open_trajectory_outlive_its_rows() -> None:
    """The server's writers go on with what was set, though others evicted the rows meanwhile."""
    buffer = ReplayBuffer(SharedStorage(8, example=ROW, fields=FIELDS), batch_size=4)
    with serving(buffer, process=True) as server:
        with TcpClient(HOST, server.port) as far, RemoteReplayBuffer(HOST, server.port) as judge:
            with far.writer() as writer:
                writer.append({"n": 0}, fields={"task": 1})
                writer.append({"n": 1})  # which stays here until the next one comes
                far.wait(60)
                first = buffer.storage.episodes()["id"]
                assert judge.set_fields(first, {"success": True, "group": {"scores": [3, 4]}}) == 1
                judge.extend_trajectory({"n": np.arange(100, 108)}, fields={"task": 9})
                judge.flush(60)
                assert judge.set_fields(first, {"task": 5}) == 0
                writer.append({"n": 2})
                writer.end_episode(terminated=True, fields={"group": {"id": 7}})
            far.wait(60)
        last = buffer.storage.episodes()[-1]
        assert (last["task"], last["success"], last["group.id"]) == (1, True, 7)
        assert last["group.scores"].tolist() == [3, 4]
    buffer.storage.close()


def test_fields_are_the_servers_to_say() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(9), batch_size=1)
    with serving(buffer) as server, TcpClient(HOST, server.port, {"n": 0}) as far:
        with pytest.raises(LayoutError, match=r"make it with fields=.* where a server has it, do"):
            far.send({"n": 1}, fields={"task": 1})
        far.send({"n": 1})
        far.wait(10)
    assert buffer.storage.fields is None and len(buffer) == 1


def test_a_request_that_makes_no_sense() -> None:
    """Whatever a payload says, it is an answer to who sent it, and nothing changes."""
    fields = fields_layout(FIELDS)
    given = pack_fields(fields, {"task": [1, 2]}, (2,))
    assert given is not None
    good = wire.pack_set_fields(np.array([0, 1]), given)
    rng = random.Random(0)
    refused = 0
    for _ in range(4000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.choice((len(data), len(data), rng.randrange(len(data))))]
        try:
            ids, said = wire.parse_set_fields(bytes(data), fields)
        except Refused:
            refused += 1
            continue
        assert len(ids) == 2
        pack_fields(fields, said, (2,))  # whatever comes through fits
    assert 500 < refused < 3900
    with serving(buffer_of()) as server, RemoteReplayBuffer(HOST, server.port) as far:
        far.extend_trajectory({"n": np.arange(2)}, fields={"task": 1})
        far.flush(60)
        for payload in (b"", good[:-1], struct.pack("<QQ", 2**63, 1) + good[16:]):
            kind, answer = far._client.asking.request(wire.Type.SET_FIELDS, payload, 30)
            assert kind == wire.Type.REPLY and b"SET_FIELDS" in answer
        assert server.buffers["default"].storage.episodes()["task"].tolist() == [1]
