"""A server watched over the network: what its own page shows, and nothing that is drawn for it."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest

import contig.client.watching as watching
import contig.server.looks as looks
from contig import (
    Blob,
    DiskStorage,
    LazyTensorStorage,
    RateLimiter,
    ReplayBuffer,
    Server,
    SliceSampler,
    TcpClient,
    TcpTransport,
)
from contig.client.watching import RemoteSource
from contig.dashboard import PageOptions, PageServer
from contig.dashboard.serving import listen, url_of
from contig.server.answers import Answers
from contig.wire import Type
from tests.dashboard.pages import ask
from tests.dashboard.test_sources import ROW, rows
from tests.waiting import until

FIELDS = {"task": np.int32(0), "goal": np.zeros(2, np.float32)}


def storage_of(kind, tmp_path, **options):
    if kind == "disk":
        return DiskStorage(tmp_path / "d", 1000, **options)
    return LazyTensorStorage(1000, **options)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_all_that_the_servers_own_page_shows(kind, tmp_path):
    limiter = RateLimiter(4.0, 1, 1000.0)
    storage = storage_of(kind, tmp_path, example=ROW, fields=FIELDS)
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=8), batch_size=32, limiter=limiter)
    with storage, buffer, Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            for n in range(5):
                fields = {"task": n, "goal": [n, -n]}
                said = {"terminated": True, "policy_version": n, "fields": fields}
                buffer.extend_trajectory(rows(20 + n, n, n), **said)
            storage.flush()
            source.ages("default")  # somebody looks, so that draws are looked at
            drawn = buffer.sample()["index"]
            before = buffer.stats().rows_sampled
            told = source.numbers()
            table = told.tables["default"]
            assert (table["rows"], table["episodes"], table["rows_out"]) == (110, 5, len(drawn))
            assert table["limiter"]["samples_per_insert"] == 4.0
            assert told.server["connections"] == 2 and len(told.clients) == 2
            ages = source.ages("default")
            assert ages["of"] == "what the learner draws" and ages["rows"]["count"] == len(drawn)
            assert ages["rows"]["mean"] == pytest.approx(np.mean(110 - drawn))
            assert ages["newest_version"] == 4

            book = source.book("default")
            episodes, own = book.episodes(), storage.episodes()
            assert episodes.dtype == own.dtype and episodes.tobytes() == own.tobytes()
            assert [p for (p,) in book.fields.by_path] == ["goal", "task"]
            assert book.layout == storage.layout
            for number in range(5):
                assert book.rows_of(number) == 20 + number
                places = np.arange(0, 20 + number, 3)
                got, want = book.read(number, places), storage.read_episode(number)[places]
                for path in list(want.keys()):
                    assert got[path].tobytes() == want[path].tobytes()
            with pytest.raises(KeyError, match="no episode 77; it may have been evicted"):
                book.read(77, np.arange(1))
            with pytest.raises(KeyError, match="no table 'other'"):
                source.book("other")
            assert buffer.stats().rows_sampled == before  # nothing was drawn for it
        buffer.sample()
        assert len(buffer.seen) == 1
    assert not buffer.seen


def test_several_who_watch_and_a_page():
    """Each sees what is drawn."""
    buffer = ReplayBuffer(LazyTensorStorage(1000, example=ROW), batch_size=16)
    buffer.extend_trajectory(rows(100), terminated=True)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as one, server.dashboard() as page:
            with closing(RemoteSource("127.0.0.1", server.port)) as other:
                assert one.ages("default")["rows"] is None
                assert ask(page.url, "/api/numbers").status == 200
                buffer.sample()
                for source in (one, other):
                    source.numbers()
                    assert source.ages("default")["rows"]["count"] == 16
                path = "/api/tables/default/live"
                ages = until(lambda: ask(page.url, path).json["ages"]["rows"])
                assert ages["count"] == 16


def test_a_page_of_a_server_elsewhere():
    buffer = ReplayBuffer(LazyTensorStorage(1000, example=ROW), batch_size=16)
    with Server(tables={"a": buffer}, transport=TcpTransport()) as server:
        with pytest.raises(ValueError, match="no table 'default'; this server has: a"):
            RemoteSource("127.0.0.1", server.port)
        source = RemoteSource("127.0.0.1", server.port, ("a",))
        options = PageOptions()
        listening = listen(options)
        url = url_of(options, listening)
        page = PageServer(source, options, listening)
        try:
            for n in range(3):
                buffer.extend_trajectory(rows(10, n, n), terminated=True, policy_version=n)
            path = "/api/tables/a/episodes?query=return%3E5"
            found = until(lambda: ask(url, path).json["found"] == 2 and ask(url, path))
            assert [e["return"] for e in found.json["episodes"]] == [20.0, 10.0]
            assert ask(url, "/api/tables/a/episodes/2").json["rows"] == 10
            assert ask(url, "/api/tables/a/export?as=npz").status == 200
            gone = ask(url, "/api/tables/a/episodes/9")
            assert gone.status == 404 and "no episode 9" in gone.json["error"]
        finally:
            page.close()


def test_more_episodes_and_rows_than_go_into_an_answer(monkeypatch):
    monkeypatch.setattr(looks, "MOST_WATCHED", 6000)
    monkeypatch.setattr(watching, "_PIECE_BYTES", 500)
    buffer = ReplayBuffer(LazyTensorStorage(5000, example=ROW), batch_size=16)
    for n in range(300):
        buffer.extend_trajectory(rows(1 + n % 5, n), terminated=True, policy_version=n)
    buffer.extend_trajectory(rows(400, 7), terminated=True)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            book = source.book("default")
            assert book.episodes().tobytes() == buffer.storage.episodes().tobytes()
            whole = book.read(300, np.arange(400))
            assert whole["obs"].tolist() == list(range(400))
            monkeypatch.setattr(watching, "_PIECE_BYTES", 1 << 20)
            with pytest.raises(ValueError, match="400 rows of .* at most 6000 bytes at a time"):
                book.read(300, np.arange(400))
            monkeypatch.setattr(watching, "_MOST_EPISODES", 50)
            monkeypatch.setattr(book, "_due", 0.0)
            newest = book.episodes()
            assert 50 <= len(newest) < 301 and newest["id"].tolist()[-1] == 300


def test_rows_with_leaves_of_any_size(monkeypatch):
    monkeypatch.setattr(looks, "MOST_WATCHED", 6000)
    row = {"text": Blob(), "next": {"reward": 0.0, "done": False}}
    buffer = ReplayBuffer(LazyTensorStorage(100, example=row), batch_size=4)
    texts = [b"x" * n for n in (1, 0, 5000, 3000)]
    done = np.array([False, False, False, True])
    buffer.extend({"text": texts, "next": {"reward": np.zeros(4), "done": done}})
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            book = source.book("default")
            assert list(book.read(0, np.arange(3))["text"]) == texts[:3]
            with pytest.raises((ValueError, RuntimeError), match="bytes"):
                book.read(0, np.arange(4))
            assert list(book.read(0, np.array([3]))["text"]) == texts[3:]  # it goes on


def test_a_queue_has_numbers():
    with Server({"x": np.float32(0)}, 4, TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            with TcpClient("127.0.0.1", server.port, {"x": np.float32(0)}) as client:
                for n in range(10):
                    client.send({"x": np.float32(n)})
                client.wait()
                table = source.numbers().tables["default"]
            assert (table["kind"], table["rows_in"]) == ("queue", 10)
            with pytest.raises(KeyError, match="keeps no episodes"):
                source.book("default")


def test_requests_that_make_no_sense():
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    buffer.extend_trajectory(rows(10), terminated=True)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            for asked, said in (
                ({"what": "everything", "table": "default"}, "expected numbers, ages"),
                ({"what": "ages"}, "expected a table's name"),
                ({"what": "ages", "table": "x"}, "no table 'x'"),
                ({"what": "episodes", "table": "default", "before": -1}, "before: expected"),
                ({"what": "rows", "table": "default", "id": "0"}, "id: expected"),
                ({"what": "rows", "table": "default", "id": 0, "places": []}, "places: expected"),
                ({"what": "rows", "table": "default", "id": 0, "places": [10]}, "evicted"),
                ({"what": "rows", "table": "default", "id": 0, "places": [1.5]}, "places: expect"),
                ({"what": "rows", "table": "default", "id": 0, "places": [99, 1]}, "out of bounds"),
            ):
                kind, payload = source.ask(**asked)
                assert kind == Type.REPLY and said in json.loads(payload)["message"], asked
            for payload in (b"", b"[]", b"{", b"\xff", b'{"what": NaN}'):
                kind, answer = source._client.asking.request(Type.WATCH, payload, 10.0)
                assert kind == Type.REPLY and "error" in json.loads(answer)
            assert source.numbers().tables["default"]["rows"] == 10


def test_a_server_that_knows_no_watching(monkeypatch):
    monkeypatch.setattr(Answers, "has_learner", False)
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    transport = TcpTransport(in_process=True)
    with Server(buffer=buffer, transport=transport) as server:
        with pytest.raises(ValueError, match="cannot be watched over the network: update contig"):
            RemoteSource("127.0.0.1", server.port)
