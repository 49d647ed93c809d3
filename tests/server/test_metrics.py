"""What a server counts: `stats()` and ``/metrics`` against traffic that is known exactly."""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import socket
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from contig import (
    LayoutError,
    LazyTensorStorage,
    RateLimiter,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    ServerError,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from contig.layout import Layout
from contig.testing import steps
from contig.wire import HEADER_BYTES, HELLO_BYTES, Hello, Type, frame
from tests.client.serving import HOST, ROW, Raw, client, free_port, serving, shared
from tests.waiting import until

RECORD = Layout(ROW).record_size
RUN = 32  # bytes of a run on the wire


# -- the page -------------------------------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
LINE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*)?\}})? (\S+)")
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """The text format, strictly: HELP, TYPE, then all samples of that name, each once."""
    assert text.endswith("\n")
    out: Series = {}
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, said = line[7:].partition(" ")
            assert name not in helped and said
            assert not re.search(r"\\(?![\\n])", said)
            helped.add(name)
        elif line.startswith("# TYPE "):
            current, _, kind = line[7:].partition(" ")
            assert current in helped and current not in kinds
            assert kind in ("counter", "gauge")
            kinds[current] = kind
        else:
            found = LINE.fullmatch(line)
            assert found, line
            name, labels, value = found.groups()
            assert name == current, f"{line} is not below its TYPE"
            pairs = []
            for label in re.findall(LABEL, labels or ""):
                key, _, quoted = label.partition("=")
                plain = re.sub(r'\\[\\"n]', lambda m: ESCAPED[m.group()], quoted[1:-1])
                pairs.append((key, plain))
            assert len({k for k, _ in pairs}) == len(pairs)
            key = (name, tuple(sorted(pairs)))
            assert key not in out, f"twice: {line}"
            out[key] = float(value)
            assert kinds[name] == "gauge" or out[key] >= 0
            assert math.isfinite(out[key])
    assert helped == set(kinds)
    return out


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    page = http.client.HTTPConnection(HOST, port, timeout=20)
    try:
        page.request(method, path)
        answer = page.getresponse()
        return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    finally:
        page.close()


def scrape(port: int) -> Series:
    status, text, kind = get(port)
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    return parse(text)


def value(series: Series, name: str, **labels: str) -> float:
    return series["contig_" + name, tuple(sorted(labels.items()))]


