"""Servers, clients and waiting, as the tests of this directory need them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from contig import ReplayBuffer, Server, SharedStorage, TcpClient, TcpTransport, _native
from contig.client.connecting import ServerAddress, connect
from contig.layout import Layout
from contig.testing import steps

HOST = "127.0.0.1"
ROW = steps.row(0, 0)


@contextlib.contextmanager
def serving(buffer: Any = None, *, process: bool = False, **transport: Any) -> Iterator[Server]:
    """A started server of one buffer or of several tables: in this process, unless told."""
    transport.setdefault("in_process", not process)
    given = {"tables": buffer} if isinstance(buffer, dict) else {"buffer": buffer}
    with Server(**given, transport=TcpTransport(**transport)) as server:
        yield server


def shared(capacity: int = 1000, example: Any = ROW, **options: Any) -> ReplayBuffer:
    """A buffer that every kind of client can write to."""
    options.setdefault("seed", 0)
    return ReplayBuffer(SharedStorage(capacity, example=example), **options)


def client(server: Server, sample: Any = None, **options: Any) -> TcpClient:
    return TcpClient(HOST, server.port, sample, **options)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def asking(far: Any) -> int:
    """How many requests of a client or a remote buffer are under way."""
    client = getattr(far, "_client", far)
    sessions = (client._session, getattr(client, "_asking", None))
    return sum(len(s.thread.requests) for s in sessions if s is not None)


def sockets() -> int:
    """Open sockets of this process."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return count


class Raw:
    """A connection that sends what it is told, by hand."""

    def __init__(self, server: Server, producer: int, row: Any, token: str | None = None) -> None:
        self.layout = Layout(row)
        opening = {
            "producer": producer,
            "layout": self.layout.to_json(),
            "ack": "committed",
            "next": 0,
            "heartbeat": False,  # nobody here says a word unless the test wants it
        }
        address = ServerAddress(HOST, server.port, "default", token, None)
        self.sock = connect(address, opening, 5.0).sock
        self.row = row

    def items(self, first: int, n: int, tape: bool) -> None:
        builder = _native.FrameBuilder(self.layout.record_size, False, first, 1 << 16)
        record = self.layout.pack_one(self.row)
        for _ in range(n):
            if tape:
                builder.add_run(record, 1 | 2, 5, -1, 0, False)
            else:
                builder.add_records(record)
        sealed = builder.take(True)
        self.sock.sendall(sealed.head + bytes(memoryview(sealed)))

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.sock.close()
