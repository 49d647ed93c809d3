"""Every container that optree knows: what a record holds of it, and what comes back."""

from __future__ import annotations

import json
import pickle
import time
from collections import OrderedDict, UserDict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optree import dataclasses

from contig import (
    Batch,
    DiskStorage,
    Layout,
    LazyTensorStorage,
    ReplayBuffer,
    Server,
    TcpClient,
    TcpTransport,
    TrajectoryAccumulator,
)
from contig.tree import Structure, flatten, unflatten
from tests.reference.trees import Pair

NAMES = "contig"


@dataclasses.dataclass(namespace=NAMES)
class Step:
    """Its fields are not in the order of the alphabet."""

    reward: Any
    action: Any


class Tagged:
    """Registered, with entries that are no names, and with something beside its children."""

    def __init__(self, items: Any, tag: Any) -> None:
        self.items, self.tag = list(items), tag


optree.register_pytree_node(
    Tagged, lambda x: (x.items, x.tag), lambda tag, items: Tagged(items, tag), namespace=NAMES
)


class Bag(UserDict[str, Any]):
    """A registered mapping."""


optree.register_pytree_node(
    Bag,
    lambda x: (list(x.values()), tuple(x), list(x)),
    lambda keys, values: Bag(zip(keys, values)),
    namespace=NAMES,
)

_keys = st.permutations(["b", "a", "c"]).flatmap(
    lambda names: st.integers(1, 3).map(lambda n: names[:n])
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def keyed(make: Any) -> st.SearchStrategy[Any]:
        return _keys.flatmap(
            lambda keys: st.tuples(*[inner] * len(keys)).map(lambda v: make(zip(keys, v)))
        )

    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        keyed(dict),
        keyed(OrderedDict),
        several,
        several.map(tuple),
        several.map(lambda v: deque(v, maxlen=4)),
        st.tuples(inner, inner).map(lambda v: Pair(*v)),
        st.tuples(inner, inner).map(lambda v: Step(*v)),
        st.tuples(inner, inner).map(torch.return_types.max),
        st.builds(Tagged, several, st.sampled_from(["x", "y", 3])),
        keyed(Bag),
    )


