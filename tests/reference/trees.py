"""Pytrees for tests: leaves with their paths, random trees, and values that carry their place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

DTYPES = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
    *("f2", "f4", "f8", "c8", "c16"),
]


class Pair(NamedTuple):
    """A namedtuple with fields that are not in alphabetic order."""

    second: Any
    first: Any


class Spec:
    """A leaf without data: shape and dtype of one row."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {self.dtype})"


def walk(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """(path, leaf) in canonical order: mappings by sorted key, the rest as it comes."""
    if isinstance(tree, dict):
        items: Any = sorted(tree.items(), key=lambda kv: (type(kv[0]).__name__, kv[0]))
    elif hasattr(tree, "_fields"):
        items = zip(tree._fields, tree)
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    else:
        return [(path, tree)]
    return [x for key, child in items for x in walk(child, (*path, key))]


def rebuild(tree: Any, leaf: Callable[[tuple[Any, ...], Any], Any], path: Any = ()) -> Any:
    """The same containers with leaf(path, old leaf) in place of each leaf."""
    if isinstance(tree, dict):
        return {k: rebuild(v, leaf, (*path, k)) for k, v in tree.items()}
    if hasattr(tree, "_fields"):
        fields = zip(tree._fields, tree)
        return type(tree)(*(rebuild(v, leaf, (*path, f)) for f, v in fields))
    if isinstance(tree, (list, tuple)):
        return type(tree)(rebuild(v, leaf, (*path, i)) for i, v in enumerate(tree))
    return leaf(path, tree)


def values(spec: Spec, number: int, batch: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
    """An array [*batch, *shape] whose elements tell leaf, row and place apart, exactly."""
    shape = (*batch, *spec.shape)
    count = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) + 1 + 37 * number
    if spec.dtype.kind == "b":
        return np.asarray(count * 0x9E3779B1 >> 7 & 1, bool)
    # What every dtype of that size holds exactly; primes, so that rows do not repeat.
    limit = {1: 113, 2: 1021}.get(spec.dtype.itemsize, 2**23 - 15)
    return np.asarray(count % limit).astype(spec.dtype)


def fill(specs: Any, batch: tuple[int, ...] = ()) -> Any:
    """A tree of arrays for a tree of Specs."""
    number = {path: i for i, (path, _) in enumerate(walk(specs))}
    return rebuild(specs, lambda path, spec: values(spec, number[path], batch))


def same(a: Any, b: Any) -> bool:
    """Equal containers, shapes, dtypes and bytes."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def label(value: Any) -> str:
    """A short id for a parametrized test that is the same in every run."""
    return re.sub(r" at 0x[0-9a-f]+|\s+", " ", repr(value))[:60]


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
specs = st.builds(Spec, shapes, st.sampled_from(DTYPES))
keys = st.one_of(st.sampled_from(["obs", "next", "done", "a", "Z", "_", ""]), st.integers(0, 12))
trees = st.recursive(
    specs,
    lambda kids: st.one_of(
        st.dictionaries(keys, kids, max_size=4),
        st.lists(kids, max_size=3),
        st.lists(kids, max_size=3).map(tuple),
        st.builds(Pair, kids, kids),
    ),
    max_leaves=7,
).filter(lambda tree: len(walk(tree)) > 0)
