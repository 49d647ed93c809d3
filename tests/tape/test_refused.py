"""A refused append changes nothing: length, head, rows, episodes, later samples, continuity."""

from __future__ import annotations

import numpy as np
import pytest

from contig import LayoutError, LazyTensorStorage, ReplayBuffer, SliceSampler
from tests.tape.rows import pieces, row, rows


def data(n=3, at=100, **change):
    tree = rows(range(at, at + n), "." * (n - 1) + "t", next={"reward": np.ones(n, np.float32)})
    tree |= {"count": np.arange(n), "flag": np.zeros(n, bool)}
    for key, value in change.items():
        if value is None:
            del tree[key]
        else:
            tree[key] = value
    return tree


def without(tree, key):
    return {**tree, "next": {k: v for k, v in tree["next"].items() if k != key}}


BAD = {
    "missing leaf": data(count=None),
    "missing nested leaf": without(data(), "reward"),
    "surplus leaf": data(surplus=np.zeros(3)),
    "shape": data(obs=np.zeros((3, 3), np.float32)),
    "shape that would broadcast": data(obs=np.zeros((3, 1), np.float32)),
    "scalar that would broadcast": data(count=7),
    "fewer rows": data(count=np.arange(2)),
    "more rows": data(obs=np.zeros((4, 2), np.float32)),
    "fraction to int": data(count=np.array([0.0, 1.5, 2.0])),
    "nan to int": data(count=np.array([0.0, np.nan, 2.0])),
    "inf to int": data(count=np.array([0.0, np.inf, 2.0])),
    "float beyond int64": data(count=np.array([0.0, 2.0**63, 2.0])),
    "unsigned beyond int64": data(count=np.array([0, 2**63, 2], np.uint64)),
    "two to bool": data(flag=np.array([0, 1, 2])),
    "nan to bool": data(flag=np.array([0.0, 1.0, np.nan])),
    "beyond float32": data(obs=np.full((3, 2), 1e39)),
    "complex to float": data(obs=np.full((3, 2), 1j)),
    "text": data(count=np.array(["a", "b", "c"])),
    "objects": data(count=np.array([[1], [1, 2], [1]], dtype=object)),
    "dates": data(count=np.zeros(3, "datetime64[s]")),
    "disagreeing flags": {**data(), "next": {**data()["next"], "done": np.zeros(3, bool)}},
    "a leaf where a mapping was": data(next=np.zeros(3)),
    "a mapping where a leaf was": data(count={"a": np.zeros(3)}),
    "another container": [np.zeros(3)],
    "nothing": {},
}


def state(storage, seed=3):
    """Everything a reader can see."""
    buffer = ReplayBuffer(storage, SliceSampler(slice_len=2), seed=seed)
    samples = [buffer[:], *(buffer.sample(8) for _ in range(3))]
    return (
        len(storage),
        storage.tape.snapshot(),
        buffer.stats()._replace(rows_sampled=0, batches_sampled=0),
        storage.episodes().tobytes(),
        [{k: s[k].tobytes() for k in s.keys()} for s in samples],  # noqa: SIM118
    )


