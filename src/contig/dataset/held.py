"""HeldDirectory: a directory that one writer has for itself.

The lock is on the directory: a file in it could be deleted and made again under another's lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import weakref
from pathlib import Path

from ..tape.disk import files

__all__ = ["HeldDirectory"]


log = logging.getLogger("contig.dataset")


def _let_go(fd: int, pid: int) -> None:
    if sys.platform != "win32" and os.getpid() == pid:
        with contextlib.suppress(OSError):
            files.unlock(fd)
    os.close(fd)


class HeldDirectory:
    """Locks a directory until `close`, or until nobody refers to this.

    Args:
        path: the directory; absolute.

    Raises:
        BlockingIOError: somebody else has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pid = os.getpid()
        self._fd = -1
        if sys.platform == "win32":
            return
        self._fd = files.open_dir(path)
        try:
            files.lock(self._fd)
        except BlockingIOError:
            files.close(self._fd)
            raise BlockingIOError(
                f"{path}: another RolloutWriter, of this process or another, writes to it; close "
                "that one first, give each its own directory, or one of them more num_envs"
            ) from None
        except OSError as error:  # some network file systems
            log.warning("%s cannot be locked (%s): see to it that one writer has it", path, error)
        self._release = weakref.finalize(self, _let_go, self._fd, self._pid)

    def check(self) -> None:
        """Whether it is still ours to write to.

        Raises:
            RuntimeError: this is another process than the one that locked it.
            FileNotFoundError: the directory is gone, or another one is in its place.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self.path}: this writer belongs to process {self._pid}; a forked one makes a "
                "writer of its own, with another directory"
            )
        if self._fd < 0:
            return
        try:
            moved = files.identity(self.path) != files.identity(self._fd)
        except FileNotFoundError:
            moved = True
        if moved:
            raise FileNotFoundError(
                f"{self.path}: the directory was moved or removed while this writer had it; put it "
                "back, or make a new writer"
            )

    def close(self) -> None:
        """Lets it go."""
        if self._fd >= 0:
            self._fd = -1
            self._release()
