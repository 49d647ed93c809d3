"""Connections to the page that send no request: they take nobody's place."""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import urlsplit

import pytest

import contig.dashboard.connections
import contig.dashboard.guard
from contig import LazyTensorStorage
from contig.dashboard import StorageSource
from tests.dashboard.pages import ask, served

TOKEN = "secret"


def source():
    storage = LazyTensorStorage(8, example={"x": 0.0, "done": False})
    return StorageSource("buffer", "buffer", {"default": storage})


def connected(url):
    where = urlsplit(url)
    return socket.create_connection((where.hostname, where.port), 30)


@contextlib.contextmanager
def half_open(url, count):
    with contextlib.ExitStack() as stack:
        for number in range(count):
            sock = stack.enter_context(connected(url))
            if number % 2:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        yield


@pytest.mark.parametrize("count", [70, 200])
def test_half_open_requests_take_nobody_s_place(url_with_token, count):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with half_open(url_with_token, count):
        for _ in range(3):
            assert ask(url_with_token, "/api/numbers", **bearer).status == 200
        assert ask(url_with_token, "/api/numbers").status == 401
    assert ask(url_with_token, "/api/numbers", **bearer).status == 200


def test_a_request_has_a_deadline_that_bytes_do_not_put_off(monkeypatch):
    monkeypatch.setattr(contig.dashboard.connections, "_REQUEST_S", 0.3)
    with served(source()) as url, connected(url) as sock:
        sock.settimeout(0.05)
        sock.sendall(b"GET /api/numbers HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(2000):  # 100 s
                sock.sendall(b"X-Slow: 1\r\n")
                with contextlib.suppress(TimeoutError):
                    assert sock.recv(1) == b""
                    raise ConnectionResetError("closed by the page")


def test_a_connection_waits_anew_after_a_response(monkeypatch):
    monkeypatch.setattr(contig.dashboard.connections, "_REQUEST_S", 0.3)
    with served(source()) as url, connected(url) as sock, contextlib.suppress(ConnectionError):
        sock.settimeout(0.05)
        sock.sendall(b"GET /api/numbers HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for _ in range(2000):  # 100 s; uvicorn's own wait begins again with each byte
            with contextlib.suppress(TimeoutError):
                if sock.recv(1 << 16) == b"":
                    return
            sock.sendall(b"G")
        pytest.fail("the page still waits for the second request")


def test_requests_beyond_the_limit_are_told_to_come_again(monkeypatch):
    monkeypatch.setattr(contig.dashboard.guard, "_MAX_REQUESTS", 0)
    with served(source()) as url:
        answer = ask(url, "/api/numbers")
        assert answer.status == 503 and b"ask again" in answer.body


@pytest.fixture
def url_with_token():
    with served(source(), token=TOKEN) as url:
        yield url
