"""A storage and a record of everything written to it, to judge draws by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..keys import MASK
from ..sample import Draw, Index, Request, Rng, Sampler
from ..tape import Storage
from .steps import Array, Step, episode, interleaved

__all__ = ["World", "stream"]


class World:
    """Writes a varied mix of episodes and remembers which step lies at which seq.

    The mix has short and long episodes, terminated, truncated and open ones, several envs step by
    step (episodes in many linked parts), and a policy version that grows, now and then within an
    episode.

    Args:
        storage: where they go.
        more: what is written in place of some rows: they have more leaves.
    """

    def __init__(
        self, storage: Storage, more: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> None:
        self.storage, self._more = storage, more
        self.writer = storage.writer()
        self.step_at: dict[int, Step] = {}
        self.version_at: dict[int, int] = {}
        self.ended: dict[int, str | None] = {}  # how each episode ended, or None
        self.version = 0
        self._number = 0
        self._round = 0

    def write(self, rounds: int = 1) -> None:
        """Some 20 to 30 more rows for each round."""
        for _ in range(rounds):
            k = self._round
            self._round += 1
            self.extend(3 + k % 4)
            self.interleave(3, 2 + k % 3)
            self.extend(1, end="truncated")
            self.version += 1
            # One episode in two parts with another one between them, under two policies.
            number = self._next()
            self.extend(3, number=number, end=None)
            self.extend(2)
            self.version += k % 2
            self.extend(2 + k % 3, number=number, start=3, end="truncated")
            self.extend(2, end=None)

    def extend(
        self,
        length: int,
        *,
        number: int | None = None,
        start: int = 0,
        end: str | None = "terminated",
    ) -> None:
        """Appends an episode, or a part of one, and notes which steps it has."""
        number = self._next() if number is None else number
        data = episode(number, length, start=start, end=end, version=self.version)
        self._note(
            self.writer.extend(self._more(data)), [(number, start + t) for t in range(length)]
        )
        self.ended[number] = end

    def interleave(self, envs: int, length: int, *, end: str | None = "terminated") -> None:
        """Appends episodes of `envs` environments side by side, step by step."""
        numbers = [self._next() for _ in range(envs)]
        for t, data in enumerate(interleaved(numbers, length, end=end, version=self.version)):
            self._note(
                self.writer.add_step(self._more(data), env_ids=range(len(numbers))),
                [(n, t) for n in numbers],
            )
        self.ended.update(dict.fromkeys(numbers, end))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _note(self, seqs: Array, steps: list[Step]) -> None:
        for seq, step in zip(seqs.tolist(), steps[-len(seqs) :]):
            self.step_at[seq] = step
            self.version_at[seq] = self.version

    # -- judging ------------------------------------------------------------------------------

    def stored(self) -> set[int]:
        """Seqs of the rows that are still there."""
        newest = max(self.step_at, default=-1)
        return set(range(newest + 1 - len(self.storage), newest + 1))

    def episodes(self) -> dict[int, list[int]]:
        """Seqs of the stored rows of each episode, by its number, in the episode's order."""
        out: dict[int, list[int]] = {}
        for seq in sorted(self.stored()):
            out.setdefault(self.step_at[seq][0], []).append(seq)
        return dict(sorted(out.items()))

    def complete(self, number: int) -> bool:
        """Whether an episode is there from its first step to its end."""
        first = self.episodes()[number][0]
        return self.ended[number] is not None and self.step_at[first][1] == 0

    def steps(self, draw: Draw) -> list[Step]:
        """Which steps the rows of a draw are."""
        return [self.step_at[s] for s in draw.seqs.tolist()]

    def groups(self, draw: Draw) -> list[list[Step]]:
        """The real rows of each group."""
        steps, at, out = self.steps(draw), 0, []
        mask = draw.columns.get(MASK)
        for length in lengths_of(draw):
            real = range(at, at + length)
            if isinstance(mask, np.ndarray) and mask.ndim:
                real = [i for i in real if mask[i]]  # type: ignore[assignment]
            out.append([steps[i] for i in real])
            at += length
        return out

    def check(self, draw: Draw, request: Request, longest: int) -> None:
        """Asserts everything that holds for the draw of any sampler."""
        assert draw.seqs.dtype == np.int64 and draw.seqs.ndim == 1
        assert 1 <= draw.groups <= request.groups
        gone = set(draw.seqs.tolist()) - self.stored()
        assert not gone, f"rows that are not stored: {sorted(gone)}"
        lengths = lengths_of(draw)
        assert sum(lengths) == len(draw.seqs)
        assert all(1 <= n <= longest for n in lengths), f"{lengths}, at most {longest}"
        for path, column in draw.columns.items():
            if np.ndim(column):
                assert len(column) == len(draw.seqs), path
        for group in self.groups(draw):
            number, t = group[0]
            expected = [(number, t + i) for i in range(len(group))]
            assert group == expected, f"not contiguous steps of one episode: {group}"


def lengths_of(draw: Draw) -> list[int]:
    return [1] * len(draw.seqs) if draw.lengths is None else draw.lengths.tolist()


def stream(sampler: Sampler, index: Index, rng: Rng, request: Request, n: int) -> list[Any]:
    """The next n draws in a form that can be compared; shorter if the sampler runs out."""
    out: list[Any] = []
    for _ in range(n):
        index.refresh()
        draw = sampler.draw(index, rng, request)
        if draw is None:
            break
        columns = {k: np.asarray(v).tolist() for k, v in draw.columns.items()}
        out.append((draw.seqs.tolist(), lengths_of(draw), columns))
    return out
