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
from ..errors import LayoutError
from ..tape import SharedStorage, Storage, Writer, storage_of_fd
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
        transform: gets what is written as a Batch, returns what is stored.
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
            "keys": [list(k) if isinstance(k, tuple) else k for k in storage.keys],
            "limiter": None if limiter is None else {n: getattr(limiter, n) for n in numbers},
            "ndim": storage.ndim,
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

    def add(self, step: Any, go_on: Callable[[], None] = _nobody) -> int:
        """One row, which goes on with the trajectory until a done row."""
        if self.transform is not None:
            rows = self.transform(Batch.one(step))
            if self.limiter is not None:
                self._await_rows(rows, go_on)
            return int(self.writer.extend(rows)[0])
        if self.limiter is not None:
            self.limiter.await_insert(self.storage, 1, go_on)
        try:
            writer = self._own.writer  # not by the property: that is one call more for each row
        except AttributeError:
            writer = self.writer
        return writer.add(step)  # type: ignore[no-any-return]

    def add_step(
        self,
        step: Any,
        env_ids: Any = None,
        mask: Any = None,
        go_on: Callable[[], None] = _nobody,
    ) -> np.ndarray[Any, Any]:
        """One step of B envs, ``[B, ...]``, or of some of them; see `Writer.add_step`."""
        some = EnvStep.of(step, env_ids, mask)
        if some.envs is None or len(some.envs):
            if self.transform is not None:
                some = some._replace(data=self._transform_step(Batch.from_tree(some.data, 1)))
            if self.limiter is not None:
                self.await_room(count_rows(some.data, 1), go_on)
        return self.writer.add_env_step(some)

    def extend(
        self, data: Any, continues: bool | None = None, go_on: Callable[[], None] = _nobody
    ) -> np.ndarray[Any, Any]:
        """Rows, or lanes of rows; see `Writer.extend`."""
        return self.writer.extend(self.admit(data, go_on), continues)

    def extend_trajectory(
        self, data: Any, go_on: Callable[[], None] = _nobody, **end: Any
    ) -> np.ndarray[Any, Any]:
        """One whole trajectory; see `Writer.extend_trajectory`."""
        if self.transform is not None:
            data = self.transform(Batch.from_tree(data, 1))
        if self.limiter is not None:
            self.await_room(count_rows(data, 1), go_on)
        return self.writer.extend_trajectory(data, **end)

    # -- what comes before an append ----------------------------------------------------------

    def admit(self, data: Any, go_on: Callable[[], None] = _nobody) -> Any:
        """What `extend` would give the writer, as soon as there is room for it."""
        if self.transform is not None:
            data = stack_rows(data, self.storage.schema)
            data = self.transform(Batch.from_tree(data, self.storage.batch_ndim(data)))
        if self.limiter is not None:
            self._await_rows(data, go_on)
        return data

    def _await_rows(self, data: Any, go_on: Callable[[], None]) -> None:
        data = stack_rows(data, self.storage.schema)
        self.await_room(count_rows(data, self.storage.batch_ndim(data)), go_on)

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
        """Raises ValueError if packed rows, as clients send them, would pass the transform by."""
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
    storage.bind_keys(*(tuple(k) if isinstance(k, list) else k for k in described["keys"]))
    return storage
