"""What a worker process is told at its start, and the page on which it shows how far it is."""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

from .sink import Address

__all__ = ["Job", "Page"]

_BYTES = 4096


class Job(NamedTuple):
    """One worker's work.

    Attributes:
        number: the worker's.
        env, policy: an environment (or what makes it), and how to act.
        device, seed, random_frames, max_frames_per_traj, set_truncated, reset_at_each_iter,
            trajs_per_batch, register_primers: as the collector has them.
        rows: per lane and stretch.
        lanes: environments in it, as the collector counted them.
        address: where to write; None: batches go back to the collector.
        postproc, hook: run in the worker if it writes.
        layout: of rows, as JSON, if the collector knows it.
        board: descriptor of the weights, or -1.
    """

    number: int
    env: Any
    policy: Any
    device: Any
    seed: int | None
    random_frames: int
    max_frames_per_traj: int | None
    set_truncated: bool
    reset_at_each_iter: bool
    trajs_per_batch: int | None
    register_primers: bool
    rows: int
    lanes: int
    address: Address | None
    postproc: Any
    hook: Any
    layout: str | None
    board: int


class Page:
    """A page of shared memory: what the worker is doing, written by it alone.

    Word 0 is a counter of stages with the stage in its low bits (0 none, 1 stepping, 2 resetting);
    word 1 the stretches it has finished.
    """

    STEPPING, RESETTING = 1, 2

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _BYTES)
        self._words = memoryview(self._map).cast("q")
        self._count = 0

    @staticmethod
    def create() -> Page:
        fd = os.memfd_create("contig-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, _BYTES)
        return Page(fd)

    def stage(self, stage: int) -> None:
        """Says what comes now."""
        self._count += 4
        self._words[0] = self._count | stage

    def finish(self) -> None:
        """Says that a stretch is done."""
        self._words[1] += 1

    @property
    def now(self) -> int:
        return self._words[0]

    @property
    def finished(self) -> int:
        return self._words[1]

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)
