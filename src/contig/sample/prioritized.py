"""Rows and slices by priority.

    q = (p + eps)^alpha for p > 0, 0 for p = 0        P = q / sum q
    weight = (q / q_min)^-beta, q_min over rows with q > 0

New rows get the largest p ever set (1 at first). Priorities belong to rows by seq: setting one on
an evicted row is ignored and counted, never applied to the row that took its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from ..arguments import number, one_each
from ..keys import WEIGHT
from .base import Array, Draw, Index, Mass, Request, Rng, Sampler
from .slices import SliceSampler
from .sumtree import RowTree, draw_rows, draw_starts

__all__ = ["PrioritizedSampler", "PrioritizedSliceSampler", "Priorities"]

_MANY = 1 << 20
# Sums of weights stay finite: (2 * LARGEST)^_MOST_ALPHA of 2^63 rows are.
LARGEST = _native.LARGEST_PRIORITY
_MOST_ALPHA = 5


class Priorities:
    """Priorities of the rows of one buffer. Belongs to its sampler; not thread-safe."""

    def __init__(self, alpha: float, beta: float, eps: float) -> None:
        self.alpha = number("alpha", alpha, 0, _MOST_ALPHA)
        self.eps = number("eps", eps, 0, LARGEST)
        self.beta = beta
        self.largest = 1.0
        self.stale_updates = 0
        self._tree: RowTree | None = None

    @property
    def beta(self) -> float:
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = number("beta", value, 0)

    def shown(self) -> dict[str, Any]:
        """The exponents, for `repr`."""
        return {"alpha": self.alpha, "beta": self.beta, "eps": self.eps}

    def tree(self, index: Index) -> RowTree:
        """The tree, caught up with the tape."""
        rows = int(index.view.head) - int(index.view.tail)
        if self._tree is None:
            self._tree = RowTree(_places(rows, index.capacity))
        elif not rows <= self._tree.capacity <= index.capacity:
            self._tree = self._tree.move_to(_places(rows, index.capacity))
        self._tree.follow(index, float((self.largest + self.eps) ** self.alpha))
        return self._tree

    def update(self, index: Index, seqs: Array, priority: Array) -> None:
        """Sets priorities by seq.

        Raises:
            ValueError: negative, NaN or of another length; nothing is set then.
        """
        seqs = np.ascontiguousarray(seqs, np.int64).reshape(-1)
        p = one_each(priority, len(seqs))
        bad, stale, largest = self.tree(index).prioritize(seqs, p, self.alpha, self.eps)
        if bad >= 0:
            check_priorities(p)
        self.stale_updates += stale
        self.largest = max(self.largest, largest)

    def note(self, priority: Array) -> None:
        """Hears of priorities that others set."""
        p = np.asarray(priority, float).reshape(-1)
        check_priorities(p)
        self.largest = max(self.largest, float(p.max(initial=0.0)))

    def correct(self, draw: Draw, least: float) -> Draw:
        """Weights for the smallest one of several trees in place of this one's."""
        assert self._tree is not None
        own = self._tree.least
        if own == least or not self.beta:
            return draw
        weights = draw.columns[WEIGHT] * np.float32((own / least) ** -self.beta)
        return draw._replace(columns={**draw.columns, WEIGHT: weights})

    def agree(self, tapes: int) -> list[Any]:
        return [(self.beta, self.largest)] * tapes

    def adopt(self, told: Any) -> None:
        self.beta, largest = told
        self.largest = max(self.largest, largest)

    def weights(self, seqs: Array) -> Array:
        assert self._tree is not None
        return self._tree.importance(np.ascontiguousarray(seqs), self.beta)

    def reset(self) -> None:
        self._tree = None

    def state(self) -> dict[str, Any]:
        out: dict[str, Any] = {"largest": self.largest, "stale_updates": self.stale_updates}
        if self._tree is not None:
            out["tree"] = self._tree.state()
        return out

    def carried(
        self, states: list[dict[str, Any]], rows: list[tuple[int, Array]]
    ) -> dict[str, Any]:
        largest = max((float(s["largest"]) for s in states), default=self.largest)
        new = float((largest + self.eps) ** self.alpha)
        found = [np.empty(0)]
        for which, seqs in rows:
            tree = states[which].get("tree")
            unknown = np.full(len(seqs), new)
            found.append(unknown if tree is None else RowTree.of_state(tree).known(seqs, new))
        weights = np.concatenate(found)
        stale = sum(int(s["stale_updates"]) for s in states)
        tree = {"rows": weights, "bounds": [len(weights), 0]}
        return {"largest": largest, "stale_updates": stale, "tree": tree}

    def load(self, state: dict[str, Any]) -> None:
        self.largest = float(state["largest"])
        self.stale_updates = int(state["stale_updates"])
        self._tree = None
        if "tree" in state:
            self._tree = RowTree.of_state(state["tree"])


def _places(rows: int, capacity: int) -> int:
    """Places that a tree gets: as many as the storage has, or, of a very large one that is not
    full, enough for what it holds."""
    places = min(capacity, _MANY)
    while places < min(rows, capacity):
        places = min(places * 2, capacity)
    return places


