"""Processes that die or stop at the worst moment: the ingest process, clients, the learner."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from contig import (
    ConnectionClosedError,
    ReplayBuffer,
    Server,
    ServerError,
    SharedStorage,
    TcpClient,
    TcpTransport,
)
from tests.processes import alive
from tests.server import items
from tests.server.actors import Actor
from tests.waiting import WAIT_S, Threads, until

SHM = Path("/dev/shm")
LONGEST = 12


def tape(name: str, capacity: int = 200_000) -> ReplayBuffer:
    storage = SharedStorage(capacity, name=name, example=items.row_example())
    return ReplayBuffer(storage, batch_size=4)


def kill(server: Server) -> None:
    assert server.pid is not None
    with contextlib.suppress(ProcessLookupError):  # it is just being replaced
        os.kill(server.pid, signal.SIGKILL)


def _close(client: TcpClient) -> None:
    """Raises if, and only if, something was not acked."""
    if client.pending:
        with pytest.raises(ConnectionClosedError, match=f"{client.pending} items"):
            client.close()
    else:
        client.close()


# -- the ingest process is killed, and nobody restarts it ------------------------------------------


@pytest.mark.parametrize("call", ["sample", "waiting sample", "stats"])
def test_the_learner_is_told(call: str) -> None:
    with Server(items.example(), 4, TcpTransport()) as server:
        client = TcpClient("127.0.0.1", server.port, items.example(), reconnect_s=0)
        for n in range(3):
            client.send(items.item(0, n))
        client.wait(20)
        after = 0.1 if call == "waiting sample" else 0.0
        killer = threading.Timer(after, kill, (server,))
        killer.start()
        calls = {"sample": server.sample, "waiting sample": server.sample, "stats": server.stats}
        deadline = time.monotonic() + after + 2  # what is promised
        with pytest.raises(ServerError, match=r"signal 9|SIGKILL"):
            while time.monotonic() < deadline:
                calls[call]()
        killer.join()
        for again in (server.stats, server.sample, server.check):  # and at every later call
            with pytest.raises(ServerError, match=str(server.pid)):
                again()
        with pytest.raises(ConnectionClosedError):
            client.send(items.item(0, 4))
            client.wait(20)
        _close(client)
    # What is in the queue's memory did not die with the process.
    assert server.info().samples_inserted_total == 3


def test_a_complete_batch_survives_the_ingest_process() -> None:
    with Server(items.example(), 2, TcpTransport()) as server:
        with TcpClient("127.0.0.1", server.port, items.example()) as client:
            for n in range(4):
                client.send(items.item(0, n))
        kill(server)
        until(lambda: not alive(server.pid or 0), "its end")
        seen = []
        for _ in range(2):
            sample = server.sample(timeout=60)
            assert sample is not None
            seen += items.read(sample.batch)
        assert seen == [(0, n) for n in range(4)]
        with pytest.raises(ServerError):
            server.sample(timeout=60)


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_a_buffer_is_told(name: str, filled: bool) -> None:
    """A buffer that waits for its first rows is told; one with rows goes on, stats() tells."""
    buffer = tape(name)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        if filled:
            with TcpClient("127.0.0.1", server.port) as client:
                client.send_trajectory(items.rows(0, 0, 5), terminated=True)
        threading.Timer(0.1, kill, (server,)).start()
        deadline = time.monotonic() + 10
        with pytest.raises(ServerError, match=r"signal 9|SIGKILL"):
            while time.monotonic() < deadline:
                buffer.sample() if not filled else server.stats()
    buffer.storage.close()


# -- it is killed many times, and restarted --------------------------------------------------------


def _kill_often(server: Server, clients: list[Any], kills: int, rng: random.Random) -> None:
    """At random instants, start-up included; before each, what is acked must be in the table."""
    for _ in range(kills):
        time.sleep(rng.choice([0.0, rng.uniform(0, 0.2), rng.uniform(0.3, 0.6)]))
        for client in clients:
            client.check_acked(server)
        before = server.pid
        kill(server)
        until(lambda b=before: server.check() or server.pid != b, "another ingest process")


class Sender:
    """A client that knows how many items are acked."""

    def __init__(self, server: Server, example: Any, inflight: int = 8) -> None:
        address = ("127.0.0.1", server.port)
        self.client = TcpClient(*address, example, inflight, reconnect_s=WAIT_S)
        self.sent = 0

    def check_acked(self, server: Server) -> None:
        sent = self.sent  # read first: both only grow
        acked = sent - self.client.pending
        seen = next(iter(server._tables().values())).seen(self.client.producer, 0)
        assert seen >= acked, f"{acked} items were acked, {seen} are in the table"


def _queue_under_fire(kills: int, seed: int) -> None:
    batch = 20
    with Server(items.example(), batch, TcpTransport(max_restarts=10 * kills)) as server:
        senders = [Sender(server, items.example()) for _ in range(3)]
        stop = threading.Event()
        seen: list[tuple[int, int]] = []
        rng = random.Random(seed)

        def produce(who: int) -> None:
            sender = senders[who]
            while not stop.is_set():
                sender.client.send(items.item(who, sender.sent))
                sender.sent += 1
                if sender.sent % 500 == 0:
                    time.sleep(0.01)
            sender.client.close(WAIT_S)

        def consume() -> None:
            for sample in server.dataset_iter():
                seen.extend(items.read(sample.batch))

        consumer = Threads(consume)
        producers = Threads(*(lambda w=w: produce(w) for w in range(3)))
        _kill_often(server, senders, kills, rng)
        stop.set()
        producers.join(WAIT_S)
        total = sum(s.sent for s in senders)
        server.close(flush=True)
        consumer.join(20)
        items.check_all(seen, {who: s.sent for who, s in enumerate(senders)})
        assert server.info().samples_inserted_total == total


def _tape_under_fire(name: str, kills: int, seed: int) -> None:
    buffer = tape(name, 2_000_000)
    transport = TcpTransport(max_restarts=10 * kills)
    with Server(buffer=buffer, transport=transport) as server:
        senders = [Sender(server, items.row_example(), 4) for _ in range(3)]
        stop = threading.Event()
        episodes = {who: 0 for who in range(3)}

        def whole(who: int) -> None:
            """Each trajectory one append: complete, whatever is killed."""
            sender = senders[who]
            while not stop.is_set():
                n = episodes[who]
                steps = items.length(who, n, LONGEST)
                sender.client.send_trajectory(items.rows(who, n, steps), terminated=True)
                episodes[who] = sender.sent = n + 1
                time.sleep(0.0005)
            sender.client.close(WAIT_S)

        def stream(who: int) -> None:
            """Step by step: one that was cut by a kill is never complete."""
            sender = senders[who]
            writer = sender.client.writer()
            while not stop.is_set():
                n = episodes[who]
                for step in range(items.length(who, n, LONGEST)):
                    writer.append(items.row(who, n, step))
                    time.sleep(0.0005)
                writer.end_episode(truncated=True)
                episodes[who] = n + 1
            sender.client.close(WAIT_S)

        threads = Threads(lambda: whole(0), lambda: stream(1), lambda: stream(2))
        _kill_often(server, senders[:1], kills, random.Random(seed))
        stop.set()
        threads.join(WAIT_S)
        complete = items.check_tape(buffer.storage, episodes, LONGEST)
        assert complete >= episodes[0]  # those of client 0, and most of the others
        assert complete >= sum(episodes.values()) - 2 * kills - 2
    buffer.storage.close()


def test_queue_whose_ingest_process_is_killed_again_and_again() -> None:
    _queue_under_fire(kills=4, seed=1)


def test_tape_whose_ingest_process_is_killed_again_and_again(name: str) -> None:
    _tape_under_fire(name, kills=4, seed=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_soak(name: str, seed: int) -> None:
    _queue_under_fire(100, seed)
    _tape_under_fire(name, 100, seed)


def test_received_items_may_be_lost_but_the_client_goes_on() -> None:
    """ack="received" is a promise of the ingest process's memory. What died with it is gone; the
    client is not, and nothing is delivered twice."""
    batch = 10
    transport = TcpTransport(max_restarts=5)
    with Server(items.example(), batch, transport, num_buffers=2) as server:
        address = ("127.0.0.1", server.port)
        with TcpClient(*address, items.example(), reconnect_s=20, ack="received") as client:
            client.send_many(items.many(0, range(45)))  # one frame
            client.wait(20)
            assert server.info().samples_inserted_total == 2 * batch
            kill(server)
            seen: list[tuple[int, int]] = []

            def consume() -> None:
                for sample in server.dataset_iter():
                    seen.extend(items.read(sample.batch))

            consumer = Threads(consume)
            for n in range(45, 1000):
                client.send(items.item(0, n))
            client.wait(20)
        until(lambda: server.stats().connections == 0, "its goodbye")
        server.close(flush=True)
        consumer.join(20)
        numbers = [n for _, n in seen]
        assert numbers == sorted(set(numbers))
        assert set(range(20)) <= set(numbers)  # what was in the queue
        assert set(range(45, 1000)) <= set(numbers)  # what was sent after the kill


def test_close_while_it_restarts() -> None:
    """No process stays, no thread fails, whatever the moment."""
    rng = random.Random(7)
    for _ in range(3):
        server = Server(items.example(), 4, TcpTransport(max_restarts=5)).start()
        before = server.pid
        kill(server)
        time.sleep(rng.uniform(0, 0.15))
        server.close()
        for pid in {before, server.pid}:
            assert pid is not None
            until(lambda p=pid: not alive(p), "the end of the ingest process")
        assert _children() == []


def _children() -> list[int]:
    """Ingest processes of this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # a thread that has just ended
            continue
        for pid in pids:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"contig.server" in command and alive(int(pid)):
                found.append(int(pid))
    return found


