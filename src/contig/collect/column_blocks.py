"""Rows as they are collected: columns that lanes fill, each at its own pace.

    blocks    [B, T] [B, T] [B, T] ...      lane b writes its n-th row at block n // T, place n % T

All lanes usually move together; where an environment spends steps on resets, they do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..batch import Batch
from ..convert import cast
from ..errors import LayoutError
from ..keys import DONE, NEXT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, VERSION
from ..layout import Layout, ShapeDtype
from ..tree import Path, show_path
from .places import check_apart
from .specs import Array, nest

__all__ = ["Blocks", "RowPlan", "check_nan", "join_batches", "pad_trajectories"]


class RowPlan:
    """The layout of rows, and the numbers of the columns that a step fills.

    Args:
        inputs: what the policy reads, ``[B, ...]`` by path; `is_init` among them.
        outputs: what it returned.
        obs: paths of the observation, in order.
        reward: of one step, ``[B, ...]``.
        fields: leaves that carry fields of trajectories.
    """

    def __init__(
        self,
        inputs: dict[Path, Array],
        outputs: dict[Path, Array],
        obs: Sequence[Path],
        reward: Array,
        fields: Mapping[Path, ShapeDtype] = {},
    ) -> None:
        own = (REWARD, DONE, TERMINATED, TRUNCATED, TRAJ_IDS, VERSION, *fields)
        check_apart(
            {
                "what the collector writes": own,
                "what the environment emits": [*inputs, *((*NEXT, *p) for p in obs)],
                "what the policy returns": outputs,
            }
        )
        flag = ShapeDtype((), np.dtype(np.bool_))
        word = ShapeDtype((), np.dtype(np.int64))
        leaves: dict[Path, ShapeDtype] = {}
        for path, value in {**outputs, **inputs}.items():
            leaves[path] = ShapeDtype(value.shape[1:], value.dtype)
        for path in obs:
            leaves[(*NEXT, *path)] = leaves[path]
        self.reward = reward.shape[1:]
        leaves[REWARD] = ShapeDtype(self.reward, np.dtype(np.float32))
        leaves.update({p: flag for p in (DONE, TERMINATED, TRUNCATED)})
        leaves.update({p: word for p in (TRAJ_IDS, VERSION)})
        leaves.update(fields)
        self.layout = Layout(nest(leaves))
        self.fields = frozenset(fields)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.next_obs = tuple((*NEXT, *p) for p in obs)

    def check_output(self, path: Path, value: Array) -> Array:
        """An output in its column's dtype; raises for another shape than the first time."""
        leaf = self.layout.by_path[path]
        if value.shape[1:] != leaf.shape:
            raise LayoutError(
                f"{show_path(path)}: the policy returned shape {list(value.shape[1:])} per row, "
                f"before it was {list(leaf.shape)}; nothing is broadcast"
            )
        return value if value.dtype == leaf.dtype else cast(value, leaf.dtype, path)

    def check_reward(self, reward: Array) -> Array:
        """A reward ``[B, ...]``; raises for another shape than the first time."""
        if reward.shape[1:] != self.reward:
            raise LayoutError(
                f"{show_path(REWARD)}: the environment emitted shape {list(reward.shape[1:])}, "
                f"before it was {list(self.reward)}; nothing is broadcast"
            )
        return reward


