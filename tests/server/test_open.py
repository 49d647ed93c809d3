"""Trajectories that clients begin and never end: what a server remembers of them is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contig import (
    ConnectionClosedError,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
)
from contig._native import RunFlag
from contig.client.stream import TrajectoryPart
from tests.processes import rss
from tests.waiting import Threads, until

MOST = 8 << 20
OPEN = MOST // 4
FRAME = 64 << 10


def serve(**options: Any) -> Server:
    storage = LazyTensorStorage(1000, example={"n": np.int64(0), "done": False})
    transport = TcpTransport(max_bytes=MOST, max_frame=FRAME, **options)
    return Server(buffer=ReplayBuffer(storage, batch_size=4), transport=transport)


def begin_many(client: TcpClient, who: int, count: int) -> bool:
    """Begins trajectories by one row each; whether the server says no, sooner or later."""
    tape = client._need_tape()
    row = {"done": False, "terminated": False, "truncated": False}
    record = tape.schema.layout.pack_one({**row, "n": who})
    try:
        for n in range(count):
            tape.send_part(TrajectoryPart(record, RunFlag.BEGINS, who * count + n + 1, -1))
        client.wait(60)
    except ConnectionClosedError as error:
        assert "(open)" in str(error) and "end them" in str(error), error
        return True
    return False


@pytest.mark.parametrize("clients", [1, 12])
def test_trajectories_that_never_end(clients: int) -> None:
    count = 500_000 // clients  # some 75 MB of them
    with serve() as server:
        assert server.pid is not None
        good = TcpClient("127.0.0.1", server.port)
        good.extend({"n": np.arange(3), "done": np.array([False, False, False])})
        good.wait(20)
        before = rss(server.pid)
        made = [TcpClient("127.0.0.1", server.port, reconnect_s=0) for _ in range(clients)]
        refused: list[bool] = []
        threads = Threads(
            *(
                lambda who=who, client=client: refused.append(begin_many(client, who, count))
                for who, client in enumerate(made)
            )
        )
        most = 0
        while threads.alive:
            most = max(most, server.stats().open_bytes)
        threads.join(100)
        assert refused == [True] * clients
        # Each may have brought one frame more before it was told.
        assert most <= OPEN + (clients + 1) * 4 * FRAME
        assert rss(server.pid) - before < 4 * MOST
        assert server.stats().rejected == {"open": clients}
        # Whoever has few of them goes on, and ends what it has begun.
        good.extend({"n": np.arange(3, 6), "done": np.array([False, False, True])}, continues=True)
        good.close(20)
        until(lambda: server.stats().open_bytes <= OPEN, "those that are gone to be forgotten")
        table = server.buffers["default"].storage.episodes()
        ended = table[table["terminated"] | table["truncated"]]
        assert len(ended) == 1
        rows = server.buffers["default"].storage.read_episode(int(ended[0]["id"]))
        assert rows["n"].tolist()[-3:] == [3, 4, 5]


def test_trajectories_that_end_are_not_counted() -> None:
    """However many there were."""
    row = {"done": True, "terminated": False, "truncated": True}
    with serve() as server:
        with TcpClient("127.0.0.1", server.port) as client:
            tape = client._need_tape()
            record = tape.schema.layout.pack_one({**row, "n": 7})
            for n in range(60_000):
                tape.send_part(
                    TrajectoryPart(record, RunFlag.BEGINS | RunFlag.TRUNCATED, n + 1, -1)
                )
            client.wait(60)
        stats = server.stats()
        assert stats.rejected == {} and stats.open_bytes < OPEN // 2
        assert stats.rows_in == 60_000


def test_whose_connection_is_gone_is_remembered_while_there_is_room() -> None:
    with serve() as server:
        client = TcpClient("127.0.0.1", server.port)
        client.extend({"n": np.arange(3), "done": np.zeros(3, bool)})
        client.wait(20)
        held = server.stats().open_bytes
        client.close()
        until(lambda: server.stats().connections == 0, "its connection gone")
        assert 0 < server.stats().open_bytes == held
