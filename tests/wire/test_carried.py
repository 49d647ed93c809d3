"""Frames that leave out slots that came before: made, completed, taken in, and refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from contig import _native, wire
from contig._native import Received, RunFlag
from tests.tape.observations import Form as Observed
from tests.wire.carried import CARRIED, KEPT, Keeper, fields_of, sealed, shared_with
from tests.wire.compact import COMPACT, Form, form_of
from tests.wire.mutate import pack_runs
from tests.wire.naive import Run, runs_of, seal
from tests.wire.observed_rows import OBSERVED, add_run, form_for, made, records_of
from tests.wire.test_compact import expanded

LANE = RunFlag.MARKED | RunFlag.GOES_ON
MORE, READY, GROW, BAD = Received


def inflight(form: Form, carry: int, frame_bytes: int = 1 << 19, first: int = 0) -> Any:
    """That sends at once whatever there is."""
    made = _native.Inflight(form.record_size, True, first, frame_bytes, 1000)
    made.builder.set_shared(form.schema.shared_form, 1 << 20)
    made.carry(carry)
    made.close()
    return made


def frames_of(flight: Any) -> list[bytes]:
    """Everything that is to be sent now, frame by frame."""
    data, out = b"", []
    while parts := flight.next_parts():
        data += b"".join(bytes(memoryview(p)) for p in parts)
    while data:
        size = 40 + fields_of(data).length
        out.append(data[:size])
        data = data[size:]
    return out


class Peer:
    """A connection's receiver, and a naive one."""

    def __init__(self, form: Form, carry: int, max_frame: int = 1 << 24, size: int = 64) -> None:
        self.form = form
        self.naive = Keeper(form, carry, max_frame)
        self.receiver = form.receiver(seal(fields_of(bytes(40))._replace(type=14), b""))
        self.receiver.pop()
        self.receiver.resize(size)
        self.receiver.max_frame, self.receiver.carry = max_frame, carry

    def feed(self, data: bytes, rng: random.Random) -> str:
        """Takes in frames that come in pieces; what is wrong with the first that is not right."""
        receiver, at, sent = self.receiver, 0, data
        while True:
            state = receiver.next()
            if state == GROW:
                receiver.resize(receiver.needed + rng.choice([0, 0, 1, 500]))
            elif state == MORE:
                if at == len(data):
                    assert receiver.held == 0
                    return "none"
                n = min(rng.choice([1, 30, 200, 4096]), len(receiver.room()))
                assert n > 0
                receiver.feed(data[at : at + n])
                at = min(at + n, len(data))
            else:
                size = 40 + fields_of(sent).length
                if state == READY and receiver.type != 4:  # is none of the frames that count
                    sent = sent[size:]
                    receiver.pop()
                    continue
                expected, whole = self.naive.take(sent[:size])
                sent = sent[size:]
                if state == READY:
                    fits = receiver.check_items(self.form.record_size, True)
                    assert fits == (expected == "none"), (expected, receiver.refusal)
                assert receiver.refusal == expected
                if expected != "none":
                    return expected
                assert receiver.payload() == whole[40:]
                self.took(whole)
                receiver.pop()

    def took(self, whole: bytes) -> None: ...


