"""Directories that appear whole, and replace an earlier one at once or not at all.

    NAME                 what readers open
    .NAME.TAG.tmp/       where a save works; held by it
                  new    being filled; after the exchange, the earlier one until it is deleted
                  old    the earlier one, for an instant, where two names cannot change places

Names change places in one step (`renameat2`, `renamex_np`): whoever is killed, and wherever, a
whole directory is at NAME. A file system without that call needs two renames; who is killed between
them leaves the earlier one as `old`, where readers find it and from where the next save puts it
back. What killed saves leave is removed by the next one, which knows by a lock (`flock`) what is in
use. Where there are no locks, nothing is taken for left behind.

`scratch` makes such a `.NAME.TAG.tmp/` for work that has no name in the end.

Only what is known to be ours is ever removed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..tape.disk import files

__all__ = [
    "STORAGE",
    "Kind",
    "keep_out_of_storages",
    "new_directory",
    "reading",
    "remove_left",
    "scratch",
]

log = logging.getLogger("contig.replay")

_TRIES = 100
_NO_LOCKS = -1
_READERS_S = 30.0  # how long a save waits for those who load what it replaces
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)
# What a storage calls its own files; nothing else may have these names in its directory.
_OF_STORAGE = re.compile(
    r"extents|lock|committed|quarantine.*|(layout|index(-\d+)?|metadata|\.loading)\..*"
)


class Kind(NamedTuple):
    """What may be replaced.

    Attributes:
        what: it is called.
        marker: a file that every one has.
        names: its files, by their paths in the directory; directories end with a slash.
        fault: why a directory that has only such names is none, or None.
    """

    what: str
    marker: str
    names: re.Pattern[str]
    fault: Callable[[Path], str | None]

    def foreign(self, directory: Path) -> str | None:
        """The first thing there that is no part of one."""
        for folder, folders, names in os.walk(directory):
            below = Path(folder).relative_to(directory)
            for name in sorted([*(f"{name}/" for name in folders), *names]):
                path = (below / name).as_posix() + ("/" if name.endswith("/") else "")
                if not self.names.fullmatch(path) or (directory / below / name).is_symlink():
                    return path
        return None


STORAGE = Kind(
    "a storage",
    "layout.json",
    re.compile(rf"({_OF_STORAGE.pattern})(/(?s:.*))?"),
    lambda path: "what was worked on there has no name to go back to",
)


@contextmanager
def new_directory(path: Path, kind: Kind, live: Iterable[Path] = ()) -> Iterator[Path]:
    """A directory to fill; at the end of the block it is at `path`, in place of an earlier one.

    Args:
        path: nothing may be there, or an empty directory, or an earlier one of this kind.
        kind: what is made.
        live: directories of storages that are in use; it may not be one of them, nor above it.
            Nor may it be among the files of any storage.

    Raises:
        FileExistsError: something else is there; it says what. Nothing was changed.
    """
    path = path.resolve()
    live = [own.resolve() for own in live]
    for own in live:
        _keep_out(path, own)
    _keep_out_of_files(path, live)
    _is_earlier(path, kind)
    files.make_dir(path.parent)
    _clean(path, kind)
    work, held = _make_work(path)
    placed = False
    try:
        files.new_dir(work / "new")
        yield work / "new"
        files.fsync_dir(work / "new")
        _place(work, path, kind)
        placed = True
        # Before the earlier one goes: after a power loss the name may still lead to it.
        files.fsync_dir(work)
        files.fsync_dir(path.parent)
        _remove(work, kind)
    except BaseException:
        if not placed:
            files.remove_tree(work)
        raise
    finally:
        _let_go(held)


@contextmanager
def reading(path: Path, marker: str) -> Iterator[Path]:
    """Where to read a directory: at `path`, or, if a save was killed halfway, where it left the
    earlier one. Who saves over it waits meanwhile.

    Args:
        path: where it was saved.
        marker: a file that every one has.
    """
    for _ in range(_TRIES):
        works = _works(path.resolve())
        old = [w for w in works if w.suffix == ".old"]  # as the first version left them
        places = (path, *(work / "old" for work in works), *old)
        found = next((p for p in places if files.is_file(p / marker)), None)
        if found is None:
            break
        held = _hold(found / marker, "read")
        if not _is_held(held, found / marker):  # it was replaced before we had it
            _let_go(held)
            continue
        try:
            yield found
        finally:
            _let_go(held)
        return
    yield path


def _keep_out(path: Path, own: Path) -> None:
    """Raises if a directory at `path` would take the place of the storage in `own`."""
    if _same(path, own):
        _refuse(path, "the storage that is being saved is there")
    if path in own.parents:
        _refuse(path, f"the storage that is being saved is below it, in {own}")


def _keep_out_of_files(path: Path, live: list[Path]) -> None:
    """Raises if `path` is, or leads through, a name that a storage uses in its directory."""
    for above in path.parents:
        if _OF_STORAGE.fullmatch(path.relative_to(above).parts[0]) and (
            files.is_file(above / STORAGE.marker) or any(_same(above, own) for own in live)
        ):
            _refuse(path, f"that is a name of the storage in {above}")


def keep_out_of_storages(path: Path) -> None:
    """Raises FileExistsError if a file at `path` would be one of a storage's own files."""
    _keep_out_of_files(path.resolve(), [])


def _refuse(path: Path, why: str) -> NoReturn:
    raise FileExistsError(f"{path}: {why}; give another place. Nothing was changed")


