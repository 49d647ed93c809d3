"""DiskStorage under the name and with the arguments that TorchRL users know."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from . import files
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
        try:
            super().__init__(path, max_size, **options)
        except BaseException:
            if scratch_dir is None:
                files.remove_tree(Path(path))
            raise
        if scratch_dir is None:
            self._lifetime.temporary = Path(path)