# -- known traffic --------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True])
def test_known_traffic_is_counted_exactly(process: bool) -> None:
    port = free_port()
    tables = {
        "online": shared(100, batch_size=4),
        "demo": ReplayBuffer(LazyTensorStorage(8, example=ROW), batch_size=4),
    }
    with serving(tables, process=process, metrics_port=port) as server:
        with client(server, table="online") as a, client(server, table="demo") as b:
            for t in range(5):
                a.send(steps.row(0, t))
                a.wait(20)
            a.send_trajectory(steps.episode(1, 7))
            a.wait(20)
            for number in range(3):
                b.extend(steps.episode(number, 4))
                b.wait(20)
            for _ in range(6):
                tables["online"].sample()
            stats = server.stats()
            assert (stats.connections, stats.connections_total) == (2, 2)
            assert (stats.frames_in, stats.items_in, stats.rows_in) == (9, 9, 24)
            assert stats.duplicates_dropped == stats.blocked == 0 and stats.rejected == {}
            assert stats.bytes_out == 0 and stats.bytes_held > 0
            online, demo = stats.tables["online"], stats.tables["demo"]
            assert online["kind"] == demo["kind"] == "tape"
            fields = ("rows_in", "rows_out", "depth", "capacity")
            assert [online[k] for k in fields] == [12, 24, 12, 100]
            assert (online["episodes"], online["appends"]) == (2, 6)
            assert online["samples_per_insert"] == 2.0
            assert [demo[k] for k in fields] == [12, 0, 8, 8]
            assert demo["episodes"] == 3 and demo["sampled_age_rows"] == 0.0
            by_table = {c["table"]: c for c in stats.clients}
            assert {n: (c["rows"], c["items"]) for n, c in by_table.items()} == {
                "online": (12, 6),
                "demo": (12, 3),
            }
            assert sum(c["bytes"] for c in stats.clients) == stats.bytes_in
            opening = by_table["demo"]["bytes"] - 3 * (HEADER_BYTES + RUN + 4 * RECORD)
            assert HELLO_BYTES + HEADER_BYTES < opening < 1000

            series = scrape(port)
            for name in ("connections", "connections_total", "frames_in", "items_in", "bytes_in"):
                assert value(series, name) == getattr(stats, name), name
            for name in ("duplicates_dropped", "blocked", "blocked_s", "bytes_out"):
                assert value(series, name) == 0
            for name in (*fields, "episodes"):
                for table in tables:
                    said = stats.tables[table][name]
                    assert value(series, f"table_{name}", table=table) == said, (name, table)
            assert value(series, "table_samples_per_insert", table="online") == 2.0
            age = value(series, "table_sampled_age_rows", table="online")
            assert age == online["sampled_age_rows"] and 1 <= age <= 12
            assert 0 <= value(series, "table_sampled_age_s", table="online") < 600
            ages = [k for k in series if k[0] == "contig_table_sampled_age_s"]
            assert len(ages) == 1  # of the other table nothing was drawn
            assert scrape(port)[ages[0]] == series[ages[0]]  # as old as it was when it was drawn
            assert value(series, "uptime_s") > 0 and value(series, "bytes_held") > 0
            rates = [k for k in series if k[0] == "contig_client_rows_per_s"]
            assert {dict(k[1])["table"] for k in rates} == set(tables)
            assert all(series[k] > 0 for k in rates)
        until(lambda: server.stats().connections == 0)
        last = scrape(port)
        assert value(last, "connections") == 0 and value(last, "connections_total") == 2
        assert not [k for k in last if k[0] == "contig_client_rows_per_s"]


def test_a_queue_is_counted_exactly() -> None:
    port = free_port()
    with Server({"x": 0.0}, 4, TcpTransport(in_process=True, metrics_port=port)) as server:
        with client(server) as far:
            far.send_many({"x": np.arange(10.0)})
            far.wait(20)
            server.sample(20)
            table = server.stats().tables["default"]
            assert table["kind"] == "queue"
            assert [table[k] for k in ("rows_in", "rows_out", "depth", "capacity")] == [
                10,
                4,
                6,
                12,
            ]
            series = scrape(port)
            for name in ("rows_in", "rows_out", "depth", "capacity"):
                assert value(series, f"table_{name}", table="default") == table[name]
            assert value(series, "items_in") == 10


def test_large_counters_are_told_to_the_last_digit() -> None:
    port = free_port()
    row = {"x": np.zeros(250_000, np.uint8)}
    with serving(shared(4, example=row), metrics_port=port) as server, client(server) as far:
        for _ in range(8):
            far.send(row)
        far.wait(20)
        assert value(scrape(port), "bytes_in") == server.stats().bytes_in > 2_000_000


def test_requests_and_weights_are_counted() -> None:
    port = free_port()
    buffer = shared(batch_size=4)
    buffer.extend(steps.episode(0, 10))
    with serving(buffer, metrics_port=port) as server:
        server.publish(1, {"w": np.zeros(1000, np.float32)})
        with RemoteReplayBuffer(HOST, server.port, prefetch=0) as far:
            for _ in range(5):
                far.sample()
            len(far)
            far._client.weights()
            series = scrape(port)
            assert value(series, "requests_answered") == 6
            assert value(series, "weights_sent") == 1
            assert value(series, "bytes_out") > 4000 + 5 * 4 * RECORD
            assert value(series, "table_rows_out", table="default") == 20


def test_age_and_ratio_of_a_known_case() -> None:
    buffer = shared(batch_size=4)
    with serving(buffer) as server, client(server) as far:
        far.send(steps.row(0, 0))
        far.wait(20)
        buffer.sample()  # four times the row that was just written: one row back from the head
        table = server.stats().tables["default"]
        assert (table["samples_per_insert"], table["sampled_age_rows"]) == (4.0, 1.0)
        far.extend(steps.episode(0, 9, start=1))
        far.wait(20)
        seqs = buffer.sample(100)["index"]
        table = server.stats().tables["default"]
        assert table["samples_per_insert"] == 10.4
        assert table["sampled_age_rows"] == pytest.approx((4 + (10 - seqs).sum()) / 104)


