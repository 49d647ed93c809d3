"""An episode's leaves as lines, for a chart: binned where there are more steps than pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import as_array
from ..layout import Layout, Leaf
from ..ragged import Ragged
from ..tree import Path, show_path
from .book import Book, Kept, read_kept, row_bytes
from .images import image_form

__all__ = ["as_json", "describe_leaves", "episode_curves", "leaf_lines"]

Array = np.ndarray[Any, Any]

_POINTS = 600  # of one line
_LINES = 16  # of one chart
_CHUNK_BYTES = 16 << 20
_MOST_BYTES = 256 << 20  # read for one chart; of longer episodes, every k-th row
_MOST_MARKS = 2000
_REWARDS: tuple[Path, ...] = (("next", "reward"), ("reward",))
_MARKS: dict[str, tuple[Path, ...]] = {
    "is_init": (("is_init",),),
    "terminated": (("next", "terminated"), ("terminated",)),
    "truncated": (("next", "truncated"), ("truncated",)),
    "done": (("next", "done"), ("done",)),
}


def as_json(values: Array) -> list[Any]:
    """Numbers of an array as JSON has them: what is not finite is null."""
    values = np.asarray(values)
    if values.dtype == np.bool_ or np.issubdtype(values.dtype, np.integer):
        return values.tolist()  # type: ignore[no-any-return]
    wide = values.astype(np.float64)
    if np.isfinite(wide).all():
        return wide.tolist()  # type: ignore[no-any-return]
    mixed = wide.astype(object)
    mixed[~np.isfinite(wide)] = None
    return mixed.tolist()  # type: ignore[no-any-return]


def describe_leaves(layout: Layout) -> list[dict[str, Any]]:
    """The leaves of rows, with how each is shown: "lines", "image" or "lengths"."""
    return [_described(number, leaf) for number, leaf in enumerate(layout.leaves)]


def _name(leaf: Leaf) -> str:
    return ".".join(str(key) for key in leaf.path)


def _described(number: int, leaf: Leaf) -> dict[str, Any]:
    form = None if leaf.ragged else image_form(leaf.shape, leaf.dtype)
    out = {
        "number": number,
        "name": _name(leaf),
        "path": show_path(leaf.path),
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype),
        "kind": "lengths" if leaf.ragged else "lines" if form is None else "image",
        "lines": 1 if leaf.ragged else int(np.prod(leaf.shape, dtype=np.int64)),
    }
    if form is not None:
        out["height"], out["width"] = form.height, form.width
    return out


def _steps(kept: Kept, size: int) -> Array:
    """The steps that are read of an episode: all, or every k-th."""
    most = max(_MOST_BYTES // max(size, 1), _POINTS)
    return np.arange(kept.first, kept.end, max(-((kept.first - kept.end) // most), 1))


def _chunks(book: Book, kept: Kept, steps: Array, size: int) -> Iterator[Batch]:
    rows = max(_CHUNK_BYTES // max(size, 1), 1)
    for at in range(0, len(steps), rows):
        yield book.read(kept, steps[at : at + rows])


def _column(batch: Batch, leaf: Leaf, first: int, count: int) -> Array:
    """Some components of a leaf, ``[rows, count]``, as numbers."""
    column = batch[leaf.path]
    if isinstance(column, Ragged):
        return column.lengths[:, None].astype(np.float64)
    flat = as_array(column).reshape(len(batch), -1)[:, first : first + count]
    if np.issubdtype(flat.dtype, np.complexfloating):
        flat = np.abs(flat)
    return flat.astype(np.float64)


def _read(book: Book, episode: int, leaves: Sequence[Leaf], first: int = 0) -> tuple[Array, Any]:
    """Steps, and of each leaf its values ``[rows, components]``, in one pass."""
    size = row_bytes(book.layout)

    def read(kept: Kept) -> tuple[Array, Any]:
        steps = _steps(kept, size)
        parts = [
            [_column(batch, leaf, first, _LINES) for leaf in leaves]
            for batch in _chunks(book, kept, steps, size)
        ]
        return steps, [np.concatenate(columns) for columns in zip(*parts)]

    return read_kept(book, episode, read)


def _binned(steps: Array, values: Array) -> dict[str, Any]:
    """Lines as JSON: each step, or the mean and the range of some steps."""
    rows = len(steps)
    if rows <= _POINTS:
        return {"steps": steps.tolist(), "mean": [as_json(line) for line in values.T]}
    starts = np.unique(np.linspace(0, rows, _POINTS, endpoint=False).astype(np.int64))
    sizes = np.diff(np.r_[starts, rows])[:, None]
    return {
        "steps": steps[starts].tolist(),
        "mean": [as_json(x) for x in (np.add.reduceat(values, starts, 0) / sizes).T],
        "low": [as_json(x) for x in np.minimum.reduceat(values, starts, 0).T],
        "high": [as_json(x) for x in np.maximum.reduceat(values, starts, 0).T],
    }


def leaf_lines(book: Book, episode: int, number: int, first: int = 0) -> dict[str, Any]:
    """One leaf of an episode, some components of it, as lines.

    Raises:
        KeyError: no such episode.
        ValueError: no such leaf, or component.
    """
    layout = book.layout
    leaves = () if layout is None else layout.leaves
    if not 0 <= number < len(leaves):
        raise ValueError(f"leaf {number}: there are {len(leaves)}, counted from 0")
    leaf = leaves[number]
    lines = int(_described(number, leaf)["lines"])
    if lines and not 0 <= first < lines:
        raise ValueError(f"first={first}: leaf {number} has {lines} components")
    steps, (values,) = _read(book, episode, [leaf], first)
    return {"first": first, "of": lines, **_binned(steps, values)}


def _found(layout: Layout | None, paths: tuple[Path, ...]) -> Leaf | None:
    known = {} if layout is None else {leaf.path: leaf for leaf in layout.leaves}
    return next((known[p] for p in paths if p in known and not known[p].ragged), None)


def episode_curves(book: Book, episode: int) -> dict[str, Any]:
    """An episode's rewards, what they add up to (None if rows have none), and the steps at which
    rows are flagged. Raises KeyError."""
    layout = book.layout
    found = {name: _found(layout, paths) for name, paths in _MARKS.items()}
    flags = {name: leaf for name, leaf in found.items() if leaf is not None}
    reward = _found(layout, _REWARDS)
    leaves = [*flags.values(), *([] if reward is None else [reward])]
    steps, columns = _read(book, episode, leaves)
    marks = {
        name: steps[(values != 0).any(1)][:_MOST_MARKS].tolist()
        for name, values in zip(flags, columns)
    }
    out: dict[str, Any] = {"marks": marks, "reward": None, "total": None, "reward_leaf": None}
    if reward is not None:
        out["reward_leaf"] = _name(reward)
        values = columns[-1]
        out["reward"] = _binned(steps, values)
        out["total"] = _binned(steps, np.cumsum(np.nan_to_num(values.sum(1)))[:, None])
    return out
