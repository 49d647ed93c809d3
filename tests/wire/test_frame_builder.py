"""What a client has to send, against the naive list of what was put in.

Frames are taken, concatenated, cut at random and parsed again: the items come out as they went in.
Runs that grew must mean, row by row, what the runs they were made of meant.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from contig import Layout, _native
from contig._native import Received, RunFlag


class Run(NamedTuple):
    flags: int
    traj_id: int
    version: int
    lanes: int
    records: list[bytes]


def take_all(box: Any) -> list[Any]:
    frames = []
    while (frame := box.take(True)) is not None:
        frames.append(frame)
    return frames


def parse(
    frames: list[Any], record_size: int, runs: bool, cuts: list[int]
) -> list[tuple[int, int, int, bytes]]:
    """(number, runs, rows, payload) of each frame, read from one stream in pieces."""
    stream = b"".join(f.head + bytes(f) for f in frames)
    receiver = _native.Receiver(max(len(stream), 64), 1 << 30)
    found, bounds = [], sorted({0, len(stream), *(c % (len(stream) + 1) for c in cuts)})
    for start, end in pairwise(bounds):
        while start < end:
            taken = min(end - start, len(receiver.room()))  # a large frame's end, and no further
            receiver.feed(stream[start : start + taken])
            start += taken
            while (state := receiver.next()) == Received.READY:
                assert receiver.type == 4 and receiver.check_items(record_size, runs)
                found.append((receiver.number, receiver.runs, receiver.rows, receiver.payload()))
                receiver.pop()
            assert state == 0
    assert receiver.held == 0 and len(found) == len(frames)
    return found


def check_frames(frames: list[Any], parsed: list[Any], first: int, following: int) -> None:
    for frame, (number, runs, rows, payload) in zip(frames, parsed):
        assert frame.first == number == first
        assert frame.items == (runs or rows) > 0
        assert frame.nbytes == 40 + len(payload)
        first += frame.items
    assert first == following


def split(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


counts = st.integers(1, 12)
cuts = st.lists(st.integers(0, 1 << 20), max_size=8)


@given(
    size=st.integers(1, 33),
    first=st.integers(0, 2**62),
    frame_bytes=st.integers(1, 400),
    calls=st.lists(st.one_of(counts, st.sampled_from(["take", "full"])), max_size=40),
    cuts=cuts,
    seed=st.integers(0, 99),
)
def test_records(
    size: int, first: int, frame_bytes: int, calls: list[Any], cuts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    box = _native.FrameBuilder(size, False, first, frame_bytes)
    sent, frames, largest = [], [], 0
    for call in calls:
        if call == "full":
            frame = box.take(False)
        elif call == "take":
            frame = box.take(True)
            assert (frame is None) == (len(sent) == sum(f.items for f in frames))
        else:
            frame = None
            records = rng.integers(0, 256, call * size, np.uint8)
            box.add_records(records)
            sent += split(records.tobytes(), size)
            largest = max(largest, call * size)
        if frame is not None:
            frames.append(frame)
    assert box.next == first + len(sent)
    frames += take_all(box)
    assert box.take(True) is None
    parsed = parse(frames, size, False, cuts)
    check_frames(frames, parsed, first, box.next)
    assert [r for *_, payload in parsed for r in split(payload, size)] == sent
    assert all(len(bytes(f)) <= max(frame_bytes, largest) for f in frames)


def rows_of(run: Run) -> list[tuple[Any, ...]]:
    """What a run says of each of its rows."""
    last = len(run.records) - 1
    if run.flags & RunFlag.MARKED:
        per_lane = len(run.records) // run.lanes
        if run.flags == RunFlag.MARKED | RunFlag.GOES_ON and run.lanes == 1:
            return [("lane", record) for record in run.records]
        # Where the run starts matters: all but "goes on" begins something there.
        return [
            ("marked", run.flags, run.lanes, i % per_lane if i else "first", record)
            for i, record in enumerate(run.records)
        ]
    return [
        (
            "told",
            run.traj_id,
            run.version,
            run.flags & 1 if i == 0 else 0,
            run.flags & 6 if i == last else 0,
            record,
        )
        for i, record in enumerate(run.records)
    ]


told = st.tuples(
    st.integers(0, 7), st.sampled_from([-1, 0, 3]), st.sampled_from([-1, 9]), st.just(0), counts
)
marked = st.builds(
    lambda more, lanes, each: (RunFlag.MARKED | more, -1, -1, lanes, lanes * each),
    st.sampled_from([0, RunFlag.GOES_ON, RunFlag.GOES_ON, RunFlag.GOES_ON, RunFlag.TOLD]),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.integers(1, 4),
)


@given(
    size=st.integers(1, 17),
    frame_bytes=st.integers(1, 600),
    calls=st.lists(
        st.one_of(
            st.tuples(st.one_of(told, marked), st.booleans()), st.sampled_from(["take", "full"])
        ),
        max_size=40,
    ),
    cuts=cuts,
    seed=st.integers(0, 99),
)
def test_runs(size: int, frame_bytes: int, calls: list[Any], cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    box = _native.FrameBuilder(size, False, 5, frame_bytes)
    sent: list[Run] = []
    frames: list[Any] = []
    for call in calls:
        if isinstance(call, str):
            frame = box.take(call == "take")
            if frame is not None:
                frames.append(frame)
            continue
        (flags, traj_id, version, lanes, rows), may_grow = call
        records = rng.integers(0, 256, rows * size, np.uint8)
        before = box.next
        box.add_run(records, flags, traj_id, version, lanes, may_grow)
        assert box.next - before in ((0, 1) if may_grow else (1,))
        sent.append(Run(flags, traj_id, version, lanes, split(records.tobytes(), size)))
    frames += take_all(box)
    parsed = parse(frames, size, True, cuts)
    check_frames(frames, parsed, 5, box.next)
    got: list[Run] = []
    for _, runs, _, payload in parsed:
        records = split(payload[32 * runs :], size)
        for i in range(runs):
            n, flags, traj_id, version, lanes, zero = struct.unpack_from("<IIqqII", payload, 32 * i)
            assert zero == 0
            got.append(Run(flags, traj_id, version, lanes, records[:n]))
            records = records[n:]
        assert not records
    assert [x for run in got for x in rows_of(run)] == [x for run in sent for x in rows_of(run)]
    assert len(got) <= len(sent)
    assert all(f.nbytes - 40 <= frame_bytes for f in frames if f.items > 1)


def test_what_grows() -> None:
    def runs_of(*calls: tuple[int, int, int, int]) -> list[tuple[int, int, int]]:
        """(rows, flags, trajectory) of the runs that runs of one row each become."""
        box = _native.FrameBuilder(1, False, 0, 1000)
        for n, (flags, traj_id, version, lanes) in enumerate(calls):
            box.add_run(np.full(1, n, np.uint8), flags, traj_id, version, lanes, True)
        (frame,) = take_all(box)
        return [struct.unpack_from("<IIq", frame.head, 40 + 32 * i) for i in range(frame.items)]

    begins, terminated, truncated = 1, 2, 4
    assert runs_of((begins, 1, 0, 0), (0, 1, 0, 0), (terminated, 1, 0, 0)) == [(3, 3, 1)]
    assert runs_of((begins, 1, 0, 0), (begins, 1, 0, 0)) == [(1, 1, 1), (1, 1, 1)]
    assert runs_of((truncated, 1, 0, 0), (0, 1, 0, 0)) == [(1, 4, 1), (1, 0, 1)]
    assert runs_of((begins, 1, 0, 0), (0, 2, 0, 0)) == [(1, 1, 1), (1, 0, 2)]
    assert runs_of((begins, 1, 0, 0), (0, 1, 7, 0)) == [(1, 1, 1), (1, 0, 1)]
    assert runs_of((48, -1, -1, 1), (48, -1, -1, 1)) == [(2, 48, 0)]
    assert runs_of((16, -1, -1, 1), (48, -1, -1, 1)) == [(1, 16, 0), (1, 48, 0)]
    assert runs_of((48, -1, -1, 1), (16, -1, -1, 1)) == [(1, 48, 0), (1, 16, 0)]
    assert runs_of((80, -1, -1, 1), (80, -1, -1, 1)) == [(1, 80, -1), (1, 80, -1)]
    assert runs_of((48, -1, -1, 1), (0, -1, -1, 0)) == [(1, 48, 0), (1, 0, -1)]


@given(values=st.lists(st.integers(0, 255), min_size=1, max_size=30), frame=st.integers(1, 200))
def test_packed_trees(values: list[int], frame: int) -> None:
    """Bytes between leaves are 0 although the memory was used before; a bad tree adds nothing."""
    layout = Layout({"a": np.uint8(0), "b": np.zeros(2), "c": np.int16(0)})
    for rows in (False, True):
        dirty = [_native.Block(2000) for _ in range(8)]
        for block in dirty:
            memoryview(block)[:] = b"\xaa" * 2000
        del dirty, block
        box = _native.FrameBuilder(layout.record_size, layout.padded, 0, frame)
        expected = []
        for value in values:
            tree = {"a": np.uint8(value), "b": np.full(2, value / 3), "c": np.int16(-value)}
            wrong = {**tree, "b": np.zeros(3)}
            if rows:
                assert not box.pack_row(layout.plan, wrong, 48, -1, -1, 1)
                assert box.pack_row(layout.plan, tree, 48, -1, -1, 1)
            else:
                assert not box.pack(layout.plan, wrong)
                assert box.pack(layout.plan, tree)
            expected.append(layout.pack_one(tree).tobytes())
        frames = take_all(box)
        parsed = parse(frames, layout.record_size, rows, [])
        check_frames(frames, parsed, 0, box.next)
        found = b"".join(payload[32 * runs :] for _, runs, _, payload in parsed)
        assert found == b"".join(expected)


@given(
    sizes=st.lists(st.sampled_from([0, 1, 8, 4095, 4096, 4099, 20_000]), min_size=1, max_size=12),
    count=st.integers(1, 4),
    runs=st.booleans(),
    seed=st.integers(0, 99),
)
@example(sizes=[4095, 4095, 20_000], count=4, runs=False, seed=0)
def test_checksums_taken_while_packing(sizes: list[int], count: int, runs: bool, seed: int) -> None:
    """Whatever the leaves' sizes and their order in the tree: the frame's checksum is right."""
    rng = np.random.default_rng(seed)
    keys = [f"k{i}" for i in rng.permutation(len(sizes))]
    trees = [
        {key: rng.integers(0, 256, size, np.uint8) for key, size in zip(keys, sizes)}
        for _ in range(count)
    ]
    for tree in trees:
        tree["n"] = np.float64(seed)  # with bytes between leaves
    layout = Layout(trees[0])
    box = _native.FrameBuilder(layout.record_size, layout.padded, 0, 100_000)
    for tree in trees:
        if runs:
            assert box.pack_row(layout.plan, tree, RunFlag.MARKED | RunFlag.GOES_ON, -1, -1, 1)
        else:
            assert box.pack(layout.plan, tree)
    cuts = list(range(60_000, 600_000, 60_000))
    parsed = parse(take_all(box), layout.record_size, runs, cuts)  # which refuses a wrong one
    found = b"".join(payload[32 * n_runs :] for _, n_runs, _, payload in parsed)
    assert found == b"".join(layout.pack_one(tree).tobytes() for tree in trees)
