"""Collectors give the trajectories that their environments play."""

from __future__ import annotations

import pytest

from contig.testing import WriteRoute, check_route_case, check_write_route, route_cases
from tests.routes.collectors import COLLECTORS, MULTI_COLLECTORS

ASYNCHRONOUS = MULTI_COLLECTORS[-1]


@pytest.mark.parametrize("route", COLLECTORS, ids=[route.name for route in COLLECTORS])
def test_what_comes_out(route: WriteRoute) -> None:
    check_write_route(route)


@pytest.mark.parametrize("route", MULTI_COLLECTORS, ids=[route.name for route in MULTI_COLLECTORS])
def test_what_comes_out_of_worker_processes(route: WriteRoute) -> None:
    """Of workers that are not told how many frames each has, only one has a script."""
    lanes = 1 if route is ASYNCHRONOUS else 3
    for case in route_cases(route):
        if len(case.situation.lanes) == lanes:
            check_route_case(route, case)
