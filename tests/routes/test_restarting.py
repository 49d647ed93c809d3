"""Clients of a server that goes and comes back give the trajectories of the model."""

from __future__ import annotations

import pytest

from contig.testing import check_route_case, route_cases
from tests.routes.restarting import RESTARTING, RestartRoute

# Of the same rows in pieces of other sizes, those that are as long as the verb takes are enough:
# a server with a process of its own takes a second to come back.
VERBS = [
    (route, verb)
    for route in RESTARTING
    for verb in route.verbs
    if any(case.verb == verb and case.situation.event for case in route_cases(route))
]


@pytest.mark.parametrize(
    ("route", "verb"), VERBS, ids=[f"{route.name}, {verb}" for route, verb in VERBS]
)
def test_what_comes_out(route: RestartRoute, verb: str) -> None:
    cases = [c for c in route_cases(route) if c.verb == verb and c.situation.event is not None]
    assert cases
    for case in cases:
        if case.sizes in ((), (2, 3, 1)):
            check_route_case(route, case)
