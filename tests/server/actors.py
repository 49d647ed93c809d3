"""Processes of these tests: each task runs in an interpreter of its own, and talks in JSON lines.

parent: Actor("serve", batch=4)          child: serve(say, hear, batch=4)
        actor.hear()  <------------------------ say(port=...)
        actor.say("go") ---------------------->  hear()
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Actor:
    """A child process with its task."""

    def __init__(self, task: str, **arguments: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.actors", task, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, timeout_s: float = 60.0) -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = max(deadline - time.monotonic(), 0)
            said = select.poll()  # not select(): descriptors may be large
            said.register(self.process.stdout, select.POLLIN)
            assert said.poll(left * 1000), f"the process said nothing for {timeout_s} s"
            part = os.read(self.process.stdout.fileno(), 65536)
            assert part, f"the process ended:\n{self.errors()}"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        heard = json.loads(line)
        assert "error" not in heard, heard["error"]
        return heard

    def say(self, **content: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(content).encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Only to the child itself, which cannot have been replaced: it is not reaped yet."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def wait(self, timeout_s: float = 60.0) -> int:
        return self.process.wait(timeout_s)

    def errors(self) -> str:
        """What it wrote to stderr; ends it."""
        self.close()
        return self._errors

    _errors = ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            assert self.process.stdout is not None and self.process.stderr is not None
            self.process.stdout.close()
            self._errors = self.process.stderr.read().decode(errors="replace")
            self.process.stderr.close()
        self.process.wait()

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.signal(signal.SIGCONT)
        self.close()


# -- tasks -----------------------------------------------------------------------------------------

Say = Callable[..., None]
Hear = Callable[[], Any]


def serve(
    say: Say,
    hear: Hear,
    batch: int = 4,
    num_buffers: int = 2,
    name: str | None = None,
    publish: bool = False,
) -> None:
    """A queue server that nobody samples from, until told to; then it says what it got."""
    from contig import Server, TcpTransport
    from tests.server import items

    with Server(
        items.example(), batch, TcpTransport(max_restarts=0), num_buffers, name=name
    ) as server:
        if publish:
            server.publish(1, {"w": 1.0})
        say(port=server.port, pid=server.pid, name=server.name)
        while (asked := hear()) is not None:
            got: list[tuple[int, int]] = []
            while len(got) < asked["items"]:
                sample = server.sample(timeout=30)
                assert sample is not None
                got += items.read(sample.batch)
            say(got=got)


def learner(say: Say, hear: Hear, how: str) -> None:
    """Is gone, when told to, in one of several ways that are no `close()`."""
    from contig import Server, TcpTransport
    from tests.server import items

    server = Server(items.example(), 4, TcpTransport())
    with contextlib.suppress(ZeroDivisionError):
        with server if how == "raise" else contextlib.nullcontext(server.start()):
            say(port=server.port, pid=server.pid, self=os.getpid())
            hear()
            if how == "kill":
                time.sleep(60)
            if how == "raise":
                raise ZeroDivisionError
            if how == "not final":
                server.close(final=False)


def serve_tape(say: Say, hear: Hear, name: str, fork: bool = False) -> None:
    """A server that feeds a shared storage; perhaps with a child that has copies of everything."""
    from contig import ReplayBuffer, Server, SharedStorage, TcpTransport
    from tests.server import items

    storage = SharedStorage(10_000, name=name, example=items.row_example())
    buffer = ReplayBuffer(storage, batch_size=4)
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        child = os.fork() if fork else -1
        if child == 0:
            time.sleep(60)
            os._exit(0)
        say(port=server.port, pid=server.pid, name=server.name, child=child)
        if (asked := hear()) and asked.get("end") == "service":
            assert server._run.service is not None and server._run.service._socket is not None
            server._run.service._socket.shutdown(socket.SHUT_RDWR)
            say(ended=True)
            hear()


def blocked_sample(say: Say, hear: Hear) -> None:
    """Is interrupted while it waits for a batch."""
    from contig import Server, TcpTransport
    from tests.server import items

    server = Server(items.example(), 4, TcpTransport()).start()
    say(pid=server.pid)
    try:
        server.sample()
    except KeyboardInterrupt:
        say(interrupted=True)


def blocked_client(say: Say, hear: Hear, port: int, call: str) -> None:
    """Is interrupted while a client waits: in `send` or in `wait`."""
    from contig import TcpClient
    from tests.server import items

    client = TcpClient("127.0.0.1", port, items.example(2000), max_inflight_msgs=4)
    try:
        for n in range(50_000 if call == "send" else 40):
            if n % 100 == 0:
                say(sent=n)
            client.send(items.item(0, n, 2000))
        say(waits=True)
        client.wait()
    except KeyboardInterrupt:
        say(interrupted=True)


def interrupted(say: Say, hear: Hear, port: int, interrupts: int) -> None:
    """Threads share a client; one of them, the main thread, is interrupted again and again."""
    import random
    import threading

    from contig import TcpClient
    from tests.server import items

    rng = random.Random(5)
    stop = threading.Event()
    failed: list[str] = []
    sent = [0, 0, 0]
    client = TcpClient("127.0.0.1", port, items.example(), max_inflight_msgs=1)

    def send(who: int) -> None:
        try:
            while not stop.is_set():
                client.send(items.item(who, sent[who]))
                sent[who] += 1
                if sent[who] % 7 == 0:
                    client.wait(60)
        except BaseException as error:
            failed.append(f"thread {who}: {error!r}")

    def interrupt() -> None:
        for _ in range(interrupts):
            time.sleep(rng.random() * 0.003)
            os.kill(os.getpid(), signal.SIGINT)
        stop.set()

    armed = [False]

    def handle(*_: Any) -> None:
        if armed[0]:
            armed[0] = False  # not again before the first one is dealt with
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    threads = [threading.Thread(target=send, args=(who,)) for who in (1, 2)]
    threads.append(threading.Thread(target=interrupt))
    for thread in threads:
        thread.start()
    caught = 0
    while not stop.is_set() and not failed:
        try:
            armed[0] = True
            client.send(items.item(0, sent[0]))
            client.wait(60)
            client.weights()
            armed[0] = False  # before it is left
        except KeyboardInterrupt:
            caught += 1
        except BaseException as error:
            failed.append(f"main: {error!r}")
        sent[0] += 1  # it may have been sent or not
    armed[0] = False
    for thread in threads:
        thread.join()
    if not failed:
        client.close(60)
    say(failed=failed, caught=caught, sent=sent)


def interrupted_requests(say: Say, hear: Hear, port: int, interrupts: int) -> None:
    """Samples and asks for weights, and is interrupted again and again; then says what it keeps."""
    import random
    import threading

    from contig import RemoteReplayBuffer

    rng = random.Random(7)
    armed, done = [False], threading.Event()
    far = RemoteReplayBuffer("127.0.0.1", port, prefetch=3)
    session = far._client.asking.thread

    def interrupt() -> None:
        for _ in range(interrupts):
            time.sleep(rng.random() * 0.002)
            os.kill(os.getpid(), signal.SIGINT)
        done.set()

    def handle(number: int, frame: Any) -> None:
        if armed[0]:
            armed[0] = False  # until the first one is dealt with
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    threading.Thread(target=interrupt).start()
    caught = turns = 0
    while not done.is_set():
        turns += 1
        try:
            armed[0] = True
            far.sample() if turns % 3 else far.weights(timeout_s=0.01)
            armed[0] = False  # before it is left
        except KeyboardInterrupt:
            caught += 1
    armed[0] = False
    steps = sorted(far.sample()["step"].tolist())
    say(caught=caught, kept=session.requests.held, lost=session.resends, steps=steps)
    far.close()


def fork_with_client(say: Say, hear: Hear, port: int, count: int) -> None:
    """Forks again and again while another thread sends; children try every call of the client."""
    import threading

    from contig import RemoteReplayBuffer
    from tests.server import items

    far = RemoteReplayBuffer("127.0.0.1", port, prefetch=0)
    far.extend_trajectory(items.rows(0, 0, items.length(0, 0)), terminated=True)
    far.flush(30)
    far.sample()
    sent, stop = [1], threading.Event()

    def send() -> None:
        while not stop.is_set():
            steps = items.length(0, sent[0])
            far.extend_trajectory(items.rows(0, sent[0], steps), terminated=True)
            sent[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    client = far._client
    writer = client.writer()
    calls = {
        "add": lambda: far.add(items.row(9, 9, 9)),
        "append": lambda: writer.append(items.row(9, 9, 9)),  # the first one of its writer
        "flush": far.flush,
        "sample": far.sample,
        "stats": far.stats,
        "weights": lambda: client.weights(timeout_s=60),
    }
    for turn in range(count):
        child = os.fork()
        if child == 0:
            raised = {}
            for name, call in calls.items():
                try:
                    call()
                    raised[name] = "nothing"
                except Exception as error:
                    raised[name] = f"{type(error).__name__}: {error}"
            far.close()  # does nothing
            with RemoteReplayBuffer("127.0.0.1", port) as own:
                own.extend_trajectory(items.rows(turn + 1, 0, 3), truncated=True)
            say(raised=raised, pid=os.getpid())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
    stop.set()
    thread.join()
    far.close()
    say(sent=sent[0])


def fork_with_server(
    say: Say, hear: Hear, in_process: bool, end: str, accepted: bool = False
) -> None:
    """A forked child of a learner leaves ``with Server``, or lives on; it is the parent's.

    With `accepted`, the connection has been accepted then, and nothing more.
    """
    from contig import Server, TcpTransport
    from contig.server.acceptor import Acceptor
    from tests.server import items

    met = threading.Event()

    async def nothing_more(self: Acceptor, sock: Any) -> None:
        met.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            sock.close()

    if accepted:
        Acceptor._connect = nothing_more  # type: ignore[method-assign]
    child = 0
    with Server(items.example(), 4, TcpTransport(in_process=in_process)) as server:
        say(port=server.port)
        assert hear()["connected"]
        assert not accepted or met.wait(60)
        child = os.fork()
        if child == 0 and end != "leaves":
            if end == "exits":
                sys.exit(0)  # with everything that happens at an interpreter's end
            time.sleep(60)
            os._exit(0)
        if child:
            if end != "stays":
                assert os.waitpid(child, 0)[1] == 0
            say(child=child)
            asked = hear()
            got: list[tuple[int, int]] = []
            while asked["items"] and len(got) < asked["items"]:
                sample = server.sample(timeout=30)
                assert sample is not None
                got += items.read(sample.batch)
            say(got=got)
    if child == 0:
        os._exit(0)
    say(closed=True)
    hear()


def fork_and_ask(say: Say, hear: Hear, in_process: bool) -> None:
    """A forked child makes calls of its parent's server that go to the ingest side."""
    from contig import Server, TcpTransport
    from tests.server import items

    with Server(items.example(), 4, TcpTransport(in_process=in_process)) as server:
        server.publish(1, {"w": 0.0})
        child = os.fork()
        if child == 0:
            raised = {}
            calls: dict[str, Callable[[], object]] = {
                "stats": server.stats,
                "publish": lambda: server.publish(2, {"w": 1.0}),
                "start": server.start,
            }
            for name, call in calls.items():
                try:
                    call()
                    raised[name] = "nothing"
                except Exception as error:
                    raised[name] = f"{type(error).__name__}: {error}"
            say(raised=raised, pid=os.getpid())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        stats = server.stats()
        say(version=server.weights_version, connections=stats.connections_total)


