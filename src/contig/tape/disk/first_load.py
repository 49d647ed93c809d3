"""A load into a storage to which nothing was ever written: it has its layout when it has the rows.

    1. the checkpoint's rows          ->  extents/new, complete, synced
    2. what a record is               ->  layout.load.json
    3. extents/new                    ->  extents/load-N
    4. the index, in one transaction  ->  says that there was a load: now it counts
    5. layout.load.json               ->  layout.json

Killed before 4, there is no storage yet; after it, the next process that writes does what is left.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from . import files
from .description import form_of, sealed
from .directory import Directory
from .extent_folders import all_but, put_aside, remove
from .index import open_index, read_index
from .sqlite import SUFFIXES

__all__ = ["begin", "finish", "settle", "undo"]

log = logging.getLogger("contig.disk")

_NAME = "layout.load.json"


def begin(directory: Directory, described: dict[str, Any]) -> None:
    """Step 2."""
    files.write_new(directory.root / _NAME, sealed(described))


def finish(directory: Directory) -> None:
    """Step 5; if it fails, whoever opens the storage next does it."""
    for last in (False, True):
        try:
            if files.exists(directory.root / _NAME):
                files.rename(directory.root / _NAME, directory.root / "layout.json")
                files.fsync_dir(directory.root)
            return
        except OSError as error:
            if last:
                log.warning("%s has no name yet: %s", directory.path / "layout.json", error)


def undo(directory: Directory) -> None:
    """Removes what was made, also of the index: nobody knows whether step 4 was through. Its parts
    are closed."""
    for path in directory.indexes():
        for suffix in SUFFIXES:
            files.unlink(directory.root / (path.name + suffix))
    _remove_rows(directory)
    files.unlink(directory.root / _NAME)


def _remove_rows(directory: Directory) -> None:
    root = directory.root / "extents"
    for folder in all_but(root, root):
        remove(folder, root)


def settle(directory: Directory) -> None:
    """What a process left that was killed, or could not clean up: finished or undone."""
    path = directory.root / _NAME
    if not files.exists(path):
        return
    if files.exists(directory.root / "layout.json"):
        files.unlink(path)
        return
    if not files.exists(directory.index):  # it was there before the rows
        root = directory.root / "extents"
        for moved in put_aside(directory, all_but(root, root)):
            log.warning("%s: rows without an index are put aside, in %s", directory.path, moved)
    else:
        described = json.loads(files.read(path))
        store = int(described.get("store", 0))
        index = open_index(directory, True, store, form_of(described))
        try:
            loaded = read_index(index, True, store).loads > 0
        finally:
            index.close()
        if loaded:
            finish(directory)
            return
        _remove_rows(directory)
    files.unlink(path)
