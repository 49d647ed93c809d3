"""The folder that a storage's extents are in: ``extents``, or ``extents/load-N`` since a load.

    1. the checkpoint's rows            ->  extents/new, complete, synced
    2. extents/new                      ->  extents/load-N
    3. the index, in one transaction    ->  says that there were N loads: now load-N counts
    4. the folder that counted before is deleted

The one that counts has the highest number that is not above the index's. Killed before 3, the old
rows are as they were; after it, what 4 left is removed at the next opening.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from . import files
from .directory import Directory
from .extents import BYTES, ROWS

__all__ = [
    "all_but",
    "begin",
    "complete",
    "folder_of",
    "next_number",
    "put_aside",
    "remove",
    "tidy",
]

log = logging.getLogger("contig.disk")

_NEW = "new"
_LOAD = re.compile(r"load-(\d+)")


def _numbers(root: Path) -> list[int]:
    return sorted(int(m[1]) for name in files.listing(root) if (m := _LOAD.fullmatch(name)))


def _folder(root: Path, number: int) -> Path:
    return root / f"load-{number}"


def folder_of(root: Path, loads: int) -> Path:
    """Where rows are, below ``extents``, if the index counts `loads` of them."""
    numbers = [n for n in _numbers(root) if n <= loads]
    return _folder(root, numbers[-1]) if numbers else root


def next_number(root: Path, loads: int) -> int:
    """The number of the next load, which no folder has, if the index counts `loads`."""
    return max([loads, *_numbers(root)]) + 1


def begin(root: Path) -> Path:
    """An empty folder for rows that are brought in."""
    remove(root / _NEW, root)
    files.make_dir(root / _NEW)
    return root / _NEW


def complete(new: Path, number: int) -> Path:
    """Gives such a folder its name, when everything in it is synced."""
    folder = _folder(new.parent, number)
    files.rename(new, folder)
    files.fsync_dir(new.parent)
    return folder


def remove(folder: Path, root: Path) -> None:
    """Deletes a folder, or of `root` the rows."""
    if not files.exists(folder):
        return
    for name in files.listing(folder):
        if name.removesuffix(".tmp").endswith((ROWS, BYTES)):
            files.unlink(folder / name)
    if folder != root:
        files.remove_dir(folder)


def _rows_in(folder: Path) -> list[Path]:
    """With their bytes."""
    return [folder / name for name in files.listing(folder) if name.endswith((ROWS, BYTES))]


def put_aside(directory: Directory, others: list[Path]) -> list[Path]:
    """Moves folders to quarantine/; where they are then."""
    moved = []
    root = directory.root / "extents"
    for folder in others:
        if not _rows_in(folder):
            remove(folder, root)
            continue
        target = directory.aside("rows") / "extents"
        if folder == root:
            files.make_dir(target)
            for path in _rows_in(root):
                files.rename(path, target / path.name)
        else:
            files.rename(folder, target)
        files.fsync_dir(target.parent)
        moved.append(directory.shown(target))
    files.fsync_dir(root)
    return moved


def all_but(root: Path, folder: Path) -> list[Path]:
    """The other folders."""
    known = [root, *(_folder(root, n) for n in _numbers(root))]
    return [other for other in known if other != folder]


def tidy(directory: Directory, loads: int, never_committed: bool = False) -> None:
    """Removes what loads left that were killed. Rows in a folder of which the index does not know
    are put aside, unless it is known that they were never committed: perhaps the index is an older
    one."""
    root = directory.root / "extents"
    folder = folder_of(root, loads)
    unknown = [_folder(root, n) for n in _numbers(root) if n > loads]
    try:
        for path in [] if never_committed else put_aside(directory, unknown):
            log.warning(
                "%s: rows of a load that the index does not know are put aside, in %s: the index "
                "is not the newest, or the system stopped before they were committed",
                directory.path,
                path,
            )
        for old in (root / _NEW, *all_but(root, folder)):
            remove(old, root)
    except OSError as error:
        log.warning("%s: what a load left is still there: %s", directory.path, error)
