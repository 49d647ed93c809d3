"""Frames of rows whose observations come once: made, and refused."""

from __future__ import annotations

import random
import struct
from collections import Counter

import numpy as np
import pytest

from contig import _native
from contig._native import RunFlag
from contig.tape.stacks import stacks_of
from tests.tape.observations import Form as Observed
from tests.wire import compact
from tests.wire.compact import COMPACT, Form, form_of, sealed
from tests.wire.naive import Fields, Run, runs_of
from tests.wire.observed_rows import OBSERVED, add_run, form_for, made, records_of, take_all

LANE = RunFlag.MARKED | RunFlag.GOES_ON


def expanded(form: Form, sent: bytes) -> list[bytes]:
    """The records of a frame that fits."""
    fields = Fields(*struct.unpack_from("<BBHQIIQ", sent, 4))
    assert fields.flags & COMPACT and compact.verdict(form, sent) == "none"
    rows = sent[40 + 32 * fields.runs :]
    slots = rows[fields.rows * form.row_bytes :]
    out = []
    for i in range(fields.rows):
        row = rows[i * form.row_bytes :][: form.row_bytes]
        record = bytearray(form.record_size)
        for offset, n, at in form.kept:
            record[offset : offset + n] = row[at : at + n]
        numbers = struct.unpack_from(f"<{form.references}I", row)
        for half in range(form.references // form.k):
            _put_observation(form, record, numbers[half * form.k :], slots, half == 1)
        out.append(bytes(record))
    return out


def _put_observation(
    form: Form, record: bytearray, numbers: tuple[int, ...], slots: bytes, following: bool
) -> None:
    at = 0
    for leaf in form.shared:
        where = leaf.next_offset if following else leaf.offset
        assert where is not None
        size = leaf.nbytes // leaf.frames
        for frame in range(leaf.frames):
            slot = numbers[form.k - leaf.frames + frame] * form.slot_bytes + at
            value = np.frombuffer(slots[slot : slot + size], np.uint8)
            whole = np.frombuffer(record, np.uint8)[where : where + leaf.nbytes]
            outer = 1 if leaf.leading else int(np.prod(leaf.shape[:-1]))
            pieces = whole.reshape(outer, leaf.frames, -1)
            pieces[:, frame] = value.reshape(outer, -1)
        at += size


@pytest.mark.parametrize("observed", OBSERVED)
def test_builder(observed: Observed) -> None:
    """Whatever is put in, in whatever calls, comes out; frames are as the page says."""
    for seed in range(12):
        rng = random.Random(seed)
        episodes = made(observed, seed, 8, 6)
        form = form_for(observed, episodes[0][0])
        builder = _native.FrameBuilder(form.record_size, True, 5, rng.choice([300, 2000, 1 << 19]))
        builder.set_shared(form.schema.shared_form, 1 << 20)
        put: list[bytes] = []
        frames: list[bytes] = []
        for number, rows in enumerate(episodes):
            records = records_of(form.layout, rows)
            put += records
            if rng.random() < 0.5:  # row by row
                for record in records:
                    add_run(builder, [record], rng.choice([(LANE, -1, 1), (0, number, 0)]), True)
            else:
                add_run(builder, records, (1, number, 0), False)
            if rng.random() < 0.2:
                frames += take_all(builder)
        frames += take_all(builder)
        assert [r for sent in frames for r in expanded(form, sent)] == put
        assert sum(_items(sent) for sent in frames) == builder.next - 5


def _items(sent: bytes) -> int:
    fields = Fields(*struct.unpack_from("<BBHQIIQ", sent, 4))
    return len(runs_of(sent[40:], fields.runs))


@pytest.mark.parametrize("frames", [1, 4])
def test_bytes(frames: int) -> None:
    """T steps of one env have T + 1 observations, or frames."""
    steps, frame = 64, 84 * 84
    seen = np.random.default_rng(0).integers(0, 256, (steps + frames, 84, 84)).astype(np.uint8)
    obs = np.stack([seen[i : i + steps + 1] for i in range(frames)], 1)
    row = {"obs": obs[0], "action": np.int64(0), "next": {"obs": obs[1], "done": np.bool_(False)}}
    form = form_of(row, stack=stacks_of({"obs": frames} if frames > 1 else {}))
    builder = _native.FrameBuilder(form.record_size, True, 0, 1 << 19)
    builder.set_shared(form.schema.shared_form, 1 << 22)
    for t in range(steps):
        row = {**row, "obs": obs[t], "next": {"obs": obs[t + 1], "done": np.bool_(t == steps - 1)}}
        add_run(builder, records_of(form.layout, [row]), (LANE, -1, 1), True)
    sent = take_all(builder)
    assert len(sent) <= 2  # and so there are two observations where a frame begins
    whole = steps * (2 * frames * frame)
    most = (steps + frames * len(sent)) * frame + steps * (form.row_bytes + 32) + 100
    assert sum(map(len, sent)) <= most < (0.55 if frames == 1 else 0.15) * whole


def test_rows_that_do_not_fit() -> None:
    """Stacks of different lengths, nothing the same: slots have more bytes than records."""
    rng = np.random.default_rng(0)
    row = {
        "obs": np.zeros((4, 8), np.uint8),
        "state": np.zeros(200, np.uint8),
        "next": {"obs": np.zeros((4, 8), np.uint8), "state": np.zeros(200, np.uint8)},
    }
    form = form_of(row, stack=stacks_of({"obs": 4}))
    rows = [
        {k: rng.integers(0, 256, np.shape(row[k])).astype(np.uint8) for k in ("obs", "state")}
        for _ in range(6)
    ]
    records = [bytes(form.layout.pack_one({**a, "next": b})) for a, b in zip(rows, rows[3:])]
    most = 4 * form.record_size + 64
    builder = _native.FrameBuilder(form.record_size, True, 0, 1 << 19)
    builder.set_shared(form.schema.shared_form, most)
    add_run(builder, records, (1, 5, 0), False)
    add_run(builder, records[:1], (0, 5, 0), True)  # there is nothing to grow
    with pytest.raises(ValueError, match="6 rows of at least"):
        add_run(builder, [*records, *records], (0, 5, 0), True)
    add_run(builder, records[:1], (0, 5, 0), True)
    whole, second, third = take_all(builder)
    assert whole[5] == 0 and whole[40 + 32 :] == b"".join(records)
    # What was refused had begun to be packed behind the second.
    assert expanded(form, second) == expanded(form, third) == [records[0]]


def test_spoiled() -> None:
    """A frame with right checksums is refused for what the page says, and for nothing else."""
    ends: Counter[str] = Counter()
    rng = random.Random(0)
    row = {
        "obs": np.zeros((2, 3), np.bool_),
        "state": np.zeros(9, np.uint8),
        "done": np.bool_(False),
        "next": {"obs": np.zeros((2, 3), np.bool_), "state": np.zeros(9, np.uint8)},
    }
    forms = [form_of(row, stack={}), form_of(row, stack=stacks_of({"obs": 2}))]
    forms.append(form_of({"obs": np.zeros((3, 4), np.bool_)}, stack=stacks_of({"obs": 3})))
    for _ in range(6000):
        form = rng.choice(forms)
        runs = [
            Run(rng.randint(1, 3), rng.randrange(8), 5, -1, 0) for _ in range(rng.randint(1, 3))
        ]
        records = []
        for _ in range(sum(run.rows for run in runs)):
            records.append(bytes(rng.randrange(2) for _ in range(form.record_size)))
        sent = compact.spoiled(rng, form, runs, records)
        receiver = form.receiver(sent)
        expected = compact.verdict(form, sent)
        assert receiver.check_items(form.record_size, True) == (expected == "none")
        assert receiver.refusal == expected
        ends[expected] += 1
    assert min(ends[x] for x in ("none", "shape", "value")) > 100


def test_no_compact_rows_for_others() -> None:
    """A table that stores whole rows refuses others, and so does a queue."""
    form = form_of({"obs": np.zeros(9), "next": {"obs": np.zeros(9)}})
    record = bytes(form.record_size)
    sent = sealed([Run(1, 1, 5, -1, 0)], *form.packed([record]))
    for tape in (True, False):
        receiver = _native.Receiver(4096, 1 << 20)
        receiver.feed(sent)
        assert receiver.next() == 1 and not receiver.check_items(form.record_size, tape)
        assert receiver.refusal == "shape"
