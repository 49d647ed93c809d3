"""Storages in files: extents of rows, an index in SQLite."""

from . import files
from .memmap import LazyMemmapStorage
from .storage import DiskStorage

__all__ = ["DiskStorage", "LazyMemmapStorage", "files"]
