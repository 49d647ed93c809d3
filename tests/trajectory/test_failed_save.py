"""Every call that touches files fails once, while trajectories are saved or exported: a whole
directory is where one was, and the buffer has what it had."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from contig import TrajectoryReplayBuffer
from tests.replay.checkpoint.faults import faults
from tests.tape.disk.conftest import fast_path  # noqa: F401
from tests.trajectory.made import check, filled, made
from tests.trajectory.test_failed_load import THINNED


def found(path: Path) -> Any:
    """What a directory holds."""
    with TrajectoryReplayBuffer() as buffer:
        buffer.load_checkpoint(path)
        check(buffer.sample(8))
        return [entry["trajectory_id"] for entry in buffer.trajectory_index]


@pytest.mark.parametrize("every", THINNED)
@pytest.mark.parametrize("how", ("save_checkpoint", "export_rlinf"))
def test_a_call_fails(how: str, every: int, fast_path: Path) -> None:  # noqa: F811
    path = fast_path / "a"
    with filled(2) as buffer:
        getattr(buffer, how)(path)
        failed = 0
        for number, fault in enumerate(faults(errno.ENOSPC, every), 2):
            before = found(path)
            buffer.add_trajectories([made(number)])
            now = [entry["trajectory_id"] for entry in buffer.trajectory_index]
            raised = False
            try:
                with fault.armed():
                    getattr(buffer, how)(path)
            except OSError:
                assert fault.happened
                raised = True
            failed += raised
            assert found(path) in ((before, now) if raised else (now,))
            check(buffer.sample(8))
            getattr(buffer, how)(path)
            assert found(path) == now and os.listdir(fast_path) == ["a"]
            if len(now) > 8:
                buffer.clear()
                buffer.add_trajectories([made(number)])
                getattr(buffer, how)(path)
        assert failed > 5
