"""Frames from a socket into a table without Python, against what the plain way does with them.

The plain way is a `Receiver` fed by hand, and `accept_frame` of a queue or `accept_runs` of a tape.
Frames are right, repeated, out of order, of another kind, or damaged in any byte. A queue's records
have large leaves, which are summed while they are stored, or small ones; a tape's items are runs of
every kind.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contig import Layout, LazyTensorStorage, _native
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
    found = np.zeros(6, np.int64)
    with Sending([stream]) as sending:
        while found[0] < len(stream):
            got = take_in(queue, receiver, sending.sock, following + int(found[2]), patience)
            found += [*got[:5], 0]
            found[5] = got[5] or found[5]
    _, frames, items, rows, partial, seen = (int(n) for n in found)
    assert rows == items
    return receiver, (frames, items, partial, seen)


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
            nbytes, n_frames, n_items, _, partial, seen = take_in(
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


# -- tapes ----------------------------------------------------------------------------------------

STEP = Layout(
    {"n": np.int64(0), "obs": np.zeros(3, np.float32), "next": {"done": False, "reward": 0.0}}
)
BEGINS, TERMINATED, MARKED, GOES_ON, TOLD = 1, 2, 16, 32, 64
FLAGS = {"begins": BEGINS, "ends": TERMINATED, "whole": BEGINS | TERMINATED}
NO_BOUND = 1 << 62


def run_of(rows: int, flags: int, traj_id: int = -1, lanes: int = 0) -> bytes:
    return struct.pack("<IIqqII", rows, flags, traj_id, 3, lanes, 0)


def step_record(n: int, done: bool) -> bytes:
    obs = np.full(3, n, np.float32)
    tree = {"n": np.int64(n), "obs": obs, "next": {"done": done, "reward": np.float32(n)}}
    return STEP.pack_one(tree).tobytes()


class Script:
    """What a producer sends: runs of trajectories told by their flags, or by marks, in lanes."""

    def __init__(self) -> None:
        self.items = self.rows = 0

    def frame(self, kinds: list[str]) -> bytes:
        first, runs, records = self.items, b"", b""
        for kind in kinds:
            rows, lanes = (6, 3) if kind == "lanes" else (4, 4) if kind == "step" else (2, 0)
            flags = {"begins": BEGINS, "ends": TERMINATED, "whole": BEGINS | TERMINATED}.get(
                kind, 0
            )
            if lanes:
                flags = MARKED | (GOES_ON if kind == "step" else TOLD)
            runs += run_of(rows, flags, self.items % 2 if not lanes else -1, lanes)
            for _ in range(rows):
                records += step_record(self.rows, self.rows % 5 == 4)
                self.rows += 1
            self.items += 1
        return frame(ITEMS, first, runs + records, len(kinds), self.rows_of(runs))

    @staticmethod
    def rows_of(runs: bytes) -> int:
        return sum(struct.unpack_from("<I", runs, at)[0] for at in range(0, len(runs), 32))


class TapeSide:
    """A tape, the writer of its producer, and what a connection does with each frame.

    Items go in natively as far as that goes, and then, or always, the plain way.
    """

    def __init__(self, natively: bool) -> None:
        self.natively = natively
        self.storage = LazyTensorStorage(1000)
        self.storage.publish(STEP)
        schema = self.storage.schema
        assert schema is not None
        self.writer = self.storage.native_writer(schema)
        self.receiver = _native.Receiver(1 << 20, 1 << 20)
        self.receiver.set_bools(
            np.array(
                [(x.offset, x.nbytes) for x in STEP.leaves if x.dtype == bool], np.int64
            ).reshape(-1)
        )
        self.seen = self.native_frames = self.plain_frames = 0
        self.refusal = ""

    def take(self, stream: bytes, most: int = NO_BOUND, most_open: int = NO_BOUND) -> None:
        with Sending([stream]) as sending:
            left = len(stream)
            while left > 0 or self.receiver.held:
                if self.natively:
                    inserted = self.storage.tape.inserted
                    nbytes, frames, items, rows, partial, seen = self.writer.take_frames(
                        self.receiver,
                        sending.sock.fileno(),
                        PRODUCER,
                        self.seen,
                        most,
                        inserted,
                        most_open,
                    )
                    assert partial == 0 and rows >= items >= frames
                    assert self.storage.tape.inserted == inserted + rows
                    self.native_frames += frames
                    self.seen = seen or self.seen
                else:
                    nbytes = self.receiver.receive(sending.sock.fileno())
                left -= nbytes
                if not self._front() and (left <= 0 or self.refusal):
                    return

    def _front(self) -> bool:
        """Handles one frame at the front, as a connection does; False: there is none."""
        state = self.receiver.next()
        if state == BAD or (state == GROW and self.natively):
            self.refusal = self.receiver.refusal
        if state != READY or self.refusal:
            return False
        if self.receiver.type != ITEMS:
            self.refusal = "type"
        elif not self.receiver.check_items(STEP.record_size, True):
            self.refusal = self.receiver.refusal
        elif self.receiver.number > self.seen:
            self.refusal = "gap"
        if self.refusal:
            return False
        before = self.receiver.number + self.receiver.runs
        seen, _, _, gap = _native.accept_runs(
            self.writer, self.receiver, PRODUCER, NO_BOUND, self.seen
        )
        assert not gap and seen == max(before, self.seen)
        self.seen = seen
        self.plain_frames += 1
        self.receiver.pop()
        return True

    def contents(self) -> Any:
        """Everything on the tape but when, and by which writer, it was written."""
        episodes = self.storage.episodes()
        names = [n for n in episodes.dtype.names or () if n not in ("time", "writer")]
        rows = []
        for number in episodes["id"]:
            tree = self.storage.read_episode(int(number)).tree()
            rows.append([tree["n"].tolist(), tree["obs"].tolist(), tree["next"]["done"].tolist()])
        return self.storage.tape.snapshot(), [episodes[n].tolist() for n in names], rows


KINDS = st.sampled_from(["begins", "ends", "goes on", "whole", "lanes", "step"])
ODD = (
    "none",
    "again",
    "partly again",
    "gap",
    "other kind",
    "damaged",
    "header",
    "wrong size",
    "no runs",
    "rows of runs",
    "unknown flag",
    "lanes that do not fit",
    "a bool that is none",
)


def odd_frame(odd: str, good: bytes, before: bytes | None, script: Script, where: int) -> bytes:
    """A frame that is not the one to come."""
    head, runs = 40, struct.unpack_from("<I", good, 16)[0]
    number, rows = struct.unpack_from("<Q", good, 8)[0], struct.unpack_from("<I", good, 20)[0]
    body = bytearray(good[head:])
    if odd == "again" and before is not None:
        return before
    if odd == "gap":
        number += 1
    elif odd == "other kind":
        return frame(GET, 0, b"12345678")
    elif odd in ("damaged", "header"):
        whole = bytearray(good)
        whole[where % head if odd == "header" else head + where % len(body)] ^= 1 << where % 8
        return bytes(whole)
    elif odd == "wrong size":
        body = body[:-1]
    elif odd == "no runs":
        return frame(ITEMS, number, bytes(body[32 * runs :]), rows=rows)
    elif odd == "rows of runs":
        body[0] += 1
    elif odd == "unknown flag":
        body[4] |= 128
    elif odd == "lanes that do not fit":
        struct.pack_into("<II", body, 0, rows, MARKED)
        struct.pack_into("<I", body, 24, rows + 1)
    elif odd == "a bool that is none":
        done = next(x for x in STEP.leaves if x.dtype == bool)
        body[32 * runs + where % rows * STEP.record_size + done.offset] = 2
    return frame(ITEMS, number, bytes(body), runs, rows)


@given(
    frames=st.lists(st.lists(KINDS, min_size=1, max_size=4), min_size=1, max_size=6),
    odd=st.sampled_from(ODD),
    at=st.integers(0, 5),
    where=st.integers(0, 1 << 30),
)
def test_a_tape_takes_frames_natively(
    frames: list[list[str]], odd: str, at: int, where: int
) -> None:
    """Both ways leave the same tape and the same verdict; natively, all but the odd ones go in."""
    script = Script()
    stream = [script.frame(kinds) for kinds in frames]
    at %= len(stream)
    strange = 0
    if odd == "partly again":  # the items of two frames in one, the first of which is in
        script = Script()
        stream = [script.frame(kinds) for kinds in frames[:at]]
        again = Script()
        again.items, again.rows = script.items, script.rows
        stream.append(again.frame(frames[at]))
        both = Script()
        both.items, both.rows = script.items, script.rows
        stream.append(both.frame(frames[at] + ["whole"]))
        strange = 1
    elif odd != "none":
        extra = odd_frame(odd, stream[at], stream[at - 1] if at else None, script, where)
        stream[at:at] = [extra]
        strange = int(extra != stream[at + 1])
    sides = [TapeSide(natively=True), TapeSide(natively=False)]
    for side in sides:
        side.take(b"".join(stream))
    native, plain = sides
    assert native.contents() == plain.contents()
    assert (native.seen, native.refusal) == (plain.seen, plain.refusal)
    if not native.refusal and odd not in ("header", "damaged"):
        assert native.native_frames + native.plain_frames == len(stream)
        assert native.plain_frames == strange or (odd == "again" and not at)
    for side in sides:
        side.storage.close()


def test_a_tape_takes_no_more_than_it_is_let() -> None:
    """Rows that a rate limiter has no room for, and memory of open trajectories."""
    script = Script()
    stream = b"".join(script.frame(["whole", "whole"]) for _ in range(10))
    side = TapeSide(natively=True)
    receiver, writer, tape = side.receiver, side.writer, side.storage.tape
    with Sending([stream]) as sending:

        def take(following: int, most: int, inserted: int, most_open: int = NO_BOUND) -> Any:
            sock = sending.sock.fileno()
            return writer.take_frames(
                receiver, sock, PRODUCER, following, most, inserted, most_open
            )[1:]

        while receiver.held < len(stream):
            assert take(0, 3, 0) == (0, 0, 0, 0, 0)  # a frame has 4 rows
        assert take(0, 11, 1) == (0, 0, 0, 0, 0)  # somebody else has inserted meanwhile
        assert take(0, 11, 0) == (2, 4, 8, 0, 4)
        assert take(4, 4, 8) == (1, 2, 4, 0, 6)
        assert take(6, NO_BOUND, 0, most_open=0)[:3] == (0, 0, 0)
        assert take(5, NO_BOUND, 0) == (0, 0, 0, 0, 0)  # not what comes next
        assert take(6, NO_BOUND, 0) == (7, 14, 28, 0, 20)
    assert tape.seen(PRODUCER, 0) == 20 and receiver.held == 0
    side.storage.close()
