"""From the rows that a storage has to those of a checkpoint: one transaction is the step."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from ..snapshot import Snapshot
from .changes import Changes
from .failures import as_os_error
from .folders import next_number
from .index import DiskIndex
from .loading import Load
from .marker import Mark
from .parts import Parts

__all__ = ["ChangeOver"]

log = logging.getLogger("contig.disk")


class ChangeOver:
    """Puts what was brought in in the place of what there is. Nobody may be appending.

    Args:
        parts: of the storage.
        load: the rows, in a folder that does not count yet.
        contents: what they are.
        limiter: rows inserted and sampled, as the rate limiter counts them.
        fresh: nothing was ever in the storage.

    Attributes:
        counts: whether it happened.
    """

    def __init__(
        self,
        parts: Parts,
        load: Load,
        contents: Snapshot,
        limiter: tuple[int, int],
        fresh: bool = False,
    ) -> None:
        self._parts, self._load, self._limiter, self._fresh = parts, load, limiter, fresh
        self.counts = False
        words, first, last = contents.numbered()
        self._bounds = (contents.tail, contents.head, words, first, last, contents.trajectories)
        self._changes = Changes(
            contents.entries,
            {},
            contents.tail,
            first,
            contents.head,
            last,
            contents.trajectories,
            limiter,
            load.salts,
        )

    def run(self, adopt: Callable[[], None]) -> None:
        """Does it, or raises and nothing is changed.

        Args:
            adopt: called when it counts, before the tape is changed; twice, if it is interrupted.
        """
        parts, load = self._parts, self._load
        committer, appender, letting_go = parts.committer, parts.appender, parts.letting_go
        assert committer is not None and appender is not None
        committer.wait()
        if appender.unknown_behind and not self._fresh:
            appender.clear_behind()
        number = next_number(load.root, parts.index.loads)
        folder, old = load.name(number), parts.extents.folder

        def replace(index: DiskIndex) -> None:
            index.replace(self._changes, number)
            parts.marker.note(Mark(load.salt, index.revision, self._changes.head))

        try:
            committer.run_between(replace)
        except sqlite3.Error as error:
            raise as_os_error(error, parts.index.path) from error
        finally:
            if parts.index.loads == number:
                self.counts, load.folder = True, None
                try:
                    adopt()
                    self._take_over(folder)
                except BaseException:  # an interrupt: there is no way back any more
                    adopt()
                    self._take_over(folder)
                    raise
                if old != folder:
                    letting_go.let_go(old)
            elif not self._fresh:
                # What was not committed may still come back after a crash, until something else is.
                load.folder = None
                letting_go.left.append(folder)
                appender.note_bounds()

    def _take_over(self, folder: Path) -> None:
        """The rows in a folder, in place of those that were served so far."""
        parts, load, tape = self._parts, self._load, self._parts.tape
        extents, appender = parts.extents, parts.appender
        assert appender is not None
        with parts.letting_go.held:
            tape.clear()  # who is reading sees that rows were lost
            extents.enter(folder)
            extents.created = False
            parts.rows.set_salts(load.salts)
            parts.rows.aside.clear()
            tail, head = self._bounds[:2]
            for extent in range(tail // extents.rows, -(-head // extents.rows)):
                try:
                    extents.map(extent)
                except OSError as error:  # then it is mapped when its rows are wanted
                    log.warning("%s: it cannot be mapped: %s", extents.path(extent), error)
            tape.restore_stored(*self._bounds)
            tape.inserted, tape.sampled = self._limiter
            appender.took_over(load.salt)
