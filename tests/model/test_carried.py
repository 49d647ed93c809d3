"""Slots that frames leave out, under every course of events; and that the model can fail."""

from __future__ import annotations

import dataclasses

import pytest

from tests.model.carried import RULES, Frame, Plan, Rules, Violation, complete, explore

PLANS = {
    "a cut": Plan(cuts=1, restarts=0),
    "a restart": Plan(cuts=0, restarts=1),
    "few slots": Plan(cuts=1, restarts=0, carry=2),
}
LARGE = {"two cuts": Plan(cuts=2, restarts=0), "a cut and a restart": Plan(cuts=1, restarts=1)}


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_nothing_goes_wrong(plan: Plan) -> None:
    seen = explore(Rules(), plan)
    assert len(seen) > 1000
    fronts = [s for s in seen if s.front is not None and s.front.carried]
    assert any(s.done for s in fronts)  # taken in in part
    again = [s for s in fronts if s.front and s.seen >= s.front.first + len(s.front.rows)]
    assert bool(again) == bool(plan.cuts)
    assert any(len(s.keeps) == plan.carry for s in seen)


@pytest.mark.soak
@pytest.mark.parametrize("plan", LARGE.values(), ids=list(LARGE))
def test_nothing_goes_wrong_in_a_larger_world(plan: Plan) -> None:
    assert len(explore(Rules(), plan)) > 1000


@pytest.mark.parametrize("rule", [r for r in RULES if r != "each_once"])
def test_every_rule_is_needed(rule: str) -> None:
    rules = dataclasses.replace(Rules(), **{rule: False})
    for plan in PLANS.values():
        try:
            explore(rules, plan)
        except Violation:
            return
    pytest.fail(f"without {rule}, nothing goes wrong")


def test_what_is_believed_of_a_damaged_frame() -> None:
    """Slots that are carried over more than once would make much of little."""
    twice = Frame(0, ((0, 1),), (), ((0, 0), (1, 0)))
    with pytest.raises(Violation, match="twice"):
        complete(twice, (), (7, 8), Rules())
    assert complete(twice, (), (7, 8), Rules(each_once=False)) == (8, 8)
    for carried, keeps in ((((0, 0),), ()), (((0, 2),), (7, 8)), (((0, 0), (1, 1)), (7, 8))):
        with pytest.raises(Violation, match="not there"):
            complete(Frame(0, ((0, 1),), (), carried), (3,), keeps, Rules())
