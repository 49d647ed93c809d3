"""A thread that keeps writers out: it follows nobody meanwhile, and nobody waits for it in vain."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contig.tape.disk.following as following
from contig import DiskStorage, NothingEligibleError, ReplayBuffer, SliceSampler
from contig.replay import checkpoint
from contig.testing import episode
from tests.waiting import Task, until

WAIT_S = 60


def test_a_reader_follows_when_it_has_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_POLL_S", 0.0)
    with DiskStorage(tmp_path / "tape", 100) as storage:
        storage.writer().extend(episode(0, 5))
        storage.flush()
        with DiskStorage(tmp_path / "tape", read_only=True) as reader:
            with reader.held():
                storage.writer().extend(episode(1, 5))
                storage.flush()
                # Others wait, or see what there is: nobody has the other's lock.
                task = Task(reader.episodes)
                assert len(reader) == 5 and reader.episodes()["traj_id"].tolist() == [0]
            assert set(task.result(WAIT_S)["traj_id"]) <= {0, 1}
            assert len(reader) == 10 and reader.episodes()["traj_id"].tolist() == [0, 1]


def test_nothing_eligible_for_a_reader_while_another_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether there is nothing is looked up while nobody may write here; others go on."""
    monkeypatch.setattr(following, "_POLL_S", 0.0)
    with DiskStorage(tmp_path / "tape", 100, fields={"task": 0}) as storage:
        storage.writer().extend(episode(0, 5), fields={"task": 1})
        storage.flush()
        stop = threading.Event()

        def write() -> None:
            n = 1
            while not stop.is_set():
                storage.default_writer.extend(episode(n, 5), fields={"task": n})
                n += 1

        with DiskStorage(tmp_path / "tape", read_only=True) as reader:
            where = SliceSampler(slice_len=2, where=("task", "<", 0))
            buffer = ReplayBuffer(reader, where, batch_size=4)
            task = Task(write)
            for _ in range(300):
                with pytest.raises(NothingEligibleError):
                    buffer.sample()
            stop.set()
            task.result(WAIT_S)


def test_appends_and_whoever_holds_the_files(tmp_path: Path) -> None:
    with DiskStorage(tmp_path / "tape", 100) as storage:
        storage.writer().extend(episode(0, 5))
        storage.tape.lock_timeout_s = 2.0  # after which an append would give up
        begun = threading.Event()

        def write() -> None:
            begun.set()
            storage.default_writer.extend(episode(1, 5))

        with storage.held(files=True):
            task = Task(write)
            assert begun.wait(WAIT_S)
            task.join(0.3)  # it is at the lock, most likely
            (tmp_path / "links").mkdir()
            storage.link_rows(tmp_path / "links", 0, 5)
            assert len(storage) == 5
        task.result(WAIT_S)
        assert len(storage) == 10


def test_a_checkpoint_while_writers_turn_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found was evicted before it was saved: then it is saved while nobody writes."""
    found = checkpoint._try_rows
    calls = []

    def overtaken(storage: Any, out: Any) -> dict[str, Any]:
        saved = found(storage, out)
        calls.append(saved)
        return {**saved, "tail": saved["head"]} if len(calls) % 2 else saved

    monkeypatch.setattr(checkpoint, "_try_rows", overtaken)
    with DiskStorage(tmp_path / "tape", 60) as storage:
        storage.tape.lock_timeout_s = 2.0
        buffer = ReplayBuffer(storage, batch_size=4)
        buffer.extend(episode(0, 5))
        stop = threading.Event()

        def write() -> None:
            n = 1
            while not stop.is_set():
                storage.default_writer.extend(episode(n, 5))
                n += 1

        task = Task(write)
        until(lambda: len(storage) == 60, "a full ring")
        for n in range(5):
            buffer.save(tmp_path / f"saved-{n}")
        stop.set()
        task.result(WAIT_S)
    assert len(calls) == 10
    with DiskStorage(tmp_path / "again", 60) as storage:
        again = ReplayBuffer(storage, batch_size=4)
        again.load(tmp_path / "saved-4")
        assert np.diff(storage.episodes()["traj_id"]).tolist() == [1] * (len(again) // 5 - 1)
        assert len(again) == 60
