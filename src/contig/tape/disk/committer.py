"""The committer: a thread that makes appends survive, many in one transaction.

    append -> rows in files, visible here -> queue -> [fsync] -> SQLite commit -> retention

The queue is bounded, in rows and in seconds: an append that would exceed it waits, and commits what
is there in its own thread if nobody is at it. What fails is kept, tried again, and raised at the
next call until it works; only a failed fsync is for good. A second thread syncs rows and folds the
index's log into its file, every few seconds.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ...arguments import seconds
from ...errors import StorageFull
from .changes import Changes, merged
from .index import DiskIndex
from .marker import Mark, Marker

__all__ = ["FULL", "Committer", "Lag"]

log = logging.getLogger("contig.disk")

_HANDS_OFF_S = 0.005  # of the thread, while those who append commit themselves
_RETRY_S = 0.2
_LOOK_S = 0.25
_TEND_S = 2.0
_SLICE_S = 0.1
_SLEEP_S = 1.0
FULL = (errno.ENOSPC, errno.EDQUOT)


class Lag(NamedTuple):
    """How much may be appended and not committed: what a killed process may lose."""

    rows: int
    seconds: float

    def check(self) -> None:
        """Raises ValueError if it makes no sense."""
        if self.rows < 1:
            raise ValueError(f"max_lag_rows must be at least 1, got {self.rows}")
        if not seconds("max_lag_s", self.seconds) > 0:
            raise ValueError(f"max_lag_s must be more than 0, got {self.seconds}")


class Committer:
    """Writes changes to an index, in the order in which they come. Thread-safe.

    Args:
        index: to write to; belongs to this thread from now on.
        durable: whether rows and index are synced to the disk before a change counts.
        lag: how much may wait.
        sync: makes rows durable.
        marker: is told what was written before anybody hears of it.
        committed: called with it afterwards.
    """

    def __init__(
        self,
        index: DiskIndex,
        durable: bool,
        lag: Lag,
        sync: Callable[[], None],
        marker: Marker,
        committed: Callable[[Changes], None],
    ) -> None:
        self._index, self._durable, self._lag = index, durable, lag
        self._sync, self._marker, self._committed = sync, marker, committed
        self._turn = threading.Condition()
        self._role = threading.Lock()  # of the one who writes
        self._waiting: list[Changes] = []
        self._pending_rows = 0  # of what waits and of what is being written
        self._since: float | None = None  # the oldest that waits
        self._writing_since: float | None = None  # the oldest that is being written
        self._number = self._done = self._tended = 0
        self._failure: BaseException | None = None
        self._broken = self._closing = False
        self._asleep = False  # the thread, with nothing to do
        self._helped = False  # the last commit was not the thread's
        self._over = threading.Event()
        index.set_durable(durable)
        self._thread = threading.Thread(target=self._run, name="contig-committer", daemon=True)
        self._tending = threading.Thread(target=self._tend, name="contig-folder", daemon=True)
        self._thread.start()
        self._tending.start()

    def add(self, changes: Changes, rows: int = 0) -> int:
        """Hands over changes that add `rows` rows; a ticket for `wait`."""
        with self._turn:
            self._waiting.append(changes)
            self._pending_rows += rows
            if self._since is None:
                self._since = time.monotonic()
            self._number += 1
            if self._asleep:
                self._turn.notify_all()
            return self._number

    def make_room(self, rows: int) -> None:
        """Waits until `rows` more may be appended; raises if those before cannot be committed."""
        while self._lags(rows):
            self.check()
            self._help()
            with self._turn:
                if self._lags(rows):
                    self._turn.wait(_SLICE_S)

    def _lags(self, rows: int) -> bool:
        oldest = self._writing_since or self._since
        if oldest is None:
            return False  # an append may be larger than the bound, but then it is alone
        return (
            self._pending_rows + rows > self._lag.rows
            or time.monotonic() - oldest > self._lag.seconds
        )

    def check(self) -> None:
        """Raises what the thread failed with, if it has not recovered since."""
        failure = self._failure
        if failure is None:
            return
        if self._broken and not isinstance(failure, OSError):
            raise RuntimeError(f"the storage's index cannot be written: {failure}") from failure
        if self._broken:
            raise OSError(
                getattr(failure, "errno", None) or errno.EIO,
                f"rows could not be synced to the disk: {failure}. What was committed before is "
                "safe; close this storage and open it again, which checks what is there",
            ) from failure
        text = (
            f"the storage's index cannot be written: {failure}; appends so far are kept in memory "
            "and tried again"
        )
        full = isinstance(failure, sqlite3.OperationalError) and "full" in str(failure)
        if full or (isinstance(failure, OSError) and failure.errno in FULL):
            raise StorageFull(errno.ENOSPC, text) from failure
        raise OSError(getattr(failure, "errno", None) or errno.EIO, text) from failure

    def wait(self, ticket: int | None = None, timeout_s: float | None = None) -> None:
        """Returns when a change, or every one so far, is as durable as it will be."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._help()
        with self._turn:
            upto = self._number if ticket is None else ticket
            while self._done < upto:
                self.check()
                left = _SLICE_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"not committed within {timeout_s} s")
                self._turn.wait(min(left, _SLICE_S))

    @property
    def done(self) -> int:
        """The newest ticket that is committed."""
        return self._done

    def _run(self) -> None:
        while True:
            with self._turn:
                if not self._waiting and not self._closing:
                    self._asleep = True
                    # Not for ever: a dropped storage may be collected in this thread, just here.
                    self._turn.wait(_SLEEP_S)
                    self._asleep = False
                if self._broken or (not self._waiting and self._closing):
                    return
                if not self._waiting:
                    continue
            if self._helped:
                self._helped = False
                self._over.wait(_HANDS_OFF_S)
            with self._role:
                self._commit()
            if self._failure is not None and (self._closing or self._broken):
                return
            if self._failure is not None:
                self._over.wait(_RETRY_S)

    def _help(self) -> None:
        """Commits in the caller's thread, if nobody else is at it: handing over takes longer."""
        if self._role.acquire(blocking=False):
            try:
                self._helped = True
                self._commit()
            finally:
                self._role.release()

    def _commit(self) -> None:
        """Writes what waits. The caller has the role."""
        taken: list[Changes] = []
        try:
            with self._turn:
                if not self._waiting or self._broken:
                    return
                taken, upto, rows = self._waiting, self._number, self._pending_rows
                self._waiting = []
                self._writing_since, self._since = self._since, None
            if self._durable and not self._synced(taken):
                return
            changes = merged(taken)
            self._index.write(changes)
            self._marker.note(Mark(changes.salts[-1][1], self._index.revision, changes.head))
            with self._turn:
                if not self._broken:
                    self._failure = None
                self._done = upto
                self._pending_rows -= rows
                self._writing_since = None
                self._turn.notify_all()
        except (OSError, sqlite3.Error) as error:
            self._failed(error, taken)
            return
        except Exception as error:  # a bug; nobody must wait for what does not come
            log.exception("the storage's index cannot be written")
            self._break(error, taken)
            return
        except BaseException:  # Ctrl-C in a thread that helps: the next one goes on
            self._put_back(taken)
            raise
        try:
            self._committed(changes)
        except OSError as error:
            log.warning("files that hold nothing any more are still there: %s", error)

    def _synced(self, taken: list[Changes]) -> bool:
        """Whether rows are on the disk. After a failure nobody knows what is: it is final, as a
        second fsync would succeed without having written anything."""
        try:
            self._sync()
        except OSError as error:
            log.error("rows could not be synced to the disk: %s", error)
            self._break(error, taken)
            return False
        return True

    def _break(self, error: BaseException, taken: list[Changes]) -> None:
        """For good."""
        with self._turn:
            self._broken, self._failure = True, error
            self._waiting = taken + self._waiting
            self._turn.notify_all()

    def _failed(self, error: BaseException, taken: list[Changes]) -> None:
        if self._failure is None:
            log.error("the storage's index cannot be written: %s", error)
        with self._turn:
            if not self._broken:
                self._failure = error
        self._put_back(taken)

    def _put_back(self, taken: list[Changes]) -> None:
        """To be written with what comes later, or again: that changes nothing."""
        with self._turn:
            if taken:
                self._waiting = taken + self._waiting
                self._since, self._writing_since = self._writing_since, None
            self._turn.notify_all()

    def _tend(self) -> None:
        tended = time.monotonic()
        while not self._over.wait(_LOOK_S) and not self._broken:
            done, now = self._done, time.monotonic()
            soon = self._index.log_is_long
            if done == self._tended or (now - tended < _TEND_S and not soon):
                continue
            tended = now
            if not self.fold():
                return
            self._tended = done

    def fold(self) -> bool:
        """Folds the index's log into its file, after the rows it tells of are synced; False if
        these could not be."""
        if not self._durable and not self._synced([]):
            return False
        try:
            self._index.fold()
        except sqlite3.Error as error:
            log.warning("the index's log could not be folded in: %s", error)
        return True

    def run_between(self, call: Callable[[DiskIndex], Any]) -> Any:
        """Runs something with the index while no commit is under way; everything is committed."""
        while True:
            self.wait()
            with self._turn:
                if self._done == self._number:  # else more came meanwhile
                    return call(self._index)

    def quarantine(self, found: dict[int, str], repaired: bool) -> None:
        """Has the index remember trajectories that are not to be served."""
        self.run_between(lambda index: index.quarantine(found, repaired))

    @property
    def is_this_thread(self) -> bool:
        """Whether the calling thread is one of the committer's."""
        return threading.current_thread() in (self._thread, self._tending)

    def close(self, timeout_s: float | None = None) -> bool:
        """Commits what is left; False if that takes too long, and then it goes on.

        Raises:
            OSError: it cannot be committed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        self._over.set()
        for thread in (self._thread, self._tending):
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                return False
        with self._role:  # somebody who flushes may still be at it
            pass
        if self._waiting:
            self.check()
        return True
