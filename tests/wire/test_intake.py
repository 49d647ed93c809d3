"""Frames from a socket into a queue without Python, against what the plain way does with them.

The plain way is a `Receiver` fed by hand and `accept_frame`. Frames are right, repeated, out of
order, of another kind, or damaged in any byte; records have large leaves, which are summed while
they are stored, or small ones.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import Layout, _native
from contig.tape.queue import BatchQueue
from tests.wire.naive import BAD, GROW, MORE, READY, frame

ITEMS, GET = 4, 7
PRODUCER = 9
SMALL = Layout({"n": np.int64(0), "x": np.zeros(5, np.float32)})
LARGE = Layout({"a": np.uint8(0), "image": np.zeros(20_001, np.uint8), "n": np.int64(0)})
TWO = Layout({"image": np.zeros(20_000, np.uint8), "n": np.int64(0), "z": np.zeros(2100)})
LAYOUTS = {"small": SMALL, "large": LARGE, "two large": TWO}


def record(layout: Layout, n: int) -> bytes:
    tree: dict[str, Any] = {x.path[0]: np.full(x.shape, n % 200, x.dtype) for x in layout.leaves}
    tree["n"] = np.int64(n)
    return layout.pack_one(tree).tobytes()


def items_frame(layout: Layout, first: int, count: int) -> bytes:
    payload = b"".join(record(layout, n) for n in range(first, first + count))
    return frame(ITEMS, first, payload, rows=count)


def taken(queue: BatchQueue) -> list[int]:
    """The items in a queue, whole ones; and the leaves of each agree with its number."""
    found = []
    while (batch := queue.take(copy=True, partial=True)) is not None:
        leaves = batch.tree()
        for i, n in enumerate(leaves["n"]):
            found.append(int(n))
            assert all(np.all(leaf[i] == n % 200) for key, leaf in leaves.items() if key != "n")
    return found


class Sending:
    """Sends pieces from a thread of its own: sockets may hold little. `sock` is the other end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._ours, self.sock = socket.socketpair()
        self._thread = threading.Thread(target=self._send, args=(pieces,))

    def _send(self, pieces: list[bytes]) -> None:
        with suppress(OSError):  # nobody reads to the end of a bad stream
            for piece in pieces:
                self._ours.sendall(piece)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.sock.close()
        self._thread.join(30)
        self._ours.close()


def take_all(queue: BatchQueue, stream: bytes, following: int = 0, patience: float = 0.0) -> Any:
    """The receiver, and the sums of what `take_frames` returned until all was read."""
    receiver = _native.Receiver(1 << 20, 1 << 20)
    found = np.zeros(5, np.int64)
    with Sending([stream]) as sending:
        while found[0] < len(stream):
            got = take_in(queue, receiver, sending.sock, following + int(found[2]), patience)
            found += [*got[:4], 0]
            found[4] = got[4] or found[4]
    return receiver, tuple(int(n) for n in found[1:])


def take_in(
    queue: BatchQueue, receiver: Any, sock: socket.socket, following: int = 0, patience: float = 0.0
) -> Any:
    return queue.native.take_frames(receiver, sock.fileno(), PRODUCER, following, patience)


