"""The tape's protocol under random interleavings and kills; and that the model can fail."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections import Counter

import pytest

from tests.model.protocol import ANY_SIZE, RULES, Rules, Violation, World

STEPS = 1500

# Where to start looking for what is rare.
RARE = {
    "repair_marks_cut": 72000,
    "repair_ret_first": 700,
    "entries_within_head": 4000,
    "fields_evicted_first": 700,
    "fields_evicted_number_first": 12000,
}


def explore(
    first: int, seconds: float, any_size: bool = False, fields: bool = False
) -> Counter[str]:
    """Worlds of consecutive seeds, for so long; returns what was seen."""
    seen: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    seed = first
    while time.monotonic() < deadline:
        world = World(seed, None, any_size, fields)
        try:
            world.run(STEPS)
        except Violation as violation:
            where = f"World({seed}, None, {any_size}, {fields}).run({STEPS})"
            raise AssertionError(f"{where}: {violation}") from violation
        for reader in world.readers:
            seen.update(reader.accepted)
            seen.update(records=reader.mirror.read, lagged=reader.mirror.lagged)
        seen.update(worlds=1, kills=world.kills, undone=world.undone, rows=world.m.head)
        seen.update(changes=world.m.changes, half_changed=world.half_changed)
        seen.update(skipped=world.m.skipped)
        seed += 1
    return seen


@pytest.mark.parametrize("fields", [False, True])
def test_nothing_goes_wrong(fields: bool) -> None:
    seen = explore(0, 2, fields=fields)
    # Everything that can be accepted was, and appends died where they have to be undone.
    for what in ("slices", "links", "complete", "entries", "rows", "kills", "undone"):
        assert seen[what] > 20, seen
    if fields:
        for what in ("records", "lagged", "changes", "half_changed"):
            assert seen[what] > 20, seen


def test_nothing_goes_wrong_with_bytes() -> None:
    seen = explore(0, 4, any_size=True)
    for what in ("slices", "links", "entries", "rows", "bytes", "skipped", "kills", "undone"):
        assert seen[what] > 20, seen


@pytest.mark.soak
def test_nothing_goes_wrong_soak() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    print(f"first seed {first}")
    seconds = float(os.environ.get("CONTIG_SOAK_S", "300"))
    for any_size, fields in ((False, False), (True, False), (False, True), (True, True)):
        print(explore(first, seconds / 4, any_size, fields))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without the rule, some interleaving shows a violation."""
    rules = dataclasses.replace(Rules(), **{rule: False})
    start = RARE.get(rule, 0)
    for seed in range(start, start + 10000):
        try:
            World(seed, rules, rule in ANY_SIZE, rule.startswith("fields_")).run(STEPS)
        except Violation:
            return
    pytest.fail(f"without {rule}, 10000 interleavings show no violation")
