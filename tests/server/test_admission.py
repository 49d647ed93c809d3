"""Strangers at the door: TLS handshakes, metrics readers, a process without descriptors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import ConnectionClosedError, Server, TcpClient, TcpTransport
from tests.client.serving import free_port
from tests.client.test_outgoing import peak
from tests.processes import rss
from tests.waiting import until
from tests.wire.test_security import Certificates

EXAMPLE = {"x": np.float32(0)}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def knock(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


def test_tls_handshakes_that_do_not_end(certificates: Certificates) -> None:
    """800 peers that say nothing: a bounded number is listened to, and a client gets through."""
    transport = TcpTransport(tls=certificates.own)
    with Server(EXAMPLE, 1, transport) as server, ExitStack() as stack:
        before = peak(server.pid)
        for _ in range(800):
            stack.enter_context(knock(server.port))
        options: dict[str, Any] = {"tls": certificates.authority, "reconnect_s": 100.0}
        with TcpClient("127.0.0.1", server.port, EXAMPLE, **options) as client:
            client.send({"x": 7.0})
            client.wait(timeout=60)
        sample = server.sample(timeout=60)
        assert sample is not None and sample.batch["x"][0] == 7
        assert peak(server.pid) - before < 100 << 20
        assert server.stats().rejected["tls"] >= 1


def test_peers_that_stop_behind_their_tls_handshake(certificates: Certificates) -> None:
    """They are encrypted, but have proven nothing."""
    import ssl

    context = ssl.create_default_context(cafile=certificates.authority)
    with Server(EXAMPLE, 1, TcpTransport(tls=certificates.own)) as server, ExitStack() as stack:
        for _ in range(300):
            raw = stack.enter_context(knock(server.port))
            stack.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1"))
        until(lambda: server.stats().rejected.get("busy", 0) >= 300 - 256, "those too many")
        until(lambda: server.stats().connections <= 256, "their end")


def test_tls_counts_as_memory(certificates: Certificates) -> None:
    """What the library and the event loop have for a connection is more than we have."""
    most, frame = 8 << 20, 1 << 20
    transport = TcpTransport(tls=certificates.own, max_bytes=most, max_frame=frame)
    options: dict[str, Any] = {"tls": certificates.authority, "reconnect_s": 0}
    with Server(EXAMPLE, 1, transport) as server, ExitStack() as stack:
        before = rss(server.pid)
        with pytest.raises(ConnectionClosedError, match=rf"busy.*max_bytes={most}"):
            for _ in range(200):
                client = TcpClient("127.0.0.1", server.port, EXAMPLE, **options)
                stack.callback(client.close)
        told = server.stats()
        assert 10 < told.connections < 40
        assert told.connections * (256 << 10) < told.bytes_held <= most
        assert rss(server.pid) - before < 2 * most
        assert told.rejected == {"busy": 1}


def test_metrics_readers_that_say_nothing() -> None:
    port = free_port()
    with Server(EXAMPLE, 1, TcpTransport(metrics_port=port)) as server, ExitStack() as stack:
        idle = [stack.enter_context(knock(port)) for _ in range(40)]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            assert b"contig_connections" in page.read()
        assert server.stats().rejected == {}
        for sock in idle:  # all of them are let go
            sock.settimeout(30)
            try:
                assert sock.recv(1) == b""
            except ConnectionResetError:
                pass


SERVER = """
import json, resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 160))
from contig import Server, TcpTransport
transport = TcpTransport(in_process=sys.argv[1] == "thread")
with Server({"x": np.float32(0)}, 1, transport) as server:
    print(server.port, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.stats()._asdict()), flush=True)
"""


class Confined:
    """A server in a process that may open few files."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(contig.__file__).parents[1])},
        )
        self.port = int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stats(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def end(self) -> str:
        _, said = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, said
        return said

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=["process", "thread"])
def confined(request: pytest.FixtureRequest) -> Iterator[Confined]:
    """With uvloop, if it is there, and with asyncio's own loop."""
    server = Confined(request.param)
    yield server
    server.kill()


def test_without_descriptors_it_waits(confined: Confined) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(knock(confined.port))
        until(lambda: confined.stats()["rejected"].get("descriptors", 0) >= 5, "trouble")
        # It does not try again at once: few attempts, and not thousands.
        assert confined.stats()["rejected"]["descriptors"] < 200
    with TcpClient("127.0.0.1", confined.port, EXAMPLE, reconnect_s=60.0) as client:
        client.send({"x": 1.0})
        client.wait(timeout=60)
    assert confined.stats()["items_in"] == 1
    said = confined.end()
    assert said.count("cannot accept") == 1, said
    assert "Traceback" not in said


def test_it_raises_its_limit() -> None:
    """To what is allowed: more connections than the soft limit has room for."""
    confined = Confined("process")
    with ExitStack() as stack:
        stack.callback(confined.kill)
        for _ in range(100):
            stack.enter_context(knock(confined.port))
        until(lambda: confined.stats()["connections"] == 100, "all of them", 4)
        assert "descriptors" not in confined.stats()["rejected"]


# -- what a child process imports ------------------------------------------------------------------

HOSTILE = """
import pathlib
pathlib.Path("executed").touch()
raise SystemExit("a module of the working directory was executed")
"""


@pytest.mark.parametrize("path", [None, "", "."])
def test_nothing_of_the_working_directory_is_executed(tmp_path: Path, path: str | None) -> None:
    program = """
import os
import numpy as np
from contig import ConnectionClosedError, Server, TcpClient, TcpTransport
os.chdir("work")  # what is relative in PYTHONPATH points there now
with Server({"x": np.float32(0)}, 1, TcpTransport()) as server:
    with TcpClient("127.0.0.1", server.port, {"x": np.float32(0)}) as client:
        client.send({"x": 3.0})
    print(server.sample(timeout=30).batch["x"][0])
"""
    folder = tmp_path / "work"
    folder.mkdir()
    own = str(Path(contig.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": own}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([own, path])
    for name in ("uvloop", "numpy", "json", "asyncio", "optree", "contig"):
        (folder / f"{name}.py").write_text(HOSTILE)
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not (folder / "executed").exists(), done.stderr
    assert done.stdout == "3.0\n", done.stderr