class Rows(Peer):
    """That has the records."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.records: list[bytes] = []
        self.seen = 0

    def took(self, whole: bytes) -> None:
        fields = fields_of(whole)
        assert fields.number <= self.seen
        again = runs_of(whole[40:], fields.runs)[: self.seen - fields.number]
        self.records += expanded(self.form, whole)[sum(run.rows for run in again) :]
        self.seen = max(self.seen, fields.number + fields.runs)


@pytest.mark.parametrize("observed", OBSERVED)
def test_what_comes_out(observed: Observed) -> None:
    """Is what went in, in whatever calls, over whatever connections; and less is sent."""
    left_out = 0
    for seed in range(12):
        rng = random.Random(seed)
        episodes = made(observed, seed, 12, 9)
        form = form_for(observed, episodes[0][0])
        carry = rng.choice([0, 3 * form.slot_bytes, 1 << 20])
        flight = inflight(form, carry, rng.choice([300, 2000, 1 << 19]))
        peer, put, acked = Rows(form, carry), [], 0
        for number, rows in enumerate(episodes):
            for record in records_of(form.layout, rows):
                put.append(record)
                told = (LANE, -1, 1) if number % 3 == 0 else (0, number, 0)
                add_run(flight.builder, [record], told, rng.random() < 0.5)
                if rng.random() < 0.2:  # other trajectories in between
                    other = rng.choice(put)
                    put.append(other)
                    add_run(flight.builder, [other], (0, 1000 + rng.randrange(3), 0), False)
                if rng.random() < 0.8:
                    sent = frames_of(flight)
                    left_out += sum(bool(fields_of(s).flags & CARRIED) for s in sent)
                    arrived = sent[: rng.randrange(len(sent) + 1)] if rng.random() < 0.1 else sent
                    assert peer.feed(b"".join(arrived), rng) == "none"
                    if arrived != sent or rng.random() < 0.05:  # the connection is lost
                        flight.resume(rng.choice([acked, peer.seen]), [])
                        again = Rows(form, carry)
                        again.records, again.seen = peer.records, peer.seen
                        peer = again
                    elif rng.random() < 0.5:
                        acked = peer.seen
                        flight.ack(acked)
        assert peer.feed(b"".join(frames_of(flight)), rng) == "none"
        assert peer.records == put and peer.seen == flight.builder.next
    assert left_out > 50


def steps(n: int, width: int = 5) -> tuple[Form, list[bytes]]:
    """Rows of one env, each with one new observation."""
    rows: list[Any] = []
    for t in range(n):
        now, then = (np.arange(width, dtype=np.float32) + 100 * x for x in (t, t + 1))
        rows.append({"obs": now, "next": {"obs": then, "done": np.bool_(False)}})
    form = form_of(rows[0], stack={})
    return form, records_of(form.layout, rows)


def step_frames(form: Form, records: list[bytes], carry: int) -> list[bytes]:
    """Each of them as a frame, sent before the next one comes."""
    flight, out = inflight(form, carry), []
    for number, record in enumerate(records):
        add_run(flight.builder, [record], (1 if number == 0 else 0, 7, 0), False)
        out += frames_of(flight)
    return out


def test_single_steps() -> None:
    """One observation each, but for the first."""
    form, records = steps(20, 50)
    sent = step_frames(form, records, 1 << 20)
    assert [fields_of(s).flags for s in sent] == [5, *([7] * 19)]
    assert all(len(s) == len(sent[1]) for s in sent[1:])
    assert len(sent[0]) - len(sent[1]) == form.slot_bytes - 12
    old = step_frames(form, records, 0)
    assert [fields_of(s).flags for s in old] == [COMPACT] * 20
    assert all(len(s) == len(sent[0]) for s in old)


def test_streams_in_turn() -> None:
    """Steps of several trajectories, each its own frame: what went before is still there."""
    form, records = steps(20, 50)
    flight, sent = inflight(form, 1 << 20), []
    for record in records:
        for trajectory in range(5):
            add_run(flight.builder, [record], (0, trajectory, 0), False)
            sent += frames_of(flight)
    assert [fields_of(s).flags for s in sent] == [5] * 5 + [7] * 95
    assert all(len(s) == len(sent[5]) for s in sent[5:])
    few = [s for s in sent if fields_of(s).flags & CARRIED]
    flight, sent = inflight(form, 9 * form.slot_bytes), []
    for record in records:  # of five, two slots each: the oldest one is gone
        for trajectory in range(5):
            add_run(flight.builder, [record], (0, trajectory, 0), False)
            sent += frames_of(flight)
    assert 0 < sum(bool(fields_of(s).flags & CARRIED) for s in sent) <= len(few)
    peer = Rows(form, 9 * form.slot_bytes)
    assert peer.feed(b"".join(sent), random.Random(0)) == "none"
    assert peer.records == [r for r in records for _ in range(5)]


def test_frames_that_are_not_kept() -> None:
    """Of more slots than the server keeps, or of many steps: they change nothing."""
    form, records = steps(30)
    few = step_frames(form, records[:6], 2 * form.slot_bytes - 1)
    assert [fields_of(s).flags for s in few] == [COMPACT] * 6
    flight = inflight(form, 1 << 20)
    sent = []
    for at, n in ((0, 3), (3, 9), (12, 1), (13, 1)):
        add_run(flight.builder, records[at : at + n], (0, 7, 0), False)
        sent += frames_of(flight)
    assert [fields_of(s).flags for s in sent] == [COMPACT | KEPT, COMPACT, COMPACT | KEPT, 7]
    peer = Rows(form, 1 << 20)
    assert peer.feed(b"".join(sent), random.Random(0)) == "none"
    assert peer.records == records[:14]


def test_the_first_frame_of_a_connection() -> None:
    """Has all of its slots, whatever it was sent with before."""
    form, records = steps(10)
    flight = inflight(form, 1 << 20)
    for record in records[:4]:
        add_run(flight.builder, [record], (0, 7, 0), False)
        frames_of(flight)
    flight.ack(2)
    for seen, flags in ((2, [5, 7]), (3, [5])):
        flight.resume(seen, [])
        assert [fields_of(s).flags for s in frames_of(flight)] == flags
    add_run(flight.builder, [records[4]], (0, 7, 0), False)
    assert [fields_of(s).flags for s in frames_of(flight)] == [7]
    # A server that keeps nothing, and one that has another form.
    flight.carry(0)
    flight.resume(4, [])
    add_run(flight.builder, [records[5]], (0, 7, 0), False)
    assert [fields_of(s).flags for s in frames_of(flight)] == [1, 1]
    flight.carry(1 << 20)
    flight.resume(5, [])
    flight.reshape(form.schema.shared_form, 1 << 20)
    for record in records[6:8]:
        add_run(flight.builder, [record], (0, 7, 0), False)
        sent = frames_of(flight)
        assert [fields_of(s).flags for s in sent][-1] == (5 if record == records[6] else 7)
    assert fields_of(sent[0]).flags == 7


def test_rows_that_did_not_go_in() -> None:
    """What a call left behind that failed is not taken for what the next row goes on from."""
    form, records = steps(12)
    flight, peer, rng = inflight(form, 1 << 20), Rows(form, 1 << 20), random.Random(0)
    put = []
    for number, record in enumerate(records):
        if number % 3 == 1:
            with pytest.raises(ValueError):
                add_run(flight.builder, [record, record], (LANE, -1, 3), False)
        add_run(flight.builder, [record], (LANE, -1, 1), False)
        put.append(record)
        assert peer.feed(b"".join(frames_of(flight)), rng) == "none"
    assert peer.records == put


# As the first version that had them made them: a frame whose slots are to be kept, and one that
# leaves out the newest of them.
KEPT_BYTES = """
    6346726d 04 05 0000 0000000000000000 01000000 01000000 4c00000000000000 397fac07 b3d3b8e4
    01000000 01000000 0700000000000000 ffffffffffffffff 00000000 00000000
    000000000100000000000000
    000000000000803f0000004000004040 0000c8420000ca420000cc420000ce42

    6346726d 04 07 0000 0100000000000000 01000000 01000000 4800000000000000 1a02117b bd1304d5
    01000000 00000000 0700000000000000 ffffffffffffffff 00000000 00000000
    01000000 00000000 00000000
    000000000100000000000000
    000048430000494300004a4300004b43
