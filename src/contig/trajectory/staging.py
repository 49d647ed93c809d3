"""Staging: items that a thread writes behind those who add them, in order.

    add     ──▶ queue, MAX_BYTES at most ──▶ thread ──▶ write
    settle      waits until all that was added before is written

The thread ends when there is nothing to write, so that nothing keeps a forgotten buffer alive; one
that has work keeps the interpreter from ending before it is done.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["MAX_BYTES", "Blocks", "Staging"]

MAX_BYTES = 64 << 20  # that wait to be written; a single item may have more

Array = np.ndarray[Any, Any]
Item = TypeVar("Item")
_ALL: weakref.WeakSet[Staging[Any]] = weakref.WeakSet()


class Blocks:
    """Memory for copies, used again: fresh memory takes longer to get than to fill. Thread-safe."""

    _KEPT = 2

    def __init__(self) -> None:
        self._free: deque[Array] = deque(maxlen=self._KEPT)

    def take(self, nbytes: int) -> Array:
        """A block of at least that many bytes. Its memory is used again when neither the block nor
        an array in it is left."""
        memory = self._find(nbytes)
        # Arrays in the block refer to this one, and not to its memory, for that is no array.
        block: Array = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(block, self._keep, memory).atexit = False
        return block

    def _find(self, nbytes: int) -> Array:
        for _ in range(self._KEPT):
            try:
                memory = self._free.popleft()
            except IndexError:
                break
            if nbytes <= len(memory) <= max(4 * nbytes, 1 << 20):
                return memory
        return np.empty(max(nbytes, 1), np.uint8)

    def _keep(self, memory: Array) -> None:
        if len(memory) <= MAX_BYTES // self._KEPT:
            self._free.append(memory)


class Staging(Generic[Item]):
    """A bounded queue and the thread that empties it. Thread-safe.

    Args:
        write: writes an item; called by one thread at a time.

    Attributes:
        nbytes: of items that are not written yet.
    """

    def __init__(self, write: Callable[[Item], None]) -> None:
        self._write = write
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[tuple[Item, int]] = deque()
        self._added = self._written = self.nbytes = 0
        self._error: BaseException | None = None
        self._works = False

    def add(self, items: Iterable[tuple[Item, int]]) -> None:
        """Hands items over, with their sizes in bytes; waits while too much is staged.

        Raises:
            BaseException: what was added before could not be written, and so these were not added.
        """
        with self._changed:
            self._raise()
            for item, nbytes in items:
                while self.nbytes and self.nbytes + nbytes > MAX_BYTES:
                    self._changed.wait()
                    self._raise()
                self._queue.append((item, nbytes))
                self.nbytes += nbytes
                self._added += 1
                if not self._works:
                    self._works = True
                    threading.Thread(target=self._work, name="contig-staging").start()

    def settle(self) -> None:
        """Returns when everything that was added before is written.

        Raises:
            BaseException: some of it could not be; it was raised there. Only once.
        """
        with self._changed:
            self._raise()
            mine = self._added
            while self._written < mine:
                self._changed.wait()
            self._raise()

    def wait_idle(self) -> None:
        """Returns when nothing is written any more; an error stays for the next call."""
        with self._changed:
            while self._works:
                self._changed.wait()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._works = False
                    self._changed.notify_all()
                    return
                item, nbytes = self._queue[0]
            failed: BaseException | None = None
            try:
                self._write(item)
            except BaseException as error:
                failed = error
            del item
            with self._changed:
                if failed is None:
                    self._queue.popleft()
                    self.nbytes -= nbytes
                    self._written += 1
                else:
                    lost = len(self._queue)
                    failed.add_note(f"{lost} trajectories that had been added were not stored")
                    self._queue.clear()
                    self.nbytes, self._written, self._error = 0, self._added, failed
                self._changed.notify_all()
            del failed


def _forked() -> None:
    """Drops what is staged in a forked child: the parent writes it, and may have held the lock."""
    for staging in _ALL:
        staging._begin()


os.register_at_fork(after_in_child=_forked)
