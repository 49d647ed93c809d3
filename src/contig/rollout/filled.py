"""Which rows of a rollout are filled, and their order in time."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["FilledRows"]

Tensor = torch.Tensor


class FilledRows(NamedTuple):
    """Which rows are filled: `rows` of them, in time order from row `first` on, in a circle."""

    first: int
    rows: int

    def ordered(self, tensor: Tensor) -> Tensor:
        """The filled rows in time order; a view unless they go around."""
        if self.first == 0:
            return tensor[: self.rows]
        return torch.cat((tensor[self.first : self.rows], tensor[: self.first]))

    def scatter(self, target: Tensor, rows: Tensor) -> None:
        """Writes rows in time order to where they belong."""
        behind = self.rows - self.first
        target[self.first : self.rows] = rows[:behind]
        target[: self.first] = rows[behind:]