def check_priorities(p: Array) -> None:
    """Raises ValueError at the first priority that is negative, too large or NaN."""
    bad = np.flatnonzero(~((p >= 0) & (p <= LARGEST)))
    if len(bad):
        raise ValueError(
            f"priority[{bad[0]}] = {p[bad[0]]}: priorities are numbers from 0 to {LARGEST:g}; take "
            "the absolute value of a TD error, and see whether the loss has diverged"
        )


class PrioritizedSampler(Sampler):
    """Rows in proportion to their priority; adds `priority_weight`.

    Args:
        alpha, beta, eps: see the formulas above.
    """

    def __init__(self, *, alpha: float = 0.6, beta: float = 0.4, eps: float = 1e-8) -> None:
        self.priorities = Priorities(alpha, beta, eps)

    def _shown(self) -> dict[str, Any]:
        return {**super()._shown(), **self.priorities.shown()}

    @property
    def beta(self) -> float:
        """How much importance weights correct; may be set, to anneal it."""
        return self.priorities.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self.priorities.beta = value

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        tree = self.priorities.tree(index)
        if tree.total <= 0:
            return None
        if index.window is None:
            seqs, weights = tree.draw_weighted(rng, request.groups, self.beta)
            return Draw(seqs, columns={WEIGHT: weights})
        rows = draw_rows(tree, rng, request.groups, index)
        if rows is None:
            return None
        return Draw(rows, columns={WEIGHT: self.priorities.weights(rows)})

    def missing(self, index: Index) -> str:
        return "every row's priority is 0"

    def mass(self, index: Index, request: Request) -> Mass:
        tree = self.priorities.tree(index)
        return Mass(float(tree.among(index).total), tree.least)

    def note_priority(self, priority: Array) -> None:
        self.priorities.note(priority)

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        return self.priorities.agree(len(surveys))

    def adopt(self, told: Any) -> None:
        self.priorities.adopt(told)

    def carried(
        self, states: list[dict[str, Any]], rows: list[tuple[int, Array]]
    ) -> dict[str, Any] | None:
        return self.priorities.carried(states, rows)

    def correct(self, draw: Draw, least: float) -> Draw:
        return self.priorities.correct(draw, least)

    def update_priority(self, index: Index, seqs: Array, priority: Array) -> None:
        self.priorities.update(index, seqs, priority)

    @property
    def stale_priority_updates(self) -> int:
        return self.priorities.stale_updates

    def progress(self, mark: Any) -> Any:
        return None  # draws change nothing; priorities are told by those who set them

    def advance(self, index: Index, progress: Any) -> None:
        pass

    def reset(self) -> None:
        self.priorities.reset()

    def state(self) -> dict[str, Any]:
        return self.priorities.state()

    def load(self, state: dict[str, Any]) -> None:
        self.priorities.load(state)


class PrioritizedSliceSampler(SliceSampler):
    """Slices whose start is drawn by priority among valid starts; adds `priority_weight`.

    Args:
        alpha, beta, eps: see the formulas above.
        slices: as in SliceSampler, without `over` and `span`.
    """

    def __init__(
        self, *, alpha: float = 0.6, beta: float = 0.4, eps: float = 1e-8, **slices: Any
    ) -> None:
        for name in ("over", "span"):
            if name in slices:
                raise ValueError(f"{name}: a slice starts where its priority says")
        super().__init__(over="steps", **slices)
        self.priorities = Priorities(alpha, beta, eps)

    def _shown(self) -> dict[str, Any]:
        return {**super()._shown(), "over": "trajectories", **self.priorities.shown()}

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        index = self._eligible(index)
        tree = self.priorities.tree(index)
        if tree.total <= 0:
            return None
        spec = self.spec(request.length)
        found = draw_starts(tree, rng, request.groups, index, spec)
        if found is None:
            return None
        starts, slices = found
        draw = self._marked(index, slices, request)
        assert draw.lengths is not None
        weights = np.repeat(self.priorities.weights(starts), draw.lengths)
        return draw._replace(columns={**draw.columns, WEIGHT: weights})

    def mass(self, index: Index, request: Request) -> Mass:
        if not int(index.view.trajectories):
            return Mass(0)
        index = self._eligible(index)
        tree = self.priorities.tree(index)
        return Mass(float(tree.among(index, self.spec(request.length)).total), tree.least)

    def note_priority(self, priority: Array) -> None:
        self.priorities.note(priority)

    def agree(self, surveys: list[Any]) -> list[Any] | None:
        return self.priorities.agree(len(surveys))

    def adopt(self, told: Any) -> None:
        self.priorities.adopt(told)

    def carried(
        self, states: list[dict[str, Any]], rows: list[tuple[int, Array]]
    ) -> dict[str, Any] | None:
        return self.priorities.carried(states, rows)

    def correct(self, draw: Draw, least: float) -> Draw:
        return self.priorities.correct(draw, least)

    def update_priority(self, index: Index, seqs: Array, priority: Array) -> None:
        self.priorities.update(index, seqs, priority)

    @property
    def stale_priority_updates(self) -> int:
        return self.priorities.stale_updates

    def progress(self, mark: Any) -> Any:
        return None  # draws change nothing; priorities are told by those who set them

    def advance(self, index: Index, progress: Any) -> None:
        pass

    def reset(self) -> None:
        self.priorities.reset()

    def state(self) -> dict[str, Any]:
        return self.priorities.state()

    def load(self, state: dict[str, Any]) -> None:
        self.priorities.load(state)
