"""What an environment's observations and actions are: leaves with paths, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..convert import as_array, cast, leaf_spec
from ..errors import LayoutError
from ..layout import ShapeDtype
from ..tree import Path, show_path
from .places import place_of, say_moved

__all__ = [
    "Array",
    "Spec",
    "as_reward",
    "as_space",
    "at_lane",
    "nest",
    "spec_of_space",
    "spec_of_value",
    "stack_lanes",
]

Array = np.ndarray[Any, Any]


class Spec:
    """The leaves of an observation or action, in a fixed order.

    Args:
        leaves: shape and dtype of each leaf, by its path in the row.
        root: the key below which the value is; None: its keys are at the root.
        sources: the paths of the leaves in the value, where they are others than in the row.
    """

    def __init__(
        self,
        leaves: Mapping[Path, ShapeDtype],
        root: str | None,
        sources: Sequence[Path] | None = None,
    ) -> None:
        self.leaves = dict(leaves)
        self.paths = list(leaves)
        self.shapes = [tuple(x.shape) for x in leaves.values()]
        self.dtypes = [np.dtype(x.dtype) for x in leaves.values()]
        self.root = root
        self.single = root is not None and self.paths == [(root,)]
        skip = 0 if root is None else 1
        self.sources = [p[skip:] for p in self.paths] if sources is None else list(sources)
        self._getters = [_getter(path) for path in self.sources]

    def flat(self, value: Any) -> list[Any]:
        """The leaves of a value, in order."""
        if self.single:
            return [value]
        try:
            return [get(value) for get in self._getters]
        except (KeyError, TypeError, IndexError) as error:
            known = ", ".join(show_path(p) for p in self.sources)
            raise LayoutError(
                f"expected a value with the leaves {known}, got {type(value).__name__} without "
                f"{error}; the spaces of an environment must describe what it emits"
            ) from error

    def checked(self, value: Any, lead: tuple[int, ...] = ()) -> list[Array]:
        """The leaves as arrays of exactly their shapes (after `lead`) and dtypes.

        Raises:
            ValueError: another shape, or a value that the dtype cannot hold.
        """
        out = []
        for leaf, path, shape, dtype in zip(self.flat(value), self.paths, self.shapes, self.dtypes):
            array = leaf if isinstance(leaf, np.ndarray) else as_array(leaf)
            if array.shape != lead + shape:
                raise LayoutError(
                    f"{show_path(path)}: shape {list(array.shape)}, expected "
                    f"{list(lead + shape)}; nothing is broadcast: fix the environment's or "
                    "policy's output, or its space"
                )
            out.append(array if array.dtype == dtype else cast(array, dtype, path))
        return out

    @property
    def places(self) -> dict[Path, Path]:
        """If keys are at the root: the leaves' paths in rows, by those in the value."""
        return dict(zip(self.sources, self.paths)) if self.root is None else {}

    def tree(self) -> dict[str, Any]:
        return nest(self.leaves)


def _getter(path: Path) -> Callable[[Any], Any]:
    def get(value: Any) -> Any:
        for key in path:
            value = value[int(key)] if isinstance(value, tuple) else value[key]
        return value

    return get


def as_space(space: Any, tree: Any) -> Any:
    """Nested dicts in the containers of a space: a Tuple's keys are its positions."""
    inside = getattr(space, "spaces", None)
    if isinstance(inside, Mapping):
        return {k: as_space(v, tree[str(k)]) for k, v in inside.items()}
    if isinstance(inside, tuple):
        return tuple(as_space(v, tree[str(i)]) for i, v in enumerate(inside))
    return tree


def nest(flat: Mapping[Path, Any]) -> dict[str, Any]:
    """Nested dicts from values by path."""
    out: dict[str, Any] = {}
    for path, value in flat.items():
        node = out
        for key in path[:-1]:
            node = node.setdefault(str(key), {})
        node[str(path[-1])] = value
    return out


def spec_of_space(space: Any, root: str) -> Spec:
    """The spec of a Gymnasium space; a Dict observation's keys are at the root."""
    if root == "observation" and _is_dict(space):
        return _dict_spec(_space_leaves(space, ()))
    return Spec(_space_leaves(space, (root,)), root)


def spec_of_value(value: Any, root: str) -> Spec:
    """The same from a value, where there is no space."""
    if root == "observation" and isinstance(value, Mapping):
        return _dict_spec(_value_leaves(value, ()))
    return Spec(_value_leaves(value, (root,)), root)


def _is_dict(space: Any) -> bool:
    return isinstance(getattr(space, "spaces", None), Mapping)


def _flat_leaves(node: Any, path: Path, inside: Any, leaf: Any) -> dict[Path, ShapeDtype]:
    """The leaves below a node, by path: what is `inside` it, or what it is as a `leaf`."""
    children = inside(node)
    if isinstance(children, tuple):
        children = dict(enumerate(children))
    if not isinstance(children, Mapping):
        return {path: leaf(node, path)}
    out: dict[Path, ShapeDtype] = {}
    for key, child in children.items():
        out.update(_flat_leaves(child, (*path, str(key)), inside, leaf))
    return out


def _space_leaves(space: Any, path: Path) -> dict[Path, ShapeDtype]:
    return _flat_leaves(space, path, lambda x: getattr(x, "spaces", None), _space_leaf)


def _space_leaf(space: Any, path: Path) -> ShapeDtype:
    if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
        raise LayoutError(
            f"{show_path(path)}: a {type(space).__name__} space has no fixed shape and dtype; "
            "wrap the environment so that it emits arrays of one shape"
        )
    return ShapeDtype(tuple(space.shape), np.dtype(space.dtype))


def _value_leaves(value: Any, path: Path) -> dict[Path, ShapeDtype]:
    return _flat_leaves(value, path, lambda x: x, _value_leaf)


def _value_leaf(value: Any, path: Path) -> ShapeDtype:
    return ShapeDtype(*leaf_spec(np.asarray(value) if isinstance(value, list) else value, path))


def _dict_spec(leaves: Mapping[Path, ShapeDtype]) -> Spec:
    """The spec of a Dict observation, with its leaves where they are in rows."""
    places = place_of(leaves)
    say_moved(places)
    return Spec({places[p]: leaf for p, leaf in leaves.items()}, None, list(places))


def as_reward(value: Any, lead: int = 0) -> Array:
    """A reward as an array; one number in a list is that number."""
    array = np.asarray(as_array(value))
    return array.reshape(array.shape[:lead]) if array.shape[lead:] == (1,) else array


def at_lane(tree: Any, lane: int) -> Any:
    """One env's share of a tree of ``[B, ...]`` arrays."""
    if isinstance(tree, Mapping):
        return {k: at_lane(v, lane) for k, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(at_lane(v, lane) for v in tree)
    return tree[lane]


def stack_lanes(trees: list[Any]) -> Any:
    """Trees of several envs as one of ``[B, ...]`` arrays."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {k: stack_lanes([t[k] for t in trees]) for k in first}
    if isinstance(first, tuple):
        return tuple(stack_lanes([t[i] for t in trees]) for i in range(len(first)))
    return np.stack([np.asarray(t) for t in trees])
