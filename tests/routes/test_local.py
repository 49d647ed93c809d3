"""A buffer in memory, shared memory and files, and writers, give the trajectories of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from contig.testing import WriteRoute, check_route_case, check_write_route, route_cases
from tests.routes.local import LOCAL, disk

VERBS = [(route, verb) for route in LOCAL for verb in route.verbs]


@pytest.mark.parametrize(
    ("route", "verb"), VERBS, ids=[f"{route.name}, {verb}" for route, verb in VERBS]
)
def test_what_comes_out(route: WriteRoute, verb: str) -> None:
    for case in route_cases(route):
        if case.verb == verb:
            check_route_case(route, case)


def test_what_comes_out_of_files(tmp_path: Path) -> None:
    check_write_route(disk(tmp_path))
