"""Storages in files: extents of rows, an index in SQLite."""

from .storage import DiskStorage

__all__ = ["DiskStorage"]
