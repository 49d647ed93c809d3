"""Clients of a server give the trajectories of the model, by each of their verbs."""

from __future__ import annotations

import pytest

from contig.testing import WriteRoute, check_route_case, route_cases
from tests.routes.clients import CLIENTS

VERBS = [(route, verb) for route in CLIENTS for verb in route.verbs]


@pytest.mark.parametrize(
    ("route", "verb"), VERBS, ids=[f"{route.name}, {verb}" for route, verb in VERBS]
)
def test_what_comes_out(route: WriteRoute, verb: str) -> None:
    for case in route_cases(route):
        if case.verb == verb:
            check_route_case(route, case)
