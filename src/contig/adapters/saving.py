"""A contig checkpoint as something that other libraries' files can carry: its own files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..replay import ReplayBuffer

__all__ = ["packed", "unpack"]

Files = dict[str, np.ndarray[Any, Any]]


def packed(buffer: ReplayBuffer[Any]) -> Files:
    """The files of a checkpoint, by name: arrays of bytes, which pickle writes as they stand."""
    with tempfile.TemporaryDirectory(prefix="contig-packed-") as folder:
        place = Path(folder, "checkpoint")
        buffer.save(place)
        return {
            str(path.relative_to(place)): np.fromfile(path, np.uint8)
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }


def unpack(buffer: ReplayBuffer[Any], files: Files) -> None:
    """Loads such a checkpoint; contig's own checks apply.

    Raises:
        ValueError: a name that is not one of a checkpoint's files.
    """
    with tempfile.TemporaryDirectory(prefix="contig-packed-") as folder:
        place = Path(folder, "checkpoint")
        for name, content in files.items():
            path = place / name
            if ".." in Path(name).parts or not path.is_relative_to(place):
                raise ValueError(f"{name!r} is no file of a checkpoint; was the pickle changed?")
            path.parent.mkdir(parents=True, exist_ok=True)
            content.tofile(path)
        buffer.load(place)
