"""Schedule: which worker collects how many frames, and when.

together      an iteration's frames are shared by all workers, and it waits for all
first come    a worker that has nothing to do gets the next stretch, and others are not waited for
"""

from __future__ import annotations

from collections.abc import Sequence

from .carrier import Handle
from .collection import FrameBudget

__all__ = ["Schedule"]


class Schedule:
    """Gives workers their stretches.

    Args:
        budget: how many frames there are.
        handles: the workers, by number; those that are replaced are replaced here.
        lanes: environments in each.
        stretch: frames that one worker collects for one batch.
    """

    def __init__(
        self, budget: FrameBudget, handles: Sequence[Handle], lanes: int, stretch: int
    ) -> None:
        self._budget, self._handles = budget, handles
        self._lanes, self._stretch = lanes, stretch

    def next_stretch(self, handle: Handle) -> None:
        """Gives a worker that has nothing to do its next stretch, if there is one."""
        if handle.asked is not None:
            return
        frames = handle.owed or self._budget.take(self._stretch)
        if frames:
            handle.collect(frames)

    def first_come(self) -> bool:
        """Gives all that have nothing to do a stretch; False if nobody collects any more."""
        for handle in self._handles:
            self.next_stretch(handle)
        return self.busy

    def together(self) -> bool:
        """Shares the next batch's frames out; False if there are none."""
        frames = self._budget.take()
        steps, rest = divmod(frames, self._lanes * len(self._handles))
        for number, handle in enumerate(self._handles):
            more = min(max(rest - number * self._lanes, 0), self._lanes)
            if steps * self._lanes + more:
                handle.collect(steps * self._lanes + more)
        return frames > 0

    @property
    def busy(self) -> bool:
        """Whether anybody collects."""
        return any(h.asked is not None for h in self._handles)
