"""Pytrees: leaves with paths, and a structure that survives JSON.

A path is a tuple of keys: mapping keys, field names of namedtuples, positions in tuples and lists.
Mappings are walked in the order of their sorted keys, as optree does, whatever order they were
built in. This is the only module that imports optree.
"""

from __future__ import annotations

import keyword
import sys
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optree

__all__ = [
    "Nested",
    "Path",
    "Structure",
    "as_path",
    "flatten",
    "show_path",
    "tree_builder",
    "unflatten",
]

Path = tuple[str | int, ...]

MOST_LEVELS = 256  # each is a few calls deep wherever a tree is walked
_IN_ONE = 32  # levels of dicts that are built by one expression


@dataclass(frozen=True)
class Structure:
    """A pytree without its leaves. ``kind`` is leaf, none, dict, list, tuple or namedtuple."""

    kind: str
    keys: tuple[str | int, ...] = ()
    children: tuple[Structure, ...] = ()
    type_name: tuple[str, str] = ("", "")  # module and name of a namedtuple

    def paths(self, prefix: Path = ()) -> Iterator[Path]:
        if self.kind == "leaf":
            yield prefix
        for key, child in zip(self.keys, self.children):
            yield from child.paths((*prefix, key))

    def pick(self, tree: Any) -> list[Any] | None:
        """The leaves of a tree that is like this one and made of plain dicts; None of any other.

        What `flatten` finds, in a third of the time.
        """
        found: list[Any] = []
        return found if self._pick(tree, found.append) else None

    def _pick(self, node: Any, take: Callable[[Any], None]) -> bool:
        if self.kind == "leaf":
            take(node)
            return hasattr(node, "dtype")
        if self.kind != "dict" or type(node) is not dict or len(node) != len(self.keys):
            return False
        for key, child in zip(self.keys, self.children):
            if key not in node or not child._pick(node[key], take):
                return False
        return True

    def numbered(self) -> Any:
        """The tree with the leaves' numbers in their places."""
        return unflatten(self, iter(range(sys.maxsize)))

    def with_leaf(self, path: Path) -> Structure:
        """The structure with one more leaf, in its sorted place. Mappings only."""
        if self.kind != "dict":
            raise ValueError(f"cannot add a leaf at {show_path(path)} below a {self.kind}")
        key, rest = path[0], path[1:]
        items = dict(zip(self.keys, self.children))
        if rest:
            items[key] = items.get(key, Structure("dict")).with_leaf(rest)
        elif items.get(key, Structure("leaf")).kind != "leaf":
            raise ValueError(f"cannot put a leaf at {show_path(path)}: there is a subtree")
        else:
            items[key] = Structure("leaf")
        keys = tuple(sorted(items, key=_sort_key))
        return Structure("dict", keys, tuple(items[k] for k in keys))

    def without(self, leaves: Collection[Path], prefix: Path = ()) -> Structure:
        """The structure without some leaves, and without mappings that only had those."""
        if self.kind != "dict":
            return self
        items = []
        for key, child in zip(self.keys, self.children):
            path = (*prefix, key)
            kept = child.without(leaves, path)
            gone = path in leaves or (not kept.keys and child.kind == "dict" and child.keys)
            if not gone:
                items.append((key, kept))
        return Structure("dict", tuple(k for k, _ in items), tuple(c for _, c in items))

    def to_json(self) -> Any:
        if self.kind in ("leaf", "none"):
            return self.kind
        node: dict[str, Any] = {
            "kind": self.kind,
            "keys": list(self.keys),
            "children": [c.to_json() for c in self.children],
        }
        if self.kind == "namedtuple":
            node["type"] = list(self.type_name)
        return node

    @staticmethod
    def from_json(node: Any) -> Structure:
        """The structure that `to_json` described.

        Raises:
            ValueError, TypeError, KeyError: it is none.
        """
        if isinstance(node, str):
            if node not in ("leaf", "none"):
                raise ValueError(f"a node of kind {node!r}")
            return Structure(node)
        kind, keys = node["kind"], tuple(node["keys"])
        children = tuple(Structure.from_json(c) for c in node["children"])
        module, name = node.get("type", ("", ""))
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a type's module and name must be text")
        if len(keys) != len(children) or len(set(keys)) != len(keys):
            raise ValueError("as many different keys as children")
        if kind == "dict":
            fits = all(type(k) in (str, int) for k in keys)
            fits = fits and keys == tuple(sorted(keys, key=_sort_key))
        elif kind == "namedtuple":
            last = name.rpartition(".")[2]
            fits = all(isinstance(k, str) and _is_field(k) for k in keys) and _is_field(last)
        else:
            fits = kind in ("list", "tuple") and keys == tuple(range(len(keys)))
        if not fits:
            raise ValueError(f"keys {list(keys)!r} of a {kind!r}")
        return Structure(kind, keys, children, (module, name))


