"""Rows whose observations come once, into tapes: the same as rows that come whole."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from contig import Layout, LazyTensorStorage, _native
from contig._native import RunFlag
from tests.tape.observations import Form as Observed
from tests.tape.observations import batch_bytes
from tests.wire import compact
from tests.wire.compact import Form, form_of, sealed
from tests.wire.naive import Fields, Run
from tests.wire.observed_rows import (
    OBSERVED,
    add_run,
    form_for,
    made,
    records_of,
    storage_for,
    take_all,
)

PRODUCER, MANY = 77, 1 << 62
# As the first version that had compact rows made it: header, run, two rows, three slots.
KEPT = """
    6346726d 04 01 0000 0900000000000000 01000000 02000000 6800000000000000 f4fab215 0323a764
    02000000 03000000 0700000000000000 ffffffffffffffff 00000000 00000000
    00000000 01000000 0000000000000000 00 00 00 303030 0000
    01000000 02000000 000000000000f03f 01 01 00 313131 0000
    0000000000000000 0101010101010101 0202020202020202
"""


def test_a_kept_frame() -> None:
    """Made as ever, and taken in as ever."""

    def row(t: int) -> Any:
        obs, following = np.full(8, t, np.uint8), np.full(8, t + 1, np.uint8)
        said = {"reward": np.float64(t), "done": np.bool_(t == 1)}
        return {"obs": obs, "odd": np.full(3, 48 + t, np.uint8), "next": {"obs": following, **said}}

    form = form_of(row(0), stack={})
    builder = _native.FrameBuilder(form.record_size, True, 9, 1 << 16)
    builder.set_shared(form.schema.shared_form, 1 << 16)
    add_run(builder, records_of(form.layout, [row(0), row(1)]), (1 | 2, 7, 0), False)
    assert take_all(builder) == [bytes.fromhex(KEPT)]
    side = Side(form, LazyTensorStorage(10, example=row(0), share_next=True, stack={}))
    side.seen = 9
    assert side.take(bytes.fromhex(KEPT))
    assert side.rows()["next", "obs"] == bytes([1] * 8 + [2] * 8)
    assert side.storage.tape.slots_given == 3


class Side:
    """A tape, and the writer of its producer."""

    def __init__(self, form: Form, storage: Any) -> None:
        self.form, self.storage, self.seen = form, storage, 0
        self.writer = storage.native_writer(storage.schema)

    def take(self, sent: bytes, most_rows: int = MANY, times: int = 1) -> bool:
        """At most so many rows at a time and no more often; whether all of it is in."""
        receiver = self.form.receiver(sent, self.storage.schema.sharing is not None)
        assert receiver.check_items(self.form.record_size, True)
        for _ in range(times):
            answer = _native.accept_runs(self.writer, receiver, PRODUCER, most_rows, self.seen)
            assert not answer[3]
            self.seen = max(self.seen, answer[0])
        return self.seen >= receiver.number + receiver.runs

    def rows(self) -> dict[Any, bytes]:
        return gathered(self.storage)


def gathered(storage: Any, most: int = MANY) -> dict[Any, bytes]:
    """Its newest rows."""
    head, tail, *_ = storage.tape.snapshot()
    batch, lost = storage.gather(np.arange(max(tail, head - most), head, dtype=np.int64))
    assert not lost
    return batch_bytes(batch)


@pytest.mark.parametrize("observed", OBSERVED)
@pytest.mark.parametrize("capacity", [1000, 70, 17])
def test_parts_and_resends(observed: Observed, capacity: int) -> None:
    """Frames taken in in part, given up, and sent again with other bounds; rows are the same as in
    a tape that has them whole, and in one that they were written to here."""
    for seed in range(4):
        rng = random.Random(f"{seed} {capacity}")
        episodes = made(observed, seed, 40, 9)
        form = form_for(observed, episodes[0][0])
        side = Side(form, storage_for(observed, episodes[0][0], capacity))
        plain = storage_for(observed, episodes[0][0], capacity, shares=False)
        here = storage_for(observed, episodes[0][0], capacity)
        items = []
        for number, rows in enumerate(episodes):
            cut = rng.randint(1, len(rows))
            parts = [rows[:cut], rows[cut:]] if cut < len(rows) else [rows]
            for i, part in enumerate(parts):
                flags = RunFlag.BEGINS * (i == 0) | RunFlag.TERMINATED * (i == len(parts) - 1)
                items.append((records_of(form.layout, part), flags, number, part))
        while side.seen < len(items):
            first = side.seen - (side.seen > 0 and rng.random() < 0.3)  # is in already
            chosen = items[first : side.seen + rng.randint(1, 6)]
            records = [r for item in chosen for r in item[0]]
            runs = [Run(len(r), int(f), n, -1, 0) for r, f, n, _ in chosen]
            sent = sealed(runs, *form.packed(records, rng), first)
            side.take(sent, rng.choice([1, 3, 10, MANY]), rng.choice([1, 1, 2, 5]))
        for storage in (plain, here):
            writer = storage.native_writer(storage.schema)
            for records, flags, number, _ in items:
                writer.append_part(
                    np.frombuffer(b"".join(records), np.uint8), int(flags), number, -1
                )
        # What a tape evicts depends on how large its appends are.
        lengths = [s.tape.snapshot()[0] - s.tape.snapshot()[1] for s in (side.storage, plain, here)]
        assert min(lengths) > capacity // 2 or (capacity == 1000 and len(set(lengths)) == 1)
        rows = [gathered(s, min(lengths)) for s in (side.storage, plain, here)]
        assert rows[0] == rows[1] == rows[2]


def test_observations_stored_once() -> None:
    """A frame that begins in the middle of a trajectory refers to what is there."""
    seen = np.arange(101 * 30, dtype=np.float32).reshape(101, 30)
    row = {"obs": seen[0], "next": {"obs": seen[1], "done": np.bool_(False)}}
    form = form_of(row)
    side = Side(form, LazyTensorStorage(1000, example=row, share_next=True))
    for t in range(100):
        row = {"obs": seen[t], "next": {"obs": seen[t + 1], "done": np.bool_(t == 99)}}
        rows, slots = form.packed(records_of(form.layout, [row]))
        assert len(slots) == 2
        assert side.take(sealed([Run(1, int(t == 0), 5, -1, 0)], rows, slots, t))
    assert side.storage.tape.slots_given == 101


def test_slots_far_behind() -> None:
    """What was referred to long before in the same frame is stored once more, not out of reach."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (4000, 16)).astype(np.uint8)
    first = {"obs": values[0], "next": {"obs": values[0], "done": np.bool_(False)}}
    form = form_of(first)
    side = Side(form, LazyTensorStorage(200, example=first, share_next=True))
    plain = Side(form, LazyTensorStorage(200, example=first, share_next=False))
    for n in range(12):  # each third row refers to the frame's first observation
        rows = []
        for t in range(90):
            now = values[90 * n] if t % 3 == 2 else values[90 * n + t]
            rows.append({"obs": now, "next": {"obs": values[t], "done": np.bool_(False)}})
        records = records_of(form.layout, rows)
        whole = compact.pack_runs([Run(90, 0, 5, -1, 0)]) + b"".join(records)
        fields = Fields(4, 0, 0, n, 1, 90, len(whole))
        assert side.take(sealed([Run(90, 0, 5, -1, 0)], *form.packed(records), n))
        assert plain.take(compact.seal(fields, whole))
        assert side.rows() == plain.rows()


