"""Mutated and random frames and handshakes against the connection: see tests/wire/arena.py."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter

import pytest

from tests.processes import rss
from tests.wire.arena import REASONS, TOKEN, Arena
from tests.wire.carrying_arena import CarryingArena


def run_sessions(rng: random.Random, units: int) -> Counter[str]:
    refused: Counter[str] = Counter()
    for token in (None, TOKEN):
        arena = Arena(rng, token)
        for _ in range(50):  # what is allocated once
            arena.session()
        gc.collect()
        before = rss()
        while arena.units < units // 2:
            arena.session()
        arena.finish()
        gc.collect()
        assert rss() < before + (64 << 20)
        refused += arena.rejected
    return refused


def test_sessions() -> None:
    refused = run_sessions(random.Random(1), 30_000)
    assert set(refused) == REASONS
    assert min(refused.values()) >= 5


def run_carrying(rng: random.Random, sessions: int) -> Counter[str]:
    arena = CarryingArena(rng)
    for _ in range(sessions):
        arena.session()
    arena.finish()
    return arena.ends


def test_sessions_that_carry_slots() -> None:
    ends = run_carrying(random.Random(2), 800)
    assert set(ends) == {"carry", "none of version 3", "none of version 4", "carried", "shape"}
    assert min(ends.values()) > 5 and ends["carried"] > 500


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_soak() -> None:
    for seed in range(int(os.environ.get("CONTIG_SOAK_SEEDS", "20"))):
        run_sessions(random.Random(f"sessions {seed}"), 100_000)
        run_carrying(random.Random(f"carrying {seed}"), 3000)
