"""Whose rows they are: of a process, of threads that come and go, of a mode that somebody is in."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

from contig import ClosedError, DeviceStorage, ReplayBuffer
from contig.testing import episode, identity, interleaved

torch = pytest.importorskip("torch")

from tests.tape.device.rows import tensors  # noqa: E402


def ids(storage: DeviceStorage) -> list[int]:
    return [int(i) for i in storage.episodes()["traj_id"]]


def in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# -- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_who_writes_first_may_be_in_inference_mode(late):
    with DeviceStorage(100, "cpu", late=late) as storage:
        buffer = ReplayBuffer(storage, batch_size=4, seed=0)
        with torch.inference_mode():
            for n in range(5):
                buffer.extend(tensors(episode(n, 10)))
        for n in range(5, 8):
            buffer.extend(tensors(episode(n, 10)))
        with torch.inference_mode():
            storage.flush()
        assert len(buffer) == 80
        assert ids(storage) == list(range(8))
        assert identity(storage.gather(np.arange(80))[0])[49:51] == [(4, 9), (5, 0)]
        assert not buffer.sample()["observation"].is_inference()


def test_a_default_device_is_not_the_storages():
    torch.set_default_device("meta")
    try:
        with DeviceStorage(40, "cpu") as storage:
            buffer = ReplayBuffer(storage, batch_size=4)
            buffer.extend(episode(0, 10))
            assert buffer.sample()["observation"].device.type == "cpu"
    finally:
        torch.set_default_device(None)


# -- processes ------------------------------------------------------------------------------------


def fork(work: Any) -> str:
    """What a forked child raised, as text."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writes, said.encode())
            os._exit(0)
    os.close(writes)
    os.waitpid(pid, 0)
    with os.fdopen(reads) as file:
        return file.read()


WORK: dict[str, Any] = {
    "extend": lambda buffer: buffer.extend(tensors(episode(1, 5))),
    "add_step": lambda buffer: buffer.add_step(tensors(next(iter(interleaved([1, 2], 1))))),
    "a new writer": lambda buffer: buffer.storage.writer(),
    "sample": lambda buffer: buffer.sample(),
    "rows": lambda buffer: buffer[:],
    "episodes": lambda buffer: buffer.storage.episodes(),
    "empty": lambda buffer: buffer.empty(),
    "flush": lambda buffer: buffer.storage.flush(),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", WORK)
def test_a_forked_child_has_no_part_in_it(name):
    with DeviceStorage(8, "cpu", late=name == "flush") as storage:
        buffer = ReplayBuffer(storage, batch_size=4, seed=0)
        buffer.extend(tensors(episode(0, 8)))
        said = fork(lambda: WORK[name](buffer))
        assert said.startswith(ClosedError.__name__)
        assert "forked child" in said and "LazyTensorStorage" in said
        assert fork(storage.close) == "nothing"
        storage.flush()
        assert identity(storage.gather(np.arange(8))[0]) == [(0, t) for t in range(8)]


# -- threads --------------------------------------------------------------------------------------


def test_late_rows_of_a_thread_that_has_ended():
    with DeviceStorage(40, "cpu", late=True) as storage:
        buffer = ReplayBuffer(storage)

        def write() -> None:
            for n in range(3):
                buffer.extend(tensors(episode(n, 3)))

        in_thread(write)
        assert len(storage) == 6
        storage.flush()
        assert ids(storage) == [0, 1, 2]
        assert identity(storage.gather(np.arange(9))[0]) == [
            (n, t) for n in range(3) for t in (0, 1, 2)
        ]


def test_late_rows_of_a_writer_that_nobody_has_any_more():
    with DeviceStorage(40, "cpu", late=True) as storage:
        storage.writer().extend(tensors(episode(0, 3)))
        storage.flush()
        assert len(storage) == 3


def test_late_rows_that_go_on_in_a_thread_that_has_ended_are_no_beginning():
    with DeviceStorage(40, "cpu", late=True) as storage:
        writer = storage.writer()

        def write() -> None:
            writer.extend(tensors(episode(0, 3, end=None)))
            writer.extend(tensors(episode(0, 3, start=3)))

        in_thread(write)
        storage.flush()
        table = storage.episodes()
        assert table["steps"].tolist() == [3, 3]
        assert table["complete"].tolist() == [False, False]


def test_a_writer_that_goes_to_another_thread_loses_nothing():
    with DeviceStorage(40, "cpu", late=True) as storage:
        writer = storage.writer()
        writer.extend(tensors(episode(0, 3)))
        in_thread(lambda: writer.extend(tensors(episode(1, 3))))
        storage.flush()
        assert ids(storage) == [0, 1]


# -- checkpoints ----------------------------------------------------------------------------------


def test_what_is_loaded_takes_the_place_of_late_rows(tmp_path):
    with DeviceStorage(60, "cpu") as source:
        saved = ReplayBuffer(source)
        for n in range(2):
            saved.extend(tensors(episode(n, 4)))
        saved.save(tmp_path / "saved")
    with DeviceStorage(60, "cpu", late=True) as storage:
        buffer = ReplayBuffer(storage)
        buffer.extend(tensors(episode(9, 4)))
        in_thread(lambda: buffer.extend(tensors(episode(8, 4))))
        buffer.load(tmp_path / "saved")
        assert ids(storage) == [0, 1]
        storage.flush()
        assert ids(storage) == [0, 1]
        buffer.extend(tensors(episode(10, 4)))
        storage.flush()
        assert ids(storage) == [0, 1, 10]
        rows = identity(storage.gather(np.arange(12))[0])
        assert rows == [(n, t) for n in (0, 1, 10) for t in range(4)]


def test_a_load_that_fails_leaves_late_rows_alone(tmp_path):
    with DeviceStorage(60, "cpu", late=True) as storage:
        buffer = ReplayBuffer(storage)
        buffer.extend(tensors(episode(0, 4)))
        with pytest.raises(FileNotFoundError):
            buffer.load(tmp_path / "nothing")
        storage.flush()
        assert ids(storage) == [0]
