"""`contig worker` gives the trajectories that its environments play: one process, several lanes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from contig import LazyTensorStorage, ReplayBuffer
from contig.tape import Storage
from contig.testing import (
    OpenRoute,
    RouteNeeds,
    VerbKind,
    WriteRoute,
    check_route_case,
    route_cases,
)
from tests.client.serving import HOST, serving
from tests.routes.playing import SCRIPT, ends_of

ROOT = Path(__file__).parents[2]
PLAYS = ["--env", "tests.routes.playing:make_env", "--policy", "tests.routes.playing:act"]


class WorkerWay(OpenRoute):
    """A process that ends with the rows."""

    def __init__(self, storage: Storage, port: int) -> None:
        self._storage, self._port = storage, port

    @property
    def storage(self) -> Storage:
        return self._storage

    def write(self, verb: str, lane: int, data: Any) -> None:
        frames = sum(map(len, data))
        how = ["--envs", len(data), "--frames", frames, "--seed", 0]
        command = [sys.executable, "-m", "contig", "worker", f"{HOST}:{self._port}", *PLAYS, *how]
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            env={**os.environ, SCRIPT: json.dumps(ends_of(data))},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr


class WorkerRoute(WriteRoute):
    """The command."""

    name = "contig worker"
    verbs = MappingProxyType({"worker": VerbKind.PLAY})

    @contextlib.contextmanager
    def open(self, needs: RouteNeeds) -> Iterator[OpenRoute]:
        storage = LazyTensorStorage(200)
        with serving(ReplayBuffer(storage, batch_size=2)) as server:
            yield WorkerWay(storage, server.port)
        storage.close()


def test_what_comes_out() -> None:
    route = WorkerRoute()
    cases = [c for c in route_cases(route) if len(c.situation.lanes) > 1]
    check_route_case(route, cases[0])
