"""Accumulated rollouts on their way to a real server: the record itself travels."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

from contig import (
    LayoutError,
    RemoteReplayBuffer,
    Server,
    SharedClient,
    TcpTransport,
    TrajectoryAccumulator,
)
from tests.client.serving import HOST, client, serving, shared

T = 4
EXAMPLE = {
    "step": {"obs": np.zeros((T, 3), np.float32), "done": np.zeros(T, bool)},
    "episode": {"return": np.zeros((), np.float64)},
}
KINDS = ["tcp", "shared", "submit"]


def rollout(accumulator: TrajectoryAccumulator, number: int) -> Any:
    for t in range(T):
        accumulator.add("step", {"obs": np.full(3, 10 * number + t), "done": t == T - 1})
    accumulator.add("episode", {"return": number + 0.5})
    return accumulator.build()


def queue(process: bool = False, batch_size: int = 1) -> Server:
    return Server(EXAMPLE, batch_size, TcpTransport(in_process=not process))


def sender(server: Server, kind: str) -> Any:
    if kind == "submit":
        return server.submit
    far: Any = client(server, EXAMPLE) if kind == "tcp" else SharedClient(server.name, EXAMPLE)
    return far.send


def taken(server: Server) -> Any:
    return server.sample(20).batch  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_arrive_as_they_were_when_sent(kind: str) -> None:
    accumulator = TrajectoryAccumulator(EXAMPLE)
    with queue(batch_size=3) as server:
        send = sender(server, kind)
        for number in range(3):
            send(rollout(accumulator, number))
        accumulator.add("step", {"obs": np.full(3, -1), "done": False})  # into the same memory
        batch = taken(server)
        assert batch["episode", "return"].tolist() == [0.5, 1.5, 2.5]
        assert batch["step", "obs"][:, :, 0].tolist() == [
            [10 * n + t for t in range(T)] for n in range(3)
        ]
        assert batch["step", "done"].tolist() == [[False] * (T - 1) + [True]] * 3
        close(send)


def close(send: Any) -> None:
    far = getattr(send, "__self__", None)
    if far is not None and not isinstance(far, Server):
        far.close()


@pytest.mark.parametrize("kind", ["tcp", "shared"])
def test_the_record_is_what_travels(kind: str) -> None:
    accumulator = TrajectoryAccumulator(EXAMPLE)
    with queue() as server:
        send = sender(server, kind)
        built = rollout(accumulator, 1)
        built["step"]["obs"][2] = 77  # a leaf, in place: part of the record
        send(built)
        assert taken(server)["step", "obs"][0, 2].tolist() == [77, 77, 77]

        built = rollout(accumulator, 2)
        built["step"] = {"obs": np.full((T, 3), 99.0), "done": np.ones(T, bool)}  # no part of it
        send(built)
        batch = taken(server)
        assert batch["step", "obs"][0, :, 0].tolist() == [20, 21, 22, 23]

        place = built.layout.by_path["episode", "return"]
        raw = built.record[place.offset : place.offset + place.nbytes]
        raw[:] = np.frombuffer(np.float64(123.25).tobytes(), np.uint8)  # its bytes
        send(built)
        assert taken(server)["episode", "return"].tolist() == [123.25]
        close(send)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_sending_a_plain_tree(kind: str) -> None:
    accumulator = TrajectoryAccumulator(EXAMPLE)
    with queue() as server:
        send = sender(server, kind)
        built = rollout(accumulator, 3)
        plain = {k: dict(v) for k, v in built.items()}
        batches = []
        for tree in (built, plain):
            send(tree)
            batches.append(taken(server))
        leaves = list(batches[0].keys())
        for key in leaves:
            assert batches[0][key].tobytes() == batches[1][key].tobytes()
        close(send)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_another_layout_is_refused(kind: str) -> None:
    longer = {**EXAMPLE, "step": {"obs": np.zeros((T, 2), np.float32), "done": np.zeros(T, bool)}}
    other = TrajectoryAccumulator(longer).build(partial=True)
    with queue() as server:
        send = sender(server, kind)
        with pytest.raises(LayoutError, match="obs"):
            send(other)
        send(rollout(TrajectoryAccumulator(EXAMPLE), 4))
        assert taken(server)["episode", "return"].tolist() == [4.5]
        close(send)


def test_a_built_record_serves_as_the_sample() -> None:
    built = rollout(TrajectoryAccumulator(EXAMPLE), 5)
    with Server(built, 2, TcpTransport(in_process=True)) as server:
        with client(server, built) as far, SharedClient(server.name, built) as near:
            far.send(built)
            far.wait(20)
            near.send(built)
        assert taken(server)["episode", "return"].tolist() == [5.5, 5.5]


def test_a_record_can_be_a_row_of_a_table() -> None:
    accumulator = TrajectoryAccumulator(EXAMPLE)
    buffer = shared(example=EXAMPLE, batch_size=2)
    with serving(buffer) as server:
        with client(server) as far, SharedClient(server.name) as near:
            far.send(rollout(accumulator, 1))
            far.wait(20)
            near.send(rollout(accumulator, 2))
            with RemoteReplayBuffer(HOST, server.port, prefetch=0) as remote:
                remote.add(rollout(accumulator, 3))
                remote.flush(20)
                assert remote.sample()["step", "obs"].shape == (2, T, 3)
            writer = far.writer()
            writer.append(rollout(accumulator, 4))
            writer.append(rollout(accumulator, 5))  # the same memory: the first one was copied
            writer.end_episode()
    assert buffer[:]["episode", "return"].tolist() == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert buffer[:]["step", "obs"][:, 0, 0].tolist() == [10, 20, 30, 40, 50]


# -- seed 000 -------------------------------------------------------------------------------------

SEED = """
import numpy as np
from echo import TrajectoryAccumulator, TcpClient