@pytest.mark.parametrize("process", [False, True])
def test_bytes_of_a_table_beside_the_plain_form(process: bool) -> None:
    port, n = free_port(), 300
    seen = np.random.default_rng(0).integers(0, 256, (n + 4, 40, 40), np.uint8)
    stacks = np.stack([seen[i : i + n + 1] for i in range(4)], 1)
    flags = {"reward": np.zeros(n, np.float32), "done": np.arange(n) == n - 1}
    rows = {"obs": stacks[:-1], "next": {"obs": stacks[1:], **flags}}
    first = {
        "obs": stacks[0],
        "next": {"obs": stacks[1], "reward": flags["reward"][0], "done": False},
    }
    storage = SharedStorage(n, example=first, stack={"obs": 4})
    buffer = ReplayBuffer(storage, batch_size=4)
    with serving(buffer, process=process, metrics_port=port) as server:
        with client(server) as far:
            far.extend(rows)
            far.wait(20)
        table = server.stats().tables["default"]
        assert buffer.storage.layout is not None
        assert table["plain_bytes"] == n * buffer.storage.layout.record_size
        assert table["bytes"] == buffer.storage.nbytes < table["plain_bytes"] / 5
        assert value(scrape(port), "table_bytes", table="default") == table["bytes"]
        np.testing.assert_array_equal(buffer[:]["next", "obs"], stacks[1:])


def test_reading_an_episode_is_no_sampling() -> None:
    buffer = shared(batch_size=4)
    buffer.extend(steps.episode(0, 10))
    with serving(buffer) as server:
        buffer.sample()
        before = server.stats().tables["default"]
        buffer.storage.read_episode(0)
        _ = buffer[:3]
        assert server.stats().tables["default"] == before


# -- duplicates, refusals, blocking ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "tape"])
def test_duplicates_are_dropped_and_counted(kind: str) -> None:
    row = {"x": 1.0}
    given: Any = {"buffer": shared(example=row)} if kind == "tape" else {}
    if kind == "queue":
        given = {"example": row, "batch_size": 100}
    with Server(**given, transport=TcpTransport(in_process=True)) as server:
        with Raw(server, 77, row) as raw:
            raw.items(0, 3, kind == "tape")
            raw.items(0, 3, kind == "tape")  # all seen
            raw.items(1, 4, kind == "tape")  # two seen, two new
            until(lambda: server.stats().frames_in == 3)
            stats = server.stats()
            assert stats.duplicates_dropped == 5 and stats.items_in == 5
            assert stats.resent_frames == 2
            assert stats.tables["default"]["rows_in"] == 5
        with Raw(server, 78, row) as other:  # another producer's items are others
            other.items(0, 2, kind == "tape")
            until(lambda: server.stats().items_in == 7)
            assert server.stats().duplicates_dropped == 5
            assert server.stats().resent_frames == 2


