"""`contig serve`: a server as a process of its own, in memory and on disk, ended and killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig
from contig import DiskStorage, RemoteReplayBuffer, ReplayBuffer, Server, TcpClient, TcpTransport
from tests.waiting import until

ROW = {
    "number": {"shape": [], "dtype": "int64"},
    "next": {"reward": {"shape": [], "dtype": "float32"}, "done": {"shape": [], "dtype": "bool"}},
}
ITEM = {"x": {"shape": [3], "dtype": "float32"}}
LIMIT_S = 60


def rows(first: int, n: int) -> dict[str, Any]:
    return {
        "number": np.arange(first, first + n),
        "next": {"reward": np.ones(n, np.float32), "done": np.arange(n) == n - 1},
    }


class Command:
    """A running `contig serve`."""

    def __init__(self, *options: Any, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "contig.cli.main", "serve", *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.match(r"listening on 127\.0\.0\.1:(\d+) tables: (.*)", line)
        if found is None:
            self.process.kill()
            raise AssertionError(f"{line!r} {self.process.communicate()[1]}")
        self.port, self.tables = int(found[1]), found[2]

    def end(self, number: int = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert number == signal.SIGKILL or self.process.returncode == 0, err
        assert "Traceback" not in err, err
        return str(out)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    running: list[Command] = []
    for name, content in (("row.json", ROW), ("item.json", ITEM)):
        (tmp_path / name).write_text(json.dumps(content))

    def start(example: str, *options: Any, **environment: str) -> Command:
        running.append(Command("--example", tmp_path / example, *options, **environment))
        return running[-1]

    yield start
    for command in running:
        command.process.kill()
        command.process.communicate()


def test_tables(serve: Any) -> None:
    command = serve("row.json", "--table", "online", "--table", "demo", "--batch-size", 8)
    assert command.tables == "online, demo"
    with TcpClient("127.0.0.1", command.port, table="demo") as client:
        client.send_trajectory(rows(0, 40))
        client.wait()
    with RemoteReplayBuffer("127.0.0.1", command.port, "demo") as buffer:
        assert set(buffer.sample()["number"].tolist()) <= set(range(40))
        assert buffer.stats().rows == 40
    assert command.end() == "closed: 40 rows taken in\n"


def test_metrics_and_a_token(serve: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="token"):
        serve("item.json", "--queue", 4, "--host", "0.0.0.0")
    probe = Server({"x": 1.0}, 1, TcpTransport(in_process=True)).start()
    free = probe.port
    probe.close()
    options = ("--queue", 4, "--metrics-port", free)
    command = serve("item.json", *options, CONTIG_TOKEN="a secret")
    with pytest.raises(ValueError, match="token"):
        TcpClient("127.0.0.1", command.port, {"x": np.zeros(3, np.float32)})
    item = {"x": np.ones(3, np.float32)}
    with TcpClient("127.0.0.1", command.port, item, token="a secret") as client:
        for _ in range(6):
            client.send(item)
        client.wait()
        with urllib.request.urlopen(f"http://127.0.0.1:{free}/metrics", timeout=LIMIT_S) as page:
            text = page.read().decode()
    assert re.search(r"^contig_items_in 6", text, re.MULTILINE), text
    assert "a secret" not in text
    command.end(signal.SIGINT)


def test_bad_input(tmp_path: Path, capsys: Any) -> None:
    from contig.cli.main import main

    (tmp_path / "bad.json").write_text('{"x": {"shape": [3]}}')
    (tmp_path / "item.json").write_text(json.dumps(ITEM))
    for options, message in (
        (("--example", tmp_path / "bad.json"), "x"),
        (("--example", tmp_path / "item.json", "--queue", 4, "--table", "a"), "not both"),
        (("--example", tmp_path / "item.json", "--queue", 4, "--disk", tmp_path), "--disk"),
        (("--example", tmp_path / "item.json", "--table", "../a", "--disk", tmp_path), "directory"),
        (("--example", tmp_path / "item.json", "--port", 70000), "65535"),
        (("--example", tmp_path / "none.json"), "none.json"),
    ):
        assert main(["serve", *map(str, options)]) == 2, options
        assert message in capsys.readouterr()[1], options


@pytest.mark.parametrize("ack", ["committed", "durable"])
def test_on_disk(serve: Any, tmp_path: Path, ack: str) -> None:
    """Closed in good order and started again: everything is there; a follower sees it live."""
    options = ["--disk", tmp_path / "runs", "--table", "online", "--batch-size", 8]
    options += ["--durable"] if ack == "durable" else []
    command = serve("row.json", *options)
    with TcpClient("127.0.0.1", command.port, table="online", ack=ack) as client:
        for number in range(30):
            client.send_trajectory(rows(100 * number, 20))
        client.wait()
        follower = DiskStorage(tmp_path / "runs" / "online", read_only=True)
        until(lambda: len(follower.episodes()) == 30, "new episodes")
        client.send_trajectory(rows(5000, 20))
    until(lambda: len(follower.episodes()) == 31, "new episodes")
    follower.close()
    assert command.end() == "closed: 620 rows taken in\n"
    again = serve("row.json", *options)
    with RemoteReplayBuffer("127.0.0.1", again.port, "online") as buffer:
        assert buffer.stats().rows == 620
        buffer.sample()
    again.end()


def test_durable_needs_a_table_that_is(serve: Any, tmp_path: Path) -> None:
    for options in ((), ("--disk", tmp_path / "runs")):
        command = serve("row.json", *options)
        with pytest.raises(ValueError, match="durable"):
            TcpClient("127.0.0.1", command.port, ack="durable")
        command.end()


@pytest.mark.parametrize("ack", ["committed", "durable"])
def test_killed(serve: Any, tmp_path: Path, ack: str) -> None:
    """SIGKILL again and again while clients send: nothing acked is missing, nothing is there twice,
    and each client's episodes are in order."""
    options = ["--disk", tmp_path / "runs", *(["--durable"] if ack == "durable" else [])]
    command = serve("row.json", *options)
    options += ["--port", command.port]
    clients = [TcpClient("127.0.0.1", command.port, ack=ack, reconnect_s=LIMIT_S) for _ in range(3)]
    sent = [0, 0, 0]
    for turn in range(5):
        for _ in range(40):
            for which, client in enumerate(clients):
                client.send_trajectory(
                    rows(which * 10**6 + 1000 * sent[which], 3 + sent[which] % 5)
                )
                sent[which] += 1
        if turn % 2:
            clients[0].wait()
        command.end(signal.SIGKILL)
        command = serve("row.json", *options)
    for client in clients:
        client.close()
    command.end()
    storage = DiskStorage(tmp_path / "runs" / "default")
    assert not storage.quarantined
    found: list[list[int]] = [[], [], []]
    for line in storage.episodes():
        numbers = storage.read_episode(int(line["id"]))["number"]
        which, number = divmod(int(numbers[0]), 10**6)
        assert numbers.tolist() == list(range(numbers[0], numbers[0] + 3 + number // 1000 % 5))
        found[which].append(number // 1000)
    assert found == [list(range(n)) for n in sent]
    storage.close()


def test_a_learners_own_storage(tmp_path: Path) -> None:
    """A server in the learner's process, feeding a buffer on disk."""
    storage = DiskStorage(tmp_path / "runs")
    buffer = ReplayBuffer(storage, batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        example = {
            k: v[0] if not isinstance(v, dict) else {a: b[0] for a, b in v.items()}
            for k, v in rows(0, 1).items()
        }
        with TcpClient("127.0.0.1", server.port, example) as client:
            client.send_trajectory(rows(0, 50))
            client.wait()
        assert set(buffer.sample()["number"].tolist()) <= set(range(50))
        reader = DiskStorage(tmp_path / "runs", read_only=True)
        with pytest.raises(ValueError, match="opened to read"):
            Server(buffer=ReplayBuffer(reader, batch_size=8), transport=TcpTransport())
        reader.close()
    storage.close()
    assert len(contig.DiskStorage(tmp_path / "runs")) == 50


def test_durable_needs_a_disk(tmp_path: Path) -> None:
    example = tmp_path / "row.json"
    example.write_text(json.dumps(ROW))
    for options in (["--table", "a"], ["--queue", "4"]):
        done = subprocess.run(
            [sys.executable, "-m", "contig.cli.main", "serve", "--durable", *options]
            + ["--example", str(example)],
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 2
        assert "--durable needs --disk" in done.stderr
