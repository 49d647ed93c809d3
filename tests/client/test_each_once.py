"""Samplers that give each once, over the wire: what nobody got is somebody else's."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from contig import (
    FifoSampler,
    LazyTensorStorage,
    LifoSampler,
    NothingEligibleError,
    RandomSampler,
    RemoteReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    Server,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
    WindowSampler,
)
from tests.client.serving import HOST, asking, serving
from tests.server.proxy import Proxy
from tests.waiting import WAIT_S, Task, until

LENGTH = 3  # steps of a trajectory
ROW = {"obs": np.int64(0)}

SAMPLERS: dict[str, Callable[[], Any]] = {
    "trajectories": lambda: TrajectorySampler(2, consume=True),
    "groups": lambda: TrajectorySampler(2, group="group", group_size=2, consume=True),
    "queue": FifoSampler,
    "queue twice": lambda: FifoSampler(max_times_sampled=2),
    "queue of trajectories": lambda: FifoSampler(per="trajectories"),
    "stack": LifoSampler,
    "stack twice": lambda: LifoSampler(max_times_sampled=2),
    "retiring": lambda: RandomSampler(max_times_sampled=1),
    "epoch": SamplerWithoutReplacement,
    "epoch of slices": lambda: SliceSamplerWithoutReplacement(slice_len=LENGTH),
    "window": lambda: WindowSampler(TrajectorySampler(2, consume=True), last_trajectories=10_000),
}
TIMES = {"queue twice": 2, "stack twice": 2}
SIZES = {"trajectories": None, "groups": None, "window": None, "queue of trajectories": 2}


def made(name: str, **options: Any) -> ReplayBuffer:
    storage = LazyTensorStorage(5000, fields={"group": np.int64(0)}, example=ROW)
    size = SIZES.get(name, 2 * LENGTH)
    return ReplayBuffer(storage, SAMPLERS[name](), batch_size=size, seed=5, **options)


def write(buffer: ReplayBuffer, numbers: range) -> None:
    """Trajectories, whose steps say which they are."""
    for n in numbers:
        steps = np.arange(LENGTH) + 10 * n
        buffer.extend_trajectory({"obs": steps}, terminated=True, fields={"group": n // 2})


def remote(port: int, **options: Any) -> RemoteReplayBuffer:
    return RemoteReplayBuffer(HOST, port, **{"sample_timeout_s": WAIT_S, **options})


def everything(numbers: range, times: int = 1) -> list[int]:
    return sorted((np.arange(LENGTH) + 10 * np.array(numbers)[:, None]).ravel().tolist() * times)


def rows(batch: Any) -> list[int]:
    return list(batch["obs"].tolist())


def idle(server: Server) -> bool:
    return server.stats().connections == 0


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
@pytest.mark.parametrize("name", ["groups", "trajectories"])
def test_an_answer_that_comes_late_is_the_next_calls(name: str, process: bool) -> None:
    buffer = made(name)
    with serving(buffer, process=process) as server:
        with remote(server.port, sample_timeout_s=0.2) as far:
            for start in range(0, 8, 2):
                with pytest.raises(TimeoutError, match=f"{start * LENGTH} rows .* request stands"):
                    far.sample()
                write(buffer, range(start, start + 2))
                until(lambda: any(x.answer for x in far._lines[None].asked), "the late answer")
                assert sorted(rows(far.sample())) == everything(range(start, start + 2))


def test_an_answer_of_another_size_that_comes_late_is_the_next_calls() -> None:
    buffer = made("queue")
    with serving(buffer) as server, remote(server.port, sample_timeout_s=0.1) as far:
        with pytest.raises(TimeoutError):
            far.sample(LENGTH)
        write(buffer, range(1))
        until(lambda: asking(far) == 0, "the late answer")
        assert rows(far.sample(LENGTH)) == everything(range(1))


def test_a_server_that_does_not_answer_is_told() -> None:
    buffer = made("queue")
    with serving(buffer) as server, remote(server.port, sample_timeout_s=0.1, prefetch=0) as far:
        with buffer._turn:  # a draw needs it, statistics do not
            with pytest.raises(TimeoutError, match="the server is there"):
                far.sample()
        server._run.service._others.close()
        with pytest.raises(TimeoutError, match="the server does not answer"):
            far.sample()


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_nothing_is_drawn_for_who_is_gone(process: bool, prefetch: int) -> None:
    buffer = made("groups")
    with serving(buffer, process=process) as server:
        for kind in ("closed", "cut"):
            far = remote(server.port, sample_timeout_s=0.1, prefetch=prefetch)
            with pytest.raises(TimeoutError):
                far.sample()
            if kind == "cut":
                far._client.asking.thread.requests.again = list  # it does not ask again
                far._client.asking.thread.stop()
            far.close()
        until(lambda: idle(server), "both are gone")
        write(buffer, range(6))
        with remote(server.port, prefetch=0) as other:
            found = [r for _ in range(3) for r in rows(other.sample())]
        assert sorted(found) == everything(range(6))
        assert server.stats().unconfirmed_rows == 0


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_what_was_asked_for_ahead_is_given_back(name: str) -> None:
    buffer, times = made(name), TIMES.get(name, 1)
    found: list[int] = []
    write(buffer, range(20))
    with serving(buffer) as server:
        for turn in range(5):
            with remote(server.port, prefetch=2) as far:
                for _ in range(2 * times):
                    found += rows(far.sample())
                if turn < 4:  # it leaves two behind
                    until(partial(drawn_ahead, far), "drawn ahead")
            until(lambda: idle(server), "it is gone")
    assert sorted(found) == everything(range(20), times)


def drawn_ahead(far: RemoteReplayBuffer) -> bool:
    return asking(far) == 0


def test_who_gives_back_does_not_undo_what_others_were_given() -> None:
    buffer = made("queue")
    write(buffer, range(12))
    with serving(buffer) as server, remote(server.port, prefetch=0) as stays:
        found: list[int] = []
        with remote(server.port, prefetch=1) as leaves:
            found += rows(leaves.sample())  # the second batch is drawn for it
            until(lambda: asking(leaves) == 0)
            found += rows(stays.sample())
        until(lambda: server.stats().connections == 2, "it is gone")
        until(lambda: buffer.storage.tape.sampled == 12, "it was given back")
        found += rows(stays.sample())
        assert found == [*everything(range(2)), *everything(range(4, 6)), *everything(range(2, 4))]


def test_a_client_that_comes_back_gets_what_was_cut_off() -> None:
    buffer = made("trajectories")
    write(buffer, range(40))
    with serving(buffer, process=True) as server, closing(Proxy(server.port)) as proxy:
        with remote(proxy.port, prefetch=3) as far:
            found: list[int] = []
            for turn in range(20):
                if turn % 4 == 3:
                    proxy.cut_all()
                found += rows(far.sample())
                far.stats()  # it is there again
        until(lambda: idle(server), "it is gone")
        assert sorted(found) == everything(range(40))
        assert server.stats().unconfirmed_rows == 0


KILLED = """
import sys
from contig import RemoteReplayBuffer
from tests.client.serving import asking
from tests.waiting import until
port, wait_for_answers = int(sys.argv[1]), sys.argv[2] == "True"
far = RemoteReplayBuffer("127.0.0.1", port, prefetch=2)
while True:
    found = far.sample()["obs"].tolist()
    if wait_for_answers:
        until(lambda: asking(far) == 0, "what was asked for ahead")
    print(*found, flush=True)
    sys.stdin.readline()