# -- clients ---------------------------------------------------------------------------------------


def test_a_client_is_killed() -> None:
    batch = 10
    with Server(items.example(), batch, TcpTransport()) as server:
        seen: list[tuple[int, int]] = []
        with Actor("send_items", port=server.port, who=1, count=1 << 30, every=7) as actor:
            actor.hear()
            acked = 0
            while acked < 500:
                acked = actor.hear()["acked"]
                while len(seen) < acked // batch * batch:
                    sample = server.sample(timeout=20)
                    assert sample is not None
                    seen += items.read(sample.batch)
            actor.signal(signal.SIGKILL)
            actor.wait()
        until(lambda: server.info().active_connections == 0, "its disconnect")
        server.close(flush=True)
        for sample in server.dataset_iter():
            seen += items.read(sample.batch)
        assert len(seen) >= acked
        assert seen == [(1, n) for n in range(len(seen))]


def test_a_client_is_killed_in_the_middle_of_trajectories(name: str) -> None:
    buffer = tape(name)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        acked = {}
        for who in range(3):
            with Actor("stream_rows", port=server.port, who=who) as actor:
                actor.hear()
                for _ in range(4 + 3 * who):
                    acked[who] = actor.hear()["acked"]
                time.sleep(0.003 * who)
                actor.signal(signal.SIGKILL)
                actor.wait()
        until(lambda: server.stats().connections == 0, "their disconnects")
        items.check_episodes(buffer.storage)
        complete = set()
        for entry in buffer.storage.episodes():
            batch = buffer.storage.read_episode(int(entry["id"]))
            key = (int(batch["who"][0]), int(batch["episode"][0]))
            assert key not in complete
            if entry["complete"]:
                complete.add(key)
        for who, count in acked.items():
            assert {(who, e) for e in range(count)} <= complete
    buffer.storage.close()


