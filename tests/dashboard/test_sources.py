"""What is watched: buffers, servers, shared memory, directories."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from contig import (
    DeviceStorage,
    DiskStorage,
    LazyTensorStorage,
    RateLimiter,
    ReplayBuffer,
    Server,
    SharedStorage,
    SliceSampler,
    TcpClient,
    TcpTransport,
)
from contig.dashboard import Monitor, StorageSource
from tests.dashboard.pages import ask
from tests.waiting import until

ROW = {
    "obs": np.float32(0),
    "next": {"reward": 0.0, "done": False},
    "collector": {"policy_version": np.int64(0)},
}


def rows(n, version=0, reward=1.0):
    return {
        "obs": np.arange(n),
        "next": {"reward": np.full(n, reward)},
        "collector": {"policy_version": np.full(n, version)},
    }


def numbers(url):
    answer = ask(url, "/api/numbers")
    assert answer.status == 200, answer.body
    return answer.json


def look(url, table="default"):
    return ask(url, f"/api/tables/{table}/live").json


@pytest.mark.parametrize("kind", ["memory", "shared", "disk"])
def test_a_buffer(kind, tmp_path, name):
    storage = {
        "memory": lambda: LazyTensorStorage(1000, example=ROW),
        "shared": lambda: SharedStorage(1000, name, example=ROW),
        "disk": lambda: DiskStorage(tmp_path / "d", 1000, example=ROW),
    }[kind]()
    limiter = RateLimiter(4.0, 10, 500.0)
    with storage, ReplayBuffer(storage, batch_size=16, limiter=limiter) as buffer:
        page = buffer.dashboard()
        for i in range(3):
            buffer.extend_trajectory(rows(20, i), terminated=True, policy_version=i)
        storage.flush()
        drawn = [buffer.sample()["index"] for _ in range(4)]
        table = numbers(page.url)["tables"]["default"]
        assert (table["rows"], table["capacity"], table["episodes"]) == (60, 1000, 3)
        assert table["rows_out"] == 64 and table["samples_per_insert"] == pytest.approx(64 / 60)
        assert table["limiter"]["samples_per_insert"] == 4.0
        assert table["limiter"]["drift"] == pytest.approx(60 * 4 - 64 - 40)
        ages = look(page.url)["ages"]
        assert ages["of"] == "what the learner draws" and 0 < ages["rows"]["count"] <= 64
        assert ages["rows"]["mean"] <= 60 and ages["newest_version"] == 2
        mean = np.mean(60 - np.concatenate(drawn))
        assert table["sampled_age_rows"] == pytest.approx(mean)
        # Another process reads the rows; what it reads is not taken for the learner's draws.
        until(lambda: ask(page.url, "/api/tables/default/episodes/2").status == 200)
        told = ask(page.url, "/api/tables/default/episodes/1").json
        assert told["rows"] == 20 and told["episode"]["policy_version"] == 1
        again = until(lambda: numbers(page.url)["tables"]["default"]["sampled_age_rows"])
        assert again == pytest.approx(mean)
        assert buffer.stats().rows_sampled == 64


def test_rows_on_a_device():
    """No other process has them: the page is served by a thread."""
    buffer = ReplayBuffer(DeviceStorage(1000, "cpu", example=ROW), batch_size=16)
    with buffer.dashboard() as page:
        buffer.extend_trajectory(rows(20, 1, 2.0), terminated=True, policy_version=1)
        buffer.sample()
        table = numbers(page.url)["tables"]["default"]
        assert (table["rows"], table["rows_out"]) == (20, 16)
        assert look(page.url)["ages"]["rows"]["count"] == 16
        told = ask(page.url, "/api/tables/default/episodes/0").json
        assert told["total"]["mean"][0][-1] == 40.0
        assert ask(page.url, "/api/tables/default/export?as=npz").status == 200
    assert len(buffer) == 20 and len(buffer.sample()["index"]) == 16  # it goes on


def test_a_page_ends_with_its_buffer_and_costs_nothing_then():
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    buffer.extend_trajectory(rows(10), terminated=True)
    with buffer.dashboard() as page:
        assert len(buffer.seen) == 1
        assert numbers(page.url)["tables"]["default"]["rows"] == 10
    assert not buffer.seen
    with pytest.raises(ConnectionError):
        ask(page.url, "/api/numbers")
    other = buffer.dashboard()
    buffer.close()
    with pytest.raises(ConnectionError):
        ask(other.url, "/api/numbers")


def test_a_buffer_that_is_dropped_takes_its_page_with_it():
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    url = buffer.dashboard().url
    assert numbers(url)["tables"]["default"]["rows"] == 0
    del buffer
    gc.collect()
    with pytest.raises(ConnectionError):
        ask(url, "/api/numbers")


def test_a_taken_port_and_a_wrong_argument():
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    with buffer.dashboard() as page:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{page.port}"):
            buffer.dashboard(page.port)
    with pytest.raises(ValueError, match="give the dashboard a token"):
        buffer.dashboard(host="0.0.0.0")
    with pytest.raises(ValueError, match="samples_per_s"):
        buffer.dashboard(samples_per_s=-1)
    assert not buffer.seen


def test_a_server_with_clients():
    online = ReplayBuffer(
        LazyTensorStorage(1000, example=ROW), SliceSampler(slice_len=4), batch_size=8
    )
    demo = ReplayBuffer(LazyTensorStorage(500, example=ROW), batch_size=8)
    tables = {"online": online, "demo": demo}
    with Server(tables=tables, transport=TcpTransport()) as server:
        page = server.dashboard()
        with TcpClient("127.0.0.1", server.port, table="online") as client:
            client.send_trajectory(rows(30, 1), terminated=True, policy_version=1)
            client.wait()
            server.publish(7, {"w": np.zeros(3)})
            online.sample()
            told = numbers(page.url)
            assert told["tables"]["online"]["rows_in"] == 30
            assert told["tables"]["demo"]["rows_in"] == 0
            (one,) = told["clients"]
            assert (one["table"], one["rows"], one["blocked"]) == ("online", 30, False)
            assert one["blocked_s"] == 0.0 and one["producer"] == str(client.producer)
            assert told["server"]["connections"] == 1
            ages = look(page.url, "online")["ages"]
            assert ages["newest_version"] == 7 and ages["staleness"]["mean"] == 6.0
    with pytest.raises(ConnectionError):
        ask(page.url, "/api/numbers")


def test_a_client_that_waits_is_seen_to():
    buffer = ReplayBuffer(
        LazyTensorStorage(1000, example=ROW), batch_size=8, limiter=RateLimiter(1.0, 10, 20.0)
    )
    with Server(buffer=buffer, transport=TcpTransport()) as server, server.dashboard() as page:
        with TcpClient("127.0.0.1", server.port) as client:
            for _ in range(5):
                client.send_trajectory(rows(20), terminated=True)

            def blocked():
                clients = numbers(page.url)["clients"]
                return clients and clients[0]["blocked"] and clients[0]["blocked_s"] > 0

            until(blocked, "the limiter holds the client up")
            while len(buffer) < 100:
                buffer.sample()
            client.wait(30)
            (one,) = server.stats().clients
            assert not one["blocked"] and one["blocked_s"] > 0
            assert server.stats().blocked_s == pytest.approx(one["blocked_s"])


def test_a_queue():
    item = {"x": np.float32(0)}
    with Server(item, 4, TcpTransport()) as server, server.dashboard() as page:
        with TcpClient("127.0.0.1", server.port, item) as client:
            for _ in range(6):
                client.send(item)
            client.wait()
            server.sample(timeout=30)
            table = numbers(page.url)["tables"]["default"]
            assert (table["kind"], table["rows_in"], table["rows_out"]) == ("queue", 6, 4)
            assert table["rows"] == 2
            assert look(page.url)["ages"] is None
            answer = ask(page.url, "/api/tables/default/episodes")
            assert answer.status == 404 and "hands each item out once" in answer.json["error"]


def test_shared_memory_by_its_name(name):
    with SharedStorage(1000, name, example=ROW) as storage:
        writer = storage.writer()
        source = StorageSource("shared", name, {name: SharedStorage.attach(name)})
        try:
            monitor = Monitor(source, 1e-9)
            writer.extend_trajectory(rows(40, 2), terminated=True, policy_version=2)
            assert monitor.now()["tables"][name]["rows_in"] == 40
            writer.extend_trajectory(rows(10, 3), terminated=True, policy_version=3)
            table = monitor.now()["tables"][name]
            assert table["rows_in"] == 50 and table["rows_in_per_s"] > 0
            told = source.ages(name)
            assert told["newest_version"] == 3 and told["staleness"]["edges"][0] == 0
            assert storage.tape.drawn == (0, 0)  # the index was read, and no row
        finally:
            source.close()
        assert len(storage) == 50


def test_a_directory_is_followed(tmp_path):
    with DiskStorage(tmp_path / "d", 1000, example=ROW) as storage:
        writer = storage.writer()
        reader = DiskStorage(tmp_path / "d", read_only=True)
        source = StorageSource("directory", "d", {"d": reader}, samples_per_s=0)
        try:
            book = source.book("d")
            for n in range(1, 4):
                writer.extend_trajectory(rows(n, n), terminated=True, policy_version=n)
                storage.flush()
                until(lambda n=n: source.numbers().tables["d"]["episodes"] == n)
                assert book.read(book.kept(n - 1), np.arange(n))["obs"].tolist() == list(range(n))
            assert source.ages("d")["rows"] is None  # samples_per_s=0: none were drawn
        finally:
            source.close()


def test_a_forked_child_ends_no_page():
    buffer = ReplayBuffer(LazyTensorStorage(100, example=ROW), batch_size=4)
    with buffer.dashboard() as page:
        pid = os.fork()
        if not pid:
            buffer.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert numbers(page.url)["tables"]["default"]["rows"] == 0
