"""Weights in shared memory: published by one process, read by any, never torn."""

from __future__ import annotations

import json
import time
import weakref
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..arguments import seconds
from ..convert import plain_tree
from ..errors import LayoutError
from ..layout import Layout
from ..tape.segment import Segment, new_segment, opened

__all__ = ["Weights", "WeightsBoard"]

_SLICE_S = 0.1


class Weights(NamedTuple):
    """A published version.

    Attributes:
        version: as it was published.
        tree: the pytree or state dict as numpy arrays, the reader's own.
    """

    version: int
    tree: Any


def check_version(version: Any, least: int = 0, name: str = "version") -> None:
    """Raises ValueError unless weights can have this version: -1 is how none are told."""
    whole = isinstance(version, (int, np.integer)) and not isinstance(version, bool)
    if not whole or not least <= version < 2**63:
        raise ValueError(f"{name} {version!r}: a whole number of at least {least}, below 2^63")


def next_version(version: int | None, newest: int | None, least: int = 0) -> int:
    """Returns the version that weights are published as, by every publisher.

    Args:
        version: as the caller gave it; None: the version after the newest.
        newest: the newest published version, or None if there is none.
        least: the least that a caller may give.

    Raises:
        ValueError: the version is below `least`, or not larger than the newest.
    """
    if version is None:
        version = 0 if newest is None else newest + 1
    check_version(version, least)
    if newest is not None and version <= newest:
        raise ValueError(
            f"version {version} after {newest}: versions must grow; None is the one after"
        )
    return int(version)


class WeightsBoard:
    """The newest version of one pytree.

    Made by `create` (by the one process that publishes), `attach` or `inherit`. Thread-safe to
    read; publish from one thread at a time.

    Attributes:
        fd: a descriptor of its memory, by which a child process can `inherit` it.

    Args:
        segment: the memory it lives in.
    """

    def __init__(self, segment: Segment) -> None:
        self.fd = segment.fd
        self._native = _native.Board(segment.control)
        self.layout = Layout.from_json(json.loads(self._native.schema))
        self._closer = weakref.finalize(self, Segment.close, segment)

    @staticmethod
    def create(tree: Any, name: str | None = None) -> WeightsBoard:
        """A board for trees like this one, in memory without a name if it has none.

        Nothing is published yet.
        """
        layout = Layout(plain_tree(tree, text=False)[0]).need_fixed("weights")
        schema = json.dumps(layout.to_json()).encode()
        nbytes = _native.Board.bytes_for(layout.record_size, len(schema))

        def form(memory: np.ndarray[Any, Any]) -> None:
            _native.Board.format(memory, layout.record_size, schema)

        return WeightsBoard(new_segment(name, nbytes, form))

    @staticmethod
    def attach(name: str) -> WeightsBoard:
        """The board of this name, which must exist."""
        return opened(Segment.attach(name), WeightsBoard)

    @staticmethod
    def inherit(fd: int) -> WeightsBoard:
        """The board of a parent process, by a descriptor that is this one's from now on."""
        return opened(Segment.from_fd(fd), WeightsBoard)

    @property
    def newest(self) -> int | None:
        """The newest version, or None if nothing was published."""
        return self._native.newest

    def publish(self, version: int | None, tree: Any) -> int:
        """Makes a tree the newest version, and returns the version: one copy for all readers.

        Args:
            version: of the weights; None: the version after the newest, 0 at first.
            tree: the weights.

        Raises:
            ValueError: the version is below -1, which stands for weights that nobody published
                (a policy's own), or not larger than the one before.
            LayoutError: a tree of another layout.
        """
        try:
            newest = self.newest
        except RuntimeError:
            newest = None  # overwritten, which this mends
        version = next_version(version, newest, least=-1)
        plain = plain_tree(tree, text=False)[0]
        try:
            record = self.layout.pack_one(plain)
        except LayoutError as error:
            raise LayoutError(f"weights of another layout than those before: {error}") from error
        self._native.publish(version, record)
        return version

    def read_record(self) -> tuple[int, Any]:
        """The newest version as packed bytes."""
        read = self._native.read()
        assert read is not None
        return read

    def read(self, newer_than: int = -1, timeout_s: float = 0.0) -> Weights | None:
        """The newest version if it is newer than one; None if there was none in time."""
        check_version(newer_than, -(2**63), "newer_than")
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        while True:
            seen = self._native.word
            newest = self.newest
            if newest is not None and newest > newer_than:
                version, block = self.read_record()
                return Weights(version, unpack_weights(self.layout, block))
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._native.wait(seen, min(left, _SLICE_S))

    def close(self) -> None:
        """Lets go of the memory; a named board's creator removes its name."""
        self._closer()


def unpack_weights(layout: Layout, record: Any) -> Any:
    """The tree of a packed record; the arrays keep it alive."""
    return layout.unpack(np.frombuffer(record, np.uint8))
