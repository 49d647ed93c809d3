"""WorkerSpec: what a worker process is told at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .collection import CollectionSpec
from .sink import Address

__all__ = ["WorkerSpec", "specs_for"]


class WorkerSpec(NamedTuple):
    """One worker's work.

    Attributes:
        number: the worker's.
        env: an environment, or what makes it.
        collection: what it collects: its share of it.
        rows: per lane and stretch.
        lanes: environments in it, as the collector counted them.
        address: where to write; None: batches go back to the collector.
        layout: of rows, as JSON, if the collector knows it.
        board: descriptor of the weights in shared memory, or -1.
        version: of a policy without weights.
    """

    number: int
    env: Any
    collection: CollectionSpec
    rows: int
    lanes: int
    address: Address | None
    layout: str | None
    board: int = -1
    version: int = 0

    @property
    def descriptors(self) -> list[int]:
        """What it needs to inherit."""
        fds = [self.board, -1 if self.address is None else self.address.fd]
        return [fd for fd in fds if fd >= 0]

    def after(self, frames: int, later: int) -> WorkerSpec:
        """The work of one that replaces it.

        Args:
            frames: that were collected; only so many fewer are random.
            later: how far its seeds are moved on.
        """
        whole = self.collection
        left = max(whole.init_random_frames - frames, 0)
        seed = None if whole.seed is None else whole.seed + later
        return self._replace(collection=replace(whole, init_random_frames=left, seed=seed))


def specs_for(
    envs: Sequence[Any], like: WorkerSpec, find: Callable[[int], Address | None] | None
) -> list[WorkerSpec]:
    """The work of each of some workers.

    Args:
        envs: one for each.
        like: what they have in common; its seed is the first worker's, and its random frames are
            those of all together.
        find: where worker i writes, if it can; None: all batches go back.
    """
    whole = like.collection
    share, more = divmod(whole.init_random_frames, len(envs))
    out = []
    for number, env in enumerate(envs):
        address = None if find is None else find(number)
        own = replace(
            whole,
            seed=None if whole.seed is None else whole.seed + number * like.lanes,
            init_random_frames=share + (number < more),
        )
        if address is None:
            # The collector counts trajectories out, and calls the user's functions.
            single = None if whole.trajs_per_batch is None else 1
            own = replace(own, trajs_per_batch=single, postproc=None, post_collect_hook=None)
        out.append(like._replace(number=number, env=env, collection=own, address=address))
    return out
