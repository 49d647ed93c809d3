"""What buffers of every kind have in common when they are read: batches in the form asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, Literal, overload

from ..batch import Batch
from .output import info_of
from .typed import Info, Out_co

__all__ = ["Samples"]


class Samples(ABC, Generic[Out_co]):
    """Has `sample` and iteration of whoever has `_next_batch` and `_output`."""

    _output: Callable[[Batch], Out_co]

    @abstractmethod
    def _next_batch(self, batch_size: int | None) -> Batch:
        """A batch as numpy; of the buffer's own size if None."""

    @overload
    def sample(
        self, batch_size: int | None = None, return_info: Literal[False] = False
    ) -> Out_co: ...

    @overload
    def sample(
        self, batch_size: int | None = None, *, return_info: Literal[True]
    ) -> tuple[Out_co, Info]: ...

    def sample(
        self, batch_size: int | None = None, return_info: bool = False
    ) -> Out_co | tuple[Out_co, Info]:
        """A batch.

        Args:
            batch_size: rows; the buffer's own if None.
            return_info: also return a dict with `index`, and, if there are any, `priority_weight`
                and `lengths` (of whole trajectories, rows of each).

        Raises:
            EmptyBufferError, NothingEligibleError: nothing to draw. While a collector or server
                feeds the buffer, it waits up to `sample_timeout_s` first.
            ServerError: rows are elsewhere, whoever has them failed, and nobody took over in
                `sample_timeout_s`.
        """
        batch = self._next_batch(batch_size)
        out = self._output(batch)
        return (out, self._info(batch)) if return_info else out

    def _info(self, batch: Batch) -> Info:
        """What is known of a batch."""
        return info_of(batch)

    def __iter__(self) -> Iterator[Out_co]:
        """Batches without end; of an epoch's sampler, one epoch after another."""
        while True:
            yield self.sample()
