"""A learner's progress on a shard on disk, for the process that takes the shard over.

    state      of the shard's sampler, at some time
    steps      what the learner was given since then, and the priorities that it has set

It is kept by the learner: a share of a batch and the step that says so are one answer, so what the
learner has, it does not get again, and what it has not, comes again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..replay.shard_reader import ShardReader

__all__ = ["Progress"]

Array = np.ndarray[Any, Any]

_LEAST_BYTES = 1 << 20  # of steps before a state takes their place


class Progress:
    """A state of a shard's sampler and the steps after it. Picklable.

    Args:
        state: None: of a sampler that has done nothing.
    """

    def __init__(self, state: Any = None) -> None:
        self.begin(state)

    def begin(self, state: Any) -> None:
        """Takes a whole state, in place of all that was known."""
        self._state, self._state_bytes = state, _nbytes(state)
        self._steps: list[tuple[Any, ...]] = []
        self._bytes = 0
        self.is_broken = False

    @property
    def needs_state(self) -> bool:
        """Returns whether a whole state should come in place of the next step."""
        return self.is_broken or self._bytes > max(_LEAST_BYTES, self._state_bytes)

    def broke(self) -> None:
        """The shard may know more than it could tell: the next steps do not fit."""
        self.is_broken = True

    def take(self, step: Any) -> None:
        """Adds what the learner was given, see `Sampler.progress`."""
        self._add((step,))

    def update_priority(self, seqs: Array, priority: Array) -> None:
        """Adds priorities that the learner has set."""
        self._add((seqs.copy(), priority.copy()))

    def _add(self, step: tuple[Any, ...]) -> None:
        self._steps.append(step)
        self._bytes += _nbytes(step)

    def restore(self, reader: ShardReader) -> None:
        """Brings a new reader's sampler to where the old one was."""
        if self._state is not None:
            reader.sampler.load(self._state)
        reader.index.refresh()
        for step in self._steps:
            if len(step) == 1:
                reader.sampler.advance(reader.index, step[0])
            else:
                reader.sampler.update_priority(reader.index, *step)


def _nbytes(value: Any) -> int:
    """About how much memory something takes."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes) + 100
    if isinstance(value, dict):
        return 100 + sum(_nbytes(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return 100 + sum(_nbytes(v) for v in value)
    return 32