"""


class Killed:
    """A client in a process of its own, which is killed when it is told so.

    Args:
        port: the server's.
        ahead: when it tells what it sampled, it has the answers to what it asked for ahead.
    """

    def __init__(self, port: int, ahead: bool = False) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(port), str(ahead)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def sample(self) -> list[int]:
        assert self._child.stdout is not None and self._child.stdin is not None
        found = [int(x) for x in self._child.stdout.readline().split()]
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return found

    def kill(self) -> None:
        with self._child as child:
            child.send_signal(signal.SIGKILL)


def test_what_a_killed_client_may_not_have_read_is_counted() -> None:
    buffer = made("groups")
    write(buffer, range(40))
    with serving(buffer, process=True) as server:
        found: list[int] = []
        child = Killed(server.port, ahead=True)
        for _ in range(5):
            found += child.sample()
        child.kill()
        until(lambda: idle(server), "it is gone")
        unconfirmed = server.stats().unconfirmed_rows
        with remote(server.port, prefetch=0, sample_timeout_s=1) as far:
            with pytest.raises(TimeoutError):
                while True:
                    found += rows(far.sample())
    assert len(set(found)) == len(found)
    assert 0 < len(everything(range(40))) - len(found) <= unconfirmed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_clients_come_and_go(seed: int, process: bool) -> None:
    """Each is with somebody, once, whoever times out, is cut off, is killed or leaves; what a
    client had when it could not say goodbye is counted."""
    choose = random.Random(seed)
    buffer, total = made("groups"), 120
    found: list[int] = []
    with serving(buffer, process=process) as server, closing(Proxy(server.port)) as proxy:
        killed = Killed(server.port)
        clients = [Task(_come_and_go, server.port, proxy.port, 100 * seed + i) for i in range(3)]
        for start in range(0, total, 4):
            write(buffer, range(start, start + 4))
            if choose.random() < 0.3:
                proxy.cut_all()
        found += killed.sample()
        killed.kill()
        for client in clients:
            found += client.result()
        until(lambda: idle(server), "all are gone")
        unconfirmed = server.stats().unconfirmed_rows
    with pytest.raises(NothingEligibleError):
        while True:
            found += rows(buffer.draw())
    assert len(set(found)) == len(found)
    assert set(found) <= set(everything(range(total)))
    assert total * LENGTH - len(found) <= unconfirmed


def _come_and_go(direct: int, through: int, seed: int) -> list[int]:
    choose, found = random.Random(seed), []
    for _ in range(4):
        port, prefetch = choose.choice([direct, through]), choose.randrange(4)
        with remote(port, prefetch=prefetch, sample_timeout_s=0.05) as far:
            for _ in range(choose.randrange(1, 8)):
                with suppress(TimeoutError):
                    found += rows(far.sample())
    return found


def test_a_client_that_nobody_closes_gives_back() -> None:
    buffer = made("queue")
    write(buffer, range(12))
    with serving(buffer) as server:
        far = remote(server.port, prefetch=2)
        found = rows(far.sample())
        until(partial(drawn_ahead, far), "drawn ahead")
        del far
        until(lambda: idle(server), "it is gone")
        assert server.stats().unconfirmed_rows == 0
    with pytest.raises(NothingEligibleError):
        while True:
            found += rows(buffer.draw())
    assert sorted(found) == everything(range(12))


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_what_waits_for_long_is_given_back(process: bool) -> None:
    """Of another size than what is taken all the time."""
    buffer, total = made("queue"), 400
    with serving(buffer, process=process) as server:
        with remote(server.port, sample_timeout_s=0.1, prefetch=0) as far:
            with pytest.raises(TimeoutError):
                far.sample(LENGTH)
            write(buffer, range(total))
            until(partial(drawn_ahead, far), "the late answer")
            far.sample_timeout_s = WAIT_S
            found = [r for _ in range(150) for r in rows(far.sample())]
        until(lambda: idle(server), "it is gone")
        assert server.stats().unconfirmed_rows == 0
    with pytest.raises(NothingEligibleError):
        while True:
            found += rows(buffer.draw(LENGTH))
    assert sorted(found) == everything(range(total))


def test_many_that_were_asked_for_ahead_are_given_back() -> None:
    buffer, total = made("queue"), 500
    write(buffer, range(total))
    with serving(buffer) as server:
        with remote(server.port, prefetch=200) as far:
            found = rows(far.sample())
            until(partial(drawn_ahead, far), "drawn ahead")
        until(lambda: idle(server), "it is gone")
        assert server.stats().unconfirmed_rows == 0
    with pytest.raises(NothingEligibleError):
        while True:
            found += rows(buffer.draw(LENGTH))
    assert sorted(found) == everything(range(total))


def test_a_goodbye_that_was_cut_off_is_said_again() -> None:
    buffer = made("queue")
    write(buffer, range(12))
    with serving(buffer, process=True) as server, closing(Proxy(server.port)) as proxy:
        far = remote(proxy.port, prefetch=2)
        found = rows(far.sample())
        until(partial(drawn_ahead, far), "drawn ahead")
        thread = far._client.asking.thread
        proxy.hush()
        said = Task(far.close)
        until(lambda: thread.goodbye, "it says goodbye")
        proxy.cut_all()
        proxy.speak()
        said.result()
        until(lambda: idle(server), "it is gone")
        assert server.stats().unconfirmed_rows == 0
    with pytest.raises(NothingEligibleError):
        while True:
            found += rows(buffer.draw())
    assert sorted(found) == everything(range(12))
