"""Trajectories that are open while their server restarts; and that the model can fail."""

from __future__ import annotations

import dataclasses

import pytest

from tests.model.restarts import RULES, Rules, Violation, World

STEPS = 60


def test_the_rest_goes_on_or_is_never_complete() -> None:
    restarts = continued = 0
    for seed in range(2000):
        world = World(seed)
        try:
            world.run(STEPS)
        except Violation as violation:
            raise AssertionError(f"World({seed}).run({STEPS}): {violation}") from violation
        restarts, continued = restarts + world.restarts, continued + world.continued
    assert restarts > 1000 and continued > 500


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    for seed in range(4000):
        try:
            World(seed, rules).run(STEPS)
        except Violation:
            return
    pytest.fail(f"without {rule}, 4000 worlds show no violation")
