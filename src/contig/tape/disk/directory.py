"""The directory of a storage on disk: which one it is, who writes to it, what is in it.

layout.json            what a record is, the storage's number; and what is kept
extents/               the rows
index.sqlite           the index; `index-N.sqlite` is one that a repair made, the highest counts
lock                   the pid of the one process that writes
quarantine/            what was put aside
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
from pathlib import Path

from . import files
from .sqlite import SUFFIXES, check_length

__all__ = ["Directory"]

_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOTSUP)
_INDEX = re.compile(r"index(?:-(\d+))?\.sqlite")


class Directory:
    """A storage's directory, held open: whatever becomes of its name, this is the one.

    Args:
        path: where it is; a relative one is resolved now.
        make: whether to make it.

    Attributes:
        path: where it was when it was opened.
        root: the directory itself, as a path that goes with it.
    """

    _fd = _lock_fd = _locked_by = -1

    def __init__(self, path: str | Path, make: bool) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("storages on disk need a POSIX system")
        self.path = Path(os.path.realpath(path))
        check_length(self.path / "index-99.sqlite")
        if make:
            files.make_dir(self.path / "extents")
        try:
            self._fd = files.open_dir(self.path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path}: no storage is there") from None
        self._lock_is: tuple[int, int] | None = None  # where only a file can be locked
        self._is = files.identity(self._fd)
        through = Path(f"/proc/self/fd/{self._fd}")
        self.root = through if files.exists(through) else self.path

    @property
    def is_moved(self) -> bool:
        """Whether its path leads to another directory now, or nowhere."""
        try:
            return files.identity(self.path) != self._is
        except FileNotFoundError:
            return True

    def check(self) -> None:
        """Raises OSError if it was moved, or another one took its place."""
        if self.is_moved:
            now = os.readlink(self.root) if self.root != self.path else "somewhere else"
            raise OSError(
                errno.ESTALE,
                f"{self.path} is not the directory that was opened: that one was moved or deleted "
                f"(it is at {now}). What was appended before is committed there, and nothing was "
                "written here; close this storage and open it where it is",
            )
        if self._lock_is is not None and files.identity(self.root / "lock") != self._lock_is:
            raise OSError(errno.ESTALE, f"{self.path / 'lock'} was replaced: who else writes here?")

    def lock(self) -> None:
        """Makes this process the one that writes.

        Raises:
            BlockingIOError: another one does; it names its pid.
        """
        fd = files.open_lock(self.root / "lock")
        try:
            # On the directory, which cannot be deleted from under it; and on the file, where
            # contig 0.1 looks, and which is all that some network file systems lock.
            try:
                files.lock(self._fd)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                self._lock_is = files.identity(fd)
            files.lock(fd)
        except BlockingIOError:
            holder = files.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            files.close(fd)
            raise BlockingIOError(
                f"{self.path} is being written by process {holder}: one process writes at a time; "
                "open it with read_only=True to follow it"
            ) from None
        except BaseException:
            files.close(fd)
            raise
        self._lock_fd, self._locked_by = fd, os.getpid()
        files.sign(fd)

    def close(self) -> None:
        """Lets it go, and the lock. In a fork, only the fork's."""
        mine = self._lock_fd >= 0 and self._locked_by == os.getpid()
        for fd in (self._lock_fd, self._fd):
            if fd >= 0 and mine:
                with contextlib.suppress(OSError):  # where only one of the two can be locked
                    files.unlock(fd)
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self._fd = -1

    __del__ = close  # of a storage that nobody closed

    # -- what is in it ------------------------------------------------------------------------

    def indexes(self) -> list[Path]:
        """Its indexes, by their real names, the one that counts last."""
        found = [
            (int(m[1] or 0), m[0]) for n in files.listing(self.root) if (m := _INDEX.fullmatch(n))
        ]
        return [self.path / name for _, name in sorted(found)]

    @property
    def index(self) -> Path:
        """The path of the index that counts, which need not be there yet."""
        return [self.path / "index.sqlite", *self.indexes()][-1]

    def row_files(self) -> list[Path]:
        """Files of rows, in whichever folder (see `extent_folders`) that is complete."""
        root = self.root / "extents"
        loads = [root / name for name in files.listing(root) if name.startswith("load-")]
        return [f / n for f in (root, *loads) for n in files.listing(f) if n.endswith(".rec")]

    def aside(self, what: str) -> Path:
        """A new folder in quarantine/."""
        path = self.root / "quarantine" / time.strftime(f"{what}-%Y%m%d-%H%M%S")
        folder, n = path, 1
        while files.exists(folder):
            n += 1
            folder = path.with_name(f"{path.name}-{n}")
        files.make_dir(folder)
        return folder

    def put_old_indexes_aside(self) -> Path | None:
        """Moves indexes that do not count any more to quarantine/; where they are then."""
        old = self.indexes()[:-1]
        if not old:
            return None
        aside = self.aside("index")
        for path in old:
            # The file last: without it, nobody would know what its log belongs to.
            for suffix in reversed(SUFFIXES):
                name = path.name + suffix
                if files.exists(self.root / name):
                    files.rename(self.root / name, aside / name)
        files.fsync_dir(aside)
        files.fsync_dir(self.root)
        return self.shown(aside)

    def check_storage(self, rows: bool = True) -> None:
        """Raises FileNotFoundError unless there is a storage in it; with its rows, if wanted."""
        if not files.exists(self.root / "layout.json"):
            raise FileNotFoundError(f"{self.path}: no storage is there (layout.json is missing)")
        if rows and not files.exists(self.root / "extents"):
            raise FileNotFoundError(
                f"{self.path / 'extents'} is missing, where this storage has its rows; put it "
                f"back, or set aside what it held: contig inspect --repair {self.path}"
            )

    def name_in(self, error: BaseException) -> None:
        """Has an error of the system say the path that people know."""
        if isinstance(error, OSError) and str(error.filename or "").startswith(f"{self.root}/"):
            error.filename = str(self.shown(Path(error.filename)))

    def shown(self, path: Path) -> Path:
        """A path below `root`, as people know it."""
        return self.path / path.relative_to(self.root)
