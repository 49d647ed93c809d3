"""A server's table on a full disk: clients wait until there is room, and are not turned away."""

from __future__ import annotations

import errno
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import DiskStorage, ReplayBuffer, Server, TcpTransport, wire
from contig.wire import Type
from tests.client.test_outgoing import next_frame, opened
from tests.tape.disk.test_faults import Faults, faults  # noqa: F401
from tests.waiting import Threads, until
from tests.wire.test_values import frame

ROW = {"n": np.int64(0), "next": {"done": False}}
PARTS = 3


def part(layout: Any, number: int) -> bytes:
    """An item: two rows that say which."""
    records = bytearray()
    for step in range(2):
        tree = {
            "n": 10 * number + step,
            "next": dict.fromkeys(("done", "terminated", "truncated"), 0),
        }
        records += layout.pack_one(tree).tobytes()
    run = struct.pack("<IIqqII", 2, 1, number, -1, 0, 0)
    return frame(run + bytes(records), 2, 1, number)


@pytest.mark.parametrize("durability", ["committed", "durable"])
def test_handshakes_and_goodbyes_wait_for_room(
    tmp_path: Path,
    faults: Faults,  # noqa: F811
    durability: str,
) -> None:
    storage = DiskStorage(tmp_path / "disk", 1000, durability=durability, example=ROW)
    with Server(buffer=ReplayBuffer(storage), transport=TcpTransport(heartbeat_s=600.0)) as server:
        layout = storage.layout
        assert layout is not None
        peer = opened(server, producer=1, sends=layout.to_json())
        peer.sock.sendall(part(layout, 0))
        assert next_frame(peer)[:2] == (Type.ACK, 1)
        faults.arm_index(sqlite3.OperationalError("database or disk is full"))
        peer.sock.sendall(part(layout, 1) + wire.frame(Type.BYE))
        # It comes back before that is committed: what it is told must be.
        again: list[Any] = []
        coming = Threads(lambda: again.append(opened(server, producer=2)))
        until(lambda: server.stats().connections == 2, "its coming back")
        tried = faults.calls
        until(lambda: faults.calls > tried + 2, "some attempts to commit")
        assert coming.alive and server.stats().rejected == {}
        assert server.stats().connections == 2
        faults.repair()
        coming.join(20)
        assert again[0].accepted.seen == 0
        assert next_frame(peer)[:2] == (Type.ACK, 2)
        assert next_frame(peer)[0] == Type.BYE
        # The same producer, with more.
        back = opened(server, producer=1, sends=layout.to_json())
        assert back.accepted.seen == 2
        back.sock.sendall(part(layout, 2))
        assert next_frame(back)[:2] == (Type.ACK, 3)
        for accepted in (peer, again[0], back):
            accepted.sock.close()
        assert server.stats().rejected == {}
    storage.close()
    with DiskStorage(tmp_path / "disk") as stored:
        batch = ReplayBuffer(stored)[np.arange(len(stored))]
        assert batch["n"].tolist() == [10 * n + step for n in range(PARTS) for step in range(2)]


def test_a_table_that_cannot_be_made_yet(tmp_path: Path, faults: Faults) -> None:  # noqa: F811
    """The first client brings the layout, and there is no room for its files."""
    storage = DiskStorage(tmp_path / "disk", 1000)
    with Server(buffer=ReplayBuffer(storage), transport=TcpTransport(heartbeat_s=600.0)) as server:
        from contig.layout import Layout

        faults.arm("create", errno.ENOSPC)
        faults.arm("write_new", errno.ENOSPC)
        found: list[Any] = []
        coming = Threads(
            lambda: found.append(opened(server, producer=1, sends=Layout(ROW).to_json()))
        )
        until(lambda: faults.calls > 2, "some attempts")
        assert coming.alive and server.stats().rejected == {}
        faults.repair()
        coming.join(20)
        assert found[0].accepted.seen == 0 and found[0].accepted.schema is not None
        found[0].sock.close()
    storage.close()
