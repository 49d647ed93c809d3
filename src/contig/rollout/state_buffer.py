"""StateReplayBuffer: a ring of states and the states after them, as discriminators sample them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..arguments import whole
from ..errors import EmptyBufferError, LayoutError
from .rows import take_rows

__all__ = ["StateReplayBuffer"]

Tensor = torch.Tensor


class StateReplayBuffer:
    """The newest `buffer_size` pairs of states. One thread at a time.

    Args:
        obs_dim: length of a state.
        buffer_size: pairs to keep.
        device: where.
        seed: of the samples; None: a fresh one.
    """

    def __init__(
        self, obs_dim: int, buffer_size: int, device: Any = "cpu", *, seed: int | None = None
    ) -> None:
        obs_dim = whole("obs_dim", obs_dim, 1)
        buffer_size = whole("buffer_size", buffer_size, 1, "a number of rows")
        self.device = torch.device(device)
        self.states = torch.zeros(buffer_size, obs_dim, device=self.device)
        self.next_states = torch.zeros(buffer_size, obs_dim, device=self.device)
        self.buffer_size = buffer_size
        self.step = 0
        self.num_samples = 0
        self._random = torch.Generator(self.device)
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(whole("seed", seed, 0, "None or a whole number"))

    @torch.no_grad()
    def insert(self, states: Tensor, next_states: Tensor) -> None:
        """Adds pairs, ``[n, obs_dim]`` each; of more than fit, the last ones.

        Raises:
            LayoutError: another shape; nothing is written.
        """
        width = self.states.shape[1]
        for name, given in (("states", states), ("next_states", next_states)):
            if given.ndim != 2 or given.shape[1] != width or len(given) != len(states):
                raise LayoutError(
                    f"{name}: shape {list(given.shape)}, expected [{len(states)}, {width}]"
                )
        total = len(states)
        kept = min(total, self.buffer_size)
        first = (self.step + total - kept) % self.buffer_size
        before = min(kept, self.buffer_size - first)
        for ring, new in ((self.states, states), (self.next_states, next_states)):
            new = new[total - kept :]
            ring[first : first + before] = new[:before]
            ring[: kept - before] = new[before:]
        self.step = (self.step + total) % self.buffer_size
        self.num_samples = min(self.num_samples + total, self.buffer_size)

    def feed_forward_generator(
        self, num_mini_batch: int, mini_batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs drawn uniformly, with replacement: (states, next_states), as often as asked."""
        if self.num_samples == 0:
            raise EmptyBufferError("no states are stored: insert some first")
        return self._draws(num_mini_batch, mini_batch_size)

    def _draws(self, batches: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(batches):
            chosen = torch.randint(
                self.num_samples, (size,), generator=self._random, device=self.device
            )
            yield take_rows(self.states, chosen), take_rows(self.next_states, chosen)

    def __repr__(self) -> str:
        pairs = f"{self.num_samples} of {self.buffer_size} pairs of {self.states.shape[1]} numbers"
        return f"<{type(self).__name__}: {pairs}, on {self.device}>"

    def __len__(self) -> int:
        return self.num_samples