def exit_unsent(say: Say, hear: Hear, port: int, how: str, count: int, code: int) -> None:
    """Ends with items on their way, and without `close`."""
    import multiprocessing
    import threading

    from contig import TcpClient
    from tests.server import items

    def work() -> None:
        if how == "steps":
            client = TcpClient("127.0.0.1", port, items.row_example())
            writer = client.writer()
            for step in range(count):
                writer.append(items.row(1, 0, step))
            keep.append((client, writer))
            return
        client = TcpClient("127.0.0.1", port, items.example(), max_inflight_msgs=100_000)
        if how == "threads":  # go on after the function of the process is done
            threading.Thread(target=send_slowly, args=(client,)).start()
            return
        for n in range(count):
            client.send(items.item(1, n))
        keep.append(client)

    def send_slowly(client: TcpClient) -> None:
        for n in range(count):
            client.send(items.item(1, n))
            time.sleep(0.0005)
        client.close(30)

    keep: list[Any] = []
    if how in ("child", "threads"):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
    else:
        work()
    say(done=True)
    sys.exit(code)


def hold_interpreter(say: Say, hear: Hear, port: int, seconds: float, how: str) -> None:
    """A client's process whose interpreter does nothing else for a while."""
    import ctypes

    from contig import TcpClient
    from tests.server import items

    with TcpClient("127.0.0.1", port, items.example()) as client:
        client.send(items.item(0, 0))
        client.wait(30)
        say(holds=True)
        if how == "sleep":
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # with the interpreter's lock
        else:
            time.sleep(seconds)
        client.send(items.item(0, 1))
        client.wait(30)
        say(held=client.resends == 0)


