"""Paths into pytrees, and dicts that take them as keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Nested", "Path", "as_path", "nested", "show_path"]

Path = tuple[str | int, ...]


class Nested(dict[Any, Any]):
    """Nested dicts that also take a path as key: ``tree["next", "reward"]``."""

    @staticmethod
    def of(tree: Any) -> Any:
        return Nested(tree) if isinstance(tree, dict) else tree

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return super().__getitem__(key)
        node: Any = self
        for part in key:
            node = dict.__getitem__(node, part) if isinstance(node, dict) else node[part]
        return node


def as_path(key: Any) -> Path:
    """``"done"`` or ``("next", "done")`` as a path."""
    return tuple(key) if isinstance(key, (tuple, list)) else (key,)


def nested(leaves: Mapping[Any, Any]) -> Any:
    """Nested dicts from leaves by path, none of them below another; of the empty path, the leaf."""
    if () in leaves:  # the tree is one leaf
        return leaves[()]
    out: dict[Any, Any] = {}
    for path, leaf in leaves.items():
        node = out
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return out


def show_path(path: Path) -> str:
    """A path as a person writes it: ``("next", "reward")``, ``"obs"``."""
    if not path:
        return "the root"
    if len(path) == 1:
        return repr(path[0]).replace("'", '"')
    return "(" + ", ".join(repr(k).replace("'", '"') for k in path) + ")"
