"""done = terminated | truncated: what is missing is completed, what disagrees is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from contig import LayoutError, LazyTensorStorage
from tests.tape.model import FLAGS, resolve
from tests.tape.rows import row, rows

SUBSETS = [frozenset(c) for n in (1, 2, 3) for c in itertools.combinations(FLAGS, n)]
CASES = [(False, False), (True, False), (False, True), (True, True)]  # terminated, truncated


def named(given):
    return "+".join(f for f in FLAGS if f in given)


def flags_of(given, cases, dtype, trailing):
    columns = {
        "done": [t or u for t, u in cases],
        "terminated": [t for t, _ in cases],
        "truncated": [u for _, u in cases],
    }
    shape = (len(cases), 1) if trailing else (len(cases),)
    return {f: np.array(columns[f]).astype(dtype).reshape(shape) for f in FLAGS if f in given}


def placed(uids, flags, where):
    return rows(uids, next=flags) if where == "next" else rows(uids, **flags)


@pytest.mark.parametrize("where", ["next", "root"])
@pytest.mark.parametrize("trailing", [False, True])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32])
@pytest.mark.parametrize("given", SUBSETS, ids=named)
def test_missing_duals_are_completed_by_every_way_of_writing(given, dtype, trailing, where):
    """Each way is used twice: the first write takes the slow road, the second the native one."""
    storage = LazyTensorStorage(100)
    writer = storage.writer()
    flags = flags_of(given, CASES, dtype, trailing)
    writer.extend(placed(range(4), flags, where))
    writer.extend(placed(range(4, 8), flags, where))
    for step in range(2):
        writer.add_step(placed(range(8 + 4 * step, 12 + 4 * step), flags, where))
    for uid in range(16, 24):
        one = {f: v[uid % 4] for f, v in flags.items()}
        writer.add(row(uid, next=one) if where == "next" else row(uid, **one))
    seqs = np.arange(24)
    expected = [resolve(given, *CASES[s % 4]) for s in seqs]
    batch, _ = storage.gather(seqs)
    parent = ("next",) if where == "next" else ()
    for flag, values in (
        ("terminated", [t for t, _ in expected]),
        ("truncated", [u for _, u in expected]),
        ("done", [t or u for t, u in expected]),
    ):
        column = batch[(*parent, flag)]
        assert column.dtype == dtype and column.shape == ((24, 1) if trailing else (24,))
        assert (column.reshape(-1) != 0).tolist() == values, flag


@pytest.mark.parametrize("given", SUBSETS, ids=named)
def test_missing_duals_of_a_whole_trajectory(given):
    storage = LazyTensorStorage(100)
    for t, u in CASES[1:]:
        flags = flags_of(given, [(False, False), (t, u)], np.bool_, False)
        storage.writer().extend_trajectory(rows(range(2), next=flags))
        batch = storage.read_episode(storage.episodes()["id"][-1])
        terminated, truncated = resolve(given, t, u)
        assert batch["next", "terminated"].tolist() == [False, terminated]
        assert batch["next", "truncated"].tolist() == [False, truncated]
        assert batch["next", "done"].tolist() == [False, terminated or truncated]


def test_each_write_may_give_other_flags():
    storage = LazyTensorStorage(100)
    writer = storage.writer()
    for n, given in enumerate(SUBSETS * 2):
        writer.add(row(n, next={f: f != "truncated" for f in FLAGS if f in given}))
    batch, _ = storage.gather(np.arange(14))
    for n, given in enumerate(SUBSETS * 2):
        terminated = given != {"truncated"}
        assert batch["next", "terminated"][n] == terminated, given
        assert not batch["next", "truncated"][n]
        assert batch["next", "done"][n] == terminated


def test_flags_of_different_dtypes_are_completed_too():
    """terminated is a bool, truncated a float: done follows from both, at every write."""
    storage = LazyTensorStorage(100)
    writer = storage.writer()
    for at in (0, 4, 8):
        flags = {
            "terminated": np.array([0, 1, 0, 0], bool),
            "truncated": np.array([0, 0, 1, 0], np.float32),
        }
        writer.extend(rows(range(at, at + 4), next=flags))
    for uid, (t, u) in enumerate([(False, 1.0), (True, 0.0), (False, 0.0)], start=12):
        writer.add(row(uid, next={"terminated": t, "truncated": np.float32(u)}))
    batch, _ = storage.gather(np.arange(15))
    assert batch["next", "done"].tolist() == [False, True, True, False] * 3 + [True, True, False]


def test_disagreeing_flags_of_different_dtypes_are_refused():
    storage = LazyTensorStorage(100)
    writer = storage.writer()
    good = {
        "done": np.array([0, 1], np.float32),
        "terminated": np.array([0, 1], bool),
        "truncated": np.array([0, 0], bool),
    }
    writer.extend(rows([0, 1], next=good))
    bad = {**good, "terminated": np.array([0, 0], bool)}
    with pytest.raises(LayoutError, match='"done"'):
        writer.extend(rows([2, 3], next=bad))
    assert len(storage) == 2


INCONSISTENT = [
    {"done": True, "terminated": False, "truncated": False},
    {"done": False, "terminated": True, "truncated": False},
    {"done": False, "terminated": False, "truncated": True},
]


@pytest.mark.parametrize("flags", INCONSISTENT)
@pytest.mark.parametrize("how", ["add", "add_step", "extend", "extend_trajectory"])
@pytest.mark.parametrize("trailing", [(), (1,)])
def test_disagreeing_flags_are_refused(flags, how, trailing):
    storage = LazyTensorStorage(10)
    writer = storage.writer()
    good = dict.fromkeys(FLAGS, np.zeros((1, *trailing), bool))
    writer.extend(rows([0], next=good))
    bad = {f: np.full((1, *trailing), v) for f, v in flags.items()}
    data = rows([1], next=bad)
    if how == "add":
        data = row(1, next={f: v[0] for f, v in bad.items()})
    with pytest.raises(LayoutError, match=r'\("next", "done"\)'):
        getattr(writer, how)(data)
    assert len(storage) == 1


@pytest.mark.parametrize("trailing", [(), (1,)])
def test_flags_and_rewards_are_stored_as_given(trailing):
    storage = LazyTensorStorage(10)
    n = np.arange(3)
    leaves = {
        "done": (n == 2).reshape(3, *trailing),
        "reward": n.astype(np.float32).reshape(3, *trailing),
    }
    storage.writer().extend(rows(n, next=leaves))
    batch = storage.read_episode(0)
    for leaf, value in leaves.items():
        assert batch["next", leaf].shape == (3, *trailing)
        np.testing.assert_array_equal(batch["next", leaf], value)


def test_an_end_without_the_other_flags():
    """Only done given means terminated = done."""
    storage = LazyTensorStorage(10)
    storage.writer().extend(rows(range(3), next={"done": np.array([False, False, True])}))
    (line,) = storage.episodes()
    assert line["terminated"] and not line["truncated"]
