"""A page of shared memory on which a worker shows what it does, and what its collector reads."""

from __future__ import annotations

import mmap
import os
import time
from typing import NamedTuple

__all__ = ["HeartbeatPage", "Stage", "Watch"]

_BYTES = 4096
_STAGE_BITS = 4
_LOOKS = 5
_LOOK_S = 0.1
_SILENT_S = 4.0  # a process that waits shows several times a second that it runs
_COPYING_S = 20.0  # our own code copies large batches, and nothing else runs meanwhile
_BOOT_S = 120.0  # until the interpreter and what the job needs is loaded


class Stage:
    """What a worker is doing.

    READY: waiting to be told what to do. IDLE: nothing that could hang. MAKING: its environment.
    FIRST_ACT, FIRST_STEP: the first call of a policy, or of `env.step`, which may compile.
    PROCESSING: a user's function is given a batch. WAITING: for room to write. HELD: the same,
    while paused.
    """

    IDLE, MAKING, STEPPING, RESETTING, ACTING, FIRST_ACT, PROCESSING, WAITING, HELD = range(9)
    FIRST_STEP, READY = 9, 10


class _Limit(NamedTuple):
    """How long a stage may take: as long as a step, or as long as a start."""

    what: str
    quick: bool


_LIMITS = {
    Stage.MAKING: _Limit("make_env", False),
    Stage.STEPPING: _Limit("env.step", True),
    Stage.FIRST_STEP: _Limit("the first env.step", False),
    Stage.RESETTING: _Limit("env.reset", False),
    Stage.ACTING: _Limit("the policy", True),
    Stage.FIRST_ACT: _Limit("the policy's first call", False),
    Stage.PROCESSING: _Limit("postproc or post_collect_hook", False),
}


class HeartbeatPage:
    """A page of shared memory. Word 3 is the collector's, the others are the worker's.

    Word 0 is a counter of stages with the stage in its low bits; word 1 the stretches it has
    finished; word 2 the rows it has written; word 3 whether it must not write now; word 4 the
    frames that it has written, or was about to write when it died; word 5 the time of its last
    heartbeat, by the clock that all processes of a machine share; word 6 the frames that it has
    surely written; words 7 and 8 its writer's number and last row.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _BYTES)
        self._words = memoryview(self._map).cast("q")
        self._count = 0

    @staticmethod
    def create() -> HeartbeatPage:
        fd = os.memfd_create("contig-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, _BYTES)
        return HeartbeatPage(fd)

    def enter(self, stage: int) -> None:
        """Says what comes now."""
        self._count += 1
        self._words[0] = self._count << _STAGE_BITS | stage

    def finish(self) -> None:
        """Says that a stretch is done."""
        self._words[1] += 1

    def wrote(self, rows: int, frames: int, writer: int, newest: int) -> None:
        """Says that rows were written, which are some frames, and which is the last.

        In this order: whoever dies in between has written them.
        """
        self._words[6] += frames
        self._words[2] += rows
        self._words[7], self._words[8] = writer, newest

    def give(self, frames: int) -> None:
        """Says that frames are being written; before they are, so that none is counted too late."""
        self._words[4] += frames

    def beat(self) -> None:
        """Says that the process runs. Called several times a second by a thread of its own."""
        self._words[5] = time.monotonic_ns()

    def hold(self, still: bool) -> None:
        """Tells the worker not to write, or to go on."""
        self._words[3] = still

    @property
    def now(self) -> int:
        """Changes whenever the worker enters a stage."""
        return self._words[0]

    @property
    def stage(self) -> int:
        return self._words[0] & ((1 << _STAGE_BITS) - 1)

    @property
    def finished(self) -> int:
        return self._words[1]

    @property
    def rows(self) -> int:
        return self._words[2]

    @property
    def given(self) -> int:
        return self._words[4]

    @property
    def doubtful(self) -> int:
        """Frames that it may have written, or not, if it is dead."""
        return self._words[4] - self._words[6]

    @property
    def place(self) -> tuple[int, int]:
        """Its writer's number, and the last row that it surely wrote."""
        return self._words[7], self._words[8]

    @property
    def beaten(self) -> int:
        """When it last said that it runs; 0 before it does."""
        return self._words[5]

    @property
    def held(self) -> bool:
        return bool(self._words[3])

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)


class Watch:
    """Judges by its page whether a worker hangs, or was stopped. For one thread.

    If all processes stood still, a worker gets the time to go on before it is judged: it is looked
    at several times.
    """

    def __init__(self, page: HeartbeatPage) -> None:
        self._page = page
        self.begin()

    def begin(self) -> None:
        """What it does counts from now on."""
        self._word, self._since, self._looks = self._page.now, time.monotonic(), 0

    def hangs(self, step_s: float, start_s: float) -> str | None:
        """What it has been doing for too long, or None. Asked several times a second."""
        if self._page.now != self._word:
            self.begin()
            return None
        self._looks += 1
        if self._looks < _LOOKS:
            return None
        spent = time.monotonic() - self._since
        if not self._page.now:
            return f"did not start within {_BOOT_S} s" if spent > _BOOT_S else None
        limit = _LIMITS.get(self._page.stage)
        if limit is None:
            return None
        most = step_s if limit.quick else start_s
        return f"hangs in {limit.what} for more than {most} s" if spent > most else None

    @property
    def silence_s(self) -> float:
        """How long ago it showed that it runs; 0 before it began to."""
        beat = self._page.beaten
        return (time.monotonic_ns() - beat) / 1e9 if beat else 0.0

    def silent(self) -> str | None:
        """What is wrong if it does not even run, as if it was stopped; or None.

        The user's code may hold the interpreter's lock, and then nothing else runs: while it is
        in such code, `hangs` judges.
        """
        stage = self._page.stage
        waits = stage in (Stage.READY, Stage.HELD)
        if stage in _LIMITS or self.silence_s < (_SILENT_S if waits else _COPYING_S):
            return None
        before = self._page.beaten
        for _ in range(_LOOKS):
            time.sleep(_LOOK_S)
            if self._page.beaten != before:
                return None
        return f"gave no sign of life for {self.silence_s:.0f} s; was it stopped?"
