"""What a server counts: as a dict for `server.stats()`, as Prometheus text for ``/metrics``.

``/healthz`` says that its process answers, ``/readyz`` that it takes clients in.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from typing import Any

from ..arguments import host_name, is_loopback
from ..process.pending import PendingConnections
from .core import ServerCore
from .tables import QueueTable, TapeTable

__all__ = ["MetricsPage", "core_stats", "table_stats"]

_HISTORY_S = 600.0
_READERS = 16  # of /metrics at a time
_PENDING = 64  # connections at a time whose request has not arrived
_REQUEST_S = 5.0  # for a request to arrive
_RESPONSE_S = 5.0  # for a response to be read
_MAX_HEAD_BYTES = 16 << 10


def core_stats(core: ServerCore) -> dict[str, Any]:
    """All counters of a core, as JSON."""
    there = [c for c in core.connections.values() if c.stream is not None]
    return {
        **vars(core.stats),
        "rejected": dict(core.stats.rejected),
        "uptime_s": time.time() - core.started,
        "connections": len(core.connections),
        "unconfirmed_rows": core.answers.receipts.unconfirmed_rows,
        "bytes_held": core.memory.bytes_held,
        "open_bytes": sum(t.open_bytes for t in core.tables.values()),
        "tables": {name: table_stats(t) for name, t in core.tables.items()},
        "clients": [c.stats() for c in there if not c.watches],
    }


def table_stats(table: Any) -> dict[str, Any]:
    """What a table itself counts; it outlives the process."""
    if isinstance(table, QueueTable):
        c = table.queue.native.counters()
        depth = max(c["head"] - c["taken"] * table.queue.batch_size, 0)
        return {
            "kind": "queue",
            "rows_in": c["items"],
            "rows_out": c["items"] - depth,
            "depth": depth,
            "capacity": table.queue.batch_size * table.queue.num_buffers,
            "blocked": c["blocked"],
            "fresh_blocks": c["fresh"],
        }
    assert isinstance(table, TapeTable)
    tape = table.storage.tape
    head, tail, _, _ = tape.snapshot()
    drawn, age = tape.drawn
    return {
        "kind": "tape",
        "rows_in": head,
        "rows_out": tape.sampled,
        "depth": max(head - tail, 0),
        "capacity": table.storage.capacity,
        "bytes": table.storage.nbytes,
        "plain_bytes": max(head - tail, 0) * table.record_size,
        "episodes": tape.trajectories,
        "appends": tape.appends,
        "samples_per_insert": tape.sampled / head if head else 0.0,
        "sampled_age_rows": age / drawn if drawn else 0.0,
    }


class MetricsPage:
    """Prometheus text over HTTP, for ``GET /metrics``; and ``/healthz`` and ``/readyz``.

    Args:
        core: whose counters.
        token: what readers of metrics must send as ``Authorization: Bearer``; None: nothing.
        is_local: whether the page listens on this machine's own address only.

    Attributes:
        pending: the connections that have not sent a whole request yet.
        readers: how many are being sent ``/metrics``.
    """

    def __init__(self, core: ServerCore, token: str | None = None, is_local: bool = False) -> None:
        self._core = core
        self._token = token
        self._is_local = is_local and token is None
        self.pending = PendingConnections(_PENDING, _REQUEST_S)
        self.readers = 0
        self._heads: dict[str, deque[tuple[float, int]]] = {}
        self._drawn: dict[str, tuple[int, int]] = {}  # rows, and their ages in rows, summed
        self._ages_s: dict[str, float] = {}
        self._watch()

    def _watch(self) -> None:
        """Remembers when each row number was reached, so that ages can be told in seconds."""
        now = time.monotonic()
        for name, table in self._core.tables.items():
            history = self._heads.setdefault(name, deque())
            history.append((now, table.rows_in()))
            while history and history[0][0] < now - _HISTORY_S:
                history.popleft()
        self._look_at_draws()
        self._core.loop.call_later(1.0, self._watch)

    def _look_at_draws(self) -> None:
        """Takes note of how old what was drawn since the last look was."""
        for name, table in self._core.tables.items():
            if isinstance(table, TapeTable):
                rows, ages = table.storage.tape.drawn
                before = self._drawn.setdefault(name, (rows, ages))
                if rows > before[0]:
                    mean = max(ages - before[1], 0) / (rows - before[0])
                    self._ages_s[name] = self._age_s(self._heads[name], table.rows_in() - mean)
                    self._drawn[name] = (rows, ages)

    @staticmethod
    def _age_s(history: deque[tuple[float, int]], row: float) -> float:
        """How long ago a row was written, as far as that is remembered."""
        now = time.monotonic()
        return now - next((then for then, head in history if head >= row), now)

    def protocol(self) -> asyncio.Protocol:
        """Returns the protocol of one connection that asks for the page."""
        return _MetricsConnection(self)

    def answer(self, head: bytes) -> tuple[bytes, bool]:
        """Returns the response to a request's head, and whether it is a small one.

        Small responses need no place among the readers of ``/metrics``: a probe of ``/healthz`` is
        answered however many of them there are.
        """
        path = head.split(b" ", 2)[1] if head.count(b" ") >= 2 else b""
        path = path.split(b"?")[0] if head.startswith(b"GET ") else b""
        if path == b"/healthz":  # that it lives is no secret: probes have no token
            return _response(b"200 OK", b"ok\n"), True
        if path == b"/readyz":
            if self._core.ready:
                return _response(b"200 OK", b"ready\n"), True
            return _response(b"503 Service Unavailable", b"closing\n"), True
        if not self._is_host_allowed(head):
            return _response(b"403 Forbidden", b"for this machine only: use 127.0.0.1\n"), True
        if not self._is_authorized(head):
            return _response(b"401 Unauthorized", b"Authorization: Bearer <token>\n"), True
        if path != b"/metrics":
            return _response(b"404 Not Found", b"try GET /metrics, /healthz or /readyz\n"), True
        if self.readers >= _READERS:
            self._core.stats.rejected["busy"] += 1
            return _response(b"503 Service Unavailable", b"busy: ask again later\n"), True
        return _response(b"200 OK", self.text().encode()), False

    def _is_host_allowed(self, head: bytes) -> bool:
        """Returns whether the Host header may name this page.

        A page on this machine's own address, without a token, answers only requests that name this
        machine: a site elsewhere whose name resolves to 127.0.0.1 must not read it through a
        browser.
        """
        host = _header(head, b"host")
        return not self._is_local or host is None or is_loopback(host_name(host))

    def _is_authorized(self, head: bytes) -> bool:
        """Returns whether a request's head has the token, compared in constant time."""
        if self._token is None:
            return True
        scheme, _, token = (_header(head, b"authorization") or b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(
            token.strip(), self._token.encode()
        )

    def text(self) -> str:
        """The page."""
        stats = core_stats(self._core)
        lines: list[str] = []

        def metric(name: str, kind: str, text: str, values: list[tuple[str, float]]) -> None:
            lines.append(f"# HELP contig_{name} {text}")
            lines.append(f"# TYPE contig_{name} {kind}")
            lines.extend(f"contig_{name}{labels} {value!r}" for labels, value in values)

        plain = (
            ("connections", "gauge", "open connections"),
            ("connections_total", "counter", "connections ever made"),
            ("frames_in", "counter", "frames of items taken in"),
            ("bytes_in", "counter", "bytes received"),
            ("bytes_out", "counter", "bytes of batches and weights sent"),
            ("items_in", "counter", "items taken in"),
            ("duplicates_dropped", "counter", "items that were sent again and had been seen"),
            ("resent_frames", "counter", "frames with items that had been seen"),
            ("lost_items", "counter", "items acked as received that did not get into a table"),
            ("blocked", "counter", "times a connection had to wait for room"),
            ("blocked_s", "counter", "seconds connections waited for room"),
            ("requests_answered", "counter", "samples, priorities and statistics answered"),
            ("unconfirmed_rows", "gauge", "rows sent to clients that went without a goodbye"),
            ("weights_sent", "counter", "versions of weights sent"),
            ("bytes_held", "gauge", "bytes of all receive buffers, and of TLS"),
            ("open_bytes", "gauge", "bytes of what is known of clients' open trajectories"),
            ("uptime_s", "gauge", "seconds since the start"),
        )
        for name, kind, text in plain:
            metric(name, kind, text, [("", float(stats[name]))])
        rejected = [(f'{{reason="{r}"}}', float(n)) for r, n in stats["rejected"].items()]
        metric("rejected_total", "counter", "refused frames and handshakes", rejected)
        tables = stats["tables"]
        for key, kind, text in (
            ("rows_in", "counter", "rows taken in"),
            ("rows_out", "counter", "rows sampled or delivered"),
            ("depth", "gauge", "rows held"),
            ("capacity", "gauge", "rows there is room for"),
            ("bytes", "gauge", "bytes of rows, and of what they share"),
            ("plain_bytes", "gauge", "bytes of the rows held, if nothing were stored once"),
            ("episodes", "counter", "trajectories begun"),
            ("samples_per_insert", "gauge", "rows sampled for each row taken in"),
            ("sampled_age_rows", "gauge", "mean age of sampled rows, in rows written since"),
        ):
            found = [(_table(n), float(t[key])) for n, t in tables.items() if key in t]
            metric(f"table_{key}", kind, text, found)
        self._look_at_draws()
        ages = [(_table(name), age) for name, age in self._ages_s.items()]
        metric("table_sampled_age_s", "gauge", "mean age of what was sampled last, then", ages)
        clients = [
            (
                f'{{peer="{c["peer"]}",table="{_escaped(c["table"])}",producer="{c["producer"]}"}}',
                c["rows"] / max(c["seconds"], 1e-9),
            )
            for c in stats["clients"]
        ]
        metric("client_rows_per_s", "gauge", "rows of a client per second since it came", clients)
        return "\n".join(lines) + "\n"


class _MetricsConnection(asyncio.Protocol):
    """A connection that asks for the page: one request, one response, then it is closed."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page
        self._head = bytearray()
        self._transport: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_reader = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._page.pending.add(self, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:  # answered already
            return
        self._head += data
        if b"\r\n\r\n" not in self._head:
            if len(self._head) > _MAX_HEAD_BYTES:
                self._transport.abort()
            return
        self._page.pending.remove(self)
        response, is_small = self._page.answer(bytes(self._head))
        if not is_small:
            self._is_reader = True
            self._page.readers += 1
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(_RESPONSE_S, self._transport.abort)
        self._transport.write(response)
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._page.pending.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._is_reader:
            self._is_reader = False
            self._page.readers -= 1


def _response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 " + status + b"\r\nContent-Type: text/plain; version=0.0.4\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


def _header(head: bytes, name: bytes) -> bytes | None:
    """Returns the value of a header, or None if the request has none of that name."""
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def _table(name: str) -> str:
    return f'{{table="{_escaped(name)}"}}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
