"""Paths into pytrees, and dicts that take them as keys."""

from __future__ import annotations

from typing import Any

__all__ = ["Nested", "Path", "as_path", "show_path"]

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


def show_path(path: Path) -> str:
    """A path as a person writes it: ``("next", "reward")``, ``"obs"``."""
    if not path:
        return "the root"
    if len(path) == 1:
        return repr(path[0]).replace("'", '"')
    return "(" + ", ".join(repr(k).replace("'", '"') for k in path) + ")"
