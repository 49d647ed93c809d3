"""RayChannel: order, once each, back-pressure, ends and kills; putters and getters on any node."""

from __future__ import annotations

import os
import pickle
import signal
from typing import Any

import numpy as np
import pytest

from contig.errors import ClosedError, ConnectionClosedError, LayoutError
from tests.waiting import Task, until

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("cluster")

EXAMPLE = {"who": np.int64(0), "number": np.int64(0), "x": np.zeros(500, np.float32)}


def item(who: int, number: int) -> Any:
    return {"who": who, "number": number, "x": np.full(500, who * 1000 + number, np.float32)}


def check(got: Any) -> tuple[int, int]:
    """Which item it is, whole."""
    who, number = int(got["who"]), int(got["number"])
    np.testing.assert_array_equal(got["x"], np.full(500, who * 1000 + number, np.float32))
    return who, number


def make(**options: Any) -> Any:
    from contig import RayChannel

    return RayChannel(EXAMPLE, **{"capacity": 4, **options})


class _Peer:
    """An actor at one end of a channel."""

    def pid(self) -> int:
        return os.getpid()

    def put(self, channel: Any, who: int, first: int, n: int) -> int:
        for number in range(first, first + n):
            channel.put(item(who, number))
        return n

    def get(self, channel: Any, n: int) -> list[tuple[int, int]]:
        return [check(x) for x in channel.get_batch(n, timeout=60)]


def peer(node: int) -> Any:
    """On the channel's node, or on another."""
    options = {"num_cpus": 0, "resources": {f"node{node}": 1}, "max_concurrency": 8}
    return ray.remote(_Peer).options(**options).remote()


@pytest.fixture(scope="module")
def peers(cluster: Any) -> list[Any]:
    """One on each of two nodes, which tests leave alive; it does several things at once."""
    both = [peer(0), peer(1)]
    ray.get([p.pid.remote() for p in both])
    return both


def test_items_come_out_once_and_in_the_order_of_each_putter(peers: list[Any]) -> None:
    """Putters on the channel's node, and on another; getters on both."""
    channel = make()
    puts = [peers[who % 2].put.remote(channel, who, 0, 30) for who in range(4)]
    there = peers[1].get.remote(channel, 60)
    got = [check(channel.get(timeout=60)) for _ in range(60)]
    both = [got, ray.get(there)]
    assert sorted(both[0] + both[1]) == [(who, n) for who in range(4) for n in range(30)]
    for some in both:
        for who in range(4):
            mine = [n for w, n in some if w == who]
            assert mine == sorted(mine)
    assert ray.get(puts) == [30] * 4 and channel.qsize() == 0


@pytest.mark.parametrize("node", [0, 1], ids=["here", "elsewhere"])
def test_a_full_channel_blocks(node: int, peers: list[Any]) -> None:
    channel = make()
    more = peers[node].put.remote(channel, 0, 0, 6)
    until(lambda: channel.qsize() == 4)
    assert not ray.wait([more], timeout=0.5)[0]
    assert channel.qsize() == 4
    assert [check(x)[1] for x in channel.get_batch(6, timeout=60)] == list(range(6))
    assert ray.get(more) == 6


def test_timeouts_lose_nothing() -> None:
    channel = make()
    with pytest.raises(TimeoutError, match="nothing was put"):
        channel.get(timeout=0.05)
    channel.put_batch([item(0, n) for n in range(4)])
    with pytest.raises(TimeoutError, match="no room"):
        channel.put(item(0, 4), timeout=0.05)
    assert [check(x)[1] for x in channel.get_batch(9, timeout=0.05)] == [0, 1, 2, 3]


@pytest.mark.parametrize("node", [0, 1], ids=["here", "elsewhere"])
def test_closing_wakes_everybody_and_keeps_what_is_there(node: int, peers: list[Any]) -> None:
    channel, full, there = make(), make(), peers[node]
    full.put_batch([item(0, n) for n in range(4)])
    waiting, blocked = there.get.remote(channel, 1), there.put.remote(full, 0, 4, 1)
    here = Task(channel.get)
    assert not ray.wait([waiting, blocked], timeout=0.3)[0]
    channel.close()
    full.close()
    with pytest.raises(ClosedError):
        here.result()
    for ref in (waiting, blocked):
        with pytest.raises(ClosedError):
            ray.get(ref, timeout=60)
    for late in (
        Task(full.put, item(0, 9)).result,
        lambda: ray.get(there.put.remote(full, 0, 9, 1)),
    ):
        with pytest.raises(ClosedError):
            late()
    assert [check(x)[1] for x in full.get_batch(9)] == [0, 1, 2, 3]
    with pytest.raises(ClosedError, match="empty"):
        full.get()


