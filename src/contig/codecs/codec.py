"""What every codec can do with one row of a leaf.

Thread-safe: what a library cannot share between threads, each thread has of its own.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..lazy import install_hint

__all__ = ["Array", "Codec", "need"]

Array = np.ndarray[Any, Any]


class Codec(ABC):
    """One way to encode a leaf.

    Attributes:
        name: as the user gave it: ``"jpeg:90"``.
        kind: what decodes it: ``"jpeg"``. Bytes of one kind can be decoded whatever the level was.
        lossless: whether the same bytes come back.
        slow: whether even a small row is worth a thread.

    Args:
        name: as above.
        number: the level or quality in the name, if there is one.
    """

    kind = ""
    lossless = True
    slow = False

    def __init__(self, name: str, number: int | None = None) -> None:
        self.name, self._number = name, number

    def __repr__(self) -> str:
        return f"Codec({self.name!r}, lossless={self.lossless})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> Any:
        return type(self), (self.name, *(() if self._number is None else (self._number,)))

    @abstractmethod
    def unfit(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        """Why it cannot hold such a leaf, and what to do; empty if it can."""

    @abstractmethod
    def load(self) -> None:
        """Imports the library.

        Raises:
            ImportError: it is not installed, with what to do.
        """

    @abstractmethod
    def encode(self, row: Array) -> bytes:
        """One row, contiguous, of a shape and dtype that fit."""

    @abstractmethod
    def decode(self, data: memoryview, out: Array) -> None:
        """One row into its place, contiguous.

        Raises:
            Exception: the data is none of this codec, or of another shape; says what is wrong.
        """

    def at_once(self, values: Array, offsets: Array, out: Array) -> bool:
        """All rows by one call that gives the GIL back once; False if there is none, or if one of
        the rows is bad. Rows are given as to `decode_rows`."""
        return False

    @abstractmethod
    def wrong(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        """Why bytes that somebody else encoded are no such row, as far as it is known without
        decoding what is slow to decode; empty if they are."""

    def described(self, data: memoryview) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of what somebody else encoded, as its header says.

        Raises:
            ValueError: it is none of this codec, or says nothing of its shape.
        """
        raise ValueError(f"{self.kind} does not say what shape it has")


def need(module: str, package: str, extra: str, codec: str) -> Any:
    """A module of the library that a codec needs.

    Raises:
        ImportError: it is not installed, with what to do.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"codec {codec!r} needs {package}: {install_hint(extra)}") from error
