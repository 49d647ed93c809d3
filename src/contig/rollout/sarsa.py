"""SarsaRolloutStorage: transitions with their next observations.

    all_observations    o0  o1  o2  o3   [T + 1]
    observations        o0  o1  o2
    next_observations       o1  o2  o3

At a done, the observation in the next row is of another episode: the final one, if a transition
gives it, is kept aside.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import LayoutError
from .field import Field, FieldView
from .rows import FilledRows
from .storage import RolloutStorage
from .transition import mini_batch_type

__all__ = ["SarsaRolloutStorage"]

Tensor = torch.Tensor

_NEXT = {
    "observations": "next_observations",
    "critic_observations": "next_critic_observations",
}


class SarsaRolloutStorage(RolloutStorage):
    """A RolloutStorage that also has the observations after each step.

    `Transition.next_observations` is what a step led to: at a done, the episode's true final
    observation. It may be left out, except at the last step: the next transition brings it. Where
    a done step leaves it out, its next observation is that of the next episode.

    Minibatches have `rewards`, `dones`, `next_obs` and `next_critic_obs` as their last fields.
    """

    MiniBatch = mini_batch_type(("rewards", "dones", "next_obs", "next_critic_obs"))

    _more_observations = 1
    _carried = (*RolloutStorage._carried, "rewards", "dones")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Final observations by field and row: envs, and one tensor per leaf.
        self._final: dict[str, dict[int, tuple[Tensor, list[Tensor]]]] = {n: {} for n in _NEXT}
        self._has_last = False

    @property
    def all_observations(self) -> Any:
        """``[T + 1, N, ...]``."""
        return self.fields["observations"].value()

    @property
    def all_critic_observations(self) -> Any:
        """The same of what only the critic sees."""
        return self.fields[self._critic].value()

    @property
    def next_observations(self) -> Any:
        """``[T, N, ...]``: a view, or a copy where final observations are in their places."""
        return self._next("observations", self.num_rows).map(lambda t: t, 2)

    @property
    def next_critic_observations(self) -> Any:
        """The same of what only the critic sees."""
        return self._next(self._critic, self.num_rows).map(lambda t: t, 2)

    def _given(self, transition: Any) -> dict[str, Any]:
        for name, after in _NEXT.items():
            value = getattr(transition, after, None)
            if name in self.fields and value is not None:
                self.fields[name].check(value)
        return super()._given(transition)

    def _like(self, transition: Any) -> None:
        return None  # next observations are looked at, too

    def _written(self, row: int, transition: Any) -> None:
        super()._written(row, transition)
        self._has_last = True
        done = self._fields.cuts()[row, :, 0]
        for name, after in _NEXT.items():
            if name not in self.fields:
                continue
            value = getattr(transition, after, None)
            if value is None:
                self._has_last = False
                continue
            leaves = self.fields[name].check(value)
            for mine, new in zip(self.fields[name].tensors, leaves):
                mine[row + 1].copy_(new)
            envs = done.nonzero()[:, 0]
            if len(envs):
                kept = [new.detach().index_select(0, envs).clone() for new in leaves]
                self._final[name][row] = (envs, kept)

    def clear(self) -> None:
        super().clear()
        self._final = {name: {} for name in _NEXT}
        self._has_last = False

    def _next(self, name: str, rows: int) -> FieldView:
        """Rows of next observations, final ones in their places."""
        field: Field = self.fields[name]
        tensors = [t[1 : rows + 1] for t in field.tensors]
        final = {row: kept for row, kept in self._final[name].items() if row < rows}
        if final:
            tensors = [t.clone() for t in tensors]
            for row, (envs, kept) in final.items():
                for tensor, new in zip(tensors, kept):
                    tensor[row].index_copy_(0, envs, new.to(tensor.dtype))
        return FieldView(tensors, field.build)

    def _complete(self) -> None:
        if not self._has_last:
            raise LayoutError(
                "next_observations: missing at the last step; set Transition.next_observations "
                "(and next_critic_observations if there are critic_observations) there"
            )

    def _views(self) -> dict[str, FieldView]:
        views = super()._views()
        self._complete()
        rows = self.window.rows
        views["next_obs"] = self._next("observations", rows)
        if "critic_observations" in self.fields:
            views["next_critic_obs"] = self._next("critic_observations", rows)
        return views

    def _replay_leaves(self, window: FilledRows) -> dict[str, Any]:
        self._complete()
        out = super()._replay_leaves(window)
        for name in self._fields.present & _NEXT.keys():
            out["next"][name[:-1]] = self._next(name, window.rows).map(lambda t: t, 2)
        return out
