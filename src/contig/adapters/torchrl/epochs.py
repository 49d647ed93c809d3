"""How far an epoch of a sampler without replacement goes."""

from __future__ import annotations

from ...sample import Index, Rng, Sampler

__all__ = ["Epoch"]


class Epoch:
    """One epoch of a buffer's sampler: of what is there when it begins.

    Args:
        sampler, index, rng: the buffer's.
        batch_size: rows that each sample asks for.
    """

    def __init__(self, sampler: Sampler, index: Index, rng: Rng, batch_size: int) -> None:
        self._sampler, self._index, self._rng = sampler, index, rng
        self._request = sampler.request(batch_size)

    def begin(self) -> None:
        """Begins anew, whatever is left of an epoch before."""
        self._index.refresh()
        self._sampler.mass(self._index, self._request)  # how long slices are, for the next
        self._sampler.begin_epoch(self._index, self._rng)

    def goes_on(self) -> bool:
        """Whether a sample would still be of this epoch."""
        left = self._sampler.mass(self._index, self._request).weight
        return left >= (self._request.groups if self._sampler.drops_last else 1)
