"""Batches that are given once, under every course of events; and that the model can fail."""

from __future__ import annotations

import dataclasses

import pytest

from tests.model.receipts import RULES, Plan, Rules, Violation, explore

SMALL = {
    "a cut": Plan(items=1, requests=1, cuts=1),
    "one at a time": Plan(items=2, requests=3, cuts=0, most=1),
    "a death": Plan(items=2, requests=2, cuts=0, deaths=1),
    "a cut of two": Plan(items=2, requests=2, cuts=1),
}
LARGE = {
    "three cuts": Plan(items=1, requests=1, cuts=3),
    "a cut and a death": Plan(items=1, requests=2, cuts=1, deaths=1),
    "three at a time": Plan(items=3, requests=3, cuts=0, most=3),
}


@pytest.mark.parametrize("plan", SMALL.values(), ids=list(SMALL))
def test_nothing_goes_wrong(plan: Plan) -> None:
    seen = explore(Rules(), plan)
    assert len(seen) > 1000
    assert any(s.heard_bye and not s.here and s.pool for s in seen)
    assert any(s.unconfirmed and not s.here for s in seen)


@pytest.mark.parametrize("old", ["old_client", "old_server"])
def test_old_ones_take_at_most_once(old: str) -> None:
    seen = explore(Rules(), Plan(items=2, requests=2, cuts=1)._replace(**{old: True}))
    assert any(len(s.taken) == 2 for s in seen)


@pytest.mark.soak
@pytest.mark.parametrize("plan", LARGE.values(), ids=list(LARGE))
def test_nothing_goes_wrong_in_a_larger_world(plan: Plan) -> None:
    assert len(explore(Rules(), plan)) > 1000


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without the rule, in one of the worlds something is lost, taken twice, or for nobody."""
    rules = dataclasses.replace(Rules(), **{rule: False})
    for plan in SMALL.values():
        try:
            explore(rules, plan)
        except Violation:
            return
    pytest.fail(f"without {rule}, nothing goes wrong")
