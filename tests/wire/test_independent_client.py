"""The client written from the wire page alone, against a real server with its ingest process."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, PrioritizedSampler, ReplayBuffer
from contig.server import Server, TcpTransport
from tests.wire import independent_client as wire
from tests.wire.independent_client import Client, pack_record

TOKEN = "correct horse battery staple"
# Alignments of 1, 2, 4 and 8 in an order that needs bytes between leaves.
ITEM = {
    "flag": np.bool_(False),
    "image": np.zeros((2, 3), np.uint8),
    "more": {"big": np.int64(0), "half": np.zeros(3, np.float16)},
    "pair": (np.float32(0), np.int16(0)),
}
ITEM_LAYOUT = {
    "structure": {
        "kind": "dict",
        "keys": ["flag", "image", "more", "pair"],
        "children": [
            "leaf",
            "leaf",
            {"kind": "dict", "keys": ["big", "half"], "children": ["leaf", "leaf"]},
            {"kind": "tuple", "keys": [0, 1], "children": ["leaf", "leaf"]},
        ],
    },
    "leaves": [
        {"path": ["flag"], "shape": [], "dtype": "bool"},
        {"path": ["image"], "shape": [2, 3], "dtype": "uint8"},
        {"path": ["more", "big"], "shape": [], "dtype": "int64"},
        {"path": ["more", "half"], "shape": [3], "dtype": "float16"},
        {"path": ["pair", 0], "shape": [], "dtype": "float32"},
        {"path": ["pair", 1], "shape": [], "dtype": "int16"},
    ],
    "record_size": 32,
}
STEP_LAYOUT = {
    "structure": {
        "kind": "dict",
        "keys": ["next", "obs"],
        "children": [
            {
                "kind": "dict",
                "keys": ["done", "terminated", "truncated"],
                "children": ["leaf", "leaf", "leaf"],
            },
            "leaf",
        ],
    },
    "leaves": [
        {"path": ["next", "done"], "shape": [], "dtype": "bool"},
        {"path": ["next", "terminated"], "shape": [], "dtype": "bool"},
        {"path": ["next", "truncated"], "shape": [], "dtype": "bool"},
        {"path": ["obs"], "shape": [2], "dtype": "float64"},
    ],
    "record_size": 24,
}


def item(number: int) -> bytes:
    """An item all of whose values say which one it is."""
    return pack_record(
        ITEM_LAYOUT,
        {
            ("flag",): [number % 2 == 1],
            ("image",): [number % 256, 1, 2, 3, 4, number % 7],
            ("more", "big"): [number << 40],
            ("more", "half"): [number % 100, 0.5, -number % 100],
            ("pair", 0): [number / 2],
            ("pair", 1): [-number],
        },
    )


def step(number: int, end: str = "") -> bytes:
    return pack_record(
        STEP_LAYOUT,
        {
            ("next", "done"): [bool(end)],
            ("next", "terminated"): [end == "terminated"],
            ("next", "truncated"): [end == "truncated"],
            ("obs",): [number, -number],
        },
    )


def check_items(batch: Any, numbers: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(batch["flag"], numbers % 2 == 1)
    np.testing.assert_array_equal(batch["image"][:, 0, 0], numbers % 256)
    np.testing.assert_array_equal(batch["image"][:, 1, 2], numbers % 7)
    np.testing.assert_array_equal(batch["more", "big"], numbers << 40)
    np.testing.assert_array_equal(batch["more", "half"][:, 2], -numbers % 100)
    np.testing.assert_array_equal(batch["pair", 0], np.float32(numbers / 2))
    np.testing.assert_array_equal(batch["pair", 1], -numbers)


@pytest.fixture(params=[None, TOKEN], ids=["open", "token"])
def token(request: pytest.FixtureRequest) -> str | None:
    return request.param


@pytest.fixture
def queue(token: str | None) -> Iterator[Server]:
    with Server(ITEM, 16, TcpTransport(token=token), num_buffers=8) as server:
        yield server


@pytest.fixture
def buffer() -> ReplayBuffer:
    return ReplayBuffer(LazyTensorStorage(1000), PrioritizedSampler(alpha=1.0), batch_size=8)


@pytest.fixture
def tape(buffer: ReplayBuffer, token: str | None) -> Iterator[Server]:
    with Server(tables={"steps": buffer}, transport=TcpTransport(token=token)) as server:
        yield server


def test_crc_of_the_page() -> None:
    assert wire.crc32c(b"123456789") == 0xE3069283


def test_items_of_a_queue(queue: Server, token: str | None) -> None:
    client = Client("127.0.0.1", queue.port, layout=ITEM_LAYOUT, token=token)
    assert client.accept["kind"] == "queue" and client.accept["seen"] == 0
    assert client.accept["schema"]["layout"] == ITEM_LAYOUT
    sent = 0
    for many in (1, 5, 10, 16, 20, 12):
        client.send_records([item(n) for n in range(sent, sent + many)])
        sent += many
    client.wait()
    assert client.acked == 64
    client.bye()
    for first in range(0, 64, 16):
        sample = queue.sample(timeout=30)
        assert sample is not None
        check_items(sample.batch, np.arange(first, first + 16))


def test_resends_are_dropped_one_by_one(queue: Server, token: str | None) -> None:
    client = Client("127.0.0.1", queue.port, layout=ITEM_LAYOUT, token=token)
    client.send_records([item(n) for n in range(10)])
    client.wait()
    client.sock.close()  # without a word
    again = Client(
        "127.0.0.1",
        queue.port,
        layout=ITEM_LAYOUT,
        token=token,
        producer=client.producer,
        next=4,
    )
    assert again.accept["seen"] == 10
    again.next = 4  # a client may send more than it has to
    again.send_records([item(n) for n in range(4, 16)])
    again.wait()
    again.bye()
    sample = queue.sample(timeout=30)
    assert sample is not None
    check_items(sample.batch, np.arange(16))
    assert queue.stats().duplicates_dropped == 6


def test_ack_levels(queue: Server, token: str | None) -> None:
    for level in ("received", "committed"):
        client = Client("127.0.0.1", queue.port, layout=ITEM_LAYOUT, token=token, ack=level)
        client.send_records([item(0)])
        client.wait()
        client.bye()


def test_weights(queue: Server, token: str | None) -> None:
    client = Client("127.0.0.1", queue.port, token=token)
    assert client.get() is None
    later = threading.Timer(0.1, queue.publish, (7, {"b": np.arange(3.0), "a": np.int8(-5)}))
    later.start()
    assert client.get(-1, 30.0) == (7, {("a",): [-5], ("b",): [0.0, 1.0, 2.0]})
    later.join()
    assert client.get(7) is None
    queue.publish(8, {"b": np.ones(3), "a": np.int8(6)})
    assert client.get(7) == (8, {("a",): [6], ("b",): [1.0, 1.0, 1.0]})
    client.bye()


def test_runs_of_a_tape(tape: Server, buffer: ReplayBuffer, token: str | None) -> None:
    client = Client("127.0.0.1", tape.port, table="steps", layout=STEP_LAYOUT, token=token)
    assert client.accept["kind"] == "tape"
    assert client.accept["schema"]["layout"] == STEP_LAYOUT
    # A whole trajectory, one begun, and one that two frames make.
    client.send_runs(
        [
            ([step(0), step(1), step(2, "terminated")], 1 | 2, 70, 5, 0),
            ([step(3)], 1, 71, -1, 0),
        ]
    )
    client.send_runs([([step(4), step(5, "truncated")], 4, 71, -1, 0)])
    # Boundaries from the rows themselves: two lanes of three, then one that goes on.
    lanes = [step(6), step(7, "terminated"), step(8), step(9), step(10), step(11)]
    client.send_runs([(lanes, 16, -1, -1, 2)])
    client.wait()
    assert (client.acked, len(buffer)) == (4, 12)
    found = [
        (int(e["first"]), int(e["steps"]), bool(e["terminated"]), bool(e["truncated"]))
        for e in buffer.storage.episodes()
    ]
    assert found[:2] == [(0, 3, True, False), (3, 3, False, True)]
    assert [f[:3] for f in found[2:]] == [(6, 2, True), (8, 1, False), (9, 3, False)]
    assert list(buffer.storage.episodes()["traj_id"][:2]) == [70, 71]
    client.bye()


def test_samples_of_a_tape(tape: Server, buffer: ReplayBuffer, token: str | None) -> None:
    client = Client("127.0.0.1", tape.port, table="steps", layout=STEP_LAYOUT, token=token)
    client.send_runs([([step(n) for n in range(50)], 1, 1, -1, 0)])
    client.wait()
    rows = [7, 11]
    others = [n for n in range(50) if n not in rows]
    told = struct.pack("<Q50q50d", 50, *rows, *others, 1.0, 3.0, *[0.0] * 48)
    assert client.ask(wire.PRIORITY, 1, told) == {}
    for request, (asked, got) in enumerate([(0, 8), (5, 5), (33, 33)], start=2):
        batch = client.sample(request, asked)
        assert len(batch["index",]) == got and set(batch["index",]) <= set(rows)
        assert batch["obs",] == [x for n in batch["index",] for x in (n, -n)]
        assert batch["next", "done"] == [False] * got
    stats = client.ask(wire.STATS, 9)
    assert (stats["rows"], stats["rows_sampled"]) == (50, 46)
    assert "error" in client.ask(wire.PRIORITY, 10, struct.pack("<Q", 3))
    client.bye()


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"table": "nope"}, "table", "default"),
    ({"producer": 0}, "producer", "2^63"),
    ({"ack": "perhaps"}, "frame", "committed"),
    ({"proof": "00" * 32}, "token", "token"),
    ({"layout": STEP_LAYOUT}, "layout", "more"),
]


def test_refusals(queue: Server, token: str | None) -> None:
    for wrong, reason, hint in REFUSALS:
        with pytest.raises(PermissionError) as caught:
            Client("127.0.0.1", queue.port, token=token, **{"layout": ITEM_LAYOUT, **wrong})
        answer = caught.value.args[0]
        assert answer["reason"] == reason and hint in answer["message"]
    assert queue.stats().rejected == {reason: 1 for _, reason, _ in REFUSALS}
