"""The files of a checkpoint: with their checksums; a sampler's state as JSON and its arrays."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..tape.disk import files

__all__ = ["FilesWithSums", "decode", "encode", "file_image"]


class FilesWithSums:
    """Writes files of a directory, synced, and keeps their sizes and checksums."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sums: dict[str, list[int]] = {}

    def write(self, name: str, pieces: Iterable[Any]) -> None:
        size = crc = 0
        fd = files.create(self.directory / name, 0)
        try:
            for piece in pieces:
                crc = zlib.crc32(piece, crc)
                size = files.pwrite_all(fd, piece, size)
            files.fsync(fd)
        finally:
            files.close(fd)
        self.sums[name] = [size, crc]


def file_image(array: np.ndarray[Any, Any]) -> memoryview:
    """What is in the file of an array."""
    image = io.BytesIO()
    np.save(image, array, allow_pickle=False)
    return image.getbuffer()


def encode(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """The state with numbers in place of its arrays, which are put into the list."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"__array__": len(arrays) - 1}
    if isinstance(value, dict):
        return {k: encode(v, arrays) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v, arrays) for v in value]
    return value


def decode(value: Any, path: Path) -> Any:
    """The state that `encode` made that of, with the arrays of a directory."""
    if isinstance(value, dict):
        if set(value) == {"__array__"}:
            image = files.read(path / f"array-{int(value['__array__'])}.npy")
            return np.load(io.BytesIO(image), allow_pickle=False)
        return {k: decode(v, path) for k, v in value.items()}
    if isinstance(value, list):
        return [decode(v, path) for v in value]
    return value
