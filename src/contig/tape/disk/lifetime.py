"""How a storage ends: closed, dropped by everybody, in a fork, or with its process."""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import _native
from ..segment import Segment
from . import files
from .directory import Directory
from .opening import Opened

__all__ = ["Lifetime", "control", "teller"]

log = logging.getLogger("contig.disk")

_PATIENCE_S = 10.0  # with a storage that was dropped


class Lifetime:
    """What a storage has open: closed by it, or when it is dropped.

    Args:
        directory: it is in.
        read_only: whether another process writes.
    """

    def __init__(self, directory: Directory, read_only: bool) -> None:
        self.directory = directory
        self.opened: Opened | None = None
        self.temporary: Path | None = None  # a directory that goes with the storage
        self._read_only, self.pid = read_only, os.getpid()
        _here.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, and not one that it was forked from."""
        return os.getpid() == self.pid

    def close(self, timeout_s: float | None = None) -> bool:
        """Commits what is left, and lets everything go; False if that takes too long."""
        opened = self.opened
        if not self.is_ours:  # its threads are the parent's, and so is the rest
            self.opened = self.temporary = None
            self.directory.close()
            return True
        closed = True
        try:
            closed = opened is None or opened.close(timeout_s)
        finally:
            if closed:
                self.directory.close()
                if self.temporary is not None:
                    files.remove_tree(self.temporary)
        return closed

    def dropped(self, storage: weakref.ref[Any]) -> None:
        """Nobody has the storage any more, or the process ends."""
        opened, path = self.opened, self.directory.path
        committer = None if opened is None else opened.committer
        late = committer is not None and committer.is_this_thread
        if late or not self._closed(_PATIENCE_S):
            try:
                threading.Thread(target=self._closed, name="contig-closing", daemon=True).start()
            except RuntimeError:  # the process is ending
                log.error("%s: what it had was not committed in time", path)
        if storage() is None and self.is_ours and self.temporary is None:
            role = "a reader" if self._read_only else "a storage that writes"
            warnings.warn(
                f"{path}: {role} was dropped and not closed. Call close(), or use it in a with "
                "statement: until it is collected, it keeps the directory",
                ResourceWarning,
                stacklevel=1,
            )

    def _closed(self, timeout_s: float | None = None) -> bool:
        try:
            return self.close(timeout_s)
        except Exception as error:
            log.error("%s was dropped, and not all was committed: %s", self.directory.path, error)
            return True


def control(rows: int) -> Segment:
    """Memory for an index of `rows` rows, which ends with the storage that has it."""
    return Segment.anonymous(
        _native.control_bytes(rows),
        lambda m: _native.format_control(m, rows),
        _native.table_bytes(rows),
    )


def teller(storage: Any) -> Callable[[], None]:
    """Tells who listens to a storage; does not keep it alive."""
    known = weakref.ref(storage)

    def tell() -> None:
        there = known()
        for call in () if there is None else there._listeners:
            call()

    return tell


_here: weakref.WeakSet[Lifetime] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that lives on must not keep the directories of its parent locked."""
    for lifetime in list(_here):
        lifetime.directory.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
