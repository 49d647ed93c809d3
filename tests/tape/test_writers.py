"""Writers: each belongs to one thread of one process, and continuity exists only within one."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest
import torch

from contig import DiskStorage, LazyTensorStorage, ReplayBuffer, SharedStorage
from tests.tape.rows import pieces, row, rows


def in_thread(work):
    """Runs work in a new thread and returns what it returned or raises what it raised."""
    out = {}

    def run():
        try:
            out["value"] = work()
        except BaseException as error:
            out["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if "error" in out:
        raise out["error"]
    return out["value"]


# Other tests may have imported jax, which warns of every fork.
forks = pytest.mark.filterwarnings("ignore:os.fork")


def in_fork(work):
    """Runs work in a forked child; it must succeed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_writer_has_no_id_before_its_first_row_and_a_unique_one_after():
    storage = LazyTensorStorage(20)
    writers = [storage.writer() for _ in range(5)]
    assert {w.id for w in writers} == {0}
    for n, writer in enumerate(writers):
        writer.add(row(n, "."))
    assert len({w.id for w in writers}) == 5
    assert storage.episodes()["writer"].tolist() == [w.id for w in writers]


def test_used_from_another_thread_it_is_another_writer():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    before = writer.id
    in_thread(lambda: writer.extend(rows([2, 3], ".t")))
    assert writer.id != before
    assert pieces(storage) == [[0, 1], [2, 3]]
    assert storage.episodes()["complete"].tolist() == [False, False], "it continued nothing"


def test_what_it_begins_in_the_other_thread_is_complete():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".t"))
    in_thread(lambda: writer.extend(rows([2, 3], ".t")))
    writer.extend(rows([4, 5], ".t"))
    assert storage.episodes()["complete"].tolist() == [True, True, True]


def test_after_the_rest_comes_a_trajectory_that_is_complete():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    in_thread(lambda: writer.extend(rows([2, 3, 4, 5], ".t.t")))
    assert pieces(storage) == [[0, 1], [2, 3], [4, 5]]
    assert storage.episodes()["complete"].tolist() == [False, False, True]


def test_lanes_and_ids_are_let_go_in_another_thread_too():
    storage = LazyTensorStorage(40)
    writer = storage.writer()
    writer.add_step(rows([0, 10], "..", collector={"traj_ids": np.array([1, 2])}))
    in_thread(
        lambda: writer.add_step(rows([1, 11], "tt", collector={"traj_ids": np.array([1, 2])}))
    )
    assert pieces(storage) == [[0], [10], [1], [11]]
    assert not storage.episodes()["complete"].any()


def test_a_lane_that_changed_threads_twice_is_still_no_beginning():
    """Open in one thread, not written in the second, ended in the third."""
    storage = LazyTensorStorage(40)
    writer = storage.writer()
    writer.add_step(rows([0, 10], ".."))
    in_thread(lambda: writer.add_step(rows([1], "t"), env_ids=[0]))
    in_thread(lambda: writer.add_step(rows([2, 11], "tt")))
    assert pieces(storage) == [[0], [10], [1], [2], [11]]
    assert storage.episodes()["complete"].tolist() == [False, False, False, True, False]


def test_is_init_in_another_thread_is_a_beginning():
    storage = LazyTensorStorage(40)
    writer = storage.writer()
    init = np.array([True, False])
    writer.extend(rows([0, 1], "..", is_init=init))
    in_thread(lambda: writer.extend(rows([2, 3], ".t", is_init=init)))
    assert storage.episodes()["complete"].tolist() == [False, True]


def test_the_default_writer_is_one_per_thread():
    buffer = ReplayBuffer(LazyTensorStorage(40))
    buffer.add(row(0, "."))
    in_thread(lambda: buffer.add(row(10, ".")))
    buffer.add(row(1, "t"))
    assert pieces(buffer.storage) == [[0, 1], [10]]
    assert buffer.storage.episodes()["complete"].tolist() == [True, False]


