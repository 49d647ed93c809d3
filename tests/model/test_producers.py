"""The table of producers under kills, cut connections and crowds; and that the model can fail."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tests.model.producers import RULES, Rules, Violation, World

STEPS = 600


def test_each_item_once() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        world = World(seed)
        try:
            world.run(STEPS)
        except Violation as violation:
            raise AssertionError(f"World({seed}).run({STEPS}): {violation}") from violation
        seen.update(kills=world.kills, evicted=world.evicted, again=world.again)
    assert min(seen[what] for what in ("kills", "evicted", "again")) > 100, seen


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without the rule, something is stored twice or lost."""
    rules = dataclasses.replace(Rules(), **{rule: False})
    for seed in range(1000):
        try:
            World(seed, rules).run(STEPS)
        except Violation:
            return
    pytest.fail(f"without {rule}, 1000 worlds show no violation")