_counter = iter(range(10**9))
trees = st.recursive(
    st.builds(lambda n: np.full(n, next(_counter), np.int64), st.integers(0, 2)),
    _containers,
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """The same containers, of the same types, with the same values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b) and a.dtype == b.dtype
    if isinstance(a, Tagged):
        return bool(a.tag == b.tag) and same(a.items, b.items)
    if isinstance(a, Step):
        return same(a.reward, b.reward) and same(a.action, b.action)
    if isinstance(a, OrderedDict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (dict, Bag)):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, deque) and a.maxlen != b.maxlen:
        return False
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))


def walked(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The leaves and their paths, by hand: mappings by sorted keys, the rest in its order."""
    if isinstance(node, np.ndarray):
        yield path, node
        return
    if isinstance(node, (dict, Bag)):
        items: Any = sorted(node.items())
    elif isinstance(node, Pair):
        items = node._asdict().items()
    elif isinstance(node, Step):
        items = [("reward", node.reward), ("action", node.action)]
    elif isinstance(node, torch.return_types.max):
        items = [("values", node[0]), ("indices", node[1])]
    else:
        items = enumerate(node.items if isinstance(node, Tagged) else node)
    for key, child in items:
        yield from walked(child, (*path, key))


@given(trees)
def test_flatten_and_back(tree: Any) -> None:
    paths, leaves, structure = flatten(tree)
    expected = list(walked(tree))
    assert paths == [path for path, _ in expected]
    assert all(a is b for a, (_, b) in zip(leaves, expected))
    assert same(unflatten(structure, iter(leaves)), tree)
    assert list(structure.paths()) == paths
    picked = structure.pick(tree)
    assert picked is None or all(a is b for a, b in zip(picked, leaves, strict=True))


@given(trees)
def test_a_record_holds_it_and_gives_it_back(tree: Any) -> None:
    layout = Layout(tree)
    record = layout.pack_one(tree)
    assert same(layout.unpack(record), tree)
    batch = Batch.one(tree)
    values = [leaf[None] for _, leaf in walked(tree)]
    assert same(batch.tree(), unflatten(flatten(tree)[2], iter(values)))
    for path, leaf in walked(tree):
        assert np.array_equal(batch[path][0], leaf)


@given(trees)
def test_json_keeps_the_leaves_and_takes_the_same_data(tree: Any) -> None:
    layout = Layout(tree)
    text = json.dumps(layout.to_json())
    for again in (Layout.from_json(json.loads(text)), pickle.loads(pickle.dumps(layout))):
        assert again.fingerprint == layout.fingerprint
        assert again.structure == layout.structure
        assert json.dumps(again.to_json()) == text or has_bag(tree)
        assert np.array_equal(again.pack_one(tree), layout.pack_one(tree))
        found = again.unpack(layout.pack_one(tree))
        assert [leaf.tolist() for leaf in flatten(found)[1]] == [
            x.tolist() for _, x in walked(tree)
        ]


def has_bag(tree: Any) -> bool:
    return "Bag" in repr(optree.tree_structure(tree, namespace=NAMES))


def test_what_json_makes_of_each() -> None:
    tree = {
        "deque": deque([1], maxlen=3),
        "ordered": OrderedDict(b=1, a=2),
        "bag": Bag(k=1),
        "step": Step(1, 2),
        "tagged": Tagged([1], "x"),
        "time": time.gmtime(0),
        "max": torch.return_types.max((1, 2)),
    }
    layout = Layout(tree)
    found = Layout.from_json(layout.to_json()).unpack(layout.pack_one(tree))
    assert type(found["deque"]) is deque
    assert list(found["ordered"]) == ["b", "a"]
    assert type(found["ordered"]) is OrderedDict
    assert type(found["bag"]) is dict
    assert (found["step"].reward, found["step"].action) == (1, 2)
    assert type(found["step"]).__name__ == "Step"
    assert found["tagged"] == (1,)
    assert found["time"] == time.gmtime(0)
    assert type(found["time"]) is time.struct_time
    assert type(found["max"]) is torch.return_types.max


@pytest.mark.parametrize(
    "node",
    [
        {"kind": "dict", "keys": ["a"], "children": ["leaf"], "order": ["b"]},
        {"kind": "dict", "keys": ["a"], "children": ["leaf"], "order": []},
        {"kind": "dict", "keys": ["a"], "children": ["leaf"], "order": ["a", "a"]},
        {"kind": "dict", "keys": [], "children": [], "order": [1.5]},
        {"kind": "dict", "keys": ["a"], "children": ["leaf"], "order": 3},
        {"kind": "deque", "keys": [0], "children": ["leaf"]},
        {"kind": "list", "keys": [1], "children": ["leaf"], "type": ["collections", "deque"]},
        {"kind": "namedtuple", "keys": ["_a"], "children": ["leaf"], "type": ["m", "n"]},
        {"kind": "namedtuple", "keys": ["a"], "children": ["leaf"], "type": ["m", "1"]},
    ],
)
def test_json_that_is_no_structure(node: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        Structure.from_json(node)


def test_nothing_is_made_of_a_name_but_tuples_of_the_same_fields() -> None:
    node = {"kind": "namedtuple", "keys": ["a"], "children": ["leaf"], "type": ["os", "system"]}
    made = unflatten(Structure.from_json(node), iter([1]))
    assert made._fields == ("a",)


def test_mappings_are_interchangeable_on_the_way_in() -> None:
    layout = Layout(OrderedDict(b=1, a={"x": 2}))
    for tree in ({"a": {"x": 3}, "b": 4}, OrderedDict(a=Bag(x=3), b=4), Bag(a={"x": 3}, b=4)):
        found = layout.unpack(layout.pack_one(tree))
        assert type(found) is OrderedDict
        assert list(found.items()) == [("b", 4), ("a", {"x": 3})]


@pytest.mark.parametrize(
    ("example", "other"),
    [
        (deque([1, 2]), [1, 2]),
        ([1, 2], deque([1, 2])),
        (Tagged([1, 2], "x"), (1, 2)),
    ],
)
def test_other_containers_are_refused(example: Any, other: Any) -> None:
    with pytest.raises(ValueError, match="other containers"):
        Layout({"x": example}).pack_one({"x": other})


def test_what_a_node_keeps_need_not_be_comparable() -> None:
    tree = {"x": Tagged([1.0], np.zeros(3))}
    for _ in range(2):
        assert flatten(tree)[0] == [("x", 0)]


def test_a_tree_that_holds_itself_is_refused() -> None:
    tree: list[Any] = [1]
    tree.append(tree)
    with pytest.raises(ValueError, match="levels deep"):
        flatten(tree)


# -- through buffers, files and servers -----------------------------------------------------------


def row(i: int) -> dict[str, Any]:
    return {
        "deque": deque([np.full(2, i, np.float32), i]),
        "ordered": OrderedDict(b=i, a=float(i)),
        "step": Step(float(i), Tagged([np.int64(i)], "t")),
        "max": torch.return_types.max((i, i)),
    }


def rows(n: int) -> dict[str, Any]:
    several = [flatten(row(i))[1] for i in range(n)]
    columns = [np.stack([np.asarray(x) for x in column]) for column in zip(*several)]
    return unflatten(flatten(row(0))[2], iter(columns))  # type: ignore[no-any-return]


def check(tree: dict[str, Any], index: np.ndarray[Any, Any]) -> None:
    assert type(tree["deque"]) is deque
    assert type(tree["ordered"]) is OrderedDict
    assert list(tree["ordered"]) == ["b", "a"]
    assert type(tree["max"]) is torch.return_types.max
    for column in (*tree["deque"], *tree["ordered"].values(), *tree["max"], tree["step"].reward):
        assert np.array_equal(np.asarray(column).reshape(len(index), -1)[:, 0], index)


@pytest.mark.parametrize("how", ["add", "extend", "add_step"])
def test_a_buffer_gives_back_what_it_was_given(how: str) -> None:
    buffer = ReplayBuffer(LazyTensorStorage(32))
    if how == "add":
        for i in range(8):
            buffer.add(row(i))
    elif how == "extend":
        buffer.extend(rows(8))
    else:
        buffer.add_step(rows(8))
    batch = buffer.sample(16)
    tree = batch.tree()
    check(tree, batch["index"])
    assert type(tree["step"]) is Step
    assert type(tree["step"].action) is Tagged
    assert tree["step"].action.tag == "t"
    assert type(batch["step", "action"]) is Tagged
    assert type(batch.torch()["step"]) is Step
    buffer.extend(batch)
    assert len(buffer) == 24
    check(pickle.loads(pickle.dumps(batch)).tree(), batch["index"])


def test_a_directory_gives_back_what_json_can_say(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path / "tape", 32)
    buffer = ReplayBuffer(storage)
    buffer.extend(rows(8))
    buffer.close()
    storage.close()
    again = ReplayBuffer(DiskStorage(tmp_path / "tape", 32))
    again.add(row(8))
    batch = again.sample(16)
    check(batch.tree(), batch["index"])
    assert batch.tree()["step"]._fields == ("reward", "action")
    again.close()


def test_over_the_network() -> None:
    with Server(rows(4), 2, TcpTransport(), 4) as server:
        with TcpClient("127.0.0.1", server.port, rows(4)) as client:
            for _ in range(2):
                client.send(rows(4))
        tree = server.sample(timeout=60)[0]
        assert type(tree["deque"]) is deque
        assert type(tree["ordered"]) is OrderedDict
        assert np.array_equal(tree["step"].reward, [[0, 1, 2, 3]] * 2)


def test_an_accumulator_takes_them() -> None:
    example = {"step": rows(3)}
    built = TrajectoryAccumulator(example)
    for i in range(3):
        built.add("step", row(i))
    tree = built.build()
    check(dict(tree["step"]), np.arange(3))
    with pytest.raises(ValueError, match="deque of 2"):
        built.add("step", {**row(0), "deque": [np.zeros(2, np.float32), 0]})
