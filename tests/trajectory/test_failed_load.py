"""Loads into a directory that fail or are killed: the old trajectories, or all of the new ones."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from contig import TrajectoryReplayBuffer
from contig.tape.disk import files
from tests.tape.disk.victim import CHANGING, killed_at
from tests.trajectory.made import check, filled, made

THINNED = (pytest.param(9, id="thinned"), pytest.param(1, marks=pytest.mark.soak, id="complete"))


def opened(path: Path) -> TrajectoryReplayBuffer:
    return TrajectoryReplayBuffer(auto_save=True, auto_save_path=path)


def holds(buffer: TrajectoryReplayBuffer) -> Any:
    """What is in it; all of it can be drawn, and is as it was made."""
    if buffer.trajectory_index:
        check(buffer.sample(64))
    return buffer.trajectory_index, buffer.trajectory_counter


def found(path: Path) -> Any:
    with opened(path) as buffer:
        return holds(buffer)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loads")
    with filled(5, auto_save=True, auto_save_path=root / "other") as buffer:
        buffer.save_checkpoint(root / "saved")
        buffer.export_rlinf(root / "exported")
    with opened(root / "store") as buffer:
        buffer.add_trajectories([made(50 + n) for n in range(3)])
    return root


def left(path: Path) -> list[str]:
    """Where a load worked."""
    return [name.name for name in path.iterdir() if "loading" in name.name]


def loaded(places: Path, path: Path, source: str) -> Any:
    shutil.copytree(places / "store", path)
    with opened(path) as buffer:
        buffer.load_checkpoint(places / source)
        whole = holds(buffer)
    assert found(path) == whole
    shutil.rmtree(path)
    return whole


@pytest.mark.parametrize("source", ("saved", "exported"))
@pytest.mark.parametrize("every", THINNED)
def test_killed(places: Path, tmp_path: Path, every: int, source: str) -> None:
    path = tmp_path / "store"
    before, after = found(places / "store"), loaded(places, path, source)
    assert before[0] != after[0]
    at, seen, killed = 0, [], True
    while killed:
        at += every
        shutil.copytree(places / "store", path)
        killed = killed_at(
            at, lambda: opened(path), lambda buffer: buffer.load_checkpoint(places / source)
        )
        there = found(path)
        assert not left(path)
        assert there[0] in (before[0], after[0]), at
        seen.append(there[0] == after[0])
        with opened(path) as buffer:  # it goes on
            buffer.load_checkpoint(places / source)
            assert holds(buffer) == after
        assert found(path) == after
        shutil.rmtree(path)
    assert not seen[0] and seen[-1] and len(seen) > 5
    if source == "saved":  # of an export each trajectory is committed by a thread, at any event
        assert seen == sorted(seen)


@pytest.mark.parametrize("source", ("saved", "exported"))
@pytest.mark.parametrize("every", THINNED)
def test_a_call_fails(places: Path, tmp_path: Path, every: int, source: str) -> None:
    path = tmp_path / "store"
    before, after = found(places / "store"), loaded(places, path, source)
    for name in CHANGING:
        call = getattr(files, name, None)
        at, calls = 1, 1
        while call is not None and calls >= at:
            shutil.copytree(places / "store", path)
            calls, failed = 0, False

            def fails(*args: Any, call: Any = call, at: int = at) -> Any:
                nonlocal calls
                calls += 1
                if calls == at:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return call(*args)

            with opened(path) as buffer:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(files, name, fails)
                    try:
                        buffer.load_checkpoint(places / source)
                    except OSError:
                        failed = True
                assert holds(buffer) == (before if failed else after), (name, at)
                buffer.add_trajectories([made(90)])
                whole = holds(buffer)
            assert found(path) == whole, (name, at)
            assert not left(path)
            shutil.rmtree(path)
            at += every
