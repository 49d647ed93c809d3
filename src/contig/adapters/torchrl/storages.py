"""Storages with TorchRL's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...tape import LazyTensorStorage as TapeStorage
from ...tape.disk import LazyMemmapStorage as DiskStorage
from .arguments import without_effect

__all__ = ["LazyMemmapStorage", "LazyTensorStorage"]


class LazyTensorStorage(TapeStorage):
    """Rows in memory; `contig.LazyTensorStorage` with TorchRL's arguments.

    Args:
        max_size: rows to keep.
        device: where a buffer's samples are; rows are in memory of the host. "auto": there, too.
        ndim: batch dims of a row's data, the last of them time: each lane is a run of rows.
        compilable, consolidated, shared_init, cleanup_memmap: without effect here.
        options: `example`, `fields`, `blob_bytes`, `codecs` of contig's own.
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: Any = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
        **options: Any,
    ) -> None:
        without_effect(compilable, consolidated, shared_init, cleanup_memmap)
        super().__init__(max_size, ndim, **options)
        self.device = device

    @property
    def max_size(self) -> int:
        """Rows that it has room for."""
        return self.capacity


class LazyMemmapStorage(DiskStorage):
    """Rows on disk; `contig.LazyMemmapStorage` with TorchRL's arguments.

    Args:
        max_size: rows to keep.
        scratch_dir: where; a temporary directory, removed at the end, if None.
        existsok: whether one that has rows of an earlier run is opened, with them.
        device, ndim: as in `LazyTensorStorage`.
        compilable, shared_init, auto_cleanup: without effect here.
        options: of `contig.DiskStorage`.
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | Path | None = None,
        device: Any = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
        **options: Any,
    ) -> None:
        without_effect(compilable, shared_init, auto_cleanup)
        if scratch_dir is not None and not existsok:
            place = Path(scratch_dir)
            if place.is_dir() and any(place.iterdir()):
                raise FileExistsError(
                    f"{place}: expected an empty directory or none, found files; give "
                    "existsok=True to go on with what it holds"
                )
        super().__init__(max_size, scratch_dir=scratch_dir, ndim=ndim, **options)
        self.device = device

    @property
    def max_size(self) -> int:
        """Rows that it has room for."""
        return self.capacity
