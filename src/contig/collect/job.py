"""What a worker process is told at its start."""

from __future__ import annotations

from typing import Any, NamedTuple

from .sink import Address

__all__ = ["Job"]


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
