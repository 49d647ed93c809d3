"""A policy's weights in Ray's object store: put once per version, fetched once per node.

    learner   WeightsObject.publish ──ray.put──> object store ──> each node's, once
    actor     ObjectBoard.show(version, record) <── ray.get, without a copy ──┘

The object is one packed record, so that readers of a node share its memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..convert import plain_tree
from ..errors import LayoutError
from ..layout import Layout
from ..weights.board import Weights, next_version, unpack_weights
from .engine import ray

__all__ = ["ObjectBoard", "Shown", "WeightsObject"]


class Shown(NamedTuple):
    """A version, as actors are told of it.

    Attributes:
        version: its number.
        layout: of the record, as JSON.
        refs: one reference to the record, in a list: so that Ray does not fetch it before a call.
    """

    version: int
    layout: dict[str, Any]
    refs: list[Any]

    def fetch(self) -> np.ndarray[Any, Any]:
        """The record, in the memory of this node's object store."""
        record: np.ndarray[Any, Any] = ray.get(self.refs[0])
        return record


class WeightsObject:
    """The newest version of one pytree, on the side of whoever publishes it.

    Attributes:
        newest: None before the first.
    """

    def __init__(self) -> None:
        self.newest: Shown | None = None
        self._layout: Layout | None = None

    def publish(self, version: int | None, tree: Any) -> Shown:
        """Makes a tree the newest version: one copy, into the object store.

        Args:
            version: of the weights; None: the version after the newest, 0 at first.
            tree: the weights.

        Raises:
            ValueError: the version is below -1, or not larger than the one before.
            LayoutError: a tree of another layout.
        """
        newest = None if self.newest is None else self.newest.version
        version = next_version(version, newest, least=-1)
        plain = plain_tree(tree, text=False)[0]
        layout = self._layout = self._layout or Layout(plain)
        try:
            record = np.frombuffer(layout.pack_one(plain), np.uint8)
        except LayoutError as error:
            raise LayoutError(f"weights of another layout than those before: {error}") from error
        self.newest = Shown(version, layout.to_json(), [ray.put(record)])
        return self.newest


class ObjectBoard:
    """The newest version that an actor was told of. Shown by one thread, read by another."""

    def __init__(self) -> None:
        self._now: tuple[int, Layout, np.ndarray[Any, Any]] | None = None

    def show(self, shown: Shown) -> None:
        """Takes a version in, unless it has a newer one."""
        if self._now is None or shown.version > self._now[0]:
            self._now = shown.version, Layout.from_json(shown.layout), shown.fetch()

    @property
    def newest(self) -> int | None:
        now = self._now
        return None if now is None else now[0]

    def read(self, newer_than: int = -1) -> Weights | None:
        """The newest version if it is newer than one, in arrays of the reader's own."""
        now = self._now
        if now is None or now[0] <= newer_than:
            return None
        version, layout, record = now
        return Weights(version, unpack_weights(layout, record.copy()))
