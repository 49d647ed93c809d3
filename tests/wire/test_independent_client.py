"""The client written from the wire page alone, against a real server with its ingest process."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from contig import LazyTensorStorage, PrioritizedSampler, Ragged, ReplayBuffer
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


def test_fields_and_leaves_of_any_size(token: str | None) -> None:
    """Version 2, as the page says it."""
    row = {"blob": b"", "n": np.int64(0), "tokens": Ragged(np.int16, (2,)), "words": ""}
    fields = {"score": np.zeros(3, np.float32), "task": np.int8(0)}
    storage = LazyTensorStorage(100, example=row, fields=fields)
    buffer = ReplayBuffer(storage, batch_size=4, seed=0)
    with Server(buffer=buffer, transport=TcpTransport(token=token)) as server:
        client = Client("127.0.0.1", server.port, token=token, newest=2)
        schema = client.accept["schema"]
        layout, of = schema["layout"], schema["fields"]
        kinds = {tuple(x["path"]): x.get("kind") for x in layout["leaves"]}
        assert kinds == {("blob",): "blob", ("n",): None, ("tokens",): "ragged", ("words",): "text"}
        assert client.accept["max_row"] == 256 << 20

        def tree(n: int) -> dict[Any, Any]:
            words, tokens = f"{n}\u00df".encode() * (n % 3), [n] * 2 * (n % 4)
            return {("blob",): bytes([n]) * n, ("n",): [n], ("tokens",): tokens, ("words",): words}

        client.send_rich(
            layout,
            of,
            [
                ([tree(0), tree(1)], 1 | 2, 7, -1, 0, [{("task",): [5]}]),
                ([tree(2)], 1, 8, -1, 0, []),
                (
                    [tree(n) for n in range(3, 7)],
                    *(16, -1, -1, 2),
                    [{("score",): [1.0, 2.0, 3.0]}, {("task",): [-1]}],
                ),
            ],
        )
        client.send_rich(layout, of, [([tree(7)], 2, 8, -1, 0, [{("task",): [6]}])])
        client.wait()
        table = storage.episodes()
        assert [storage.read_episode(e)["n"].tolist() for e in table["id"]] == [
            *([0, 1], [2, 7], [3, 4], [5, 6])
        ]
        assert table["task"].tolist() == [5, 6, 0, -1]
        assert table["score"].tolist() == [[0, 0, 0], [0, 0, 0], [1, 2, 3], [0, 0, 0]]
        given = wire.pack_given(of, {("task",): [9]})
        told = struct.pack("<QQ2q", 2, 1, int(table["id"][0]), 1 << 40) + given
        assert client.ask(15, 1, told) == {"there": 1}
        assert storage.episodes()["task"].tolist() == [9, 6, 0, -1]
        numbers = client.sample(2, 6)["n",]
        for i, n in enumerate(numbers):
            expected = tree(n)
            assert client.batch_values["blob",][i] == expected["blob",]
            assert client.batch_values["words",][i] == expected["words",]
            tokens = struct.pack(f"<{len(expected['tokens',])}h", *expected["tokens",])
            assert client.batch_values["tokens",][i] == tokens
        client.bye()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_bytes_that_no_codec_made_stop_no_learner(codec: str) -> None:
    row = {"pixels": np.zeros((8, 8), np.uint8), "n": np.int64(0)}
    storage = LazyTensorStorage(100, example=row, codecs={"pixels": codec})
    buffer = ReplayBuffer(storage, batch_size=8, seed=0)
    buffer.extend({"pixels": np.full((4, 8, 8), 9, np.uint8), "n": np.arange(4)})
    with Server(buffer=buffer, transport=TcpTransport()) as server:
        client = Client("127.0.0.1", server.port, newest=2)
        layout = client.accept["schema"]["layout"]
        for leaf in layout["leaves"]:
            if "codec" in leaf:  # as the page says: in records it is one of any size
                leaf.update(kind="blob", shape=[], dtype="uint8")
        sent = [{("n",): [n], ("pixels",): b"no image" * (n % 3)} for n in range(100, 106)]
        client.send_rich(layout, None, [(sent, 3, 7, -1, 0, [])])
        client.wait()
        assert len(buffer) == 10
        for _ in range(8):
            batch = buffer.sample()
            assert (batch["n"] < 4).all() and (batch["pixels"] == 9).all() and len(batch) == 8
            assert max(client.sample(1, 8)["n",]) < 4
        assert storage.undecodable == 6
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


def test_carried_slots() -> None:
    """Steps that are sent one by one bring one observation each."""
    row = {"obs": np.zeros(9, np.int16), "next": {"obs": np.zeros(9, np.int16)}}
    storage = LazyTensorStorage(100, example=row, share_next=True)
    with Server(buffer=ReplayBuffer(storage), transport=TcpTransport()) as server:
        client = Client("127.0.0.1", server.port, newest=4)
        layout = client.accept["schema"]["layout"]
        for t in range(20):
            tree = {("obs",): [t] * 9, ("next", "obs"): [t + 1] * 9}
            record = pack_record(layout, tree)
            assert client.send_carried([([record], t == 0, 7, -1, 0)]) == (2 if t == 0 else 1)
        client.wait()
        client.bye()
        assert storage.tape.slots_given == 21
        (entry,) = storage.episodes()
        batch = storage.read_episode(int(entry["id"]))
    assert batch["next", "obs"][:, 0].tolist() == list(range(1, 21))


@pytest.mark.parametrize("leading", [True, False])
def test_compact_rows(leading: bool) -> None:
    """Observations come once, and go into the table so."""
    shape = (3, 2) if leading else (2, 3)
    row = {
        "obs": np.zeros(shape, np.int16),
        "state": np.zeros(3, np.float32),
        "odd": np.zeros(3, np.uint8),
        "next": {
            "obs": np.zeros(shape, np.int16),
            "state": np.zeros(3, np.float32),
            "reward": np.float64(0),
            "done": np.bool_(False),
        },
    }
    stack = {"obs": (3, 0 if leading else -1)}
    storage = LazyTensorStorage(100, example=row, share_next=True, stack=stack)
    frames = np.arange(2 * 30, dtype=np.int16).reshape(30, 2)

    def seen(t: int) -> list[int]:
        obs = frames[t : t + 3] if leading else frames[t : t + 3].T
        return [int(x) for x in np.asarray(obs).reshape(-1)]

    with Server(buffer=ReplayBuffer(storage), transport=TcpTransport()) as server:
        old = Client("127.0.0.1", server.port, newest=2)
        assert "shared" not in old.accept["schema"]
        old.bye()
        client = Client("127.0.0.1", server.port, newest=3)
        layout = client.accept["schema"]["layout"]
        records = []
        for t in range(20):
            tree = {("obs",): seen(t), ("state",): [t, 0, -t], ("odd",): [t, 1, 2]}
            tree |= {("next", "obs"): seen(t + 1), ("next", "state"): [t + 1, 0, -t - 1]}
            done = t == 19
            tree |= {("next", "done"): [done], ("next", "terminated"): [done]}
            tree |= {("next", "truncated"): [False], ("next", "reward"): [t / 2]}
            records.append(pack_record(layout, tree))
        slots = client.send_compact([(records[:8], 1, 7, -1, 0), (records[8:15], 0, 7, -1, 0)])
        assert slots == 3 * 16  # of 16 observations: each has another state
        client.send_compact([(records[15:], 2, 7, -1, 0)])
        client.wait()
        client.bye()
        (entry,) = storage.episodes()
        batch = storage.read_episode(int(entry["id"]))
    for t in range(20):
        assert batch["obs"][t].reshape(-1).tolist() == seen(t)
        assert batch["next", "obs"][t].reshape(-1).tolist() == seen(t + 1)
        assert batch["state"][t].tolist() == [t, 0, -t]
        assert batch["next", "state"][t].tolist() == [t + 1, 0, -t - 1]
        assert batch["odd"][t].tolist() == [t, 1, 2] and batch["next", "reward"][t] == t / 2
