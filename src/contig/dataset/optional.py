"""Libraries that only some formats need, and what all importers and exporters share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from ..batch import Batch
from ..errors import LayoutError
from ..tape import Storage

__all__ = ["episodes_of", "need", "storage_of"]


def need(module: str, package: str) -> Any:
    """A module of an optional library.

    Raises:
        ImportError: it is not installed, with what to do.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this format needs {package}: pip install {package}") from error


def storage_of(source: Any) -> Storage:
    """The storage of a buffer, or a storage itself."""
    found = getattr(source, "storage", source)
    if not isinstance(found, Storage):
        raise TypeError(f"expected a storage or a ReplayBuffer, got {type(source).__name__}")
    return found


def episodes_of(storage: Storage) -> Iterator[tuple[Any, Batch]]:
    """Complete trajectories one by one, each with its entry of `episodes()`.

    Raises:
        LayoutError: there is none.
    """
    found = storage.episodes()
    found = found[found["complete"]]
    if not len(found):
        raise LayoutError("there is no complete trajectory to export")
    for entry in found:
        yield entry, storage.read_episode(int(entry["id"]))