def test_marks_in_slots() -> None:
    """Ids and versions that are below next, too, are read where they are."""
    row = {
        "obs": np.zeros(30),
        "episode": np.int64(0),
        "next": {"obs": np.zeros(30), "episode": np.int64(0), "done": np.bool_(False)},
    }
    storage = LazyTensorStorage(1000, share_next=True, stack={})
    storage.bind_keys("episode", None)
    storage.publish(Layout(row))
    form = Form(storage.schema)
    assert ("episode",) in {x.path for x in storage.schema.sharing.leaves}
    side = Side(form, storage)
    rows = []
    for t in range(20):
        rows.append({**row, "obs": np.full(30, t), "episode": np.int64(t // 4)})
        rows[-1]["next"] = {**row["next"], "obs": np.full(30, t + 1), "episode": np.int64(t // 4)}
    records = records_of(form.layout, rows)
    assert side.take(sealed([Run(20, int(RunFlag.MARKED), -1, -1, 1)], *form.packed(records)))
    assert [int(entry["steps"]) for entry in side.storage.episodes()] == [4] * 5


def test_forms_of_others() -> None:
    """Frames, builders and tapes of different forms do not go together."""
    small, large = (form_of({"obs": np.zeros(n), "next": {"obs": np.zeros(n)}}) for n in (9, 19))
    builder = _native.FrameBuilder(small.record_size, True, 0, 1 << 16)
    with pytest.raises(ValueError, match="larger records"):
        builder.set_shared(large.schema.shared_form, 1 << 16)
    builder.set_shared(small.schema.shared_form, 1 << 16)
    with pytest.raises(ValueError, match="behind a run"):
        builder.add_records(np.zeros(small.record_size, np.uint8))
    row = {"obs": np.zeros((3, 3)), "next": {"obs": np.zeros((3, 3))}}
    storage = LazyTensorStorage(10, example=row, share_next=True, stack={"obs": 3})
    side = Side(small, storage)
    assert storage.layout is not None and storage.layout.record_size == small.record_size
    with pytest.raises(ValueError, match="other slots"):
        side.take(sealed([Run(1, 1, 5, -1, 0)], *small.packed([bytes(small.record_size)])))
