"""The structure of a pytree: what JSON says of it, and how this process builds it."""

from __future__ import annotations

import keyword
import sys
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optree

from .paths import Path, show_path

__all__ = [
    "DEQUE",
    "NAMESPACE",
    "Structure",
    "are_fields",
    "fields_of",
    "sort_key",
    "tree_builder",
    "unflatten",
]

NAMESPACE = "contig"  # of optree's registry, beside the global one
DEQUE = ("collections", "deque")

_IN_ONE = 32  # levels of dicts that are built by one expression


@dataclass(frozen=True)
class Structure:
    """A pytree without its leaves. What is compared is what JSON says of it.

    Attributes:
        kind: leaf, none, dict, list, tuple or namedtuple. A deque is a list, a struct sequence a
            namedtuple, a registered node one or the other of tuple (if its entries are no names)
            and namedtuple: so it comes back where its type is not known.
        keys: of the children; a mapping's are sorted.
        type_name: module and name of a class, of which this process may have none.
        order: an OrderedDict's keys in its own order.
        cls: what a namedtuple is here.
        spec: one level of what only optree can build: registered nodes and deques.
    """

    kind: str
    keys: tuple[str | int, ...] = ()
    children: tuple[Structure, ...] = ()
    type_name: tuple[str, str] = ("", "")
    order: tuple[str | int, ...] | None = field(default=None, compare=False)
    cls: Any = field(default=None, compare=False)
    spec: Any = field(default=None, compare=False)

    def paths(self, prefix: Path = ()) -> Iterator[Path]:
        if self.kind == "leaf":
            yield prefix
        for key, child in zip(self.keys, self.children):
            yield from child.paths((*prefix, key))

    def at(self, path: Path) -> Structure:
        """The structure below a path. KeyError if there is none."""
        node = self
        for key in path:
            node = dict(zip(node.keys, node.children))[key]
        return node

    def pick(self, tree: Any, optional: Collection[Path] | None = None) -> list[Any] | None:
        """The leaves of a tree that is like this one and made of plain dicts; None of any other.

        What `flatten` finds, in a quarter of the time. (`PyTreeSpec.flatten_up_to` would be faster
        still, but prints all arrays into its error if the tree differs.)

        Args:
            optional: whatever is in a leaf's place is that leaf then, lists too, and these may be
                missing: they come back as None.
        """
        found: list[Any] = []
        if optional is not None:
            return found if self._follow(tree, found.append, optional, ()) else None
        return found if self._pick(tree, found.append) else None

    def _follow(
        self, node: Any, take: Callable[[Any], None], optional: Collection[Path], path: Path
    ) -> bool:
        if self.kind == "leaf":
            take(node)
            return not isinstance(node, Mapping)
        if self.kind in ("list", "tuple") and self.type_name == ("", ""):
            if type(node).__name__ != self.kind or len(node) != len(self.keys):
                return False
            children = zip(node, self.keys, self.children)
            return all(c._follow(x, take, optional, (*path, k)) for x, k, c in children)
        if self.kind != "dict" or not isinstance(node, Mapping) or not node.keys() <= {*self.keys}:
            return False
        for key, child in zip(self.keys, self.children):
            below = (*path, key)
            if key not in node and child.kind == "leaf" and below in optional:
                take(None)
            elif key not in node or not child._follow(node[key], take, optional, below):
                return False
        return True

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

    def numbered(
        self,
        number: Mapping[Path, int] | None = None,
        missing: Collection[Path] = (),
        path: Path = (),
    ) -> Any:
        """The tree with the leaves' numbers in their places, as the native planner takes it.

        Args:
            number: of each leaf; from 0 in order, if not given.
            missing: paths that are left out.
        """
        if number is None:
            number = {p: i for i, p in enumerate(self.paths())}
        if self.kind == "leaf":
            return number[path]
        if self.kind == "none":
            return None
        if self.spec is not None:
            return ...  # no native plan reads those
        items = {
            key: child.numbered(number, missing, (*path, key))
            for key, child in zip(self.keys, self.children)
            if (*path, key) not in missing
        }
        return items if self.kind == "dict" else self.build(list(items.values()))

    def build(self, values: list[Any]) -> Any:
        """The container from its children."""
        order = self.order
        if order is not None:
            by_key = dict(zip(self.keys, values))
            values = [by_key[key] for key in order]
        if self.spec is not None:
            return self.spec.unflatten(values)
        if self.kind == "dict":
            return (
                dict(zip(self.keys, values)) if order is None else OrderedDict(zip(order, values))
            )
        if self.kind == "list":
            return values
        if self.kind == "tuple":
            return tuple(values)
        return self.cls(values) if optree.is_structseq_class(self.cls) else self.cls(*values)

    def with_leaf(self, path: Path) -> Structure:
        """The structure with one more leaf, in its sorted place. Mappings only."""
        if self.kind != "dict":
            raise ValueError(f"cannot add a leaf at {show_path(path)} below a {self.kind}")
        key, rest = path[0], path[1:]
        items = dict(zip(self.keys, self.children))
        new = key not in items
        if rest:
            items[key] = items.get(key, Structure("dict")).with_leaf(rest)
        elif items.get(key, Structure("leaf")).kind != "leaf":
            raise ValueError(f"cannot put a leaf at {show_path(path)}: there is a subtree")
        else:
            items[key] = Structure("leaf")
        order = (*(self.order or ()), *([key] if new else []))
        return self._with(items, order)

    def without(self, leaves: Collection[Path], prefix: Path = ()) -> Structure:
        """The structure without some leaves, and without mappings that only had those."""
        if self.kind != "dict":
            return self
        items = {}
        for key, child in zip(self.keys, self.children):
            path = (*prefix, key)
            kept = child.without(leaves, path)
            gone = path in leaves or (not kept.keys and child.kind == "dict" and child.keys)
            if not gone:
                items[key] = kept
        return self._with(items, tuple(k for k in self.order or () if k in items))

    def _with(self, items: dict[Any, Structure], order: tuple[Any, ...]) -> Structure:
        """This mapping with other children. A registered one has become a dict."""
        keys = tuple(sorted(items, key=sort_key))
        ordered = self.order is not None and self.spec is None
        children = tuple(items[k] for k in keys)
        return Structure("dict", keys, children, order=order if ordered else None)

    def to_json(self) -> Any:
        if self.kind in ("leaf", "none"):
            return self.kind
        node: dict[str, Any] = {
            "kind": self.kind,
            "keys": list(self.keys),
            "children": [c.to_json() for c in self.children],
        }
        if self.type_name != ("", ""):
            node["type"] = list(self.type_name)
        if self.order is not None and self.spec is None:
            node["order"] = list(self.order)
        return node

    @staticmethod
    def from_json(node: Any) -> Structure:
        """The structure that `to_json` described.

        Classes are those that this process has loaded: nothing is ever imported by name. What it
        lacks, and every registered node, is a namedtuple of the same fields, or a tuple.

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
        order = tuple(node["order"]) if kind == "dict" and "order" in node else None
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a type's module and name must be text")
        if len(keys) != len(children) or len(set(keys)) != len(keys):
            raise ValueError("as many different keys as children")
        if kind == "dict":
            fits = all(type(k) in (str, int) for k in (*keys, *(order or ())))
            fits = fits and keys == tuple(sorted(keys, key=sort_key))
            fits = fits and (order is None or tuple(sorted(order, key=sort_key)) == keys)
        elif kind == "namedtuple":
            fits = are_fields(keys) and _is_name(name.rpartition(".")[2])
        else:
            fits = kind in ("list", "tuple") and keys == tuple(range(len(keys)))
        if not fits:
            raise ValueError(f"keys {list(keys)!r} of a {kind!r}")
        cls = _fields_class(module, name, keys) if kind == "namedtuple" else None
        of_keys: Any = deque(keys) if kind == "list" and (module, name) == DEQUE else None
        spec = None if of_keys is None else optree.tree_structure(of_keys)
        return Structure(kind, keys, children, (module, name), order, cls, spec)

    def __reduce__(self) -> Any:
        return Structure.from_json, (self.to_json(),)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def are_fields(names: Collection[Any]) -> bool:
    """Whether a namedtuple can have these fields."""
    fit = all(_is_name(n) and not n.startswith("_") for n in names)
    return fit and len(set(names)) == len(names)


def sort_key(key: Any) -> tuple[str, Any]:
    return (type(key).__name__, key)


def _fields_class(module: str, name: str, keys: tuple[Any, ...]) -> Any:
    """The namedtuple or struct sequence of this name, or a new namedtuple."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if fields_of(found) == keys:
        return found
    return namedtuple(name.rpartition(".")[2], [str(k) for k in keys])


def fields_of(cls: Any) -> tuple[str, ...] | None:
    if optree.is_namedtuple_class(cls):
        return tuple(cls._fields)
    return tuple(optree.structseq_fields(cls)) if optree.is_structseq_class(cls) else None


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """A tree of this structure, its leaves taken in order."""
    kind = structure.kind
    if kind == "leaf":
        return next(leaves)
    if kind == "none":
        return None
    values = [unflatten(child, leaves) for child in structure.children]
    if kind == "dict" and structure.order is None:  # nearly always
        return dict(zip(structure.keys, values))
    return structure.build(values)


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
    plain = structure.kind == "dict" and structure.order is None
    if plain and structure.keys and levels > 0:
        items, at = [], first
        for key, child in zip(structure.keys, structure.children):
            text, at = _expression(child, at, parts, levels - 1)
            parts[name := f"key{len(parts)}"] = key
            items.append(f"{name}: {text}")
        return "{" + ", ".join(items) + "}", at
    last = first + sum(1 for _ in structure.paths())
    parts[name := f"build{len(parts)}"] = lambda leaves: unflatten(structure, iter(leaves))
    return f"{name}(leaves[{first}:{last}])", last