def test_every_refusal_is_counted_by_its_reason() -> None:
    port = free_port()
    row = {"x": 1.0}
    with Server(
        row, 100, TcpTransport(in_process=True, token="open sesame", metrics_port=port)
    ) as server:

        def say(data: bytes) -> None:
            with socket.create_connection((HOST, server.port), 20) as sock:
                sock.sendall(data)
                while sock.recv(4096):
                    pass

        def spoilt(data: bytes) -> None:
            with Raw(server, 5, row, "open sesame") as raw, contextlib.suppress(OSError):
                raw.sock.sendall(data)
                raw.sock.settimeout(20)
                while raw.sock.recv(4096):
                    pass

        good = {"token": "open sesame"}
        for options, error in (
            ({}, ValueError),
            ({"token": "wrong"}, ValueError),
            ({**good, "table": "none"}, ValueError),
            ({**good, "data_sample": {"x": 1}}, LayoutError),
        ):
            with pytest.raises(error):
                TcpClient(HOST, server.port, **options)
        say(b"GET / HTTP/1.1\r\n\r\n")
        say(Hello(9, b"n" * 32).pack())
        whole = frame(Type.GET, 0, b"12345678")
        spoilt(b"junk" + whole[4:])
        spoilt(whole[:8] + b"\xff" + whole[9:])
        spoilt(whole[:-1] + b"\xff")
        spoilt(frame(Type.GET, 0, b"123"))
        spoilt(frame(Type.ACK, 0))
        with Raw(server, 6, row, "open sesame") as raw:
            raw.items(4, 1, False)
            raw.sock.settimeout(20)
            while raw.sock.recv(4096):
                pass
        rejected = server.stats().rejected
        # Without a token a client does not even ask: nothing to refuse.
        assert rejected == {
            "token": 1,
            "table": 1,
            "layout": 1,
            "version": 1,
            "magic": 2,
            "header_crc": 1,
            "body_crc": 1,
            "frame": 1,
            "type": 1,
            "gap": 1,
        }
        series = scrape(port)
        for reason, count in rejected.items():
            assert value(series, "rejected_total", reason=reason) == count
        with client(server, **good) as far:  # and good clients are served as ever
            far.send(row)


@pytest.mark.parametrize("kind", ["queue", "limiter"])
def test_blocking_is_counted(kind: str) -> None:
    row = {"x": 1.0}
    buffer = ReplayBuffer(
        LazyTensorStorage(100, example=row),
        batch_size=4,
        limiter=RateLimiter(1.0, min_size=1, error_buffer=4),
    )
    given: Any = {"buffer": buffer} if kind == "limiter" else {"example": row, "batch_size": 2}
    with Server(**given, transport=TcpTransport(in_process=True)) as server:
        with client(server, max_inflight_msgs=2) as far:
            for _ in range(5 if kind == "limiter" else 6):
                far.send(row)
                far.wait(20)
            assert server.stats().blocked == 0
            far.send(row)
            until(lambda: server.stats().blocked == 1)
            assert server.stats().clients[0]["blocked"]
            if kind == "limiter":
                buffer.sample()
            else:
                server.sample(20)
            far.wait(20)
            stats = server.stats()
            assert stats.blocked == 1 and stats.blocked_s > 0
            assert not stats.clients[0]["blocked"]
            assert stats.items_in == stats.rows_in == (6 if kind == "limiter" else 7)


@pytest.mark.parametrize("kind", ["queue", "limiter"])
def test_a_blocked_frame_is_one_frame(kind: str) -> None:
    row = {"x": 1.0}
    limiter = RateLimiter(1.0, min_size=1, error_buffer=4)
    buffer = ReplayBuffer(LazyTensorStorage(100, example=row), batch_size=4, limiter=limiter)
    given: Any = {"buffer": buffer} if kind == "limiter" else {"example": row, "batch_size": 2}
    frames = 5 if kind == "limiter" else 6
    with Server(**given, transport=TcpTransport(in_process=True)) as server:
        with client(server, max_inflight_msgs=2) as far:
            for _ in range(frames):
                far.send(row)
                far.wait(20)
            assert server.stats().frames_in == frames
            far.send(row)
            until(lambda: server.stats().blocked == 1)
            with contextlib.suppress(TimeoutError):
                far.wait(0.15)  # some attempts
            if kind == "limiter":
                buffer.sample()
            else:
                server.sample(20)
            far.wait(20)
            assert server.stats().frames_in == frames + 1


# -- the page's manners ---------------------------------------------------------------------------


def test_there_is_nothing_but_metrics() -> None:
    port = free_port()
    with serving(shared(), metrics_port=port) as server:
        assert get(port, "/metrics?x=1")[0] == 200
        for path in ("/", "/metrics/", "/metric", "/etc/passwd", "//metrics"):
            status, text, _ = get(port, path)
            assert status == 404 and "/metrics" in text, path
        assert get(port, "/metrics", "POST")[0] == 404
        assert server.stats().connections_total == 0  # they are no clients


