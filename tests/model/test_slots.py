"""Slots under random interleavings and kills; and that the model can fail."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections import Counter

import pytest

from tests.model.memory import Violation
from tests.model.slot_story import STORIES
from tests.model.slot_world import SLOT_RULES, SlotWorld
from tests.model.slots import Sizes, SlotRules

STEPS = 1500

# Where to look for what is rare: a first seed, and sizes with which it is less so.
RETURNS = Sizes(k=1, capacity=2, block=2, near=1, shift=0, restores=0.5)
RARE = {
    "plan_near_row": (0, Sizes(k=1, capacity=6, block=2, near=1, shift=0, breaks=0.8)),
    "plan_above_tail": (0, Sizes(k=1, capacity=2, block=2, near=8, shift=1, wants_room=0.4)),
    "tail_released": (1000, RETURNS),
    "restore_fence": (0, RETURNS),
    "restores_fence": (1000, RETURNS),
}


def explore(first: int, seconds: float) -> Counter[str]:
    """Worlds of consecutive seeds, for so long; returns what was seen."""
    seen: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    seed = first
    while time.monotonic() < deadline:
        world = SlotWorld(seed)
        try:
            world.run(STEPS)
        except Violation as violation:
            where = f"SlotWorld({seed}).run({STEPS})"
            raise AssertionError(f"{where}: {violation}") from violation
        seen.update(world.m.seen)
        for reader in world.readers:
            seen.update(accepted=reader.accepted, lost=reader.lost)
        seen.update(kills=world.kills, rows=world.m.head)
        seed += 1
    return seen


def test_nothing_goes_wrong() -> None:
    seen = explore(0, 5)
    for what in ("accepted", "lost", "kills", "mapped", "shared", "early", "stops", "restored"):
        assert seen[what] > 20, seen
    # Slots that were once given up are never wanted again.
    assert seen["back"] == 0, seen


@pytest.mark.soak
def test_nothing_goes_wrong_soak() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    print(f"first seed {first}")
    print(explore(first, float(os.environ.get("CONTIG_SOAK_S", "300"))))


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_every_store(seed: int) -> None:
    """Ten appends by two writers, one of which dies at one of all their stores."""
    steps = SlotWorld(seed).take_turns(10)
    assert steps > 100
    for dies in range(steps):
        SlotWorld(seed).take_turns(10, dies)


@pytest.mark.parametrize("rule", SLOT_RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without the rule, some interleaving shows a violation."""
    rules = dataclasses.replace(SlotRules(), **{rule: False})
    start, sizes = RARE.get(rule, (0, None))
    if rule in STORIES:
        STORIES[rule](SlotRules())
        with pytest.raises(Violation):
            STORIES[rule](rules)
        return
    for seed in range(start, start + 5000):
        try:
            SlotWorld(seed, rules, sizes).run(STEPS)
        except Violation:
            return
    pytest.fail(f"without {rule}, 5000 interleavings show no violation")
