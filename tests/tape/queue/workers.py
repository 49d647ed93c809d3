"""What the processes of these tests do. Each function runs in a process of its own."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from contig import Layout, TapeBusy
from contig.tape.queue import BatchQueue
from contig.weights.board import WeightsBoard
from tests.tape.processes.trap import trapped

# -- items -----------------------------------------------------------------------------------------


def example(words: int) -> dict[str, Any]:
    return {
        "flag": np.uint8(0),
        "number": np.int64(0),
        "payload": np.zeros(words, np.uint64),
        "producer": np.int64(0),
    }


def item_columns(producer: Any, number: Any, words: int) -> dict[str, Any]:
    """Items ``[n, ...]``: every word of the payload is a hash of whose and which one it is."""
    producer, number = np.broadcast_arrays(np.asarray(producer), np.asarray(number))
    key = (producer.astype(np.uint64) << np.uint64(40)) + number.astype(np.uint64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    payload = (key[:, None] + np.arange(words, dtype=np.uint64)) * np.uint64(0x94D049BB133111EB)
    return {
        "flag": (number % 251).astype(np.uint8),
        "number": number.astype(np.int64),
        "payload": payload,
        "producer": producer.astype(np.int64),
    }


def item_records(layout: Layout, producer: int, first: int, n: int) -> np.ndarray[Any, Any]:
    words = layout.by_path["payload",].shape[0]
    return layout.pack(item_columns(producer, np.arange(first, first + n), words)).reshape(-1)


class Checker:
    """Reads batches: items are whole, and those of each producer come in order, each once."""

    def __init__(self, gaps: bool = False) -> None:
        self.next: dict[int, int] = {}
        self.items = self.batches = 0
        self.gaps = gaps  # others take batches, too

    def check(self, batch: Any) -> None:
        producer, number = np.asarray(batch["producer"]), np.asarray(batch["number"])
        expected = item_columns(producer, number, batch["payload"].shape[1])
        for name, column in expected.items():
            assert np.array_equal(batch[name], column), f"torn items: {name}"
        for one in np.unique(producer).tolist():
            mine = number[producer == one]
            following = self.next.get(one, 0)
            if self.gaps:
                assert mine[0] >= following and np.all(np.diff(mine) > 0), (one, following, mine)
            else:
                assert mine.tolist() == list(range(following, following + len(mine))), (
                    f"producer {one}: expected {following}..., got {mine.tolist()}"
                )
            self.next[one] = int(mine[-1]) + 1
        self.items += len(number)
        self.batches += 1


# -- the queue -------------------------------------------------------------------------------------


def produce(name: str, producer: int, seed: int, until: int, at_once: int = 12) -> dict[str, Any]:
    """Sends items 0, 1, 2 ... up to `until`, from where the queue says the producer is, often some
    of them for a second time."""
    queue = BatchQueue.attach(name)
    native, layout, size = queue.native, queue.layout, queue.record_size
    draw = random.Random(seed)
    following = started = native.seen(producer, 0)
    ahead = max(at_once + 12, (1 << 18) // size)
    base, packed = 0, np.zeros(0, np.uint8)
    waits = 0
    while following < until:
        first = max(following - draw.choice((0, 0, 1, 2, 5)), 0)
        n = min(following - first + draw.randint(1, at_once), until - first)
        if first < base or (first + n - base) * size > len(packed):
            base = max(first - 5, 0)
            packed = item_records(layout, producer, base, ahead)
        part = packed[(first - base) * size : (first - base + n) * size]
        word = native.space_word
        seen, added, gap, full = native.accept_records(part, producer, first)
        assert not gap and seen == following + added, (seen, following, added, gap)
        assert full or seen == first + n, (seen, first, n)
        following = seen
        if full:
            waits += 1
            native.wait_space(word, 0.1)
    queue.close()
    return {"sent": following - started, "waits": waits}


def stop_in_append(name: str, producer: int, seed: int, items: int, at: float) -> dict[str, Any]:
    """Stops itself inside an append of so many items, at this part of them; then it goes on."""
    queue = BatchQueue.attach(name)
    first = queue.native.seen(producer, 0)
    records = trapped(item_records(queue.layout, producer, first, items), at)
    seen, _, gap, full = queue.native.accept_records(records, producer, first)
    assert seen == first + items and not gap and not full
    return produce(name, producer, seed, 1 << 40, items)


def hold(name: str, batches: int, ready: str) -> dict[str, Any]:
    """Takes batches and holds them until it is killed."""
    queue = BatchQueue.attach(name)
    checker, held = Checker(gaps=True), []
    for _ in range(batches):
        batch = queue.take()
        assert batch is not None
        held.append((batch, batch["number"].copy()))
        checker.check(batch)
    Path(ready).touch()
    while True:
        time.sleep(0.001)
        for batch, numbers in held:
            assert np.array_equal(batch["number"], numbers), "a batch changed while it was held"


def consume(name: str, seed: int, stop: str, most: int = 1) -> dict[str, Any]:
    """Takes batches, holds some of them for a while, and looks at them again."""
    queue = BatchQueue.attach(name)
    draw = random.Random(seed)
    checker = Checker(gaps=True)
    held: list[tuple[Any, Any]] = []
    while not os.path.exists(stop):
        word = queue.native.data_word
        batch = queue.take(copy=draw.random() < 0.2)
        if batch is not None:
            checker.check(batch)
            held.append((batch, batch["payload"].copy()))
            del batch
        else:
            queue.native.wait_data(word, 0.02)
        while held and (len(held) > most or draw.random() < 0.5):
            batch, payload = held.pop(draw.randrange(len(held)))
            assert np.array_equal(batch["payload"], payload), "a batch changed while it was held"
            del batch
    held.clear()
    queue.close()
    return {"batches": checker.batches}


def submit_once(name: str, lock_timeout_s: float) -> dict[str, Any]:
    queue = BatchQueue.attach(name)
    queue.native.lock_timeout_s = lock_timeout_s
    try:
        queue.native.accept_records(item_records(queue.layout, 99, 0, 1), 99, 0)
    except TapeBusy as error:
        return {"busy": str(error)}
    return {"busy": ""}


# -- weights ---------------------------------------------------------------------------------------


def weights(version: int, like: Any) -> dict[str, Any]:
    """A tree whose every word says which version it is."""
    return {
        "layer": {
            "bias": np.full(like["layer"]["bias"].shape, version % 251, np.uint8),
            "kernel": np.arange(like["layer"]["kernel"].size, dtype=np.float64) + version,
        },
        "step": np.int64(version),
    }


def weights_example(n: int) -> dict[str, Any]:
    return {"layer": {"bias": np.zeros(3, np.uint8), "kernel": np.zeros(n)}, "step": np.int64(0)}


def weights_wrong(version: int, tree: Any) -> str:
    """What is not as this version has it."""
    expected = weights(version, tree)
    pairs = [
        (tree["layer"]["bias"], expected["layer"]["bias"]),
        (tree["layer"]["kernel"], expected["layer"]["kernel"]),
        (tree["step"], expected["step"]),
    ]
    return "" if all(np.array_equal(a, b) for a, b in pairs) else f"version {version} is torn"


def publish(name: str, stop: str) -> dict[str, Any]:
    """Publishes one version after another as fast as it can."""
    board = WeightsBoard.attach(name)
    newest = board.newest
    version = first = 0 if newest is None else newest + 1
    like = weights_example(board.layout.by_path["layer", "kernel"].shape[0])
    trees = [weights(version + i, like) for i in range(50)]
    while not os.path.exists(stop):
        for tree in trees:
            board.publish(version, tree)
            version += 1
        trees = [weights(version + i, like) for i in range(50)]
    board.close()
    return {"versions": version - first, "newest": version - 1}


def read_weights(name: str, stop: str, wait: bool, begun: str) -> dict[str, Any]:
    """Reads until told to stop; versions must grow and be whole. Makes `begun` after the first."""
    board = WeightsBoard.attach(name)
    last, reads = -1, 0
    while not os.path.exists(stop):
        found = board.read(newer_than=last if wait else -1, timeout_s=0.05 if wait else 0.0)
        if found is None:
            continue
        wrong = weights_wrong(found.version, found.tree)
        newest = board.newest
        if found.version < last or (wait and found.version == last):
            wrong = f"version {found.version} after {last}"
        if newest is None or newest < found.version:
            wrong = f"newest {newest} is older than {found.version}"
        if wrong:
            return {"wrong": wrong}
        if not reads:
            Path(begun).touch()
        last = found.version
        reads += 1
    board.close()
    return {"wrong": "", "reads": reads, "last": last}


def read_weights_once(name: str) -> dict[str, Any]:
    """What a reader finds, or is told."""
    board = WeightsBoard.attach(name)
    try:
        found = board.read()
    except RuntimeError as error:
        return {"told": str(error)}
    if found is None:
        return {"told": "", "version": None}
    return {"told": weights_wrong(found.version, found.tree), "version": found.version}
