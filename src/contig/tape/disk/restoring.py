"""Taking a checkpoint in: what there is before, or what was loaded, and nothing in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...errors import StorageFull
from ..schema import Schema
from ..snapshot import Snapshot
from . import first_load
from .appender import FULL, new_salt
from .changeover import ChangeOver
from .describing import with_store
from .directory import Directory
from .loading import Load, Shape
from .parts import How, Parts

__all__ = ["Restoring"]


class Restoring:
    """One load into a storage. Its user holds the storage's locks.

    Args:
        directory: of the storage.
        tape: the native one.
        adopt: called with the parts when they count; twice, if it is interrupted.

    Attributes:
        counts: whether it happened.
    """

    def __init__(self, directory: Directory, tape: Any, adopt: Callable[[Parts], None]) -> None:
        self._directory, self._tape, self._adopt = directory, tape, adopt
        self.counts = False

    def replace(self, parts: Parts, contents: Snapshot, limiter: tuple[int, int]) -> None:
        """In place of what a storage has."""

        def change(load: Load) -> None:
            self._change(parts, ChangeOver(parts, load, contents, limiter))

        self._bring(contents, parts.shape, change)

    def create(
        self,
        described: dict[str, Any],
        how: How,
        contents: Snapshot,
        limiter: tuple[int, int],
    ) -> None:
        """Into a storage that is none yet; see `first_load`.

        Args:
            described: what it would be.
            how: it is opened then.
            contents, limiter: what is taken in.
        """
        first_load.settle(self._directory)
        size = Schema.from_bytes(json.dumps(described["schema"]).encode()).layout.record_size
        shape = Shape(size, described["stride"], described["rows_per_extent"])

        def change(load: Load) -> None:
            parts: Parts | None = None
            try:
                whole = with_store(self._directory, described)
                first_load.begin(self._directory, whole)
                parts = Parts(self._directory, self._tape, whole, how)
                self._change(parts, ChangeOver(parts, load, contents, limiter, fresh=True))
            except BaseException:
                if not self.counts:
                    if parts is not None:
                        parts.close()
                    first_load.undo(self._directory)
                raise

        self._bring(contents, shape, change)

    def _bring(self, contents: Snapshot, shape: Shape, change: Callable[[Load], None]) -> None:
        load = Load(contents, self._directory.root / "extents", shape, new_salt())
        load.check()
        self._tape.prepare_restore(*contents.numbered())
        try:
            load.bring()
            change(load)
        except BaseException as error:
            load.undo()
            if isinstance(error, OSError) and error.errno in FULL:
                path = self._directory.path
                text = f"{path}: no room for the checkpoint; nothing was loaded"
                raise StorageFull(error.errno, text) from error
            raise

    def _change(self, parts: Parts, change: ChangeOver) -> None:
        def adopt() -> None:
            self._adopt(parts)
            first_load.finish(self._directory)

        try:
            change.run(adopt)
        finally:
            self.counts = change.counts
