"""Mutated and random frames against the parser: the receiver is compared with a naive one, state by
state and refusal by refusal.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from contig import _native
from contig.tape.stacks import stacks_of
from tests.processes import rss
from tests.wire import mutate
from tests.wire.carried import CARRIED, Keeper, fields_of, spoiled
from tests.wire.compact import form_of
from tests.wire.naive import BAD, GROW, MORE, READY, NaiveReceiver, Run, items_fit
from tests.wire.test_carried import Peer


def compare_receivers(rng: random.Random, frames: int) -> Counter[str]:
    """Streams of some frames each, in random pieces; how they ended."""
    ends: Counter[str] = Counter()
    while frames > 0:
        size, max_frame = rng.choice([40, 64, 200, 4096]), rng.choice([40, 100, 500, 100_000])
        record_size, tape = rng.choice([1, 8, 20]), rng.random() < 0.5
        real, naive = _native.Receiver(size, max_frame), NaiveReceiver(size, max_frame)
        many = rng.randint(1, 12)
        frames -= many
        stream = b"".join(mutate.mutated(rng, n, record_size, tape) for n in range(many))
        at = 0
        while True:
            state = real.next()
            assert state == naive.next() and real.refusal == naive.refusal
            assert real.held == len(naive.data)
            if state == BAD:
                break
            if state == READY:
                assert real.payload() == naive.payload
                fields = naive.fields
                got = (real.type, real.number, real.runs, real.rows)
                assert got == (fields.type, fields.number, fields.runs, fields.rows)
                if fields.type == 4:
                    fit = items_fit(fields, naive.payload, record_size, tape)
                    assert real.check_items(record_size, tape) == fit
                    if not fit:
                        naive.refusal = "shape"
                        continue
                    ends["items"] += 1
                real.pop()
                naive.pop()
                continue
            if state == GROW:
                assert real.needed == naive.needed <= max_frame
                real.resize(real.needed + rng.choice([0, 0, 1, 1000]))
                naive.size = real.size
                continue
            assert state == MORE
            room = len(real.room())
            assert room > 0, "a connection would have nothing to receive into"
            piece = stream[at : at + min(rng.choice([1, 5, 40, 100, 4096]), room)]
            if not piece:
                break
            at += len(piece)
            real.feed(piece)
            naive.feed(piece)
        ends[real.refusal] += 1
        assert real.size <= max(max_frame, 4096) + 1000
    return ends


def test_receiver() -> None:
    before = rss()
    ends = compare_receivers(random.Random(0), 70_000)
    assert set(ends) == {
        *("items", "none", "magic", "header_crc", "type", "size", "shape", "body_crc")
    }
    assert min(ends.values()) > 100
    assert rss() < before + (64 << 20)


def compare_carried(rng: random.Random, frames: int) -> Counter[str]:
    """Frames that leave out slots of the one before, or say so; how they ended."""
    ends: Counter[str] = Counter()
    obs = np.zeros(9, np.bool_)
    plain = {"obs": obs, "done": np.bool_(False), "next": {"obs": obs}}
    stacks = {"obs": np.zeros((3, 4), np.bool_)}
    forms = [form_of(plain, stack={}), form_of(stacks, stack=stacks_of({"obs": 3}))]
    while frames > 0:
        form, carry = rng.choice(forms), rng.choice([0, 60, 200, 10_000])
        peer = Peer(form, carry, rng.choice([150, 200, 100_000]), rng.choice([40, 300]))
        naive = Keeper(form, carry, peer.naive.max_frame)
        stream, first, records = b"", 0, [bytes(form.record_size)]
        for _ in range(rng.randint(2, 8)):
            runs = [Run(rng.randint(1, 2), 0, 5, -1, 0) for _ in range(rng.randint(1, 2))]
            n = sum(run.rows for run in runs)
            if rng.random() < 0.6:  # others than before
                records = [bytes(rng.randrange(2) for _ in records[0]) for _ in range(n)]
            records = [rng.choice(records) for _ in range(n)]
            sent = spoiled(rng, form, runs, records, naive.slots, first)
            ends["carried"] += bool(fields_of(sent).flags & CARRIED)
            wrong, _ = naive.take(sent)
            stream, first, frames = stream + sent, first + len(runs), frames - 1
            if wrong != "none":
                break
        ends[wrong] += 1
        assert peer.feed(stream, rng) == wrong
    return ends


def test_carried_slots() -> None:
    ends = compare_carried(random.Random(0), 8000)
    assert set(ends) == {"carried", "none", "shape", "size"}
    assert min(ends.values()) > 100 and ends["carried"] > 2000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_soak() -> None:
    for seed in range(20):
        compare_receivers(random.Random(f"receiver {seed}"), 100_000)
        compare_carried(random.Random(f"carried {seed}"), 20_000)