@pytest.mark.parametrize("name", LAYOUTS)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    odd=st.sampled_from(["none", "again", "gap", "other kind", "damaged", "header", "wrong size"]),
    at=st.integers(0, 5),
    where=st.integers(0, 1 << 30),
    cut=st.integers(0, 1 << 30),
)
def test_ordinary_frames_go_in(
    name: str, counts: list[int], odd: str, at: int, where: int, cut: int
) -> None:
    """As many frames as come before an odd one; that one is left for whoever looks closer."""
    layout = LAYOUTS[name]
    queue = BatchQueue.create(layout, 8, 8)
    frames, first = [], 0
    for count in counts:
        frames.append(items_frame(layout, first, count))
        first += count
    good = frames[:]
    if odd != "none":
        at %= len(frames)
        good = frames[:at]
        before = sum(counts[:at])
        if odd == "again":
            before = max(before - 1, 0)
            strange = items_frame(layout, before, 2 if at else 1)
            if not at:
                strange = frame(GET, 0, b"12345678")
        elif odd == "gap":
            strange = items_frame(layout, before + 1, 1)
        elif odd == "other kind":
            strange = frame(GET, 0, b"12345678")
        elif odd == "wrong size":
            strange = frame(ITEMS, before, bytes(layout.record_size - 1), rows=1)
        else:
            whole = bytearray(frames[at])
            place = where % 40 if odd == "header" else 40 + where % (len(whole) - 40)
            whole[place] ^= 1 << where % 8
            strange = bytes(whole)
        frames[at:] = [strange]
    stream = b"".join(frames)
    receiver = _native.Receiver(1 << 20, 1 << 20)
    total = frames_in = items_in = 0
    cut %= len(stream) + 1
    with Sending([stream[:cut], stream[cut:]]) as sending:
        while True:
            over = sending.is_over
            nbytes, n_frames, n_items, partial, seen = take_in(
                queue, receiver, sending.sock, items_in
            )
            total, frames_in, items_in = total + nbytes, frames_in + n_frames, items_in + n_items
            assert partial == 0 and (seen == items_in or not n_items)
            odd_one = receiver.needed <= receiver.held or receiver.refusal != "none"
            if not nbytes and (over or odd_one):
                break
    assert frames_in == len(good) and items_in == sum(counts[: len(good)])
    state = receiver.next()
    if odd == "none":
        assert total == len(stream) and receiver.held == 0
    elif odd in ("damaged", "header"):
        # A damaged length may ask for more than comes.
        assert state == BAD or (odd == "header" and state in (MORE, GROW))
    else:
        assert state == READY  # whole, and somebody else's business
    assert taken(queue) == list(range(items_in))


@pytest.mark.parametrize("name", LAYOUTS)
def test_damage_is_found_wherever_it_is(name: str) -> None:
    """A record that was stored before its checksum was compared leaves nothing behind."""
    layout = LAYOUTS[name]
    queue = BatchQueue.create(layout, 4, 4)
    whole = items_frame(layout, 0, 2)
    for place in range(40, len(whole), max((len(whole) - 40) // 61, 1)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        receiver, found = take_all(queue, bytes(damaged))
        assert found == (0, 0, 0, 0)
        assert receiver.next() == BAD and receiver.refusal == "body_crc"
        assert queue.native.counters()["items"] == 0
    assert take_all(queue, whole)[1] == (1, 2, 0, 2)
    assert taken(queue) == [0, 1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_full_queue(name: str) -> None:
    """What does not fit stays at the front; of a frame that never fits at once, the rest does."""
    layout = LAYOUTS[name]
    queue = BatchQueue.create(layout, 2, 3)
    two = items_frame(layout, 0, 4) + items_frame(layout, 4, 3)
    receiver, (frames, items, partial, seen) = take_all(queue, two)
    assert (frames, seen) == (1, 4 + partial) and items == 4 + partial
    assert receiver.next() == READY and receiver.check_items(layout.record_size, False)
    seen, added, gap, full = queue.native.accept_frame(receiver, PRODUCER)
    assert not gap and full and seen == 6 == items + added
    first = queue.take()
    assert first is not None and [int(n) for n in first.tree()["n"]] == [0, 1]
    del first
    assert queue.native.accept_frame(receiver, PRODUCER) == (7, 1, False, False)
    assert taken(queue) == [2, 3, 4, 5, 6]
    # Eight at once, into three blocks of two: summed, then by and by while somebody takes.
    found: list[int] = []

    def consume() -> None:
        while len(found) < 8:
            batch = queue.take(copy=True)
            if batch is not None:
                found.extend(int(n) for n in batch.tree()["n"])

    consuming = threading.Thread(target=consume)
    consuming.start()
    assert take_all(queue, items_frame(layout, 7, 8), 7, patience=30.0)[1] == (1, 8, 0, 15)
    consuming.join(30)
    assert found == list(range(7, 15))


def test_waits_no_longer_than_told() -> None:
    queue = BatchQueue.create(LARGE, 1, 2)
    three = b"".join(items_frame(LARGE, n, 1) for n in range(3))
    receiver, found = take_all(queue, three, patience=0.05)
    assert found == (2, 2, 0, 2)
    assert receiver.next() == READY