def test_a_stopped_client_does_not_slow_the_others() -> None:
    """Stopped in the middle of its sending, for as long as the others need."""
    batch = 20
    with Server(items.example(), batch, TcpTransport()) as server:
        seen: list[tuple[int, int]] = []

        def take(upto: Any) -> None:
            while not upto():
                with contextlib.suppress(TimeoutError):
                    sample = server.sample(timeout=0.2)
                    assert sample is not None
                    seen.extend(items.read(sample.batch))

        with Actor("send_items", port=server.port, who=1, count=8000, every=1000) as actor:
            actor.hear()
            take(lambda: len(seen) >= 200)
            actor.signal(signal.SIGSTOP)
            with TcpClient("127.0.0.1", server.port, items.example()) as client:

                def produce() -> None:
                    for n in range(5000):
                        client.send(items.item(0, n))
                    client.wait(20)

                threads = Threads(produce)
                take(lambda: not threads.alive)
                threads.join(60)
            actor.signal(signal.SIGCONT)
            take(lambda: len(seen) >= 13_000)
            while "closed" not in actor.hear():
                pass
        items.check_all(seen, {0: 5000, 1: 8000})


def test_a_stopped_consumer_only_delays() -> None:
    with Actor("serve", batch=10, num_buffers=2) as actor:
        told = actor.hear()
        os.kill(told["pid"], 0)
        actor.signal(signal.SIGSTOP)
        client = TcpClient(
            "127.0.0.1", told["port"], items.example(), 2, reconnect_s=1, send_timeout_s=0.5
        )
        sent = 0
        with pytest.raises(TimeoutError, match="items are not acked"):
            for n in range(1 << 30):
                client.send(items.item(0, n))
                sent = n + 1
        with pytest.raises(TimeoutError):
            client.wait(0.3)
        assert client.pending >= sent - 20  # bounded by frames on the way, see test_many for bytes
        actor.signal(signal.SIGCONT)
        actor.say(items=sent // 10 * 10)
        got = [tuple(x) for x in actor.hear()["got"]]
        assert got == [(0, n) for n in range(sent // 10 * 10)]
        client.wait(20)
        client.close()


# -- the learner -----------------------------------------------------------------------------------


def _segments(name: str) -> list[str]:
    return sorted(p.name for p in SHM.glob(f"contig-{name}*"))


@pytest.mark.parametrize("kind", ["queue", "tape"])
def test_the_learner_is_killed(kind: str, name: str) -> None:
    task: dict[str, Any] = {"task": "serve", "name": name}
    if kind == "tape":
        task = {"task": "serve_tape", "name": name}
    with Actor(**task) as actor:
        told = actor.hear()
        example = items.example() if kind == "queue" else items.row_example()
        client = TcpClient("127.0.0.1", told["port"], example, reconnect_s=0)
        assert _segments(told["name"])
        actor.signal(signal.SIGKILL)
        actor.wait()
        until(lambda: not alive(told["pid"]), "the end of the ingest process")
        assert actor.errors() == ""  # nor did that one say anything: whose terminal is it?
        with pytest.raises(ConnectionClosedError):
            for _ in range(1000):
                client.send(items.item(0, 0)) if kind == "queue" else client.send(
                    items.row(0, 0, 0)
                )
                client.wait(5)
        _close(client)
    with Actor("next_process") as following:
        assert following.wait() == 0
    assert _segments(name) == [] and _segments(told["name"]) == []


def test_the_learner_is_killed_and_one_of_its_lines_ends_first(name: str) -> None:
    """In which order a dead process's sockets are closed, nobody says; nothing is said of it."""
    with Actor("serve_tape", name=name) as actor:
        told = actor.hear()
        actor.say(end="service")
        assert actor.hear()["ended"]
        with TcpClient("127.0.0.1", told["port"], items.row_example()) as client:
            client.send_trajectory(items.rows(0, 0, 3), truncated=True)  # that one goes on
        actor.signal(signal.SIGSTOP)
        time.sleep(1.0)  # counters come in on the other line, and are unread when it dies
        actor.signal(signal.SIGKILL)
        actor.wait()
        until(lambda: not alive(told["pid"]), "the end of the ingest process", 8)
        assert actor.errors() == ""


def test_the_learner_is_killed_and_has_children() -> None:
    """A forked process of the learner has copies of its sockets; the ingest process ends anyhow."""
    with Actor("learner_with_child") as actor:
        told = actor.hear()
        try:
            actor.signal(signal.SIGKILL)
            actor.wait()
            until(lambda: not alive(told["pid"]), "the end of the ingest process")
        finally:
            for pid in (told["child"], told["pid"]):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
