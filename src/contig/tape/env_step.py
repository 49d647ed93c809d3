"""One step of several envs, of which some may be left out or have numbers of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..batch import Batch
from ..convert import Places, as_array, is_tensor, jagged_parts, leaf_spec, plain_tree
from ..errors import LayoutError
from ..layout import Layout, is_column, pair_of
from ..ragged import Ragged
from ..tree import Path, flatten, show_path, unflatten

__all__ = ["EnvStep", "check_total"]

Array = np.ndarray[Any, Any]


class EnvStep(NamedTuple):
    """What of a step is to be stored.

    Attributes:
        data: the rows, ``[N, ...]``.
        envs: whose they are, int64 ``[N]``; None: row b is env b's.
        total: how many envs the step was of, if `env_ids` did not say whose the rows are.
        kept: which of its rows are those, if not all are.
    """

    data: Any
    envs: Array | None = None
    total: int | None = None
    kept: Array | None = None
    of_rows: int | None = None

    @property
    def rows(self) -> int:
        """How many the step had, the left out ones included."""
        return _rows(self.data) if self.of_rows is None else self.of_rows

    @staticmethod
    def of(
        step: Any, env_ids: Any = None, mask: Any = None, layout: Layout | None = None
    ) -> EnvStep:
        """A step ``[B, ...]`` without the rows that a mask leaves out.

        Args:
            layout: of a row, if it is known: lists may be rows of one leaf then.

        Raises:
            ValueError: ids or mask are not what they should be.
        """
        any_size = layout is not None and bool(layout.ragged)
        if layout is not None and any_size and not isinstance(step, Batch):
            step = layout.columns_in(plain_tree(step)[0], 1)
        if env_ids is None and mask is None:
            return EnvStep(step)
        rows = _rows(step, any_size)
        envs = np.arange(rows, dtype=np.int64) if env_ids is None else _ids(env_ids, rows)
        total = rows if env_ids is None else None
        if mask is None:
            return EnvStep(step, envs)
        wanted = _mask(mask, rows)
        if wanted.all():
            return EnvStep(step) if env_ids is None else EnvStep(step, envs)
        kept = np.flatnonzero(wanted)
        return EnvStep(_take(step, kept, rows, any_size), envs[kept], total, kept, rows)


def check_total(known: int, total: int) -> None:
    """Raises unless a step is of as many envs as those before it."""
    if known and total != known:
        raise LayoutError(
            f"add_step: {total} rows, but this writer's steps have been of {known} envs; row b is "
            "env b, so rows of others would join its trajectory. Give env_ids= (whose each row "
            "is), or all rows and mask= (which of them to store), or use another "
            "storage.writer() for other envs"
        )


def _rows(step: Any, any_size: bool = False) -> int:
    if isinstance(step, Batch):
        return len(step)
    tree, shape = plain_tree(step)
    if shape:
        return shape[0]
    paths, leaves, _ = flatten(tree, _is_rows if any_size else is_column)
    if not leaves:
        raise LayoutError("a step has no leaves")
    leaf = leaves[0]
    if isinstance(leaf, tuple):  # values and offsets
        return len(leaf[1]) - 1
    if isinstance(leaf, (Ragged, list)):
        return len(leaf)
    column = any_size and isinstance(leaf, np.ndarray)  # of objects, perhaps
    first = leaf.shape if column else leaf_spec(leaf, paths[0])[0]
    if not first:
        raise LayoutError(
            f"{show_path(paths[0])}: no leading dim; a step of B envs is [B, ...], use add for one"
        )
    return int(first[0])


def _ids(env_ids: Any, rows: int) -> Array:
    ids = as_array(env_ids)
    if ids.shape != (rows,) or (ids.dtype.kind not in "iu" and rows):
        raise ValueError(
            f"env_ids: expected {rows} whole numbers, one for each row, got {ids.dtype} "
            f"{list(ids.shape)}"
        )
    out: Array = ids.astype(np.int64)
    bad = np.flatnonzero((out < 0) | (out >= _native.MOST_ENVS))
    if len(bad):
        raise ValueError(
            f"env_ids[{bad[0]}] = {ids[bad[0]]}: envs are numbered from 0 to "
            f"{_native.MOST_ENVS - 1}; number yours"
        )
    seen, counts = np.unique(out, return_counts=True)
    if len(seen) < rows:
        twice = int(seen[counts > 1][0])
        raise ValueError(
            f"env_ids: {twice} is there more than once; a step has one row of each env. Use "
            "extend for several steps of one"
        )
    return out


def _mask(mask: Any, rows: int) -> Array:
    wanted = as_array(mask)
    if wanted.shape == (rows, 1):
        wanted = wanted[:, 0]
    if wanted.shape != (rows,) or wanted.dtype.kind not in "biu" or np.any(wanted != (wanted != 0)):
        raise ValueError(
            f"mask: expected {rows} booleans, one for each row, got {wanted.dtype} "
            f"{list(wanted.shape)}"
        )
    return np.asarray(wanted != 0)


def _take(step: Any, kept: Array, rows: int, any_size: bool) -> Any:
    if isinstance(step, Batch):
        return step[kept]
    tree, _ = plain_tree(step)
    paths, leaves, structure = flatten(tree, _is_rows if any_size else is_column)
    places = Places(kept)
    taken = [_rows_of(leaf, path, places, rows) for path, leaf in zip(paths, leaves)]
    return unflatten(structure, iter(taken))


def _rows_of(leaf: Any, path: Path, kept: Places, rows: int) -> Any:
    parts = jagged_parts(leaf) or pair_of(leaf)
    if parts is not None:
        leaf = Ragged(*parts)
    lists = isinstance(leaf, (Ragged, list))
    column: Any = leaf if lists or is_tensor(leaf) else as_array(leaf, path)  # tensors stay there
    shape = (len(column),) if lists else tuple(column.shape)
    if shape[:1] != (rows,):
        raise LayoutError(f"{show_path(path)}: shape {list(shape)}, expected [{rows}, ...]")
    if lists:
        numbers = kept.numbers
        return [column[i] for i in numbers] if isinstance(column, list) else column[numbers]
    return kept.of(column)


def _is_rows(node: Any) -> bool:
    """Whether a container is a column of rows of any size: bytes, text or arrays."""
    if type(node) is list and any(hasattr(x, "dtype") for x in node):
        return True
    return is_column(node) or pair_of(node) is not None
