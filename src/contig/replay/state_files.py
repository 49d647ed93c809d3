"""The files of a checkpoint: with their checksums; a sampler's state as JSON and its arrays."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..tape.disk import files

__all__ = ["FilesWithSums", "decode", "encode", "file_pieces"]

_PIECE_BYTES = 1 << 20


class FilesWithSums:
    """Writes files of a directory, synced, and keeps their sizes and checksums."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sums: dict[str, list[int]] = {}

    def write(self, name: str, pieces: Iterable[Any]) -> None:
        with self.file(name) as file:
            for piece in pieces:
                file.write(piece)

    @contextmanager
    def file(self, name: str) -> Iterator[FileWithSum]:
        """One that is written piece by piece, perhaps beside others; synced at the end."""
        fd = files.create(self.directory / name, 0)
        try:
            file = FileWithSum(fd)
            yield file
            files.fsync(fd)
        finally:
            files.close(fd)
        self.sums[name] = [file.size, file.crc]


class FileWithSum:
    """A file that grows: its size and checksum so far."""

    def __init__(self, fd: int) -> None:
        self._fd, self.size, self.crc = fd, 0, 0

    def write(self, piece: Any) -> None:
        self.crc = zlib.crc32(piece, self.crc)
        self.size = files.pwrite_all(self._fd, piece, self.size)


def file_pieces(array: np.ndarray[Any, Any]) -> Iterator[Any]:
    """Yields the bytes of an array's ``.npy`` file in pieces.

    Writing a piece lets other threads run; `np.save` holds the interpreter's lock until it has
    copied the whole array.
    """
    if array.dtype.hasobject:
        raise ValueError(f"an array of {array.dtype} cannot be saved: nothing is pickled")
    array = np.asarray(array, order="C")
    head = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_2_0(head, header)
    yield head.getvalue()
    if array.nbytes:  # numpy has no bytes of an array without elements
        flat = array.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), _PIECE_BYTES):
            yield flat[at : at + _PIECE_BYTES]


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
