"""What a server counts: past the death of its ingest process, and whatever clients claim."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import numpy as np
import pytest

from contig import LayoutError, Server, TcpClient, TcpTransport
from contig.client.connecting import ServerAddress, connect
from contig.server.ingest_process import IngestProcess
from tests.server import items
from tests.server.test_many import Raw
from tests.waiting import until


def test_counters_go_on_when_the_ingest_process_is_restarted() -> None:
    with Server(items.example(), 4, TcpTransport(max_restarts=3)) as server:
        with closing(Raw(server, 1)) as raw:
            raw.sock.sendall(raw.frame(0, 0, 4))
            raw.await_ack(4)
            raw.sock.sendall(raw.frame(0, 2, 2))  # some again
            raw.sock.sendall(b"x" * 40)  # and nonsense
            until(lambda: server.stats().rejected, "the refusal")
        told = server.stats()
        assert (told.items_in, told.duplicates_dropped, told.rejected) == (4, 2, {"magic": 1})
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.pid != pid, "another process")
        with closing(Raw(server, 1)) as raw:
            assert raw.connected.accepted.seen == 4
            raw.acked = 4
            raw.sock.sendall(raw.frame(0, 4, 4))
            raw.await_ack(8)
        now = server.stats()
        assert now.items_in == 8 and now.connections_total == told.connections_total + 1
        assert now.bytes_in > told.bytes_in
        assert (now.duplicates_dropped, now.rejected) == (2, {"magic": 1})


@pytest.mark.parametrize("end", ["asked", "closed"])
def test_counters_of_an_ingest_process_that_is_stopped(end: str) -> None:
    """It cannot answer, and nobody asked it before: it says by itself what it counts."""
    with Server(items.example(), 4, TcpTransport()) as server:
        with closing(Raw(server, 1)) as raw:
            raw.sock.sendall(raw.frame(0, 0, 4))
            raw.await_ack(4)
            raw.sock.sendall(raw.frame(0, 2, 2))
            ingest, pid = server._run.ingest, server.pid
            assert isinstance(ingest, IngestProcess) and pid is not None
            until(lambda: (ingest._counters or {}).get("duplicates_dropped") == 2, "what it counts")
            os.kill(pid, signal.SIGSTOP)
            try:
                if end == "closed":
                    server.close()  # it has to be killed
                told = server.stats()
            finally:
                os.kill(pid, signal.SIGCONT) if end == "asked" else None
            assert (told.items_in, told.duplicates_dropped) == (4, 2)
            assert told.tables["default"]["rows_in"] == 4
            assert ingest._answers == {}


def test_a_client_cannot_claim_any_number_of_lost_items() -> None:
    """More than a server can ever have held: its word is worth nothing."""
    with Server(items.example(), 4, TcpTransport(max_bytes=1 << 20, max_frame=1 << 16)) as server:
        with closing(Raw(server, 5)) as raw:
            raw.sock.sendall(raw.frame(0, 0, 3))
            raw.await_ack(3)
        address = ServerAddress("127.0.0.1", server.port, "default", None, None)
        claims = {"producer": 5, "layout": None, "ack": "received"}
        for claimed in (2**63 - 1, 2**62, (1 << 20) + 4):
            with pytest.raises(ValueError, match="seen 3 items"):
                connect(address, {**claims, "next": claimed}, 10.0)
        assert server.stats().lost_items == 0
        connected = connect(address, {**claims, "next": 10}, 10.0)
        connected.sock.close()
        assert connected.accepted.seen == 10 and server.stats().lost_items == 7


def test_a_bare_array_for_a_server_of_dicts_and_the_other_way_round() -> None:
    bare, named = np.zeros(3, np.float32), {"x": np.zeros(3, np.float32)}
    for example, sample in ((named, bare), (bare, named)):
        with Server(example, 4, TcpTransport()) as server:
            with pytest.raises(LayoutError, match=r"the root: .*float32\[3\]"):
                TcpClient("127.0.0.1", server.port, sample)
            assert server.stats().rejected == {"layout": 1}


@pytest.mark.parametrize("version", [-1, -(2**62), 2**63, True, 1.0, "1"])
def test_versions_of_weights_are_counts(version: object) -> None:
    with Server(items.example(), 4) as server:
        with pytest.raises(ValueError, match="version .*at least 0"):
            server.publish(version, {"w": np.zeros(3)})  # type: ignore[arg-type]
        assert server.weights_version is None
        server.publish(0, {"other": np.zeros(2)})  # nothing was decided by what was refused
        assert server.weights_version == 0
