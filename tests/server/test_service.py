"""`contig serve` as a service: readiness, health, log lines, and ends that clients outlive."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    ConnectionClosedError,
    DiskStorage,
    RemoteReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
)
from contig.server.core import ServerCore
from contig.server.logs import LogLines
from contig.server.metrics import MetricsPage
from tests.processes import alive
from tests.server import items
from tests.server.test_command import ROW, rows
from tests.waiting import Threads, until

HOST = "127.0.0.1"
LIMIT_S = 60.0


class Service:
    """A running `contig serve`, in a session of its own, with its log in a file."""

    def __init__(self, place: Path, *options: Any, **environment: str) -> None:
        self.log = place / f"log-{time.monotonic_ns()}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "contig", "serve", *map(str, options)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=place,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.match(r"listening on 127\.0\.0\.1:(\d+) tables: ", said)
        if found is None:
            self.kill()
            raise AssertionError(f"{said!r} {self.log.read_text()}")
        self.port, self.metrics = int(found[1]), 0
        if "--metrics-port" in options:
            said = self.process.stdout.readline()
            found = re.fullmatch(r"metrics on http://127\.0\.0\.1:(\d+)/metrics\n", said)
            assert found, said
            self.metrics = int(found[1])

    def get(self, path: str) -> tuple[int, str]:
        page = http.client.HTTPConnection(HOST, self.metrics, timeout=LIMIT_S)
        try:
            page.request("GET", path)
            answer = page.getresponse()
            return answer.status, answer.read().decode()
        finally:
            page.close()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == name]

    @property
    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def end(self, number: int = signal.SIGTERM, group: bool = False) -> None:
        send = os.killpg if group else os.kill
        send(self.process.pid, number)
        self.process.communicate(timeout=LIMIT_S)
        text = self.log.read_text()
        assert self.process.returncode == 0 and "Traceback" not in text, text

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    running: list[Service] = []
    (tmp_path / "row.json").write_text(json.dumps(ROW))

    def start(*options: Any, **environment: str) -> Service:
        running.append(Service(tmp_path, "--example", "row.json", *options, **environment))
        return running[-1]

    yield start
    for service in running:
        service.kill()


# -- readiness and health --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_its_manager_is_told(serve: Any, tmp_path: Path, kind: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(LIMIT_S)
        name = str(tmp_path / "notify") if kind == "file" else f"@contig-{os.getpid()}"
        manager.bind(name.replace("@", "\0") if kind == "abstract" else name)
        service = serve(NOTIFY_SOCKET=name)
        ready = manager.recv(4096).decode().splitlines()
        assert ready == ["READY=1", f"STATUS=listening on {HOST}:{service.port}"]
        with TcpClient(HOST, service.port) as client:  # it is, indeed
            client.send_trajectory(rows(0, 3))
        service.end()
        assert manager.recv(4096) == b"STOPPING=1"


def test_a_manager_that_does_not_listen(serve: Any, tmp_path: Path) -> None:
    serve(NOTIFY_SOCKET=str(tmp_path / "nobody")).end()


@pytest.mark.parametrize("options", [[], ["--disk", "runs"]])
def test_health(serve: Any, options: list[str]) -> None:
    service = serve("--metrics-port", 0, *options)
    assert service.get("/healthz") == (200, "ok\n")
    assert service.get("/readyz") == (200, "ready\n")
    status, text = service.get("/metrics")
    assert status == 200 and "contig_connections " in text
    assert service.get("/other")[0] == 404
    service.end()
    with pytest.raises(OSError):
        service.get("/healthz")


def test_not_ready_while_it_ends() -> None:
    """The page is served to the end, and says so; probes need no token."""

    async def look() -> list[bytes]:
        loop = asyncio.get_running_loop()
        core = ServerCore(loop, {}, None, _limits())
        page = MetricsPage(core, "a secret")
        server = await loop.create_server(page.protocol, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        out = []
        for path in ("/readyz", "/healthz", "/metrics"):
            out.append(await _ask(port, path))
            if path == "/readyz":
                await core.close(final=False)
                out.append(await _ask(port, path))
        server.close()
        return out

    first, after, alive, metrics = asyncio.run(look())
    assert first.startswith(b"HTTP/1.1 200 OK") and first.endswith(b"ready\n")
    assert after.startswith(b"HTTP/1.1 503 Service Unavailable") and after.endswith(b"closing\n")
    assert alive.startswith(b"HTTP/1.1 200 OK")
    assert metrics.startswith(b"HTTP/1.1 401 Unauthorized")


def _limits() -> Any:
    from contig.server.budget import Limits

    return Limits()


async def _ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


def test_the_metrics_port_outlives_the_ingest_process() -> None:
    transport = TcpTransport(metrics_port=0, max_restarts=3)
    with Server(items.example(), 4, transport) as server:
        port, pid = server.metrics_port, server.pid
        assert port and pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.pid != pid, "another ingest process")
        assert server.metrics_port == port

        def answers() -> bool:
            page = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
            try:
                page.request("GET", "/healthz")
                return page.getresponse().status == 200
            except OSError:
                return False  # the connection went to the process that died
            finally:
                page.close()

        until(answers, "the page")
    assert Server(items.example(), 4, TcpTransport()).metrics_port is None


# -- log lines -------------------------------------------------------------------------------------


def test_log_lines(serve: Any) -> None:
    service = serve("--log-json", "--max-restarts", 2, "--metrics-port", 0, CONTIG_TOKEN="secret")
    (start,) = service.events("start")
    assert (start["port"], start["metrics_port"]) == (service.port, service.metrics)
    assert start["tables"] == ["default"] and start["level"] == "info"
    with pytest.raises(ValueError, match="token"):
        TcpClient(HOST, service.port, token="wrong")
    (refused,) = until(lambda: service.events("refuse"), "the refusal")
    assert refused["reason"] == "token" and refused["peer"].startswith(HOST)
    with TcpClient(HOST, service.port, token="secret") as client:
        (connected,) = until(lambda: service.events("connect"), "the connection")
        assert connected["table"] == "default" and connected["peer"].startswith(HOST)
        (ingest,) = service.children
        os.kill(ingest, signal.SIGKILL)
        (restart,) = until(lambda: service.events("restart"), "the restart")
        assert restart["died"] == ingest and restart["level"] == "warning"
        client.send_trajectory(rows(0, 4))
        client.wait(LIMIT_S)
    until(lambda: service.events("disconnect"), "the goodbye")
    service.end()
    (stop,) = service.events("stop")
    assert stop["rows"] == 4
    for line in service.lines():
        assert {"time", "level", "event", "message"} <= line.keys()
    assert "secret" not in service.log.read_text()


def test_log_lines_as_text(serve: Any) -> None:
    service = serve("--log-level", "info")
    with TcpClient(HOST, service.port):
        pass
    service.end()
    text = service.log.read_text()
    stamp = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
    for words in ("info listening on 127", "info connected 127", "info ended: 0 rows"):
        assert re.search(f"{stamp} {words}", text, re.MULTILINE), text
    quiet = serve("--log-level", "warning")
    with TcpClient(HOST, quiet.port):
        pass
    quiet.end()
    assert quiet.log.read_text() == ""


@pytest.mark.parametrize("options", [[], ["--disk", "runs"]])
def test_a_refusal_is_one_line(serve: Any, options: list[str]) -> None:
    """Also that of another layout, which is told leaf by leaf."""
    service = serve(*options)
    with pytest.raises(ValueError, match="other"):
        TcpClient(HOST, service.port, {"other": np.zeros(7), "still": {"another": 1}})
    service.end()
    lines = service.log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\S+ (info|warning) \w", line) for line in lines), lines
    (refused,) = [line for line in lines if " refused " in line]
    assert "other" in refused and "another" in refused


def test_tracebacks_are_one_line() -> None:
    try:
        raise ValueError("what was\nsaid")
    except ValueError:
        record = logging.makeLogRecord({"msg": "it failed", "exc_info": sys.exc_info()})
    line = LogLines(as_json=False).format(record)
    assert "\n" not in line and "it failed | Traceback" in line and line.endswith("was | said")


def test_rows_of_earlier_lives_are_not_counted(serve: Any) -> None:
    for life in (1, 2):
        service = serve("--disk", "runs", "--log-json")
        with TcpClient(HOST, service.port) as client:
            client.send_trajectory(rows(100 * life, 3 + life))
        os.kill(service.process.pid, signal.SIGTERM)
        out, _ = service.process.communicate(timeout=LIMIT_S)
        assert out.splitlines()[-1] == f"closed: {3 + life} rows taken in"
        (stop,) = service.events("stop")
        assert stop["rows"] == 3 + life


# -- ends that clients outlive ---------------------------------------------------------------------


def test_clients_are_told_and_come_back(serve: Any, tmp_path: Path, caplog: Any) -> None:
    """A graceful restart under load: nobody raises, and every row is there once."""
    caplog.set_level(logging.INFO, "contig.transport")
    options = ["--disk", "runs", "--batch-size", 8]
    service = serve(*options)
    options += ["--port", service.port]
    clients = [TcpClient(HOST, service.port) for _ in range(3)]
    learner = RemoteReplayBuffer(HOST, service.port, reconnect_s=LIMIT_S)
    clients[0].send_trajectory(rows(0, 4))
    clients[0].wait(LIMIT_S)
    going, sent, drawn = [True], [1, 0, 0], [0]

    def send(which: int) -> None:
        while going[0]:
            clients[which].send_trajectory(rows(which * 10**6 + 1000 * sent[which], 4))
            sent[which] += 1
            clients[which].wait(LIMIT_S)

    def draw() -> None:
        while going[0]:
            assert len(learner.sample()) == 8
            drawn[0] += 1

    threads = Threads(*(lambda which=which: send(which) for which in range(3)), draw)
    for _ in range(2):
        before, samples = list(sent), drawn[0]
        until(lambda: all(s > b for s, b in zip(sent, before)) and drawn[0] > samples, "rows")  # noqa: B023
        caplog.clear()
        service.end()
        service = serve(*options)
        assert "the server ends, and may be started again: come back" in caplog.text
    samples = drawn[0]
    until(lambda: drawn[0] > samples, "samples of the last server")
    going[0] = False
    threads.join()
    for client in (*clients, learner):
        client.close()
    service.end()
    with DiskStorage(tmp_path / "runs" / "default") as storage:
        found: list[list[int]] = [[], [], []]
        for line in storage.episodes():
            which, number = divmod(int(storage.read_episode(int(line["id"]))["number"][0]), 10**6)
            found[which].append(number // 1000)
    assert found == [list(range(n)) for n in sent]


def test_who_does_not_come_back_is_told_why() -> None:
    server = Server(items.example(), 4, TcpTransport()).start()
    client = TcpClient(HOST, server.port, items.example(), reconnect_s=0)
    client.send(items.item(0, 0))
    client.wait(LIMIT_S)
    server.close(final=False)
    until(lambda: client._session.thread.failure is not None, "the loss")
    with pytest.raises(ConnectionClosedError, match="may be started again"):
        client.send(items.item(0, 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group(serve: Any, number: int) -> None:
    """As managers of services and terminals do it: the server decides, and clients are told."""
    service = serve("--max-restarts", 3, "--log-json")
    ingest = service.children
    client = TcpClient(HOST, service.port, reconnect_s=0)
    client.send_trajectory(rows(0, 4))
    client.wait(LIMIT_S)
    service.end(number, group=True)
    assert not any(alive(pid) for pid in ingest)
    assert not service.events("restart") and service.events("stop")[0]["rows"] == 4
    until(lambda: client._session.thread.failure is not None, "the loss")
    with pytest.raises(ConnectionClosedError, match="may be started again"):
        client.wait(LIMIT_S)
        client.send_trajectory(rows(0, 4))


def test_an_ingest_process_that_stays_dead(serve: Any) -> None:
    service = serve("--max-restarts", 0)
    (ingest,) = service.children
    os.kill(ingest, signal.SIGKILL)
    assert service.process.wait(LIMIT_S) == 2
    text = service.log.read_text()
    assert "contig serve: the ingest process" in text and "killed by signal 9" in text
    assert "Traceback" not in text


def test_a_remote_learner_publishes(serve: Any) -> None:
    service = serve("--batch-size", 4)
    port = service.port
    with RemoteReplayBuffer(HOST, port) as learner, TcpClient(HOST, port) as actor:
        learner.publish(5, {"w": np.arange(6, dtype=np.float32)})
        newest = actor.weights(timeout_s=LIMIT_S)
        assert newest is not None and newest.version == 5
        assert newest.tree["w"].tolist() == [0, 1, 2, 3, 4, 5]
    service.end()
