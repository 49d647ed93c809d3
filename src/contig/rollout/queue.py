"""QueueRolloutStorage and ActionLabelRollout: rollouts that keep the steps of earlier rounds.

T = 4, ratio 2.5     0123        first round
                     01234567    clear() makes room for 4 more
                     ab23456789  clear() makes room for 2 more; steps a and b begin again
"""

from __future__ import annotations

from typing import Any

import torch

from ..arguments import number
from .rows import FilledRows
from .storage import RolloutStorage
from .stored import Stored
from .transition import mini_batch_type

__all__ = ["ActionLabelRollout", "QueueRolloutStorage"]


class QueueRolloutStorage(RolloutStorage):
    """A RolloutStorage whose `clear` keeps what is there.

    Each `clear` makes room for T more steps, until there is room for ``buffer_dilation_ratio * T``;
    from then on new steps take the places of the oldest. Returns and minibatches are of all rows.

    Args:
        buffer_dilation_ratio: at least 1; how much it grows, as a multiple of T.

    Other arguments are those of RolloutStorage.
    """

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        obs_shape: Any,
        critic_obs_shape: Any = None,
        actions_shape: Any = (),
        num_rewards: int = 1,
        device: Any = "cpu",
        *,
        buffer_dilation_ratio: float = 1.0,
        check_finite: bool = False,
        seed: int | None = None,
    ) -> None:
        buffer_dilation_ratio = number("buffer_dilation_ratio", buffer_dilation_ratio, 1)
        super().__init__(
            num_envs,
            num_transitions_per_env,
            obs_shape,
            critic_obs_shape,
            actions_shape,
            num_rewards,
            device,
            check_finite=check_finite,
            seed=seed,
        )
        self.buffer_dilation_ratio = buffer_dilation_ratio
        self.max_rows = int(buffer_dilation_ratio * num_transitions_per_env)
        self._rows_filled = 0

    @property
    def window(self) -> FilledRows:
        full = self._rows_filled == self.num_rows
        return FilledRows(self.step % self.num_rows if full else 0, self._rows_filled)

    def _next_row(self) -> int:
        if self._rows_filled == self.num_rows < self.max_rows:
            raise OverflowError(
                f"the {self.num_rows} steps are full; call clear() to make room for more"
            )
        return self.step % self.num_rows

    def _written(self, row: int, transition: Any) -> None:
        self.step = (row + 1) % self.max_rows
        self._rows_filled = max(self._rows_filled, row + 1)

    def clear(self) -> None:
        """Begins a new round: makes room, or goes on over the oldest rows."""
        missing = self.num_transitions_per_env - (self.num_rows - self._rows_filled)
        rows = min(self.num_rows + missing, self.max_rows)
        if rows > self.num_rows:
            self.num_rows = rows
            self._fields.grow(rows)
            self.hidden.change(self._grown)

    def _grown(self, old: torch.Tensor) -> torch.Tensor:
        new = old.new_zeros((self.num_rows, *old.shape[1:]))
        new[: len(old)] = old
        return new

    def untie_buffer_loop(self) -> None:
        """Puts every tensor in time order, oldest first."""
        window = self.window
        if window.first == 0:
            return
        self._fields.roll(window.first, window.rows)
        self.hidden.change(lambda t: torch.roll(t, -window.first, 0))
        self.step = 0


class ActionLabelRollout(QueueRolloutStorage):
    """A QueueRolloutStorage that also keeps `action_labels` (``[N, ...]``): say, an expert's
    actions. Its minibatches have them as their last field."""

    MiniBatch = mini_batch_type(("action_labels",))

    action_labels = Stored("action_labels")
    _needed = (*QueueRolloutStorage._needed, "action_labels")
    _carried = (*QueueRolloutStorage._carried, "action_labels")