@pytest.mark.parametrize("capacity", [4, 20])
@pytest.mark.parametrize("how", ["extend", "extend_trajectory", "add_step"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_refused_rows_change_nothing(bad, how, capacity):
    storage = LazyTensorStorage(capacity)
    writer = storage.writer()
    writer.extend(data(3, 0))
    writer.extend(without_end(data(2, 3)))
    before = state(storage)
    with pytest.raises(ValueError):
        getattr(writer, how)(bad)
    assert state(storage) == before
    writer.extend(data(1, 5))  # the open trajectory goes on
    assert pieces(storage)[-1] == [3, 4, 5]


def without_end(tree):
    for flag in ("done", "terminated"):
        tree["next"][flag] = np.zeros_like(tree["next"][flag])
    return tree


@pytest.mark.parametrize("bad", [b for b in BAD if b not in ("fewer rows", "more rows")])
def test_a_refused_row_changes_nothing(bad):
    def first(node):
        if isinstance(node, dict):
            return {k: first(v) for k, v in node.items()}
        if isinstance(node, list):
            return [first(v) for v in node]
        return node[-1] if np.ndim(node) else np.zeros(3, int)

    worst = first(BAD[bad])
    if bad == "fraction to int":
        worst["count"] = 1.5
    elif bad == "nan to int":
        worst["count"] = float("nan")
    elif bad == "inf to int":
        worst["count"] = float("inf")
    elif bad == "float beyond int64":
        worst["count"] = 2.0**63
    elif bad == "unsigned beyond int64":
        worst["count"] = 2**63
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(without_end(data(2, 3)))
    before = state(storage)
    with pytest.raises((ValueError, OverflowError)):
        writer.add(worst)
    assert state(storage) == before
    good = first(data(1, 5))
    writer.add(good)
    assert pieces(storage) == [[3, 4, 5]]


def test_the_error_names_the_leaf_what_came_and_what_was_expected():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(data())
    cases = {
        "shape": r'"obs": shape \[3, 3\], expected \[n, 2\]',
        "fraction to int": r'"count": value 1.5 of float64 cannot be stored as int64',
        "two to bool": r'"flag": value 2 .*only 0 and 1',
        "fewer rows": r"\[3\]|\[2\]",
        "missing leaf": r'missing "count"',
        "surplus leaf": r'unexpected "surplus"',
        "beyond float32": r'"obs": value 1e\+39 .*float32',
    }
    for case, text in cases.items():
        with pytest.raises(ValueError, match=text):
            writer.extend(BAD[case])


def test_a_refused_first_append_fixes_no_layout():
    """Flags that disagree, or rows of unequal number, and then quite another layout: it is free."""
    for bad in (BAD["disagreeing flags"], BAD["fewer rows"]):
        storage = LazyTensorStorage(20)
        writer = storage.writer()
        with pytest.raises(ValueError):
            writer.extend(bad)
        assert len(storage) == 0
        assert storage.layout is None
        writer.extend({"something": np.zeros((3, 5)), "else": np.zeros(3, np.int16)})
        assert len(storage) == 3


def test_a_refused_first_row_fixes_no_layout():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    with pytest.raises(LayoutError):
        writer.add({"next": {"done": True, "terminated": False, "truncated": False}})
    assert storage.layout is None
    writer.add({"obs": np.zeros(4)})
    assert len(storage) == 1


def test_what_casts_keep():
    storage = LazyTensorStorage(20)
    writer = storage.writer()
    writer.extend(data())
    writer.extend(
        data(
            count=np.array([0.0, -3.0, 2.0**52]),
            flag=np.array([0, 1, 0]),
            obs=np.array([[True, False]] * 3),
            uid=np.array([1, 2, 3], np.int8),
        )
    )
    batch, _ = storage.gather(np.arange(3, 6))
    assert batch["count"].tolist() == [0, -3, 2**52]
    assert batch["flag"].tolist() == [False, True, False]
    assert batch["obs"].tolist() == [[1.0, 0.0]] * 3
    assert batch["uid"].tolist() == [1, 2, 3]


def test_an_int_that_overflows_a_small_float_is_refused():
    storage = LazyTensorStorage(20)
    storage.writer().extend({"half": np.zeros(2, np.float16), "done": np.zeros(2, bool)})
    with pytest.raises(ValueError, match='"half"'):
        storage.writer().extend({"half": np.array([1, 70000]), "done": np.zeros(2, bool)})
    assert len(storage) == 2


def test_infinities_and_nans_of_floats_are_values():
    storage = LazyTensorStorage(20)
    value = np.array([np.inf, -np.inf, np.nan])
    storage.writer().extend({"x": value.astype(np.float32), "done": np.zeros(3, bool)})
    storage.writer().extend({"x": value, "done": np.zeros(3, bool)})
    batch, _ = storage.gather(np.arange(6))
    np.testing.assert_array_equal(batch["x"], np.tile(value, 2).astype(np.float32))


def test_no_rows_are_no_error_and_change_nothing():
    storage = LazyTensorStorage(20, ndim=2)
    writer = storage.writer()
    writer.extend(rows([0, 1], ".."))
    before = state(storage)
    assert writer.extend(rows([], "")).tolist() == []
    assert writer.extend(rows(np.zeros((3, 0)), "")).tolist() == []
    assert writer.extend_trajectory(rows([], "")).tolist() == []
    assert writer.add_step(rows([], "")).tolist() == []
    assert state(storage) == before
    writer.add(row(2, "t"))
    assert pieces(storage) == [[0, 1, 2]]
