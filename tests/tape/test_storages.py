"""Storages: layout, names, closing, sharing."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

import contig
from contig import (
    ClosedError,
    EmptyBufferError,
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    SharedStorage,
    SliceSampler,
)
from tests.tape.rows import pieces, row, rows

KINDS = {"lazy": LazyTensorStorage, "shared": SharedStorage}


@pytest.fixture(params=KINDS)
def make(request):
    made = []

    def one(*args, **options):
        made.append(KINDS[request.param](*args, **options))
        return made[-1]

    yield one
    for storage in made:
        storage.close()


def test_the_table_of_episodes(make):
    storage = make(20)
    storage.writer().extend(rows(range(5), "..t..", next={"reward": np.arange(5.0)}))
    table = storage.episodes()
    wanted = {
        "id": np.int64,
        "traj_id": np.int64,
        "first": np.int64,
        "steps": np.int64,
        "return": np.float64,
        "terminated": np.bool_,
        "truncated": np.bool_,
        "trimmed": np.bool_,
        "writer": np.int64,
        "policy_version": np.int64,
    }
    for name, dtype in wanted.items():
        assert table.dtype[name] == dtype
    assert table["steps"].tolist() == [3, 2] and table["return"].tolist() == [3.0, 7.0]
    assert table["traj_id"].tolist() == [-1, -1]
    assert len(set(table["id"].tolist())) == 2


def test_read_episode_of_an_unknown_or_evicted_id(make):
    storage = make(4)
    writer = storage.writer()
    writer.extend(rows(range(2), ".t"))
    with pytest.raises(KeyError, match="no episode 5"):
        storage.read_episode(5)
    writer.extend(rows(range(2, 6), "...t"))
    with pytest.raises(KeyError, match="no episode 0"):
        storage.read_episode(0)
    assert storage.read_episode(1)["uid"].tolist() == [2, 3, 4, 5]


def test_nothing_written_yet(make):
    storage = make(4)
    assert len(storage) == 0 and storage.layout is None and len(storage.episodes()) == 0
    with pytest.raises(KeyError):
        storage.read_episode(0)
    with pytest.raises(EmptyBufferError):
        ReplayBuffer(storage).sample(1)
    storage.flush()
    storage.empty()


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, None])
def test_capacity_is_checked(make, capacity):
    with pytest.raises(ValueError, match="capacity"):
        make(capacity)


@pytest.mark.parametrize("ndim", [0, -1])
def test_ndim_is_checked(make, ndim):
    with pytest.raises(ValueError, match="ndim"):
        make(4, ndim=ndim)


def test_a_refused_construction_leaves_no_segment_behind(name):
    """Neither its name nor its descriptor: nothing owns them any more."""
    path = Path("/dev/shm") / f"contig-{name}"
    for options in ({"ndim": 0}, {"example": {}}, {"example": {"x": object()}}):
        with pytest.raises(ValueError):
            SharedStorage(4, name, **options)
        assert not path.exists(), options


# -- layout ----------------------------------------------------------------------------------------


def test_the_first_write_fixes_the_layout(make):
    storage = make(20)
    storage.writer().extend(rows(range(2), ".t"))
    assert {leaf.path for leaf in storage.layout.leaves} == {
        ("uid",),
        ("obs",),
        ("next", "obs"),
        ("next", "done"),
        ("next", "terminated"),
        ("next", "truncated"),
    }
    with pytest.raises(LayoutError, match='missing "obs".*unexpected "observation"'):
        data = rows(range(2), ".t")
        data["observation"] = data.pop("obs")
        storage.writer().extend(data)
    assert len(storage) == 2


def test_an_example_fixes_the_layout_and_completes_the_flags(make):
    storage = make(20, example=row(0, next={"done": False}))
    assert ("next", "truncated") in storage.layout.by_path
    storage.writer().add(row(0, next={"done": True}))
    assert storage.episodes()["terminated"].tolist() == [True]


def test_another_layout_is_told_by_its_differences():
    storage = LazyTensorStorage(20, example={"obs": np.zeros(3, np.float32), "a": 0, "done": False})
    other = contig.Layout({"obs": np.zeros(4, np.float32), "b": 0, "done": 0})
    with pytest.raises(LayoutError) as caught:
        storage.publish(other)
    text = str(caught.value)
    assert '"obs": shape [4], expected [3]' in text
    assert '"a": missing' in text and '"b": not expected' in text
    assert '"done": dtype int64, expected bool' in text


def test_python_numbers_of_an_example():
    layout = LazyTensorStorage(4, example={"f": 1.0, "i": 1, "b": True}).layout
    assert {x.path[0]: x.dtype.name for x in layout.leaves} == {
        "f": "float32",
        "i": "int64",
        "b": "bool",
    }


# -- ndim ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_ndim_is_the_number_of_batch_dims_of_plain_trees(make, ndim):
    storage = make(100, ndim=ndim)
    shape = (2, 3, 4)[3 - ndim :]
    uids = np.arange(np.prod(shape)).reshape(shape)
    seqs = storage.writer().extend(rows(uids, "." * uids.size))
    assert seqs.tolist() == list(range(uids.size))
    assert pieces(storage) == uids.reshape(-1, 4).tolist()


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("known", [False, True])
def test_fewer_dims_than_ndim_are_one_run(make, ndim, known):
    storage = make(100, ndim=ndim, **({"example": row(0, ".")} if known else {}))
    writer = storage.writer()
    writer.extend(rows(range(3), "..."))
    writer.extend(rows(range(3, 6), "..t"))
    assert pieces(storage) == [[0, 1, 2, 3, 4, 5]]


def test_two_dims_of_three_are_lanes(make):
    storage = make(100, ndim=3)
    storage.writer().extend(rows([[0, 1], [10, 11]], "...."))
    assert pieces(storage) == [[0, 1], [10, 11]]


def test_more_dims_than_ndim_are_refused(make):
    storage = make(100, ndim=1)
    storage.writer().extend(rows(range(3), "..."))
    with pytest.raises(ValueError, match="2"):
        storage.writer().extend(rows([[0, 1], [2, 3]], "...."))
    assert len(storage) == 3


def test_a_single_row_is_for_add(make):
    storage = make(100)
    storage.writer().add(row(0, "."))
    with pytest.raises(ValueError, match="use add"):
        storage.writer().extend(row(1, "."))
    assert len(storage) == 1


# -- closing ---------------------------------------------------------------------------------------


def test_a_closed_storage_says_so(make):
    storage = make(20)
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=1))
    buffer.extend(rows(range(4), "...t"))
    batch, episode = buffer.sample(2), storage.read_episode(0)
    uids = batch["uid"].tolist()
    storage.close()
    for call in (storage.writer, storage.episodes, storage.flush, storage.empty):
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert batch["uid"].tolist() == uids and episode["uid"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.add(row(9, ".")),
        lambda b: b.extend(rows([9], ".")),
        lambda b: b.add_step(rows([9], ".")),
        lambda b: b.extend_trajectory(rows([9], "t")),
    ],
    ids=["add", "extend", "add_step", "extend_trajectory"],
)
def test_writing_to_a_closed_storage_is_a_closed_error(make, call):
    buffer = ReplayBuffer(make(20))
    buffer.extend(rows(range(4), "...t"))
    buffer.storage.close()
    with pytest.raises(ClosedError, match="closed"):
        call(buffer)


@pytest.mark.parametrize(
    "call",
    [lambda b: b.sample(2), lambda b: b[:], lambda b: b.storage.read_episode(0)],
    ids=["sample", "getitem", "read_episode"],
)
def test_reading_a_closed_storage_is_a_closed_error(make, call):
    buffer = ReplayBuffer(make(20))
    buffer.extend(rows(range(4), "...t"))
    buffer.storage.close()
    with pytest.raises(ClosedError, match="closed"):
        call(buffer)


def test_closing_twice_and_as_a_context(make):
    with make(20) as storage:
        storage.writer().add(row(0, "."))
    storage.close()
    with pytest.raises(ClosedError):
        storage.writer()


# -- names -----------------------------------------------------------------------------------------


def test_a_name_shares_rows_layout_keys_and_episodes(name):
    with SharedStorage(20, name) as first:
        ReplayBuffer(first, SliceSampler(slice_len=2, traj_key="chunk"))
        first.writer().extend(rows(range(4), ".t..", chunk=np.array([0, 0, 0, 1])))
        with SharedStorage(20, name) as second, SharedStorage.attach(name) as third:
            for other in (second, third):
                assert other.capacity == 20 and other.layout == first.layout
                assert pieces(other) == [[0, 1, 2], [3]]
                with pytest.raises(ValueError, match=r'"other".*"chunk"'):
                    ReplayBuffer(other, SliceSampler(slice_len=2, traj_key="other"))
            second.writer().extend(rows([10], "t", chunk=np.array([0])))
            assert pieces(first) == pieces(third) == [[0, 1, 2], [3], [10]]
            with pytest.raises(LayoutError, match='"obs": missing'):
                SharedStorage(20, name, example={"x": 0})
    with pytest.raises(FileNotFoundError):
        SharedStorage.attach(name)


def test_a_name_goes_with_its_last_user():
    storage = SharedStorage(20)
    path = Path("/dev/shm") / f"contig-{storage.name}"
    assert path.exists()
    other = SharedStorage.attach(storage.name)
    storage.close()
    assert path.exists()
    other.close()
    assert not path.exists()


def test_another_capacity_of_the_same_name_is_refused():
    with SharedStorage(20) as storage:
        with pytest.raises(ValueError, match=r"capacity 20, asked for 30"):
            SharedStorage(30, storage.name)


@pytest.mark.parametrize("name", ["a/b", "", ".x"])
def test_a_name_is_a_file_name(name):
    with pytest.raises(ValueError, match="name"):
        SharedStorage(20, name)


# -- other processes -------------------------------------------------------------------------------


def _work(storage):
    """In a spawned process: what was there is visible, and what is written here is too."""
    assert pieces(storage) == [[0, 1]]
    storage.writer().extend(rows([100, 101], ".t"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_storage_handed_to_a_worker_is_the_same_storage(kind):
    """Existing references stay valid, with what it holds."""
    storage = KINDS[kind](20)
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=2), seed=0)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(storage,))
    process.start()
    process.join()
    assert process.exitcode == 0
    writer.extend(rows([2], "t"))
    assert pieces(storage) == [[0, 1, 2], [100, 101]]
    assert len(buffer) == 5 and set(buffer.sample(40)["uid"].tolist()) == {0, 1, 2, 100, 101}
    storage.close()
