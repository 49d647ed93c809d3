"""Trees of JSON in which one value is replaced by nonsense."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["spoiled"]


def spoiled(good: Any, junk: Sequence[Any]) -> Iterator[Any]:
    """Yields copies of a tree: each value of it, at any depth, replaced by each piece of junk."""
    for place in list(_places(good)):
        for value in junk:
            tree = json.loads(json.dumps(good))
            node = tree
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = value
            yield tree


def _places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in node if isinstance(node, dict) else range(len(node)):
        yield (*at, key)
        if isinstance(node[key], (dict, list)):
            yield from _places(node[key], (*at, key))
