"""A rate limiter: keeps sampling and inserting in proportion."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable

from ..arguments import seconds, whole
from ..errors import RateLimitError
from ..tape import Storage
from .shown import shown

__all__ = ["RateLimiter"]

_SLICE_S = 0.1  # waits are cut in pieces, so that Ctrl-C works


class RateLimiter:
    """Blocks, or raises, when samplers or writers run ahead.

    With i rows inserted and s sampled, `i * samples_per_insert - s` stays within `error_buffer` of
    its value at `min_size`; sampling needs `min_size` rows first. An append or a batch of more rows
    than that is let through when its own side is not ahead, and may go as far as its rows take it:
    so at any time one side or the other may go on, whatever the sizes. The counters live in the
    tape's header, so they are shared by all processes of a storage.

    Args:
        samples_per_insert: rows sampled for each row inserted.
        min_size: rows before the first sample.
        error_buffer: how far it may drift, in sampled rows; at least `max(1, samples_per_insert)`,
            which it is by default: then both sides go on in turns.
        block: wait (True) or raise at once.
        timeout_s: how long a wait may take before it raises.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size: int = 1,
        error_buffer: float | None = None,
        *,
        block: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        is_number = isinstance(samples_per_insert, numbers.Real)
        if not (is_number and 0 < samples_per_insert < math.inf):
            raise ValueError(
                f"samples_per_insert must be a positive number, got {samples_per_insert!r}"
            )
        min_size = whole("min_size", min_size, 1, "a number of rows")
        least = max(1.0, samples_per_insert)
        self.error_buffer = least if error_buffer is None else float(error_buffer)
        if not least <= self.error_buffer < math.inf:
            raise ValueError(
                f"error_buffer {error_buffer} would deadlock: at least {least} is needed for one "
                "insert and one sample to alternate"
            )
        self.samples_per_insert = float(samples_per_insert)
        self.min_size = min_size
        self.block = block
        self.timeout_s = seconds("timeout_s", timeout_s)
        self._middle = min_size * self.samples_per_insert

    def __repr__(self) -> str:
        least = max(1.0, self.samples_per_insert)
        return shown(self, {"error_buffer": None} if self.error_buffer == least else {})

    def drift(self, storage: Storage) -> float:
        """How far inserting is ahead of sampling, in sampled rows; negative: behind."""
        tape = storage.tape
        return float(tape.inserted) * self.samples_per_insert - tape.sampled - self._middle

    def take_samples(self, storage: Storage, rows: int) -> bool:
        """Counts rows as sampled, if that is allowed now. Atomic: two samplers cannot both use one
        allowance."""
        tape = storage.tape
        inserted = tape.inserted
        if inserted < self.min_size:
            return False
        limit = inserted * self.samples_per_insert - self._middle + self.error_buffer
        return tape.reserve_sampled(rows, min(float(rows), self.error_buffer), limit)

    def can_insert(self, storage: Storage, rows: int) -> bool:
        """Whether rows may be appended now. Writers that ask at the same time may all be let in:
        together they overshoot by at most one append each."""
        if storage.tape.inserted + rows <= self.min_size:
            return True
        more = min(rows * self.samples_per_insert, self.error_buffer)
        return self.drift(storage) + more <= self.error_buffer

    def room(self, storage: Storage) -> int:
        """How many rows may be appended now; at least 1 if any may."""
        first = self.min_size - int(storage.tape.inserted)
        more = math.floor((self.error_buffer - self.drift(storage)) / self.samples_per_insert)
        return max(first, more, 0)

    def await_sample(
        self,
        storage: Storage,
        rows: int,
        go_on: Callable[[], None] = lambda: None,
        most_s: float = math.inf,
    ) -> None:
        """Waits until rows may be sampled, and counts them. `go_on` may raise to end the wait, and
        it takes at most so many seconds, if `timeout_s` is longer."""
        timeout_s = min(self.timeout_s, most_s)
        self._await(storage, rows, self.take_samples, ("sample", "writers are"), go_on, timeout_s)

    def await_insert(
        self, storage: Storage, rows: int, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """Waits until rows may be appended; the append counts them. `go_on` may raise to end it."""
        what = ("insert", "samplers are")
        self._await(storage, rows, self.can_insert, what, go_on, self.timeout_s)

    def _await(
        self,
        storage: Storage,
        rows: int,
        allowed: Callable[[Storage, int], bool],
        words: tuple[str, str],
        go_on: Callable[[], None],
        timeout_s: float,
    ) -> None:
        what, who = words
        deadline = time.monotonic() + timeout_s
        while True:
            seen = storage.tape.wake_word
            if allowed(storage, rows):
                return
            left = deadline - time.monotonic()
            if not self.block or left <= 0:
                tape = storage.tape
                waited = f" within {timeout_s} s" if self.block else ""
                raise RateLimitError(
                    f"cannot {what} {rows} rows{waited}: {who} behind ({tape.inserted} rows "
                    f"inserted, {tape.sampled} sampled, {self.samples_per_insert} samples per "
                    f"insert, min_size {self.min_size}, error_buffer {self.error_buffer})"
                )
            asked = time.monotonic()
            go_on()
            deadline += time.monotonic() - asked  # time it held us up does not count
            storage.tape.wait(seen, min(left, _SLICE_S))
