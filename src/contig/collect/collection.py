"""What is collected: CollectionSpec, as the user said it; FrameBudget, how much is left of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arguments import whole
from ..batch import Batch
from .episode_fields import EpisodeFields

__all__ = ["CollectionSpec", "FrameBudget"]


@dataclass(frozen=True, kw_only=True)
class CollectionSpec:
    """What a collector collects, the same for collectors of all kinds and for their workers.

    Attributes:
        policy, frames_per_batch, ..., seed: as in `Collector`.
        register_primers: give environments the hidden states that the policy needs.
        fields: of trajectories, from infos.
        exploration_type: the name of it; None: as whoever calls has set it.
    """

    policy: Any
    frames_per_batch: int
    total_frames: int = -1
    trajs_per_batch: int | None = None
    set_truncated: bool = False
    init_random_frames: int = 0
    max_frames_per_traj: int | None = None
    reset_at_each_iter: bool = False
    postproc: Callable[[Batch], Any] | None = None
    post_collect_hook: Callable[[Any], Any] | None = None
    device: Any = None
    split_trajs: bool = False
    register_primers: bool = False
    seed: int | None = None
    fields: EpisodeFields | None = None
    exploration_type: str | None = None

    def check(self, buffered: bool) -> None:
        """Raises ValueError for what means nothing; frames are checked by their budget.

        Args:
            buffered: rows go to a buffer.
        """
        if self.trajs_per_batch is not None:
            whole("trajs_per_batch", self.trajs_per_batch, 1)
        if self.max_frames_per_traj is not None:
            whole("max_frames_per_traj", self.max_frames_per_traj, 1)
        whole("init_random_frames", self.init_random_frames, 0)
        if self.split_trajs:
            if buffered or self.trajs_per_batch is not None:
                raise ValueError("split_trajs pads what is yielded: not with a buffer or trajs")
            warnings.warn(
                "split_trajs pads every trajectory to the longest; a buffer with a SliceSampler "
                "draws contiguous ones without padding",
                stacklevel=3,
            )


class FrameBudget:
    """How many frames were asked for, and how many are left.

    Args:
        spec: frames per iteration and in all.
        lanes: environments that step together.
        buffered: rows go to a buffer. Else batches must be rectangles, unless they are
            trajectories: only whole steps of all lanes are given out.
    """

    def __init__(self, spec: CollectionSpec, lanes: int, buffered: bool) -> None:
        batch, total = spec.frames_per_batch, spec.total_frames
        if batch < 1:
            raise ValueError(f"frames_per_batch must be at least 1, got {batch}")
        if batch % lanes:
            raise ValueError(
                f"frames_per_batch={batch} is not a multiple of the {lanes} environments"
                " that share it: every batch has equally many steps of each"
            )
        if total < -1 or total == 0:
            raise ValueError(f"total_frames: a number of frames, or -1 for no end, got {total}")
        self.batch, self._total = batch, total
        self._unit = 1 if buffered or spec.trajs_per_batch is not None else lanes
        self.given = 0  # frames handed out so far

    def take(self, most: int | None = None) -> int:
        """Hands out the next batch's frames (or at most so many); 0: the end."""
        frames = self.batch if most is None else most
        if self._total >= 0:
            frames = min(frames, self._total - self.given)
        frames -= frames % self._unit
        self.given += frames
        return frames
