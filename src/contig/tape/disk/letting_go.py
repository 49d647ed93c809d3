"""Files of a storage that hold nothing any more: deleted after the commits that say so."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from .changes import Changes
from .directory import Directory
from .extents import Extents
from .folders import remove

__all__ = ["LettingGo"]

log = logging.getLogger("contig.disk")


class LettingGo:
    """Deletes files. Thread-safe.

    Args:
        directory: where they are.
        tape: whose rows count.
        extents: the files.

    Attributes:
        held: a lock: while one has it, nothing is deleted.
        left: folders of loads that were not committed; they go after the next commit.
    """

    def __init__(self, directory: Directory, tape: Any, extents: Extents) -> None:
        self._directory, self._tape, self._extents = directory, tape, extents
        self.held = threading.Lock()
        self.left: list[Path] = []

    def after(self, changes: Changes) -> None:
        """What a commit left without rows."""
        while self.left:
            self.let_go(self.left.pop())
        if changes.tail // self._extents.rows == 0:
            return
        with self.held:
            # A checkpoint that was loaded since may have files of these numbers.
            gone = self._extents.delete_below(min(changes.tail, self._tape.snapshot()[1]))
        if gone:
            path = self._directory.path
            log.info("%s: %d extents let go, rows below %d", path, len(gone), changes.tail)

    def let_go(self, folder: Path) -> None:
        """A folder of rows that do not count any more."""
        with self.held:
            try:
                remove(folder, self._directory.root / "extents")
            except OSError as error:
                path = self._directory.path
                log.warning("%s: rows that were replaced are still there: %s", path, error)