def _is_field(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _sort_key(key: Any) -> tuple[str, Any]:
    return (type(key).__name__, key)


def flatten(tree: Any) -> tuple[list[Path], list[Any], Structure]:
    """Leaves of a tree with their paths, and its structure.

    Raises:
        ValueError: a node type that records cannot hold; it names the path.
    """
    paths: list[Path] = []
    leaves: list[Any] = []

    def walk(node: Any, path: Path) -> Structure:
        if len(path) > MOST_LEVELS:
            raise ValueError(
                f"{show_path(path[:3])[:-1]}, ...): more than {MOST_LEVELS} levels deep; a record "
                "is a few leaves with names, so flatten it first"
            )
        if isinstance(node, Mapping):
            if type(node).__module__.startswith("tensordict"):
                raise ValueError(
                    f"{show_path(path)}: a TensorDict inside other containers; pass "
                    "td.to_dict() there, or one TensorDict for everything"
                )
            keys = tuple(sorted(node, key=_sort_key))
            for key in keys:
                if not isinstance(key, (str, int)):
                    raise ValueError(
                        f"{show_path(path)}: mapping keys must be str or int, got "
                        f"{type(key).__name__} {key!r}"
                    )
            return Structure("dict", keys, tuple(walk(node[k], (*path, k)) for k in keys))
        if node is None:
            return Structure("none")
        if optree.is_namedtuple_instance(node):
            fields = tuple(node._fields)
            kids = tuple(walk(v, (*path, f)) for f, v in zip(fields, node))
            cls = type(node)
            return Structure("namedtuple", fields, kids, (cls.__module__, cls.__qualname__))
        if type(node) in (tuple, list):
            kids = tuple(walk(v, (*path, i)) for i, v in enumerate(node))
            return Structure(type(node).__name__, tuple(range(len(node))), kids)
        if not optree.tree_is_leaf(node):
            raise ValueError(
                f"{show_path(path)}: a {type(node).__name__} cannot be part of a record; use "
                "nested dicts, tuples, lists or namedtuples"
            )
        paths.append(path)
        leaves.append(node)
        return Structure("leaf")

    return paths, leaves, walk(tree, ())


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """A tree of this structure, its leaves taken in order."""
    kind = structure.kind
    if kind == "leaf":
        return next(leaves)
    if kind == "none":
        return None
    values = [unflatten(child, leaves) for child in structure.children]
    if kind == "dict":
        return dict(zip(structure.keys, values))
    if kind == "list":
        return values
    if kind == "tuple":
        return tuple(values)
    return _namedtuple(structure)(*values)


def tree_builder(structure: Structure) -> Callable[[Sequence[Any]], Any]:
    """`unflatten` for a list of leaves, prepared: for structures that are built over and over.

    Nested dicts become one expression, as namedtuple makes its methods: a third of the time that
    walking the structure takes.
    """
    parts: dict[str, Any] = {}
    text, _ = _expression(structure, 0, parts, _IN_ONE)
    build: Callable[[Sequence[Any]], Any] = eval(f"lambda leaves: {text}", parts)
    return build


def _expression(
    structure: Structure, first: int, parts: dict[str, Any], levels: int
) -> tuple[str, int]:
    """The source that builds a structure of the leaves from `first` on, and where those end."""
    if structure.kind == "leaf":
        return f"leaves[{first}]", first + 1
    if structure.kind == "dict" and structure.keys and levels > 0:
        items, at = [], first
        for key, child in zip(structure.keys, structure.children):
            text, at = _expression(child, at, parts, levels - 1)
            parts[name := f"key{len(parts)}"] = key
            items.append(f"{name}: {text}")
        return "{" + ", ".join(items) + "}", at
    last = first + sum(1 for _ in structure.paths())
    parts[name := f"build{len(parts)}"] = lambda leaves: unflatten(structure, iter(leaves))
    return f"{name}(leaves[{first}:{last}])", last


def _namedtuple(structure: Structure) -> Any:
    # The class itself where this process has it loaded; nothing is ever imported by name.
    module, name = structure.type_name
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if optree.is_namedtuple_class(found) and tuple(found._fields) == structure.keys:
        return found
    return namedtuple(name.rpartition(".")[2], [str(k) for k in structure.keys])


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
