"""A page of shared memory on which a worker shows what it does, and what its collector reads."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import NamedTuple

__all__ = ["HeartbeatPage", "Stage", "Watch"]

_WORDS = "now", "finished", "rows", "held", "given", "beaten", "sure", "writer", "newest"
_STAGE_MASK = 15
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


class HeartbeatPage(ctypes.Structure):
    """Words in shared memory: `held` is the collector's, the others are the worker's.

    Made by `create`, and by `attach` in the worker. What it says stays after `close`.
    """

    fd: int
    _fields_ = [(name, ctypes.c_int64) for name in _WORDS]
    now: int  # a counter of stages, with the stage in its low bits
    finished: int  # stretches that are done
    rows: int  # that were written
    held: int  # whether it must not write now
    given: int  # frames that were written, or were about to be when it died
    beaten: int  # when it last showed that it runs, by the clock of the machine; 0 before it does
    sure: int  # frames that were surely written
    writer: int  # its writer's number
    newest: int  # the last row that it surely wrote

    @staticmethod
    def create() -> HeartbeatPage:
        fd = os.memfd_create("contig-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        return HeartbeatPage.attach(fd)

    @staticmethod
    def attach(fd: int) -> HeartbeatPage:
        page = HeartbeatPage.from_buffer(mmap.mmap(fd, mmap.PAGESIZE))
        page.fd = fd
        return page

    @property
    def stage(self) -> int:
        return self.now & _STAGE_MASK

    def enter(self, stage: int) -> None:
        """Says what comes now."""
        self.now = (self.now | _STAGE_MASK) + 1 + stage

    def wrote(self, rows: int, frames: int, writer: int, newest: int) -> None:
        """Says that rows were written, which are some frames, and which is the last.

        In this order: whoever dies in between has written them. Before, they are `given`.
        """
        self.sure += frames
        self.rows += rows
        self.writer, self.newest = writer, newest

    def beat(self) -> None:
        """Says that the process runs. Called several times a second by a thread of its own."""
        self.beaten = time.monotonic_ns()

    def close(self) -> None:
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
