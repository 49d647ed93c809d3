"""Items in frames under cuts, resends and lack of room; and that the model can fail."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tests.model.frames import RULES, Frame, Row, Rules, Run, Violation, World

STEPS = 120


def test_nothing_goes_wrong() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        world = World(seed)
        try:
            world.run(STEPS)
        except Violation as violation:
            raise AssertionError(f"World({seed}).run({STEPS}): {violation}") from violation
        seen.update(world.seen)
    assert all(seen[what] > 100 for what in ("parts", "again", "grown", "cuts", "shared"))


@pytest.mark.parametrize("rule", [r for r in RULES if r != "checks_order"])
def test_each_rule_is_needed(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    with pytest.raises(Violation):
        for seed in range(150):
            World(seed, rules).run(STEPS)


def test_what_is_believed_of_a_damaged_frame() -> None:
    """Positions that overlap, leave gaps or end elsewhere than the bytes: checked, or mixed."""
    for rules, text in ((Rules(), "refused"), (Rules(checks_order=False), "bytes of others")):
        world = World(0, rules)
        frame = Frame(0)
        frame.add(Run([Row(0, 2, False), Row(1, 2, False)], None), rules)
        name, done, _, length = frame.records[1]
        frame.records[1] = (name, done, 1, length)
        world.client.calls.append(([Row(0, 2, False), Row(1, 2, False)], None))
        with pytest.raises(Violation, match=text):
            world.server.take(frame, 9)
            world.check()
