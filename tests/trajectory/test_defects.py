"""What goes wrong in RLinf's buffer, pinned: each of these fails there."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contig import ShapeDtype, TrajectoryReplayBuffer
from contig.tape.disk import files
from tests.trajectory.made import check, filled, made


def test_sample_right_after_add_without_cache(tmp_path: Path) -> None:
    with TrajectoryReplayBuffer(
        enable_cache=False, auto_save=True, auto_save_path=str(tmp_path), sample_window_size=1
    ) as buffer:
        for number in range(30):
            buffer.add_trajectories([made(number)])
            assert set(check(buffer.sample(8), 8)[:, 0]) == {number}


@pytest.mark.parametrize("auto_save", [False, True])
def test_a_checkpoint_lists_what_is_in_it(tmp_path: Path, auto_save: bool) -> None:
    options = {"auto_save": auto_save, "auto_save_path": tmp_path / "rows"}
    with filled(9, sample_window_size=4, **options) as buffer:
        buffer.save_checkpoint(tmp_path / "own")
        buffer.export_rlinf(tmp_path / "theirs")
        index = json.loads((tmp_path / "theirs/trajectory_index.json").read_text())
        about = json.loads((tmp_path / "theirs/metadata.json").read_text())
        listed = index["trajectory_id_list"]
        assert listed == [e["trajectory_id"] for e in buffer.trajectory_index]
        assert [int(k) for k in index["trajectory_index"]] == listed
        found = sorted(p.name for p in (tmp_path / "theirs").glob("trajectory_*.pt"))
        assert found == sorted(f"trajectory_{n}_w.pt" for n in listed)
        assert (about["size"], about["total_samples"]) == (buffer.size, buffer.total_samples)
        for folder in ("own", "theirs"):
            with TrajectoryReplayBuffer(sample_window_size=0) as other:
                other.load_checkpoint(tmp_path / folder)
                assert other.trajectory_index == buffer.trajectory_index
                for number in listed:
                    read = other.read_trajectory(number)
                    assert torch.equal(read["actions"], made(number).actions)


@pytest.mark.parametrize("auto_save", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_no_torn_batches_while_others_add(tmp_path: Path, auto_save: bool, prefetch: int) -> None:
    """Two threads add, two sample; every row says of itself in each field which one it is."""
    buffer = TrajectoryReplayBuffer(
        sample_window_size=3,
        auto_save=auto_save,
        auto_save_path=tmp_path / "rows",
        prefetch=prefetch,
    )
    buffer.add_trajectories([made(0)])
    failures: list[BaseException] = []
    over = threading.Event()

    def add(first: int) -> None:
        rng = np.random.default_rng(first)
        for number in range(first, first + 120):
            steps, envs = (int(n) for n in rng.integers(1, 9, 2))
            buffer.add_trajectories([made(number, steps, envs, epochs=1)])

    def sample() -> None:
        while not over.is_set():
            check(buffer.sample(32), 32)

    def guarded(call: Any, *args: Any) -> None:
        try:
            call(*args)
        except BaseException as error:
            failures.append(error)
            over.set()

    samplers = [threading.Thread(target=guarded, args=(sample,)) for _ in range(2)]
    adders = [threading.Thread(target=guarded, args=(add, n)) for n in (1000, 2000)]
    for thread in samplers + adders:
        thread.start()
    for thread in adders:
        thread.join()
    over.set()
    for thread in samplers:
        thread.join()
    if failures:
        raise failures[0]
    assert buffer.trajectory_counter == 241
    ids = [e["trajectory_id"] for e in buffer.trajectory_index]
    assert ids == sorted(set(ids)) and len(ids) == (241 if auto_save else 3)
    buffer.close()


def test_an_add_writes_as_much_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [0]
    real = files.pwrite

    def counting(fd: int, data: Any, offset: int) -> int:
        done = real(fd, data, offset)
        if not os.readlink(f"/proc/self/fd/{fd}").endswith("/committed"):  # once a commit
            written[0] += done
        return done

    def forbidden(path: Path, data: bytes) -> None:
        raise AssertionError(f"{path} was rewritten")

    monkeypatch.setattr(files, "pwrite", counting)
    with filled(1, auto_save=True, auto_save_path=tmp_path) as buffer:
        assert len(buffer) == 1
        monkeypatch.setattr(files, "write_new", forbidden)
        sizes = []
        for _ in range(120):
            before = written[0]
            buffer.add_trajectories([made(5)])
            assert len(buffer) > 1  # it is stored
            sizes.append(written[0] - before)
        assert max(sizes) - min(sizes) < 16  # numbers in the journal's line get longer


def test_what_the_prefetcher_fails_with_is_raised_by_the_next_sample() -> None:
    buffer = filled(3, prefetch=2)
    buffer.sample(4)
    real = buffer._rows.storage.gather
    broken = threading.Event()

    def failing(*args: Any) -> Any:
        broken.set()
        raise OSError(5, "the disk is gone")

    buffer._rows.storage.gather = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the disk is gone"):
        for _ in range(5):  # what was drawn before it broke is still good
            check(buffer.sample(4), 4)
    assert broken.is_set()
    buffer._rows.storage.gather = real  # type: ignore[method-assign]
    for _ in range(10):
        check(buffer.sample(4), 4)
    buffer.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_missing_key_is_never_filled_with_somebody_elses_data(order: tuple[int, int]) -> None:
    buffer = TrajectoryReplayBuffer(optional={"versions": ShapeDtype((), np.float32)})
    both = [made(0, versions=torch.full((4, 2), 9.0)), made(1)]
    buffer.add_trajectories([both[i] for i in order])
    for _ in range(20):
        batch = buffer.sample(32)
        has = check(batch)[:, 0] == 0
        assert np.array_equal(batch["versions"].numpy(), np.where(has, 9.0, 0.0))
        assert np.array_equal(batch["mask"]["versions"].numpy(), has)


def test_arrays_may_be_reused_by_their_owner(tmp_path: Path) -> None:
    for options in ({}, {"auto_save": True, "auto_save_path": tmp_path}):
        with TrajectoryReplayBuffer(**options) as buffer:  # type: ignore[arg-type]
            trajectory = made(0)
            buffer.add_trajectories([trajectory])
            trajectory.actions.fill_(-5)
            trajectory.rewards.fill_(-5)
            assert set(check(buffer.sample(9))[:, 0]) == {0}
