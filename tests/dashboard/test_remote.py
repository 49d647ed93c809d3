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
from contig.dashboard import PageOptions, PageServer, StorageBook
from contig.dashboard.curves import episode_curves
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
            assert told.server["connections"] == 1 and told.clients == []  # who watches is none
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
                kept = book.kept(number)
                assert (kept.first, kept.end) == (0, 20 + number)
                places = np.arange(0, 20 + number, 3)
                got, want = book.read(kept, places), storage.read_episode(number)[places]
                for path in list(want.keys()):
                    assert got[path].tobytes() == want[path].tobytes()
            with pytest.raises(KeyError, match="no episode 77; it may have been evicted"):
                book.kept(77)
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
        with pytest.raises(ValueError, match="no table 'b'; this server has: a"):
            RemoteSource("127.0.0.1", server.port, ("b",))
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


def test_all_tables_without_one_that_is_named_default():
    buffers = {n: ReplayBuffer(LazyTensorStorage(100, example=ROW)) for n in ("b", "a/1")}
    with Server(tables=buffers, transport=TcpTransport()) as server:
        buffers["b"].extend_trajectory(rows(10), terminated=True)
        source = RemoteSource("127.0.0.1", server.port)
        try:
            told = source.numbers().tables
            assert {name: one["rows"] for name, one in told.items()} == {"a/1": 0, "b": 10}
            assert source.book("b").episodes()["steps"].tolist() == [10]
            with pytest.raises(KeyError, match="no episode"):
                source.book("b").kept(2**70)
        finally:
            source.close()


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
            whole = book.read(book.kept(300), np.arange(400))
            assert whole["obs"].tolist() == list(range(400))
            monkeypatch.setattr(watching, "_PIECE_BYTES", 1 << 20)
            with pytest.raises(ValueError, match="400 rows of .* at most 6000 bytes at a time"):
                book.read(book.kept(300), np.arange(400))
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
            kept = book.kept(0)
            assert list(book.read(kept, np.arange(3))["text"]) == texts[:3]
            with pytest.raises((ValueError, RuntimeError), match="bytes"):
                book.read(kept, np.arange(4))
            assert list(book.read(kept, np.array([3]))["text"]) == texts[3:]  # it goes on


class Between:
    """Lets something happen behind the first of several answers."""

    def __init__(self, source, monkeypatch, happens):
        self._ask, self._happens, self.asked = source.ask, happens, 0
        monkeypatch.setattr(source, "ask", self)

    def __call__(self, **asked):
        answer = self._ask(**asked)
        self.asked += 1
        if self.asked == 1:
            self._happens()
        return answer


def test_rows_that_are_evicted_between_two_answers(monkeypatch):
    """Steps keep their numbers: what comes is without a gap, or nothing."""
    monkeypatch.setattr(watching, "_PIECE_BYTES", 500)
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW, share_next=False), batch_size=16)
    buffer.extend_trajectory(rows(60), terminated=True)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            book = source.book("default")
            kept = book.kept(0)
            assert (kept.first, kept.end) == (0, 60)
            with monkeypatch.context() as patch:
                more = Between(
                    source, patch, lambda: buffer.extend_trajectory(rows(50), terminated=True)
                )
                assert book.read(kept, np.arange(60))["obs"].tolist() == list(range(60))
                assert more.asked > 2
            with pytest.raises(KeyError, match="episode 0 is evicted while it is read"):
                book.read(kept, np.arange(60))
            kept = book.kept(0)
            assert (kept.first, kept.end) == (10, 60)
            assert book.read(kept, np.arange(10, 60))["obs"].tolist() == list(range(10, 60))
            with monkeypatch.context() as patch:  # the answer to `kept`, then pieces
                Between(source, patch, lambda: buffer.extend_trajectory(rows(5), terminated=True))
                curves = episode_curves(book, 0)
            assert curves["reward"]["steps"] == list(range(17, 60))  # a sixteenth is left out