"""


def test_kept_frames() -> None:
    """Made as ever, and completed as ever."""
    form, records = steps(2, 4)
    sent = step_frames(form, records, 1 << 20)
    assert sent == [bytes.fromhex(one) for one in KEPT_BYTES.strip().split("\n\n")]
    peer = Rows(form, 1 << 20)
    assert peer.feed(b"".join(sent), random.Random(0)) == "none" and peer.records == records


def test_refused() -> None:
    """Whatever does not fit together is refused, and for what."""
    form, records = steps(4)
    rows, slots = form.packed(records[:1])
    run = [Run(1, 0, 7, -1, 0)]
    following, others = form.packed(records[1:2])
    first = sealed(run, rows, slots, kept=True)
    good: list[tuple[int, int]] = [(0, 0)]
    assert shared_with(others, slots, random.Random(1)) == good

    def after(sent: bytes, before: bytes = first, **options: Any) -> str:
        peer = Peer(form, **{"carry": 1 << 20, **options})
        return peer.feed(before + sent, random.Random(0))

    def behind(table: Any, **said: Any) -> bytes:
        return sealed(run, following, others, table, first=1, **said)

    assert after(behind(good)) == after(behind(None)) == after(behind(good, kept=True)) == "none"
    whole = sealed(run, rows, slots)
    for table in ([], [(0, 2)], [(0, 2**32 - 1)], [(2, 0)], [(0, 0), (1, 0)], [(1, 1), (0, 0)]):
        assert after(behind(table)) == "shape", table
    assert after(behind(good), b"") == "shape"  # no frame before
    assert after(behind(good), whole) == "shape"  # one that is not kept
    assert after(behind(good), first + whole) == "none"  # but that before it is
    assert after(behind(good), first + seal(fields_of(bytes(40))._replace(type=14), b"")) == "none"
    # More than is kept, and more than a frame may have.
    assert after(b"", carry=0) == after(b"", carry=form.slot_bytes - 1) == "shape"
    assert after(behind(good), carry=form.slot_bytes) == "none"
    assert after(behind([(0, 1)]), carry=form.slot_bytes) == "shape"
    long = sealed(two := [Run(2, 0, 7, -1, 0)], *(pair := form.packed(records[1:3])), good)
    whole = sealed(two, *pair)
    assert len(first) < len(long) < len(whole)
    assert after(long, max_frame=len(whole)) == "none"
    assert after(long, max_frame=len(whole) - 1) == "size"
    # Flags that mean nothing without compact rows.
    payload = b"".join(records[:1])
    for flags in (CARRIED, KEPT, CARRIED | KEPT):
        body = pack_runs(run) + payload
        said = fields_of(first)._replace(flags=flags, length=len(body))
        assert after(seal(said, body), b"") == "shape"


@pytest.mark.parametrize(
    ("said", "kept"), [(None, 0), (0, 0), (4096, 4096), (64 << 20, 64 << 20), (1 << 62, 0)]
)
def test_what_a_server_says_of_memory(said: int | None, kept: int) -> None:
    """A client keeps as much as its server; for one that says that it keeps everything, nothing."""
    shared = {} if said is None else {"carry": said}
    assert wire.carry_of({"shared": shared}) == kept
    assert wire.carry_of(None) == 0


@pytest.mark.parametrize("said", [-1, 1.5, True, "many", 1 << 63])
def test_a_server_that_says_something_else(said: Any) -> None:
    with pytest.raises(ValueError, match="carry"):
        wire.carry_of({"shared": {"carry": said}})
