"""Rows of a storage on their way to the disk itself."""

from __future__ import annotations

import threading

from .extents import Extents

__all__ = ["Syncing"]


class Syncing:
    """Makes rows durable. Thread-safe: appends go on meanwhile.

    Args:
        extents: the files.
    """

    def __init__(self, extents: Extents) -> None:
        self._extents = extents
        self._lock = threading.Lock()
        self._failure: OSError | None = None

    def sync(self) -> None:
        """Returns when rows written so far are on the disk.

        Raises:
            OSError: they could not be synced, now or before: that is final.
        """
        with self._lock:  # whoever finds nothing to sync knows that it is synced
            if self._failure is not None:  # a second fsync would succeed without meaning anything
                raise self._failure
            try:
                self._extents.unsynced_files().sync()
            except OSError as error:
                self._failure = error
                raise
