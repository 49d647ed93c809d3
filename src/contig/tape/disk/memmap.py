"""DiskStorage under the name and with the arguments that TorchRL users know."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from .storage import DiskStorage

__all__ = ["LazyMemmapStorage"]


class LazyMemmapStorage(DiskStorage):
    """A DiskStorage of `max_size` rows.

    Args:
        max_size: rows to keep.
        scratch_dir: where they are kept; None: in a temporary directory, removed with the storage.
        options: as for DiskStorage.
    """

    def __init__(
        self, max_size: int, *, scratch_dir: str | Path | None = None, **options: Any
    ) -> None:
        path = scratch_dir
        if path is None:
            path = tempfile.mkdtemp(prefix="contig-")
        super().__init__(path, max_size, **options)
        self._removed = None
        if scratch_dir is None:
            self._removed = weakref.finalize(self, _remove, path, os.getpid())

    def close(self) -> None:
        super().close()
        if self._removed is not None:
            self._removed()


def _remove(path: str | Path, pid: int) -> None:
    """Only the process that made it; a fork has the same finalizer."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
