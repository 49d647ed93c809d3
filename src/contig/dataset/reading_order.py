"""Which trajectories a dataset hands out, in which order, and how often."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from ..errors import NothingEligibleError
from .source import FrameSource

__all__ = ["ReadingOrder"]

log = logging.getLogger("contig.dataset")

_POLL_S = 0.05


class ReadingOrder:
    """Every trajectory of a source once in each loop, as new ones come. One thread.

    Args:
        source: where they are.
        worker: (rank, of how many): each takes the trajectories of its rank.
        loops: how often they are handed out; less than 1: for ever.
        newest: only so many, which are waited for; 0: all.
        shuffled: another order in each loop; else the oldest first.
        random: of the orders.

    Attributes:
        looped: how often all were handed out.
        has_newest: whether there are as many as `newest` says.
    """

    def __init__(
        self,
        source: FrameSource,
        worker: tuple[int, int],
        *,
        loops: int,
        newest: int,
        shuffled: bool,
        random: np.random.Generator,
    ) -> None:
        self.looped, self.has_newest = 0, newest == 0
        self._source, self._worker = source, worker
        self._loops, self._newest = loops, newest
        self._shuffled, self._random = shuffled, random
        self._all: list[str] = []  # in the order in which they were seen
        self._seen: set[str] = set()
        self._known: list[str] = []  # of this worker, that are there
        self._taken: set[str] = set()  # of this worker, that came to be read
        self._unused: deque[str] = deque()  # to be read in this loop
        self._ended = False

    def look(self) -> int:
        """Looks for trajectories; those that were not there before are read next. How many there
        are."""
        found = self._source.trajectories()
        if self._newest:
            self.has_newest = len(found) >= self._newest
            found = found[-self._newest :]
        rank, world = self._worker
        # By number among those seen first, so that a later look shards the old ones as before.
        self._all += [name for name in found if name not in self._seen]
        self._seen.update(found)
        there = set(found)
        mine = [name for name in self._all[rank::world] if name in there]
        fresh = [name for name in mine if name not in self._taken]
        self._taken.update(fresh)
        self._known = mine
        self._unused.extend(self._ordered(fresh))
        return len(mine)

    def _ordered(self, names: list[str]) -> list[str]:
        if not self._shuffled:
            return names
        return [names[i] for i in self._random.permutation(len(names))]

    def wait_for(self, num_envs: int, wait_s: float, look: Callable[[], bool]) -> None:
        """Returns when there is a trajectory for every env, and there are the newest ones.

        Raises:
            NothingEligibleError: it takes longer than `wait_s`.
        """
        deadline = time.monotonic() + wait_s
        told = False
        while not look():
            rank, world = self._worker
            share = f" for worker {rank} of {world}" if world > 1 else ""
            have = f"{self._source.describe()}: {len(self._known)} trajectories{share}"
            wanted = f"num_envs={num_envs} envs read one each"
            if not self.has_newest:
                wanted = f"keep_latest_n_trajs={self._newest} are to be read"
            if time.monotonic() >= deadline:
                raise NothingEligibleError(
                    f"{have}, but {wanted}; waited {wait_s} s; record more, or read with fewer "
                    "envs, workers or trajectories"
                )
            if not told:
                log.warning("%s, but %s: waiting up to %s s", have, wanted, wait_s)
                told = True
            time.sleep(_POLL_S)

    def next(self, follow_s: float, look: Callable[[], bool]) -> str:
        """The trajectory to read next; at the end of a loop, new ones are waited for.

        Raises:
            StopIteration: all loops have been handed out.
        """
        if not self._unused and not self._ended:
            deadline = time.monotonic() + follow_s
            look()
            while not self._unused and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                look()
        if not self._unused:
            if not self._ended:
                self.looped += 1
            self._ended = 1 <= self._loops <= self.looped
            if self._ended:
                raise StopIteration(
                    f"{self._source.describe()}: read {self._loops} times, as dataset_loops says; "
                    "reset() starts anew"
                )
            if not self._known:
                raise NothingEligibleError(f"{self._source.describe()}: no trajectories any more")
            self._unused.extend(self._ordered(self._known))
        return self._unused.popleft()
