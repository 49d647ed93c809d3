"""A server that is watched, under every course of events; and that the model can fail."""

from __future__ import annotations

import dataclasses

import pytest

from tests.model.watching import RULES, Rules, Violation, explore


def test_nothing_goes_wrong() -> None:
    seen = explore(Rules())
    assert len(seen) > 1000
    assert any(s.over and s.life == 1 and s.disturbed > 2 for s in seen)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    with pytest.raises(Violation):
        explore(dataclasses.replace(Rules(), **{rule: False}))
