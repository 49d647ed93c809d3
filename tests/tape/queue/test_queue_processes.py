"""Producers and consumers in processes of their own, over a ring of a few blocks: first undisturbed
for thousands of laps, then while they are killed, anywhere and inside the lock."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from contig import Layout, TapeBusy
from contig.tape.queue import BatchQueue
from tests.tape.queue import workers
from tests.tape.queue.workers import Checker, example, item_records
from tests.waiting import WAIT_S, until
from tests.zygote import Child, Zygote

ROOT = Path(__file__).resolve().parents[3]
BATCH, BUFFERS = 8, 3


class Consumer:
    """The test's own one: holds up to two batches at a time and checks them when they come and when
    they go."""

    def __init__(self, queue: BatchQueue, seed: int) -> None:
        self.queue, self.random = queue, random.Random(seed)
        self.checker = Checker()
        self.held: list[tuple[Any, Any]] = []

    def take(self, timeout_s: float = 0.0) -> bool:
        word = self.queue.native.data_word
        batch = self.queue.take(copy=self.random.random() < 0.2)
        if batch is None:
            if timeout_s:
                self.queue.native.wait_data(word, timeout_s)
            return False
        self.checker.check(batch)
        self.held.append((batch, batch["payload"].copy()))
        del batch
        while len(self.held) > self.random.randint(0, 2):
            self.let_go()
        return True

    def let_go(self) -> None:
        batch, payload = self.held.pop(self.random.randrange(len(self.held)))
        assert (batch["payload"] == payload).all(), "a batch changed while it was held"

    def finish(self, expected: dict[int, int]) -> None:
        """The rest: what was taken must be all that was sent."""
        while self.take():
            pass
        rest = self.queue.take(partial=True)
        if rest is not None:
            self.checker.check(rest)
        while self.held:
            self.let_go()
        assert self.checker.next == expected


def fill(queue: BatchQueue, producer: int) -> int:
    """How many items fit."""
    native, first = queue.native, queue.native.seen(producer, 0)
    following = first
    while True:
        data = item_records(queue.layout, producer, following, queue.batch_size + 1)
        following, _, gap, full = native.accept_records(data, producer, following)
        assert not gap
        if full:
            return int(following - first)


def expect_all_free(queue: BatchQueue, producer: int) -> None:
    """Every slot can be used: nothing of the dead is left."""
    while queue.take(copy=True, partial=True) is not None:
        pass
    for _ in range(3):
        assert fill(queue, producer) == queue.batch_size * queue.num_buffers
        for _ in range(queue.num_buffers):
            assert queue.take(copy=True) is not None
        assert queue.take(partial=True) is None


def test_each_item_once_and_in_order(zygote: Zygote, name: str) -> None:
    items, producers = 8500, 4
    queue = BatchQueue.create(Layout(example(5)), BATCH, 2, name)
    children = [
        zygote.start(workers.produce, name=name, producer=p, seed=p, until=items)
        for p in range(1, producers + 1)
    ]
    consumer = Consumer(queue, 1)

    def everything() -> bool:
        consumer.take(0.1)
        return consumer.checker.items >= producers * items

    until(everything, "every item arrives")
    results = [child.result(WAIT_S) for child in children]
    assert [r["sent"] for r in results] == [items] * producers
    assert sum(r["waits"] for r in results) > 0, "the ring was never full: the test is void"
    consumer.finish(dict.fromkeys(range(1, producers + 1), items))
    counters = queue.native.counters()
    assert counters["head"] == producers * items
    assert counters["head"] / (BATCH * 2) > 2000, "laps"
    assert counters["duplicates"] > 0 and counters["blocked"] > 0
    queue.close()


def test_killed_producers(zygote: Zygote, name: str) -> None:
    """They come back and go on from what the queue has seen of them."""
    kills, producers = 105, 3
    queue = BatchQueue.create(Layout(example(200)), BATCH, BUFFERS, name)
    consumer = Consumer(queue, 2)
    draw = random.Random(3)

    def start(producer: int) -> Child:
        return zygote.start(
            workers.produce,
            name=name,
            producer=producer,
            seed=draw.randrange(1 << 30),
            until=1 << 40,
        )

    children = {p: start(p) for p in range(1, producers + 1)}
    for _ in range(kills):
        assert all(c.alive() for c in children.values()), "a producer died by itself"
        for _ in range(draw.randrange(60)):
            consumer.take()
        # Until something is there: a lock that nobody gives back would show here.
        until(lambda: consumer.take(0.1), "nobody sends any more")
        victim = draw.choice(list(children))
        children[victim].kill()
        children[victim] = start(victim)
    for child in children.values():
        child.kill()
    consumer.finish({p: queue.native.seen(p, 0) for p in children})
    assert consumer.checker.items > 1000
    expect_all_free(queue, 77)
    queue.close()


def test_stopped_and_killed_inside_the_lock(zygote: Zygote, name: str) -> None:
    """Appends of two megabytes over several blocks, each of them caught at another place."""
    queue = BatchQueue.create(Layout(example(1 << 16)), 2, BUFFERS, name)
    consumer = Consumer(queue, 4)
    busy = 0
    for turn in range(7):
        while consumer.held:
            consumer.let_go()  # there is room for all of an append
        child = zygote.start(
            workers.stop_in_append, name=name, producer=1, seed=turn, items=4, at=turn / 6
        )
        child.expect_stopped(WAIT_S)
        queue.native.lock_timeout_s = 0.02
        head = queue.native.counters()["head"]
        for call in (
            queue.take,
            lambda: queue.native.seen(1, 0),
            lambda: queue.native.accept_records(item_records(queue.layout, 2, 0, 1), 2, 0),
        ):
            with pytest.raises(TapeBusy, match=rf"\b{child.pid}\b"):
                call()
            busy += 1
        assert queue.native.counters()["head"] == head, "somebody wrote past the lock"
        queue.native.lock_timeout_s = WAIT_S
        if turn % 3 == 2:  # it goes on where it was stopped
            child.signal(signal.SIGCONT)
            until(lambda: consumer.take(0.1), "it does not go on")
        child.kill()
        while consumer.take():
            pass
    consumer.finish({1: queue.native.seen(1, 0)})
    assert busy == 21
    expect_all_free(queue, 77)
    queue.close()


def test_a_killed_consumers_batches_are_dropped(zygote: Zygote, name: str, tmp_path: Path) -> None:
    queue = BatchQueue.create(Layout(example(5)), BATCH, BUFFERS, name)
    for turn in range(4):
        held = 1 + turn % (BUFFERS - 1)
        assert fill(queue, 1) == BATCH * BUFFERS
        ready = tmp_path / f"ready-{turn}"
        child = zygote.start(workers.hold, name=name, batches=held, ready=str(ready))
        until(lambda r=ready, c=child: r.exists() or not c.alive(), "batches are held")
        assert child.alive(), child.result(1)
        # It is alive, and so are its batches.
        while queue.take(copy=True) is not None:
            pass
        assert fill(queue, 1) == BATCH * (BUFFERS - held)
        assert fill(queue, 1) == 0
        assert child.alive(), child.result(1)
        child.kill()
        assert fill(queue, 1) == BATCH * held
        expect_all_free(queue, 1)
    queue.close()


def test_a_killed_consumer_that_nobody_waited_for(name: str, tmp_path: Path) -> None:
    """A zombie looks at nothing either, though its number is still taken."""
    queue = BatchQueue.create(Layout(example(5)), BATCH, BUFFERS, name)
    fill(queue, 1)
    code = (
        "import sys; from tests.tape.queue import workers; "
        "workers.hold(sys.argv[1], 2, sys.argv[2])"
    )
    ready = tmp_path / "ready"
    child = subprocess.Popen([sys.executable, "-c", code, name, str(ready)], cwd=ROOT)
    try:
        until(ready.exists, "batches are held")
        while queue.take(copy=True) is not None:
            pass
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # all of it is dead now
        assert fill(queue, 1) == BATCH * BUFFERS
    finally:
        child.kill()
        child.wait(WAIT_S)
    expect_all_free(queue, 1)
    queue.close()


def test_killed_consumers(zygote: Zygote, name: str, tmp_path: Path) -> None:
    """At any instant: taking, holding, giving back. Producers and the other consumer go on."""
    stop = tmp_path / "stop"
    queue = BatchQueue.create(Layout(example(5)), 2, 4, name)
    draw = random.Random(5)
    producers = [
        zygote.start(workers.produce, name=name, producer=p, seed=p, until=1 << 40) for p in (1, 2)
    ]
    consumers: list[Child] = []
    for turn in range(40):
        while len(consumers) < 2:
            consumers.append(
                zygote.start(
                    workers.consume, name=name, seed=turn * 2 + len(consumers), stop=str(stop)
                )
            )
        time.sleep(draw.random() * 0.01)
        assert all(c.alive() for c in (*producers, *consumers)), "somebody died by himself"
        consumers.pop(0).kill()
        head = queue.native.counters()["head"]
        full = head + 2 * 2 * 4
        until(
            lambda n=full: queue.native.counters()["head"] >= n, "producers have no room any more"
        )
    stop.touch()
    for consumer in consumers:
        consumer.result(WAIT_S)
    for producer in producers:
        producer.kill()
    expect_all_free(queue, 77)
    queue.close()


def test_a_forked_child_gives_nothing_back(name: str) -> None:
    """It has a copy of the pin; the batch is its parent's."""
    queue = BatchQueue.create(Layout(example(5)), BATCH, BUFFERS, name)
    fill(queue, 1)
    batch = queue.take()
    assert batch is not None
    numbers = batch["number"].copy()
    while queue.take(copy=True) is not None:
        pass
    pid = os.fork()
    if pid == 0:
        failed = 1
        try:
            del batch
            room = fill(queue, 1)
            failed = int(room != BATCH * (BUFFERS - 1))
        finally:
            os._exit(failed)
    assert os.waitpid(pid, 0)[1] == 0
    assert (batch["number"] == numbers).all()
    assert fill(queue, 1) == 0
    del batch
    assert fill(queue, 1) == BATCH
    # And the other way round: what the child takes is the child's, and goes with it.
    pid = os.fork()
    if pid == 0:
        failed = 1
        try:
            kept = queue.take()
            failed = int(kept is None)
        finally:
            os._exit(failed)
    assert os.waitpid(pid, 0)[1] == 0
    expect_all_free(queue, 1)
    queue.close()