@pytest.mark.parametrize("node", [0, 1], ids=["here", "elsewhere"])
def test_a_killed_putter_leaves_what_was_put_and_nothing_in_part(node: int) -> None:
    channel, putter = make(capacity=500), peer(node)
    pid = ray.get(putter.pid.remote())
    ray.get(putter.put.remote(channel, 0, 0, 50))
    putter.put.remote(channel, 0, 50, 100_000)
    until(lambda: channel.qsize() > 60)
    os.kill(pid, signal.SIGKILL)
    until(lambda: _gone(pid))
    numbers = [check(x)[1] for x in channel.get_batch(10_000, timeout=1)]
    assert len(numbers) > 50 and numbers == list(range(len(numbers)))


@pytest.mark.parametrize("node", [0, 1], ids=["here", "elsewhere"])
def test_a_killed_getter_loses_what_it_was_given_and_no_more(node: int) -> None:
    channel, getter = make(capacity=40), peer(node)
    pid = ray.get(getter.pid.remote())
    channel.put_batch(_items(3))
    given = [n for _, n in ray.get(getter.get.remote(channel, 3))]
    asked = getter.get.remote(channel, 1)
    assert not ray.wait([asked], timeout=0.3)[0]
    os.kill(pid, signal.SIGKILL)
    until(lambda: _gone(pid))
    channel.put_batch(_items(5, 3))
    rest = [check(x)[1] for x in channel.get_batch(5, timeout=5)]
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(asked)
    # On another node, the call that it was in may have been answered after its death.
    assert given == [0, 1, 2] and rest == sorted(rest)
    assert set(rest) <= {3, 4, 5, 6, 7} and len(rest) >= (5, 4)[node]


def test_the_death_of_the_channel_is_told() -> None:
    channel = make(placement=[_node_id(1)])
    assert channel._place.node == _node_id(1)
    ray.kill(channel._actor)
    for call in (lambda: channel.get(timeout=60), channel.qsize, channel.close):
        with pytest.raises(ConnectionClosedError):
            call()
    near = make()
    near.put(item(0, 0))
    ray.kill(near._actor)
    near.get()  # what is in its memory is
    for call in (near.get, lambda: near.put(item(0, 1)), near.qsize):
        with pytest.raises(ConnectionClosedError):
            call()


def test_trajectories_of_any_length() -> None:
    from contig import RayChannel

    row = {"t": np.int64(0), "x": np.zeros((2, 2), np.float32)}
    channel = RayChannel(row, capacity=4, max_steps=50, name="lengths")
    found = pickle.loads(pickle.dumps(RayChannel.find("lengths")))
    for n in (1, 50, 7):
        channel.put({"t": np.arange(n), "x": np.arange(n * 4.0).reshape(n, 2, 2)})
    for n, got in zip((1, 50, 7), found.get_batch(3)):
        np.testing.assert_array_equal(got["t"], np.arange(n))
        np.testing.assert_array_equal(got["x"], np.arange(n * 4.0).reshape(n, 2, 2))
    for n in (0, 51):
        with pytest.raises(ValueError, match="max_steps=50"):
            channel.put({"t": np.arange(n), "x": np.zeros((n, 2, 2))})
    with pytest.raises(LayoutError, match="x"):
        channel.put({"t": np.arange(3)})
    assert channel.qsize() == 0


def _items(n: int, first: int = 0) -> list[Any]:
    return [item(0, first + i) for i in range(n)]


def _node_id(number: int) -> str:
    (found,) = (n["NodeID"] for n in ray.nodes() if f"node{number}" in n["Resources"])
    return str(found)


def _gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}") or _state(pid) == "Z"


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(") ", 1)[1][0]
    except OSError:
        return "Z"
