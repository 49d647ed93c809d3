"""`contig worker`: real processes on loopback that join servers, lose them, come back and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contig import (
    Collector,
    DiskStorage,
    LazyTensorStorage,
    RateLimiter,
    RateLimitError,
    RemoteReplayBuffer,
    ReplayBuffer,
    Server,
    TcpTransport,
)
from contig.cli.import_path import load_made
from contig.cli.main import main
from contig.collect import sink
from tests.cli import worked
from tests.server.test_service import Service
from tests.waiting import Task, until

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
LIMIT_S = 60.0
ENV = ["--env", "tests.cli.worked:make_env"]
ACTOR = [*ENV, "--policy", "tests.cli.worked:Constant"]


class Worker:
    """A running `contig worker`."""

    def __init__(self, place: Path, port: int, *options: Any, **environment: str) -> None:
        self.log = place / f"worker-{os.urandom(4).hex()}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "contig", "worker", f"{HOST}:{port}", *map(str, options)],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
                env={**os.environ, **environment},
            )  # fmt: skip

    def begins(self) -> Worker:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("collecting for"), self.log.read_text()
        return self

    def end(self, number: int | None = signal.SIGTERM, status: int = 0) -> str:
        if number is not None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=LIMIT_S)
        said = self.log.read_text()
        assert self.process.returncode == status, said
        assert status or "Traceback" not in said, said
        return str(out)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Any]:
    running: list[Worker] = []

    def start(port: int, *options: Any, **environment: str) -> Worker:
        running.append(Worker(tmp_path, port, *options, **environment))
        return running[-1]

    yield start
    for worker in running:
        worker.process.kill()
        worker.process.communicate()


@pytest.fixture
def example(tmp_path: Path, capsys: Any) -> Path:
    """What a row of the worker is, as `contig serve` takes it."""
    assert main(["worker", *ACTOR, "--example"]) == 0
    path = tmp_path / "row.json"
    path.write_text(capsys.readouterr().out)
    return path


def check_episodes(storage: Any) -> int:
    """Every one that ended has its 10 steps in order, each once; how many there are."""
    ended = storage.episodes()
    ended = ended[ended["complete"]]
    for line in ended:
        episode = storage.read_episode(int(line["id"]))
        assert episode["observation"].ravel().tolist() == list(range(10))
        assert episode["next", "observation"].ravel().tolist() == list(range(1, 11))
    return len(ended)


@pytest.mark.parametrize("options", [[], ["--envs", "3"], ["--envs", "2", "--processes", "2"]])
def test_frames(work: Any, options: list[str]) -> None:
    """A table without a layout takes that of the rows; all frames are there, and no more."""
    storage = LazyTensorStorage(10_000)
    with Server(buffer=ReplayBuffer(storage, batch_size=8), transport=TcpTransport()) as server:
        worker = work(server.port, *ACTOR, *options, "--frames", 600, "--seed", 1)
        out = worker.end(None)
        assert out.splitlines()[-1] == "ended: everything that was collected is at the server"
        assert len(storage) == 600
        assert check_episodes(storage) >= 40


@pytest.mark.parametrize("processes", [1, 2])
def test_weights_that_its_policy_cannot_take(work: Any, processes: int) -> None:
    """It says at once what a policy needs, and sends no rows."""
    storage = LazyTensorStorage(1000)
    with Server(buffer=ReplayBuffer(storage, batch_size=8), transport=TcpTransport()) as server:
        server.publish(0, {"w": np.zeros(3)})
        policy = ["--policy", "tests.cli.worked:act", "--processes", processes]
        worker = work(server.port, *ENV, *policy)
        worker.end(None, status=2)
        said = worker.log.read_text()
        assert "act has no way to take weights" in said and "set_weights" in said
        assert len(storage) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end(work: Any, number: int) -> None:
    storage = LazyTensorStorage(1_000_000)
    with Server(buffer=ReplayBuffer(storage, batch_size=8), transport=TcpTransport()) as server:
        worker = work(server.port, *ENV, "--policy", "tests.cli.worked:act")
        until(lambda: len(storage) > 500, "rows")
        assert "everything that was collected is at the server" in worker.end(number)
        assert check_episodes(storage) >= 40
        batch = ReplayBuffer(storage)[:]
        assert (batch["action"] == 3).all()


def test_told_to_end_while_the_server_takes_nothing(work: Any) -> None:
    """A limiter holds it up: it stops at once, and is gone when what it holds is acked."""
    storage = LazyTensorStorage(1_000_000)
    buffer = ReplayBuffer(storage, batch_size=8, limiter=RateLimiter(1.0, 1, 64.0, timeout_s=0.1))
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        worker = work(server.port, *ENV)
        until(lambda: len(storage) >= 64, "rows")
        until(lambda: server.stats().blocked > 0, "that it has to wait")
        worker.process.send_signal(signal.SIGTERM)

        def gone() -> bool:
            try:
                buffer.sample()  # makes room for what it holds
            except RateLimitError:
                pass
            return worker.process.poll() is not None

        until(gone, "its end")
        worker.end(None)
        check_episodes(storage)


def test_weights_of_a_learner_elsewhere(work: Any, tmp_path: Path, example: Path) -> None:
    """Learner and workers are clients of one `contig serve`: rows say whose weights made them."""
    service = Service(tmp_path, "--example", example, "--batch-size", 16)
    try:
        with RemoteReplayBuffer(HOST, service.port, prefetch=0) as learner:
            workers = [work(service.port, *ACTOR, "--envs", 2) for _ in range(2)]
            for version in (5, 6):
                learner.publish(version, {"action": np.array(10 * version)})

                def newest(version: int = version) -> bool:
                    batch = learner.sample()
                    versions = batch["collector", "policy_version"]
                    own = versions == -1  # before any came
                    assert (batch["action"] == np.where(own, 0, 10 * versions)).all()
                    return bool((versions == version).any())

                until(newest, f"rows of version {version}")
            for worker in workers:
                worker.begins().end()
        service.end()
    finally:
        service.kill()


def test_a_server_that_is_restarted_and_killed(work: Any, tmp_path: Path, example: Path) -> None:
    options = ["--example", example, "--disk", "runs", "--batch-size", 8]
    service = Service(tmp_path, *options)
    try:
        options += ["--port", service.port]
        workers = [work(service.port, *ACTOR, "--log-json") for _ in range(2)]
        rows = 0
        for number in (signal.SIGTERM, signal.SIGKILL):
            with RemoteReplayBuffer(HOST, service.port) as looker:
                until(lambda: len(looker) > rows + 500, "rows")  # noqa: B023
                rows = len(looker)
            if number == signal.SIGTERM:
                service.end()
            else:
                service.kill()
            service = Service(tmp_path, *options)
        with RemoteReplayBuffer(HOST, service.port) as looker:
            until(lambda: len(looker) > rows + 500, "rows of the last server")
        for worker in workers:
            worker.begins()
            assert "everything that was collected is at the server" in worker.end()
            events = [json.loads(line)["event"] for line in worker.log.read_text().splitlines()]
            assert {"start", "lost", "back", "stop"} <= set(events)
        service.end()
    finally:
        service.kill()
    with DiskStorage(tmp_path / "runs" / "default") as storage:
        assert not storage.quarantined
        assert check_episodes(storage) >= 100
        # Also those that were cut in two by a restart: every row is there once, in order.
        rows_of = ReplayBuffer(storage)[:]
        ids, at = rows_of["collector", "traj_ids"], rows_of["observation"].ravel()
        lengths = []
        for each in np.unique(ids):
            steps = at[ids == each]
            assert steps.tolist() == list(range(len(steps)))
            lengths.append(len(steps))
        assert sum(n != 10 for n in lengths) <= 2  # what workers had begun when they ended


def test_a_server_that_stays_away(work: Any, example: Path, tmp_path: Path) -> None:
    service = Service(tmp_path, "--example", example)
    worker = work(service.port, *ACTOR, "--reconnect", "0.5").begins()
    service.kill()
    worker.end(None, status=2)
    last = worker.log.read_text().splitlines()[-1]
    assert last.startswith("contig worker: ") and "did not come back within 0.5 s" in last


def test_a_server_that_is_away_for_longer_than_a_full_table(monkeypatch: Any) -> None:
    """No room and no server are two things: the one has a minute, the other `reconnect_s`."""
    monkeypatch.setattr(sink, "_ROOM_S", 0.3)

    def serving(port: int) -> Server:
        buffer = ReplayBuffer(LazyTensorStorage(10_000), batch_size=8)
        return Server(buffer=buffer, transport=TcpTransport(port)).start()

    server = serving(0)
    env = worked.make_env()
    row = env.rollout(1)[0].tree()
    remote = RemoteReplayBuffer(HOST, server.port, data_sample=row, reconnect_s=LIMIT_S)
    collector = Collector(env, worked.act, frames_per_batch=50, replay_buffer=remote)
    batches = iter(collector)
    next(batches)
    server.close(final=False)
    until(lambda: not remote.server_is_there(), "the loss")
    collecting = Task(next, batches)
    assert not collecting.ends(1.0)  # far longer than a full table would be waited for
    server = serving(server.port)
    collecting.result()
    assert remote.server_is_there()
    collector.shutdown()
    remote.close()
    server.close()


def test_a_token(work: Any) -> None:
    storage = LazyTensorStorage(10_000)
    buffer = ReplayBuffer(storage, batch_size=8)
    with Server(buffer=buffer, transport=TcpTransport(token="secret")) as server:
        work(server.port, *ENV, "--frames", 100, CONTIG_TOKEN="secret").end(None)
        assert len(storage) == 100
        worker = work(server.port, *ENV, "--frames", 100, CONTIG_TOKEN="wrong")
        worker.end(None, status=2)
        assert worker.log.read_text().startswith("contig worker: ")


@pytest.mark.parametrize("options", [[], ["--processes", "2"], ["--traceback"]])
def test_an_environment_that_fails(work: Any, options: list[str]) -> None:
    """The user's own error ends it, in one line, which is the last; the rest if it is wanted."""
    storage = LazyTensorStorage(10_000)
    with Server(buffer=ReplayBuffer(storage, batch_size=8), transport=TcpTransport()) as server:
        worker = work(server.port, "--env", "tests.cli.worked:Failing", *options)
        worker.end(None, status=2)
    said = worker.log.read_text()
    last = said.splitlines()[-1]
    assert last.startswith("contig worker: --env tests.cli.worked:Failing: ")
    assert "FloatingPointError: the third step" in last
    assert ("Traceback" in said) == ("--traceback" in options), said
    if "--processes" not in options:
        assert "in Failing._step (worked.py, line " in last


def test_policies_by_path() -> None:
    assert isinstance(load_made("tests.cli.worked:Constant", "--policy"), worked.Constant)
    assert load_made("tests.cli.worked:act", "--policy") is worked.act
    assert load_made("tests.cli.worked:ready", "--policy") is worked.ready
    assert isinstance(load_made("tests.cli.worked:make_env", "--env"), worked.Counting)
    assert load_made("tests.cli.worked:ready.get_weights", "--policy") is not None
