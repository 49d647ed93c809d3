"""Connections that come while the acceptor ends."""

from __future__ import annotations

import asyncio
import socket

from contig.server.acceptor import Acceptor


def test_a_connection_that_comes_at_the_end_is_closed() -> None:
    """Accepted, but nothing was done about it yet when the acceptor was closed."""
    listening = socket.create_server(("127.0.0.1", 0))
    rejected: list[str] = []

    async def serve() -> tuple[Acceptor, socket.socket]:
        loop = asyncio.get_running_loop()
        acceptor = Acceptor(loop, listening, asyncio.Protocol, None, 5.0, rejected.append)
        client = socket.create_connection(listening.getsockname())
        acceptor._accept()
        acceptor.close()
        for _ in range(3):
            await asyncio.sleep(0)
        return acceptor, client

    acceptor, client = asyncio.run(serve())
    with client:
        client.settimeout(30)
        assert client.recv(1) == b""  # its end is heard, though the acceptor is still there
    assert not acceptor._coming and not acceptor._handshakes