def send_items(
    say: Say, hear: Hear, port: int, who: int, count: int, every: int = 1, waits_at: int = -1
) -> None:
    """Sends items and says how many are acked, from time to time. When so many are, it waits until
    it is told to go on."""
    from contig import TcpClient
    from tests.server import items

    with TcpClient("127.0.0.1", port, items.example(), reconnect_s=30) as client:
        say(ready=True)
        for n in range(count):
            client.send(items.item(who, n))
            if n % every == every - 1:
                client.wait(30)
                say(acked=n + 1)
                if n + 1 == waits_at:
                    hear()
    say(closed=True)


def stream_rows(say: Say, hear: Hear, port: int, who: int) -> None:
    """Sends trajectories, whole ones and step by step, until it is killed."""
    from contig import TcpClient
    from tests.server import items

    with TcpClient("127.0.0.1", port, items.row_example(), reconnect_s=30) as client:
        say(ready=True)
        writer = client.writer()
        for episode in range(1 << 30):
            steps = items.length(who, episode)
            if episode % 2:
                client.send_trajectory(items.rows(who, episode, steps), truncated=True)
            else:
                for step in range(steps):
                    writer.append(items.row(who, episode, step))
                writer.end_episode(terminated=True)
            if episode % 5 == 4:
                client.wait(30)
                say(acked=episode + 1)