def test_garbage_hurts_nobody() -> None:
    port = free_port()
    with serving(shared(), metrics_port=port) as server, client(server) as far:
        idle = socket.create_connection((HOST, port), 20)  # says nothing at all
        for data in (
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /metrics",
            b"\0" * 1000 + b"\r\n\r\n",
            b"\xff\xfe \xff \r\n\r\n",
            b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        ):
            with contextlib.suppress(ConnectionError):
                with socket.create_connection((HOST, port), 20) as sock:
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4096):
                        pass
        far.send(ROW)
        far.wait(20)
        assert value(scrape(port), "items_in") == 1
        idle.close()


@pytest.mark.parametrize("process", [False, True])
def test_idle_connections_take_nobody_s_place(process: bool) -> None:
    port = free_port()
    with serving(shared(), process=process, metrics_port=port), contextlib.ExitStack() as stack:
        for number in range(150):
            sock = stack.enter_context(socket.create_connection((HOST, port), 20))
            if number % 2:
                sock.sendall(b"GET /metrics HTTP/1.1\r\n")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert get(port, path)[0] == 200


def test_readers_of_metrics_take_no_place_of_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contig.server.metrics._READERS", 0)
    port = free_port()
    with serving(shared(), metrics_port=port):
        assert [get(port, path)[0] for path in ("/metrics", "/healthz", "/readyz")] == [
            503,
            200,
            200,
        ]


def test_a_request_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contig.server.metrics._REQUEST_S", 0.2)
    port = free_port()
    with serving(shared(), metrics_port=port):
        with socket.create_connection((HOST, port), 30) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""


def test_a_site_elsewhere_reads_nothing_through_a_browser() -> None:
    port = free_port()
    with serving(shared(), metrics_port=port):

        def status(path: str, host: str) -> int:
            page = http.client.HTTPConnection(HOST, port, timeout=20)
            page.request("GET", path, headers={"Host": host})
            answer = page.getresponse().status
            page.close()
            return answer

        assert status("/metrics", "rebound.example:80") == 403
        for host in (f"127.0.0.1:{port}", "localhost", f"[::1]:{port}"):
            assert status("/metrics", host) == 200
        assert status("/healthz", "probe.example") == 200  # says nothing that is a secret


def test_readers_that_leave_and_a_server_that_ends_write_no_traceback() -> None:
    program = """
import socket, struct, sys
from contig import Server, TcpTransport

transport = TcpTransport(in_process=True, metrics_port=0)
with Server({"x": 0.0}, 4, transport) as server:
    where = ("127.0.0.1", server.metrics_port)
    request = b"GET /metrics HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n"
    there = []
    for number in range(24):
        sock = socket.create_connection(where)
        sock.sendall(request[: [0, 9, len(request)][number % 3]])
        if number % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        there.append(sock)
    with socket.create_connection(where) as last:  # behind them: they have been accepted
        last.sendall(request)
        assert last.recv(1 << 16).startswith(b"HTTP/1.1 200")
for sock in there:
    sock.close()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=90
    )
    assert (ended.returncode, ended.stderr.decode()) == (0, "")


def test_labels_are_escaped() -> None:
    port = free_port()
    names = ['a "quoted" one', "back\\slash", "two\nlines", "{brace},=x"]
    tables = {name: shared() for name in names}
    with serving(tables, metrics_port=port) as server, contextlib.ExitStack() as stack:
        for name in names:
            far = stack.enter_context(client(server, table=name))
            far.send(ROW)
            far.wait(20)
        series = scrape(port)
        for name in names:
            assert value(series, "table_rows_in", table=name) == 1
        rates = [k for k in series if k[0] == "contig_client_rows_per_s"]
        assert {dict(k[1])["table"] for k in rates} == set(names)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises((ServerError, OSError), match="address already in use|did not start"):
            Server(buffer=shared(), transport=TcpTransport(metrics_port=port)).start()


def test_stats_after_the_end() -> None:
    error = ""
    with serving(shared()) as server:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the coroutine that nobody awaits
        try:
            assert server.stats().tables["default"]["rows_in"] == 0
        except RuntimeError as caught:
            error = str(caught)
    assert not error
