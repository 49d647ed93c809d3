"""The tape's protocol under random interleavings and kills; and that the model can fail."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections import Counter

import pytest

from tests.model.protocol import RULES, Rules, Violation, World

STEPS = 1500

# Where to start looking for what is rare.
RARE = {"repair_marks_cut": 72000, "repair_ret_first": 700, "entries_within_head": 4000}


def explore(first: int, seconds: float) -> Counter[str]:
    """Worlds of consecutive seeds, for so long; returns what was seen."""
    seen: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    seed = first
    while time.monotonic() < deadline:
        world = World(seed)
        try:
            world.run(STEPS)
        except Violation as violation:
            raise AssertionError(f"World({seed}).run({STEPS}): {violation}") from violation
        for reader in world.readers:
            seen.update(reader.accepted)
        seen.update(worlds=1, kills=world.kills, undone=world.undone, rows=world.m.head)
        seed += 1
    return seen


def test_nothing_goes_wrong() -> None:
    seen = explore(0, 4)
    # Everything that can be accepted was, and appends died where they have to be undone.
    for what in ("slices", "links", "complete", "entries", "rows", "kills", "undone"):
        assert seen[what] > 20, seen


@pytest.mark.soak
def test_nothing_goes_wrong_soak() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    print(f"first seed {first}")
    print(explore(first, float(os.environ.get("CONTIG_SOAK_S", "300"))))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without the rule, some interleaving shows a violation."""
    rules = dataclasses.replace(Rules(), **{rule: False})
    start = RARE.get(rule, 0)
    for seed in range(start, start + 10000):
        try:
            World(seed, rules).run(STEPS)
        except Violation:
            return
    pytest.fail(f"without {rule}, 10000 interleavings show no violation")
