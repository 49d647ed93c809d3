"""Mistakes in trees: a list or None in the place of a leaf, which a pytree takes for structure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..convert import is_reward
from ..errors import LayoutError
from ..tree import Path, Structure, flatten, show_path
from .fit_ragged import is_column
from .leaf import Leaf

__all__ = ["check_leaves", "mistake_in"]

_USE = "a list is a subtree: use np.asarray for one array of its numbers"
_OTHER_LENGTHS = "; where rows differ in length, contig.Ragged in the storage's example"
_NUMBERS = (int, float, complex, np.generic)  # bool is an int


def check_leaves(tree: Any) -> None:
    """Looks at what the first data is made of. (An example of a row may be any pytree.)

    Raises:
        LayoutError: a list of numbers, which would be a leaf for each of them; a reward of None,
            which would be none at all.
    """
    paths, leaves, structure = flatten(tree, is_column)
    for path, leaf in zip(paths, leaves):
        if path and isinstance(path[-1], int) and isinstance(leaf, _NUMBERS):
            if _is_list(structure.at(path[:-1])):
                while path and _is_list(structure.at(path[:-1])):
                    path = path[:-1]
                raise LayoutError(f"{show_path(path)}: {_USE}{_OTHER_LENGTHS}")
    none = _none_reward(structure, ())
    if none is not None:
        raise LayoutError(
            f"{show_path(none)}: None, expected a reward: give a number, or leave the key out"
        )


def mistake_in(
    tree: Any, missing: Iterable[Path], surplus: Iterable[Path], known: Mapping[Path, Leaf]
) -> str:
    """Returns what stands in the place of a leaf that a tree lacks, if that is why it does not fit;
    else an empty text."""
    for path in missing:
        if any(len(p) > len(path) and p[: len(path)] == path for p in surplus):
            if isinstance(_value_at(tree, path), list):
                return f"{show_path(path)}: {_USE}"
        elif _value_at(tree, path) is None:
            return f"{show_path(path)}: None, expected {known[path].describe()}: give a value"
    return ""


def _is_list(node: Structure) -> bool:
    return node.kind == "list" and node.type_name == ("", "")


def _none_reward(node: Structure, path: Path) -> Path | None:
    if node.kind == "none":
        return path if is_reward(path) else None
    found = (_none_reward(child, (*path, key)) for key, child in zip(node.keys, node.children))
    return next((p for p in found if p is not None), None)


def _value_at(tree: Any, path: Path) -> Any:
    """Returns the value of a tree at a path; `...` if it has nothing there."""
    for key in path:
        try:
            tree = getattr(tree, str(key)) if hasattr(tree, "_fields") else tree[key]
        except (KeyError, IndexError, TypeError, AttributeError):
            return ...
    return tree
