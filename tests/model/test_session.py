"""Sessions under random faults; and that the model can fail."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tests.model.session import RULES, Rules, Violation, World

TICKS = 3000


def test_nothing_goes_wrong() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100):
        world = World(seed)
        try:
            world.run(TICKS)
        except Violation as violation:
            raise AssertionError(f"World({seed}).run({TICKS}): {violation}") from violation
        seen.update(world.seen)
    faults = ("cut", "silent", "stop", "restart", "poison", "ghost", "end")
    for what in (*faults, "calls", "raised", "client judged", "server judged"):
        assert seen[what] > 20, seen


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without the rule, some course of events shows a violation."""
    rules = dataclasses.replace(Rules(), **{rule: False})
    for seed in range(1000):
        try:
            World(seed, rules).run(TICKS)
        except Violation:
            return
    pytest.fail(f"without {rule}, 1000 courses of events show no violation")
