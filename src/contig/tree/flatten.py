"""Flattening, which optree does: a tree's leaves in canonical order, their paths, its structure."""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import optree

from .paths import Path, show_path
from .structure import DEQUE, NAMESPACE, Structure, are_fields, fields_of, sort_key, unflatten

__all__ = ["first_leaf", "flatten"]

MOST_LEVELS = 256  # each is a few calls deep wherever a tree is walked


def flatten(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Path], list[Any], Structure]:
    """Leaves of a tree with their paths, and its structure.

    Args:
        is_leaf: also says so of containers.

    Raises:
        ValueError: keys that records cannot have, or a tree too deep; it names the path.
    """
    try:
        leaves, spec = optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    except RecursionError:
        raise ValueError(_too_deep(())) from None
    try:
        paths, order, structure = _known(spec)
    except Exception:  # what a node keeps beside its children need not be comparable
        paths, order, structure = _described(spec)
    if order is not None:
        leaves = [leaves[i] for i in order]
    if any(isinstance(leaf, Mapping) for leaf in leaves):  # no dict: optree takes it for a leaf
        plain = [_as_dict(leaf, path) for path, leaf in zip(paths, leaves)]
        return flatten(unflatten(structure, iter(plain)), is_leaf)
    return list(paths), leaves, structure


def _as_dict(leaf: Any, path: Path) -> Any:
    if type(leaf).__module__.startswith("tensordict"):
        raise ValueError(
            f"{show_path(path)}: a TensorDict inside other containers; pass "
            "td.to_dict() there, or one TensorDict for everything"
        )
    return dict(leaf) if isinstance(leaf, Mapping) else leaf


def _described(spec: Any) -> tuple[tuple[Path, ...], list[int] | None, Structure]:
    """The paths of a tree that optree has flattened, in canonical order; which of its leaves those
    are, if it has them in another; and the structure.

    Raises:
        ValueError: keys that records cannot have, or too many levels; it names the path.
    """
    structure, numbers = _describe(spec, 0, ())
    in_order = numbers == list(range(len(numbers)))
    return tuple(structure.paths()), None if in_order else numbers, structure


_known = functools.lru_cache(maxsize=256)(_described)


def _describe(spec: Any, first: int, path: Path) -> tuple[Structure, list[int]]:
    """A node, and the numbers of its leaves in canonical order; optree's first one is `first`."""
    if len(path) > MOST_LEVELS:
        raise ValueError(_too_deep(path))
    cls = spec.type
    if cls is None:
        return Structure("leaf"), [first]
    if cls is type(None):
        return Structure("none"), []
    form = _form(cls, spec)
    if form.kind == "dict":
        for key in form.keys:
            if not isinstance(key, (str, int)):
                raise ValueError(
                    f"{show_path(path)}: mapping keys must be str or int, got "
                    f"{type(key).__name__} {key!r}"
                )
    parts = []
    for key, child in zip(form.keys, spec.children()):
        parts.append((key, *_describe(child, first, (*path, key))))
        first += child.num_leaves
    if form.kind == "dict":
        parts.sort(key=lambda part: sort_key(part[0]))
    keys, children = tuple(part[0] for part in parts), tuple(part[1] for part in parts)
    return replace(form, keys=keys, children=children), [n for part in parts for n in part[2]]


def _form(cls: Any, spec: Any) -> Structure:
    """A container without its children, its keys in optree's order."""
    keys, positions = tuple(spec.entries()), tuple(range(spec.num_children))
    name = (cls.__module__, cls.__qualname__)
    if spec.kind != optree.PyTreeKind.CUSTOM:
        if cls in (list, tuple):
            return Structure(cls.__name__, positions)
        if cls is deque:
            return Structure("list", positions, type_name=DEQUE, spec=spec.one_level())
        if issubclass(cls, dict):
            return Structure("dict", keys, order=keys if cls is OrderedDict else None)
        fields = fields_of(cls)
        if fields is not None and are_fields(fields):
            return Structure("namedtuple", fields, type_name=name, cls=cls)
    one = spec.one_level()
    if issubclass(cls, Mapping):
        return Structure("dict", keys, order=keys, spec=one)
    if are_fields(keys):
        return Structure("namedtuple", keys, type_name=name, spec=one)
    return Structure("tuple", positions, type_name=name, spec=one)


def _too_deep(path: Path) -> str:
    start = f"{show_path(path[:3])[:-1]}, ...)" if path else "the tree"
    return (
        f"{start}: more than {MOST_LEVELS} levels deep; a record is a few leaves with names, so "
        "flatten it first"
    )


def first_leaf(tree: Any) -> Any:
    """The first leaf that is met, of a tree that has one: not the first in canonical order."""
    node = tree
    while isinstance(node, (dict, tuple, list)) and node:
        node = next(iter(node.values())) if isinstance(node, dict) else node[0]
    if hasattr(node, "shape"):
        return node
    leaves = flatten(node)[1] or flatten(tree)[1]  # the first node may be an empty one
    return leaves[0] if leaves else None