class Blocks:
    """The columns being filled.

    Args:
        layout: of a row.
        lanes: B.
        rows: per lane and block.
        extras: leaves that are not to be stored.

    Attributes:
        block_rows: the same for blocks made from now on.
    """

    def __init__(
        self, layout: Layout, lanes: int, rows: int, extras: frozenset[Path] = frozenset()
    ) -> None:
        self.layout, self.lanes, self._extras = layout, lanes, extras
        self.block_rows = rows
        self._blocks: list[tuple[int, Batch]] = []  # first row, columns; in order, without gaps
        self.position = np.zeros(lanes, np.int64)  # rows each lane has written, ever
        self.first = 0  # rows before the oldest block

    def block_at(self, row: int) -> tuple[int, Batch]:
        """The block that holds a lane's n-th row, and the row it starts at."""
        for start, batch in reversed(self._blocks):  # usually the newest
            if start <= row < start + batch.shape[1]:
                return start, batch
        end = self.first if not self._blocks else self._end()
        assert row >= end
        while True:
            batch = Batch.empty(self.layout, (self.lanes, self.block_rows), self._extras)
            batch.block[:] = 0
            self._blocks.append((end, batch))
            end += self.block_rows
            if row < end:
                return self._blocks[-1]

    def _end(self) -> int:
        start, batch = self._blocks[-1]
        return start + batch.shape[1]

    def put(self, values: dict[Path, Array], stepped: Array | None = None) -> None:
        """Writes one row of every lane (or of those that stepped) and moves them on."""
        place = self.position
        if stepped is None and (self.lanes == 1 or (place == place[0]).all()):
            start, batch = self.block_at(int(place[0]))
            t = int(place[0]) - start
            for path, value in values.items():
                batch[path][:, t] = value
            self.position = place + 1
            return
        lanes = np.arange(self.lanes) if stepped is None else np.flatnonzero(stepped)
        left = lanes
        while len(left):
            start, batch = self.block_at(int(place[left].min()))
            here = left[place[left] < start + batch.shape[1]]
            at = place[here] - start
            for path, value in values.items():
                batch[path][here, at] = value[here]
            left = left[place[left] >= start + batch.shape[1]]
        self.position = place.copy()
        self.position[lanes] += 1

    def take(self, rows: int) -> Batch:
        """The oldest block, ``[B, rows]``; a shorter one is copied out of it."""
        _, batch = self._blocks[0]
        whole = batch.shape[1] == rows
        out = batch if whole else self.copied(slice(None), self.first, self.first + rows)
        self.forget(self.first + batch.shape[1])
        return out

    def copied(self, lanes: slice, first: int, last: int) -> Batch:
        """Rows [first, last) of some lanes, ``[lanes, last - first]``."""
        shape = (len(range(*lanes.indices(self.lanes))), last - first)
        out = Batch.empty(self.layout, shape, self._extras)
        at = first
        while at < last:
            start, batch = self.block_at(at)
            stop = min(last, start + batch.shape[1])
            for path in self.layout.by_path:
                part = batch[path][lanes, at - start : stop - start]
                out[path][:, at - first : stop - first] = part
            at = stop
        return out

    def forget(self, row: int) -> None:
        """Rows before this one are not needed any more."""
        while self._blocks and self._blocks[0][0] + self._blocks[0][1].shape[1] <= row:
            start, batch = self._blocks.pop(0)
            self.first = start + batch.shape[1]


def join_batches(batches: Sequence[Batch], how: str | int) -> Batch:
    """Batches of one layout: stacked (``"stack"``), or concatenated along batch dim 0 or -1."""
    first = batches[0]
    for other in batches[1:]:
        if other.layout != first.layout:
            raise LayoutError(
                "workers' batches have different layouts:\n" + first.layout.diff(other.layout)
            )
    ndim = len(first.shape)
    if how == "stack":
        shape: tuple[int, ...] = (len(batches), *first.shape)
    else:
        axis = ndim - 1 if how == -1 else int(how)
        dims = list(first.shape)
        dims[axis] = sum(b.shape[axis] for b in batches)
        shape = tuple(dims)
    out = Batch.empty(first.layout, shape, first.extras)
    for path in first.layout.by_path:
        columns = [b[path] for b in batches]
        if how == "stack":
            np.stack(columns, out=out[path])
        else:
            np.concatenate(columns, axis=axis, out=out[path])
    return out


def check_nan(path: Path, column: Array) -> None:
    """Raises ValueError if an environment emitted a NaN among these rows of a leaf."""
    if column.dtype.kind != "f" or not column.size:
        return
    with np.errstate(invalid="ignore"):
        if not np.isnan(column.min()):  # one NaN makes it NaN
            return
    where = np.argwhere(np.isnan(column))[0].tolist()
    raise ValueError(
        f"{show_path(path)}: the environment emitted NaN, at {where} of {list(column.shape)}; "
        "nothing of this batch is written: fix the environment"
    )


def pad_trajectories(batch: Batch) -> Batch:
    """Trajectories as rows of a padded batch ``[N, T_max]`` with ``mask``, cut where ids change."""
    lanes = int(np.prod(batch.shape[:-1], dtype=np.int64))
    ids = batch[TRAJ_IDS].reshape(lanes, -1)
    rows = ids.shape[1]
    cuts = np.ones((lanes, rows), bool)
    cuts[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = np.flatnonzero(cuts.reshape(-1))
    lengths = np.diff(np.append(starts, lanes * rows))
    most = int(lengths.max())
    check_apart({"an observation": batch.layout.by_path, "what split_trajs adds": [("mask",)]})
    layout, _ = batch.layout.with_leaves([(("mask",), (), np.dtype(np.bool_))])
    out = Batch.empty(layout, (len(starts), most))
    out.block[:] = 0
    mask = np.arange(most) < lengths[:, None]
    out["mask"][...] = mask
    for path, leaf in batch.layout.by_path.items():
        out[path][mask] = batch[path].reshape(lanes * rows, *leaf.shape)
    return out