@contextmanager
def scratch(path: Path, kind: Kind) -> Iterator[Path]:
    """An empty directory to work in; it is `.NAME.TAG.tmp/new` beside `path`, and is deleted at the
    end. What killed processes left of such work is deleted, too."""
    files.make_dir(path.parent)
    _clean(path, kind)
    work, held = _make_work(path)
    try:
        files.new_dir(work / "new")
        yield work / "new"
    finally:
        _remove(work, kind)
        _let_go(held)


def remove_left(path: Path, kind: Kind) -> None:
    """Deletes what killed processes left of a save, or of work in a scratch directory."""
    _clean(path, kind)


def _same(one: Path, other: Path) -> bool:
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False


def _is_earlier(path: Path, kind: Kind) -> bool:
    """Whether an earlier one is at `path`; else nothing is, or an empty directory.

    Raises:
        FileExistsError: something else is.
    """
    if not files.lexists(path):
        return False
    if files.is_dir(path):
        if not files.listing(path):
            return False
        there = kind.foreign(path)
        fault = kind.fault(path) if there is None else f"{there} is there"
    else:
        fault = "a file is there"
    if fault is None:
        return True
    raise FileExistsError(
        f"{path}: {fault}, and only {kind.what} that was saved before is replaced. Give it a path "
        "of its own, or move what is there away; nothing was changed"
    )


def _place(work: Path, path: Path, kind: Kind) -> None:
    """Puts the new one at `path`; the earlier one, if there is one, stays in `work`."""
    for _ in range(_TRIES):
        if not _is_earlier(path, kind):
            try:
                files.rename(work / "new", path)  # over an empty directory, never another
                return
            except OSError as error:
                if error.errno in (errno.EBUSY, errno.EXDEV):
                    text = "cannot be replaced; if it is a mount point, give a directory below it"
                    raise OSError(error.errno, text, str(path)) from error
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                continue  # somebody else was faster
        held = _hold(path / kind.marker, "replace")
        try:
            if _is_held(held, path / kind.marker):
                _exchange(work, path)
                return
        finally:
            _let_go(held)
    raise FileExistsError(f"{path}: others keep saving there at the same time")


def _exchange(work: Path, path: Path) -> None:
    new, old = work / "new", work / "old"
    failed = files.exchange(new, path)
    if failed and failed not in _NO_EXCHANGE:
        raise OSError(failed, os.strerror(failed), str(path))
    if failed:
        try:
            files.rename(path, old)
            files.rename(new, path)
        except BaseException:
            if not files.lexists(path):
                files.rename(old, path)
            raise


def _clean(path: Path, kind: Kind) -> None:
    """Removes what killed saves left; puts an earlier one back that was on its way out."""
    for work in _works(path):
        held = _hold(work, "remove")
        try:
            if held == _NO_LOCKS or not _is_held(held, work):
                continue
            old = work / "old" if files.is_dir(work / "old") else work
            if not files.lexists(path) and kind.fault(old) is None:
                files.rename(old, path)
            _remove(work, kind)
        finally:
            _let_go(held)


def _remove(work: Path, kind: Kind) -> None:
    parts = [work / name for name in ("new", "old") if files.is_dir(work / name)]
    there = next((name for p in (parts or [work]) if (name := kind.foreign(p)) is not None), None)
    if there is None and (not parts or len(files.listing(work)) == len(parts)):
        files.remove_tree(work)
    elif files.is_dir(work):
        log.warning("%s is left there: not all that is in it is of %s", work, kind.what)


def _works(path: Path) -> list[Path]:
    """Where saves of `path` work or worked, the newest first; the first version's `.old` too."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.(tmp|old)")
    try:
        found = [path.with_name(n) for n in files.listing(path.parent) if name.fullmatch(n)]
        return sorted(found, key=files.modified_ns, reverse=True)
    except OSError:
        return []  # no such directory, or one of them went away: somebody else is at it


def _make_work(path: Path) -> tuple[Path, int | None]:
    """A new directory beside `path`, and what holds it."""
    for _ in range(_TRIES):
        work = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        files.new_dir(work)
        held = _hold(work, "remove")
        # Somebody who cleans may have taken it for left behind in between.
        if _is_held(held, work):
            return work, held
        _let_go(held)
    raise FileExistsError(f"{path}: others keep saving there at the same time")


def _hold(what: Path, to: str) -> int | None:
    """Holds a file or directory: "read" lets others read, "replace" waits for those who do,
    "remove" waits for nobody. Returns None if others hold it or it is gone, or _NO_LOCKS."""
    if sys.platform == "win32":
        return _NO_LOCKS
    try:
        fd = files.open_to_read(what)
    except OSError:
        return None
    deadline = time.monotonic() + (0 if to == "remove" else _READERS_S)
    while True:
        try:
            files.lock(fd, shared=to == "read")
            return fd
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.005)
                continue
            files.close(fd)
            # Whoever keeps others from loading or saving for so long has stopped, or was forked.
            return None if to == "remove" else _NO_LOCKS
        except OSError:
            files.close(fd)
            return _NO_LOCKS


def _let_go(held: int | None) -> None:
    if held is not None and held >= 0:
        with suppress(OSError):  # nothing was written through it
            files.close(held)


def _is_held(held: int | None, path: Path) -> bool:
    """Whether `_hold` got what is at that path now."""
    if held is None or held == _NO_LOCKS:
        return held is not None
    try:
        return files.identity(path) == files.identity(held)
    except OSError:
        return False
