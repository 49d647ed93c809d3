"""Ingress: the one way into a storage.

    rows -> transform -> room (limiter) -> writer -> tape

Buffers, collectors' sinks, a server's tables and its clients on the same host each hold one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..batch import Batch
from ..convert import plain_tree
from ..errors import LayoutError
from ..tape import SharedStorage, Storage, Writer, storage_of_fd
from ..tape.asked import Asked
from ..tape.env_step import EnvStep
from ..tape.stacking import count_rows, stack_rows

if TYPE_CHECKING:  # samplers take a while to import, and workers of collectors need none
    from ..sample import RateLimiter

__all__ = ["Ingress", "attach_storage"]

_ANY_ROWS = 1 << 62  # native/wire/tape_intake.cpp


def _nobody() -> None:
    """Nobody minds the wait."""


class Ingress:
    """Writes to a storage. Each verb is one atomic append, and returns seqs.

    Thread-safe, unless it is `apart`. In all verbs, `go_on` is called while they wait for room,
    and may raise to end that.

    Args:
        storage: where rows go.
        transform: gets what is written as a Batch, returns what is stored; None: nothing yet.
        limiter: says when there is room.
    """

    def __init__(
        self,
        storage: Storage,
        transform: Callable[[Batch], Any] | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        self.storage, self.transform, self.limiter = storage, transform, limiter
        self._own: Any = threading.local()  # its `writer` is the calling thread's

    def apart(self) -> Ingress:
        """The same with a writer of its own, which goes on with nobody else's trajectories; for
        one thread."""
        other = Ingress(self.storage, self.transform, self.limiter)
        other._own = SimpleNamespace(writer=self.storage.writer())
        return other

    @property
    def writer(self) -> Writer:
        """What the calling thread appends through."""
        try:
            return self._own.writer  # type: ignore[no-any-return]
        except AttributeError:
            writer = self._own.writer = self.storage.default_writer
            return writer

    def go_on_from(self, orphans: list[Any]) -> None:
        """Before the calling thread's first row: trajectories that it began elsewhere. What comes
        of them is no beginning."""
        self._own.writer = self.storage.writer(orphans)

    def describe(self) -> dict[str, Any]:
        """Where other processes of this host find the storage (`name` is None if only by its
        descriptor), and the limiter's numbers: as JSON, for `attach`."""
        storage, limiter = self.storage, self.limiter
        numbers = ("samples_per_insert", "min_size", "error_buffer")
        return {
            "name": storage.name if isinstance(storage, SharedStorage) else None,
            "limiter": None if limiter is None else {n: getattr(limiter, n) for n in numbers},
            "ndim": storage.ndim,
            "asked": storage.asked.to_json(),
        }

    @staticmethod
    def attach(described: dict[str, Any], fd: int = -1, **waits: Any) -> Ingress:
        """The way into a storage of another process.

        Args:
            described: by that process.
            fd: the storage's descriptor, if it has no name.
            waits: `block` and `timeout_s` of the limiter.
        """
        from ..sample import RateLimiter

        numbers = described["limiter"]
        limiter = None if numbers is None else RateLimiter(**numbers, **waits)
        return Ingress(attach_storage(described, fd), None, limiter)

    # -- verbs --------------------------------------------------------------------------------

    def add(self, step: Any, go_on: Callable[[], None] = _nobody, fields: Any = None) -> int:
        """One row, which goes on with the trajectory until a done row; see `Writer.add`."""
        if self.transform is not None:
            rows = self.transform(Batch.one(self._told(step, 0)))
            if self.limiter is not None:
                self._await_rows(rows, go_on)
            return int(self.writer.extend(rows, fields=fields)[0])
        if self.limiter is not None:
            self.limiter.await_insert(self.storage, 1, go_on)
        try:
            writer = self._own.writer  # not by the property: that is one call more for each row
        except AttributeError:
            writer = self.writer
        if fields is not None:
            return writer.add(step, fields)  # type: ignore[no-any-return]
        return writer.add(step)  # type: ignore[no-any-return]

    def add_step(
        self,
        step: Any,
        env_ids: Any = None,
        mask: Any = None,
        go_on: Callable[[], None] = _nobody,
        fields: Any = None,
    ) -> np.ndarray[Any, Any]:
        """One step of B envs, ``[B, ...]``, or of some of them; see `Writer.add_step`."""
        some = EnvStep.of(step, env_ids, mask, self.storage.layout)
        if some.envs is None or len(some.envs):
            if self.transform is not None:
                some = some._replace(data=self._transform_step(self._batch(some.data, 1)))
            if self.limiter is not None:
                self.await_room(self._count(some.data, 1), go_on)
        return self.writer.add_env_step(some, fields)

    def extend(
        self,
        data: Any,
        continues: bool | None = None,
        go_on: Callable[[], None] = _nobody,
        fields: Any = None,
    ) -> np.ndarray[Any, Any]:
        """Rows, or lanes of rows; see `Writer.extend`."""
        if self.transform is not None or self.limiter is not None:
            data = self.admit(data, go_on)
            if data is None:
                return np.empty(0, np.int64)
        try:
            writer = self._own.writer  # as in `add`
        except AttributeError:
            writer = self.writer
        return writer.extend(data, continues, fields)  # type: ignore[no-any-return]

    def extend_trajectory(
        self, data: Any, go_on: Callable[[], None] = _nobody, **end: Any
    ) -> np.ndarray[Any, Any]:
        """One whole trajectory; see `Writer.extend_trajectory`."""
        if self.transform is not None:
            data = self.transform(self._batch(data, 1))
        if self.limiter is not None:
            self.await_room(self._count(data, 1), go_on)
        return self.writer.extend_trajectory(data, **end)

    # -- what comes before an append ----------------------------------------------------------

    def admit(self, data: Any, go_on: Callable[[], None] = _nobody) -> Any:
        """What `extend` would give the writer, as soon as there is room for it; None if the
        transform keeps all of it back."""
        if self.transform is not None:
            data = stack_rows(data, self.storage.schema)
            data = self.transform(self._batch(data, self.storage.batch_ndim(data)))
            if data is None:
                return None
        if self.limiter is not None:
            self._await_rows(data, go_on)
        return data

    def _stacked(self, data: Any) -> Any:
        """A list of rows as a batch; of a storage on a device, without a detour."""
        as_rows = None if self.storage.device is None else self.storage.as_rows
        return stack_rows(data, self.storage.schema, as_rows)

    def _batch(self, data: Any, batch_ndim: int) -> Batch:
        return Batch.from_tree(self._told(data, batch_ndim), batch_ndim)

    def _told(self, data: Any, batch_ndim: int) -> Any:
        """The data with leaves of any size as what they are: an array may be a row of one."""
        layout = self.storage.layout
        if layout is None or not layout.ragged or isinstance(data, Batch):
            return data
        tree, shape = plain_tree(data)
        return layout.columns_in(tree, batch_ndim if shape is None else len(shape))

    def _count(self, data: Any, batch_ndim: int) -> int:
        return count_rows(self._told(data, batch_ndim), batch_ndim)

    def _await_rows(self, data: Any, go_on: Callable[[], None]) -> None:
        data = self._stacked(data)
        self.await_room(self._count(data, self.storage.batch_ndim(data)), go_on)

    def _transform_step(self, step: Batch) -> Any:
        assert self.transform is not None
        data = self.transform(step)
        rows = count_rows(data, 1)
        if rows != len(step):
            raise LayoutError(
                f"add_step: the transform made {rows} rows of {len(step)}, and whose they "
                "are is not known then; leave rows out by mask= instead"
            )
        return data

    def await_room(self, rows: int, go_on: Callable[[], None] = _nobody) -> None:
        """Waits until rows may be appended; the append counts them."""
        if self.limiter is not None and rows:
            self.limiter.await_insert(self.storage, rows, go_on)

    def room(self) -> int:
        """How many rows may be appended now: for frames, which native code takes in."""
        return _ANY_ROWS if self.limiter is None else self.limiter.room(self.storage)

    def check_takes_records(self, whose: str) -> None:
        """Raises ValueError if packed rows, as clients send them, would pass the transform by, or
        the storage takes none."""
        if not self.storage.takes_records:
            raise ValueError(
                f"{whose}: {type(self.storage).__name__} takes no packed rows, as clients send "
                "them; serve a LazyTensorStorage, and have its batches go to the device"
            )
        if self.transform is not None:
            raise ValueError(
                f"{whose}: its buffer transforms what is written, but clients' rows go "
                "straight to its storage: transform them in the clients before they are sent, "
                "or when they are sampled (an object with on_sample)"
            )


def attach_storage(described: dict[str, Any], fd: int = -1) -> Storage:
    """A storage of another process, as its `Ingress.describe` says."""
    storage: Storage
    if described["name"] is None:
        storage = storage_of_fd(fd, described["ndim"])
    else:
        storage = SharedStorage.attach(described["name"], described["ndim"])
    storage.asked = Asked.from_json(described["asked"])
    return storage
