"""FrameBudget: how many frames are collected, and when that ends."""

from __future__ import annotations

__all__ = ["FrameBudget"]


class FrameBudget:
    """How many frames were asked for, and how many are left.

    Args:
        frames_per_batch: per iteration.
        total_frames: -1: no end.
        lanes: environments that step together.
        whole: give out whole steps of all lanes only, because batches must be rectangles.
    """

    def __init__(
        self, frames_per_batch: int, total_frames: int, lanes: int, *, whole: bool
    ) -> None:
        if frames_per_batch < 1:
            raise ValueError(f"frames_per_batch must be at least 1, got {frames_per_batch}")
        if frames_per_batch % lanes:
            raise ValueError(
                f"frames_per_batch={frames_per_batch} is not a multiple of the {lanes} environments"
                " that share it: every batch has equally many steps of each"
            )
        if total_frames < -1 or total_frames == 0:
            raise ValueError(
                f"total_frames: a number of frames, or -1 for no end, got {total_frames}"
            )
        self.batch, self.total = frames_per_batch, total_frames
        self._unit = lanes if whole else 1
        self.given = 0  # frames handed out so far

    def take(self, most: int | None = None) -> int:
        """Hands out the next batch's frames (or at most so many); 0: the end."""
        frames = self.batch if most is None else most
        if self.total >= 0:
            frames = min(frames, self.total - self.given)
        frames -= frames % self._unit
        self.given += frames
        return frames