def test_a_list_while_its_middle_is_evicted(monkeypatch):
    """Two trajectories that go on outlive one that began after them."""
    monkeypatch.setattr(looks, "MOST_WATCHED", 64)  # so each answer has one
    monkeypatch.setattr(StorageBook, "listed", StorageBook._list)  # nothing is kept for a second
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW, share_next=False), batch_size=16)
    running = [buffer.storage.writer() for _ in range(2)]

    def go_on(writer, n):
        more = rows(n)
        more["next"]["done"] = np.zeros(n, bool)
        writer.extend(more)

    for writer in running:
        go_on(writer, 5)
    buffer.extend_trajectory(rows(10), terminated=True)
    for writer in running:
        go_on(writer, 35)

    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            book = source._books["default"]
            Between(source, monkeypatch, lambda: go_on(running[0], 35))
            assert book.episodes()["id"].tolist() == [0, 1, 2]
        assert buffer.storage.episodes()["id"].tolist() == [0, 1]


def test_a_server_that_is_another_one_between_two_answers(monkeypatch):
    monkeypatch.setattr(looks, "MOST_WATCHED", 64)
    monkeypatch.setattr(watching, "_PIECE_BYTES", 100)
    buffers = [ReplayBuffer(LazyTensorStorage(1000, example=ROW), batch_size=16) for _ in range(3)]
    for n, buffer in enumerate(buffers):
        for length in range(1 + n, 4 + 2 * n):
            buffer.extend_trajectory(rows(10 * length), terminated=True)
    servers = [Server(buffer=buffers[0], transport=TcpTransport()).start()]
    port = servers[0].port

    def again():
        servers[-1].close(final=False)
        transport = TcpTransport(port)
        servers.append(Server(buffer=buffers[len(servers)], transport=transport).start())

    try:
        with closing(RemoteSource("127.0.0.1", port)) as source:
            book = source._books["default"]
            with monkeypatch.context() as patch:
                Between(source, patch, again)
                assert book.episodes().tobytes() == buffers[1].storage.episodes().tobytes()
            monkeypatch.setattr(looks, "MOST_WATCHED", 10_000)
            kept = book.kept(0)
            with monkeypatch.context() as patch:
                Between(source, patch, again)
                with pytest.raises(KeyError, match="started anew"):
                    book.read(kept, np.arange(20))
    finally:
        servers[-1].close()


def test_a_checkpoint_is_another_life(tmp_path):
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=16)
    buffer.extend_trajectory(rows(20), terminated=True)
    buffer.save(tmp_path / "c")
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        with closing(RemoteSource("127.0.0.1", server.port)) as source:
            own, book = StorageBook(buffer.storage), source.book("default")
            kept = own.kept(0), book.kept(0)
            buffer.load(tmp_path / "c")
            for one, before in zip((own, book), kept):
                with pytest.raises(KeyError):
                    one.read(before, np.arange(20))
                assert one.read(one.kept(0), np.arange(20))["obs"].tolist() == list(range(20))


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
            rows_of = {"what": "rows", "table": "default", "id": 0}
            rows_of["life"] = source.book("default").kept(0).life
            for asked, said in (
                ({"what": "everything", "table": "default"}, "expected numbers, ages"),
                ({"what": "ages"}, "expected a table's name"),
                ({"what": "ages", "table": "x"}, "no table 'x'"),
                ({"what": "episodes", "table": "default", "before": -1}, "before: expected"),
                ({"what": "rows", "table": "default", "id": "0"}, "id: expected"),
                ({**rows_of, "steps": []}, "steps: expected"),
                ({**rows_of, "steps": [10]}, "evicted"),
                ({**rows_of, "steps": [1.5]}, "steps: expect"),
                ({**rows_of, "steps": [99, 1]}, "evicted"),
                ({**rows_of, "steps": [1], "life": "x"}, "started anew"),
            ):
                kind, payload = source.ask(**asked)
                assert kind == Type.REPLY and said in json.loads(payload)["message"], asked
            for payload in (b"", b"[]", b"{", b"\xff", b'{"what": NaN}'):
                kind, answer = source._session.request(Type.WATCH, payload, 10.0)
                assert kind == Type.REPLY and "error" in json.loads(answer)
            assert source.numbers().tables["default"]["rows"] == 10


def test_a_server_that_knows_no_watching(monkeypatch):
    monkeypatch.setattr(Answers, "has_learner", False)
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    transport = TcpTransport(in_process=True)
    with Server(buffer=buffer, transport=transport) as server:
        with pytest.raises(ValueError, match="cannot be watched over the network: update contig"):
            RemoteSource("127.0.0.1", server.port)