def send_rich(say: Say, hear: Hear, port: int, who: int) -> None:
    """Trajectories with fields and leaves of any size, for as long as it lives."""
    from contig import TcpClient
    from tests.server import rich

    client = TcpClient("127.0.0.1", port)
    rich.send(client, who, 0)
    say(ready=True)
    for episode in range(1, 1 << 30):
        rich.send(client, who, episode)


def exit_while_waiting(say: Say, hear: Hear, how: str) -> None:
    """Ends while threads of its own, and of contig, wait in native code."""
    import threading

    from contig import Server, TcpClient, TcpTransport
    from tests.server import items

    server = Server(
        items.example(), 4, TcpTransport(in_process=how == "in_process"), num_buffers=2
    ).start()
    if how == "sample":
        for _ in range(4):
            threading.Thread(target=server.sample, daemon=True).start()
    else:
        client = TcpClient("127.0.0.1", server.port, items.example())
        for n in range(30):
            client.send(items.item(0, n))
        while server.info().queue_depth_sum == 0:
            time.sleep(0.01)
        if how == "wait":  # and the waker of the ingest process waits too
            threading.Thread(target=client.wait, daemon=True).start()
    time.sleep(0.1)
    say(ends=True)


def exit_unclosed(say: Say, hear: Hear, in_process: bool) -> None:
    """Ends without closing a server, while remote samples wait for rows."""
    import threading

    from contig import LazyTensorStorage, RemoteReplayBuffer, ReplayBuffer, Server, TcpTransport
    from tests.server import items

    storage = LazyTensorStorage(100, example=items.row_example())
    buffer = ReplayBuffer(storage, batch_size=4, sample_timeout_s=1000.0)
    server = Server(buffer=buffer, transport=TcpTransport(in_process=in_process)).start()
    far = RemoteReplayBuffer("127.0.0.1", server.port, prefetch=5)

    waits = threading.Event()
    draw = buffer.draw

    def draw_later(size: int | None) -> Any:
        waits.set()
        return draw(size)

    def sample() -> None:
        with contextlib.suppress(ConnectionError):  # it is closed at the end
            far.sample()

    buffer.draw = draw_later  # type: ignore[method-assign,assignment]
    threading.Thread(target=sample, daemon=True).start()
    assert waits.wait(20)
    say(pid=server.pid)


def drop_server(say: Say, hear: Hear) -> None:
    """Ends right after a server was dropped that nobody closed."""
    import warnings

    from contig import Server, TcpTransport
    from tests.server import items

    warnings.simplefilter("always")
    server = Server(items.example(), 4, TcpTransport()).start()
    say(pid=server.pid)
    del server


def learner_with_child(say: Say, hear: Hear) -> None:
    """A learner that has forked a process, as data loaders and collectors do."""
    from contig import Server, TcpTransport
    from tests.server import items

    server = Server(items.example(), 4, TcpTransport()).start()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    say(pid=server.pid, child=child)
    hear()


def next_process(say: Say, hear: Hear) -> None:
    """What the next contig process does when it makes a storage: it reaps."""
    from contig import SharedStorage

    SharedStorage(4).close()


def main() -> None:
    task, arguments = sys.argv[1], json.loads(sys.argv[2])

    def say(**content: Any) -> None:
        os.write(1, json.dumps(content).encode() + b"\n")

    def lines() -> Iterator[Any]:
        for line in sys.stdin:
            yield json.loads(line)

    heard = lines()
    globals()[task](say, lambda: next(heard, None), **arguments)


if __name__ == "__main__":
    main()
