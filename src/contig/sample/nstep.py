"""n-step transitions, made when they are sampled."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..batch import Batch
from ..errors import NothingEligibleError
from ..tape.boundaries import FLAGS
from ..tree import Path
from .base import Array, Draw, Index, Request, Rng, Sampler
from .uniform import RandomSampler

__all__ = ["NStepSampler"]

STEPS: Path = ("steps_to_next_obs",)


class NStepSampler(Sampler):
    """Rows with the reward of up to n steps and what came after the last of them.

    reward = sum of gamma^i r_i over k <= n rows; `next` and its flags from row k;
    `steps_to_next_obs` = k, so bootstrap with gamma^k. At a done, or where the trajectory still
    goes on, k is shorter.

    Args:
        n: steps.
        gamma: discount.
        sampler: what draws the rows; RandomSampler if None. Any sampler of single rows.
    """

    def __init__(self, n: int, gamma: float, sampler: Sampler | None = None) -> None:
        if n < 1:
            raise ValueError(f"n is a number of steps, at least 1, got {n}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is between 0 and 1, got {gamma}")
        self.n, self.gamma = n, gamma
        self.sampler = RandomSampler() if sampler is None else sampler
        self.traj_key, self.end_key = self.sampler.traj_key, self.sampler.end_key

    @property
    def name(self) -> str:
        return f"{type(self).__name__}({self.sampler.name})"

    def request(self, batch_size: int) -> Request:
        request = self.sampler.request(batch_size)
        if request.length != 1:
            raise ValueError("NStepSampler needs a sampler of single rows, not of slices")
        return request

    def draw(self, index: Index, rng: Rng, request: Request) -> Draw | None:
        schema = index.storage.schema
        if schema is not None and ("next", "reward") not in schema.layout.by_path:
            raise NothingEligibleError('n-step returns need a leaf ("next", "reward")')
        inner = self.sampler.draw(index, rng, request)
        if inner is None:
            return None
        seqs, lengths, _, _ = index.view.follow(np.ascontiguousarray(inner.seqs), self.n)
        columns = {
            k: np.repeat(v, lengths) if isinstance(v, np.ndarray) and v.ndim else v
            for k, v in inner.columns.items()
        }
        return Draw(seqs, lengths, {**columns, STEPS: np.int64(0)}, self._finish)

    def _finish(self, batch: Batch, draw: Draw) -> Batch:
        assert draw.lengths is not None
        lengths = draw.lengths
        starts = np.cumsum(lengths) - lengths
        k = _steps_to_done(batch, starts, lengths)
        place = np.arange(len(batch)) - np.repeat(starts, lengths)
        used = place < np.repeat(k, lengths)
        reward = batch["next", "reward"]
        discount = np.where(used, self.gamma**place, 0.0)
        scaled = reward * discount.reshape(-1, *([1] * (reward.ndim - 1)))
        out: Batch = batch[starts]
        last: Batch = batch[starts + k - 1]
        for path in out.keys():  # noqa: SIM118 (keys of a batch are paths)
            if path[0] == "next":
                out[path][...] = last[path]
        out[STEPS][...] = k
        total = np.add.reduceat(scaled, starts, axis=0)
        if reward.dtype.kind in "biu":  # whole-number rewards have fractional returns
            return out.with_leaves({("next", "reward"): total.astype(np.float32)})
        out["next", "reward"][...] = total
        return out

    def missing(self, index: Index) -> str:
        return self.sampler.missing(index)

    def update_priority(self, index: Index, seqs: Array, priority: Array) -> None:
        self.sampler.update_priority(index, seqs, priority)

    @property
    def stale_priority_updates(self) -> int:
        return self.sampler.stale_priority_updates

    def mark(self) -> Any:
        return self.sampler.mark()

    def rewind(self, mark: Any) -> None:
        self.sampler.rewind(mark)

    def reset(self) -> None:
        self.sampler.reset()

    def state(self) -> dict[str, Any]:
        return {"inner": self.sampler.state()}

    def load(self, state: dict[str, Any]) -> None:
        self.sampler.load(state["inner"])


def _steps_to_done(batch: Batch, starts: Array, lengths: Array) -> Array:
    """Rows of each group up to its first done row, that row included."""
    path = ("next", FLAGS[0])
    leaf = batch.layout.by_path.get(path)
    if leaf is None or leaf.shape not in ((), (1,)):  # flags of agents end nothing
        return lengths
    done = batch[path].reshape(len(batch), -1).any(-1)
    if not done.any():
        return lengths
    place = np.arange(len(batch)) - np.repeat(starts, lengths)
    first = np.where(done, place + 1, np.iinfo(np.int64).max)
    return np.minimum(lengths, np.minimum.reduceat(first, starts))
