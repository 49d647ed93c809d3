"""What a Writer of a storage on disk appends through: stage, store, then commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _native

if TYPE_CHECKING:
    from ..schema import Schema
    from .storage import DiskStorage

__all__ = ["StagedWriter"]


class StagedWriter:
    """The native writer's interface, with rows stored in files before they are appended."""

    def __init__(self, storage: DiskStorage, schema: Schema) -> None:
        self._storage = storage
        own = schema.boundaries.traj_key is not None
        self.native = _native.Writer(storage.tape, schema.marks, own, stage=True)

    @property
    def id(self) -> int:
        return self.native.id

    @property
    def last_rows(self) -> int:
        return self.native.last_rows

    @property
    def envs(self) -> int:
        return self.native.envs

    @envs.setter
    def envs(self, envs: int) -> None:
        self.native.envs = envs

    def orphan(self, orphans: list[Any]) -> None:
        self.native.orphan(orphans)

    def open_trajectories(self) -> list[Any]:
        return self.native.open_trajectories()

    @property
    def open_bytes(self) -> int:
        return self.native.open_bytes

    def add(self, *args: Any) -> int:
        return self._append(self.native.add, args)

    def extend(self, *args: Any) -> int:
        return self._append(self.native.extend, args)

    def append_records(self, *args: Any) -> int:
        return self._append(self.native.append_records, args)

    def append_columns(self, *args: Any) -> int:
        return self._append(self.native.append_columns, args)

    def append_whole(self, *args: Any) -> int:
        return self._append(self.native.append_whole, args)

    def append_part(self, *args: Any) -> None:
        self._append(self.native.append_part, args)

    def accept(
        self, receiver: Any, producer: int, most_rows: int, next_item: int = 0
    ) -> tuple[int, int, int, bool]:
        """A frame's items; see `_native.accept_runs`."""
        with self._storage.appending():
            seen, items, rows, gap = _native.accept_runs(
                self.native, receiver, producer, most_rows, next_item
            )
            if items:
                self._storage.commit(self.native, {producer: seen})
        return seen, items, rows, gap

    def _append(self, call: Any, args: tuple[Any, ...]) -> int:
        with self._storage.appending():
            first = call(*args)
            if first is not None and first < 0:
                return int(first)
            return self._storage.commit(self.native, {})