T = 64  # rollout length

example = {
    # Buffered timescale: leading dim T across every leaf.
    "step": {
        "obs": np.zeros((T, 4), dtype=np.float32),
        "reward": np.zeros((T,), dtype=np.float32),
    },
    # Single-item timescale: all leaves have shape (1, ...) — capacity 1,
    # `add()` replaces the whole leaf.
    "episode": {
        "return": np.zeros((1,), dtype=np.float32),
        "length": np.zeros((1,), dtype=np.float32)
    },
    # Single-item timescale: 0-d reward means add() replaces the whole leaf
    "final_step": {
        "obs": np.zeros((4,), dtype=np.float32),
        "reward": np.zeros((), dtype=np.int32),
    },
}

# The server is constructed with the same example.
client = TcpClient("localhost", 50051, example)
buf = TrajectoryAccumulator(example)

for _ in range(num_rollouts):
    episode_return = 0.0
    reward = 0.0
    obs = env.reset()
    for _ in range(T):
        buf.add("step", {"obs": obs, "reward": reward})
        obs, reward, ... = env.step(...)
        episode_return += float(reward)

    buf.add("episode", {"return": np.array([episode_return]), "length": np.array([length])})
    buf.add("final_step", {"obs": obs, "reward": reward})
    client.send(buf.build())
"""


class Env:
    """Observations that tell the step; rewards that are whole numbers."""

    def __init__(self) -> None:
        self.steps = 0

    def reset(self) -> Any:
        return np.full(4, self.steps, np.float64)

    def step(self, _: Any) -> tuple[Any, float]:
        self.steps += 1
        return self.reset(), float(self.steps % 3)


@pytest.mark.parametrize("process", [False, True])
def test_seed_000_against_a_real_server(process: bool) -> None:
    code = textwrap.dedent(SEED)
    head, body = code.split("# The server is constructed", 1)
    head = head.replace("from echo import", "from contig import")
    body = "# " + body.replace("obs, reward, ... =", "obs, reward =")  # its dots are no Python
    scope: dict[str, Any] = {"num_rollouts": 5, "env": Env(), "length": 64}
    exec(head, scope)
    with Server(scope["example"], 5, TcpTransport(in_process=not process)) as server:
        exec(body.replace("50051", str(server.port)), scope)
        batch = taken(server)
        scope["client"].close()
    assert batch["step", "obs"].shape == (5, 64, 4) and batch["step", "obs"].dtype == np.float32
    assert batch["step", "obs"][:, :, 0].tolist() == [
        [64 * n + t for t in range(64)] for n in range(5)
    ]
    rewards = np.arange(1, 5 * 64 + 1) % 3
    assert batch["step", "reward"][:, 1:].ravel().tolist() == [
        r for i, r in enumerate(rewards.tolist()) if i % 64 < 63
    ]
    assert batch["step", "reward"][:, 0].tolist() == [0] * 5
    sums = rewards.reshape(5, 64).sum(1)
    assert batch["episode", "return"].tolist() == [[float(x)] for x in sums]
    assert batch["episode", "length"].tolist() == [[64.0]] * 5
    assert batch["final_step", "obs"][:, 0].tolist() == [64, 128, 192, 256, 320]
    assert batch["final_step", "reward"].tolist() == [(64 * (n + 1)) % 3 for n in range(5)]
    assert batch["final_step", "reward"].dtype == np.int32