def test_two_threads_write_at_once_through_one_buffer():
    buffer = ReplayBuffer(LazyTensorStorage(4000))
    go = threading.Barrier(3)

    def work(first):
        go.wait()
        for uid in range(first, first + 200):
            buffer.add(row(uid, "t" if uid % 10 == 9 else "."))

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found = pieces(buffer.storage)
    assert sorted(found) == [
        list(range(1000 * i + at, 1000 * i + at + 10)) for i in range(3) for at in range(0, 200, 10)
    ]
    assert buffer.storage.episodes()["complete"].all()


@forks
@pytest.mark.parametrize("kind", ["lazy", "shared"])
def test_after_a_fork_parent_and_child_are_different_writers(kind):
    storage = LazyTensorStorage(20) if kind == "lazy" else SharedStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    before = writer.id
    in_fork(lambda: writer.extend(rows([100, 101], ".t")))
    writer.extend(rows([2], "t"))
    assert writer.id == before, "the parent's writer stays what it was"
    assert pieces(storage) == [[0, 1, 2], [100, 101]]
    table = storage.episodes()
    assert table["writer"][0] == before != table["writer"][1]
    assert table["complete"].tolist() == [True, False]
    storage.close()


@forks
def test_after_a_fork_the_default_writer_is_another_too():
    buffer = ReplayBuffer(LazyTensorStorage(20))
    buffer.add(row(0, "."))
    in_fork(lambda: buffer.add(row(100, "t")))
    buffer.add(row(1, "t"))
    assert pieces(buffer.storage) == [[0, 1], [100]]
    assert buffer.storage.episodes()["complete"].tolist() == [True, False]


def test_pickled_it_is_a_new_writer():
    storage = SharedStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    copy = pickle.loads(pickle.dumps(writer))
    copy.extend(rows([100], "."))
    writer.extend(rows([2], "t"))
    copy.extend(rows([101], "t"))
    assert copy.id != writer.id
    assert pieces(storage) == [[0, 1, 2], [100, 101]]
    storage.close()


def test_the_rest_of_a_trajectory_written_by_a_pickled_writer_is_never_complete():
    storage = SharedStorage(20)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    copy = pickle.loads(pickle.dumps(writer))
    copy.extend(rows([2, 3], ".t"))
    assert pieces(storage) == [[0, 1], [2, 3]]
    assert storage.episodes()["complete"].tolist() == [False, False]
    storage.close()


def test_one_append_of_many_runs_is_one_append():
    storage = LazyTensorStorage(20)
    buffer = ReplayBuffer(storage)
    buffer.extend(rows(range(9), "..t..t..t"))
    stats = buffer.stats()
    assert stats.appends == 1 and stats.trajectories == 3 and stats.rows_written == 9


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize(
    ("told", "flags"),
    [
        ({}, (False, True)),
        ({"terminated": True}, (True, False)),
        ({"truncated": True}, (False, True)),
        ({"terminated": False, "truncated": False}, (False, False)),
    ],
)
def test_whole_trajectories_without_flags_in_their_rows(kind, told, flags, tmp_path):
    """As they are stored, or to be cast first: the same."""
    fields = {"score": np.float32(0)}
    storage = LazyTensorStorage(100, fields=fields)
    if kind == "disk":
        storage = DiskStorage(tmp_path / "tape", 100, fields=fields)
    with storage:
        writer = storage.writer()
        known = {"traj_id": 7, "policy_version": 3, **told}
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        for n, data in enumerate([x, x.astype(np.float64), torch.from_numpy(x), x[:0]]):
            seqs = writer.extend_trajectory({"x": data}, fields={"score": n}, **known)
            assert seqs.tolist() == list(range(4 * n, 4 * n + len(data)))
        episodes = storage.episodes()
        assert episodes["score"].tolist() == [0, 1, 2] and set(episodes["steps"]) == {4}
        assert set(episodes["traj_id"]) == {7} and set(episodes["policy_version"]) == {3}
        for episode in episodes:
            assert (episode["terminated"], episode["truncated"]) == flags
            assert np.array_equal(storage.read_episode(episode["id"])["x"], x)
        with pytest.raises(ValueError, match="shape"):
            writer.extend_trajectory({"x": x[:, :2]}, fields={"score": 9}, **known)
        assert len(storage) == 12
