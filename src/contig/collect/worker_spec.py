"""WorkerSpec: what a worker process is told at its start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .sink import Address, address_of

__all__ = ["WorkerSpec", "specs_for"]


class WorkerSpec(NamedTuple):
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

    def after(self, frames: int) -> WorkerSpec:
        """The same with as many random frames as are left after so many."""
        return self._replace(random_frames=max(self.random_frames - frames, 0))


def specs_for(envs: Sequence[Any], like: WorkerSpec, replay_buffer: Any) -> list[WorkerSpec]:
    """A job for each of some environments.

    Args:
        like: what they have in common; its seed is the first worker's, its random frames are those
            of all together, and its functions run where the rows are written.
        replay_buffer: where to; None: batches go back.
    """
    share, more = divmod(like.random_frames, len(envs))
    out = []
    for number, env in enumerate(envs):
        address = None if replay_buffer is None else address_of(replay_buffer, number)
        out.append(
            like._replace(
                number=number,
                env=env,
                seed=None if like.seed is None else like.seed + number * like.lanes,
                random_frames=share + (number < more),
                address=address,
                postproc=like.postproc if address is not None else None,
                hook=like.hook if address is not None else None,
            )
        )
    return out
