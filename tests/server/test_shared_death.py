"""SharedClients of a server whose process was killed: nobody tells them, so they look."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contig import ConnectionClosedError, ReplayBuffer, Server, SharedClient, SharedStorage
from tests.processes import state
from tests.server import items
from tests.server.actors import Actor
from tests.waiting import Threads, raises, until

MOST = 256  # appends that go to a server that is dead: client/shared.py


def row(step: int) -> dict[str, Any]:
    plain = items.row(0, 0, step)
    return {**plain, "next": {**plain["next"], "done": False}}


def rows(episode: int) -> dict[str, Any]:
    plain = items.rows(0, episode, 2)
    return {**plain, "next": {**plain["next"], "done": np.array([False, True])}}


def after_death(append: Callable[[int], object]) -> int:
    """How many appends get through."""
    for n in range(1 << 20):
        try:
            append(n)
        except ConnectionClosedError:
            break
    with pytest.raises(ConnectionClosedError):
        append(0)
    return n


def end(told: dict[str, Any]) -> None:
    if told.get("child", -1) > 0:
        os.kill(told["child"], signal.SIGKILL)


@pytest.mark.parametrize("how", ["send", "extend", "add_step", "send_trajectory", "writer"])
@pytest.mark.parametrize("fork", [False, True])
def test_a_tape_whose_server_was_killed(name: str, how: str, fork: bool) -> None:
    with Actor("serve_tape", name=name, fork=fork) as actor:
        told = actor.hear()
        try:
            _through_death(actor, SharedClient(told["name"]), how)
        finally:
            end(told)


def _through_death(actor: Actor, client: SharedClient, how: str) -> None:
    writer = client.writer()
    calls: dict[str, Callable[[int], object]] = {
        "send": lambda n: client.send(row(n)),
        "extend": lambda n: client.extend(rows(n)),
        "add_step": lambda n: client.add_step(rows(n)),
        "send_trajectory": lambda n: client.send_trajectory(items.rows(0, n, 2), truncated=True),
        "writer": lambda n: writer.append(items.row(0, 0, n)),
    }
    for n in range(3 * MOST):  # while it lives, nothing is wrong
        calls[how](n)
    client.wait()
    actor.signal(signal.SIGKILL)
    actor.wait()
    assert after_death(calls[how]) <= MOST
    with pytest.raises(ConnectionClosedError):
        client.wait()
    if how == "writer":  # which holds a step that nobody takes any more
        with pytest.raises(ConnectionClosedError):
            client.close()
    client.close()


@pytest.mark.parametrize("published", [False, True])
def test_weights_that_nobody_will_publish(published: bool) -> None:
    with Actor("serve", publish=published) as actor:
        with SharedClient(actor.hear()["name"], items.example()) as client:
            version = -1
            if published:
                newest = client.weights(timeout_s=20)
                assert newest is not None
                version = newest.version
            threads = Threads(
                lambda: raises(ConnectionClosedError, client.weights, version, 1000.0)
            )
            time.sleep(0.1)
            actor.signal(signal.SIGKILL)
            threads.join(60)


def test_a_queue_whose_server_was_killed() -> None:
    with Actor("serve", batch=400, num_buffers=3) as actor:  # with room for many more
        told = actor.hear()
        client = SharedClient(told["name"], items.example())
        client.send(items.item(0, 0))
        actor.signal(signal.SIGKILL)
        actor.wait()
        assert after_death(lambda n: client.send(items.item(0, n))) <= MOST
        client.close()


def test_a_slow_client_notices_at_its_next_append(name: str) -> None:
    with Actor("serve_tape", name=name) as actor:
        client = SharedClient(actor.hear()["name"])
        client.send(row(0))
        actor.signal(signal.SIGKILL)
        actor.wait()
        time.sleep(0.2)
        with pytest.raises(ConnectionClosedError):
            client.send(row(1))
        client.close()


def test_another_server_of_the_same_name_is_another(name: str) -> None:
    with Actor("serve", name=name, batch=400) as actor:
        actor.hear()
        client = SharedClient(name, items.example())
        client.send(items.item(0, 0))
        actor.signal(signal.SIGKILL)
        actor.wait()
    assert after_death(lambda n: client.send(items.item(0, n))) <= MOST  # and lets go of its memory
    with Server(items.example(), 4, name=name) as again:
        with pytest.raises(ConnectionClosedError):
            client.send(items.item(0, 0))
        with SharedClient(name, items.example()) as fresh:
            for n in range(4):
                fresh.send(items.item(1, n))
        sample = again.sample(timeout=20)
        assert sample is not None and items.read(sample.batch) == [(1, n) for n in range(4)]
    client.close()


def test_a_dead_server_is_not_found(name: str) -> None:
    """Also if a child of it keeps its memory."""
    with Actor("serve_tape", name=name, fork=True) as actor:
        told = actor.hear()
        actor.signal(signal.SIGKILL)
        actor.wait()
        try:
            with pytest.raises(ConnectionRefusedError):
                SharedClient(told["name"])
        finally:
            end(told)


def test_a_stopped_server_is_not_dead(name: str) -> None:
    with Actor("serve_tape", name=name) as actor:
        with SharedClient(actor.hear()["name"]) as client:
            actor.signal(signal.SIGSTOP)
            until(lambda: state(actor.pid) == "T", "that it stops")
            for n in range(3 * MOST):
                client.send(row(n))
            client.wait()
            actor.signal(signal.SIGCONT)


def test_a_closed_server_is_noticed_at_once() -> None:
    storage = SharedStorage(1000, example=items.row_example())
    server = Server(buffer=ReplayBuffer(storage, batch_size=4))
    client = SharedClient(server.name)
    client.send(row(0))
    server.close()
    with pytest.raises(ConnectionClosedError):
        client.send(row(1))
    assert len(items.scan(storage)) == 1
    client.close()
    storage.close()
