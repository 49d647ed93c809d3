"""Record: what one row of a trajectory is, and which of its fields may be missing.

    ("trajectory", *path)   a field of the trajectory
    ("text", *path)         a field that is text: its bytes, as UTF-8, with zeros behind it
    ("mask", *path)         bool: whether this row has that optional field; else it is zeros

The names of fields are kept apart from the names that mark rows elsewhere (`done`, `episode` ...):
here the append says what a trajectory is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..layout import Layout, ShapeDtype
from ..tree import Path, as_path, nested, show_path
from .entry import TrajectoryEntry
from .text import show_text, stored_text, text_width, unstored_text
from .trajectory import Array, Flat

__all__ = ["Optional", "Record", "parse_optional"]

FIELDS, TEXT, MASK, IS_DEMO = "trajectory", "text", "mask", "is_demo"

NOT_OURS = "the storage holds no trajectories of a TrajectoryReplayBuffer"

# Optional fields by path, each with its leaves; None: those of the first trajectory.
Optional = dict[Path, dict[Path, ShapeDtype] | None]


def parse_optional(declared: Mapping[Any, Any] | Iterable[Any]) -> Optional:
    """Names of optional fields, or a mapping from names to what one row of them is."""
    if isinstance(declared, (str, bytes)):
        raise TypeError(f"optional: expected a list of fields or a mapping, got {declared!r}")
    out: Optional = {}
    for key in declared:
        path = as_path(key)
        spec = declared[key] if isinstance(declared, Mapping) else None
        out[path] = None if spec is None else _specs(path, spec)
    for path in out:
        inside = next((p for p in out if p != path and p[: len(path)] == path), None)
        if inside is not None:
            raise ValueError(f"optional: {show_path(inside)} is part of {show_path(path)}")
    return out


def _specs(path: Path, spec: Any) -> dict[Path, ShapeDtype]:
    """Leaves of an example of one row of a field."""
    layout = Layout({"": spec})
    return {(*path, *x.path[1:]): ShapeDtype(x.shape, x.dtype) for x in layout.leaves}


class Record:
    """Rows of one layout. Immutable, so safe to share between threads."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.fields = [p[1:] for p in layout.by_path if p[0] in (FIELDS, TEXT)]
        self._text = frozenset(p[1:] for p in layout.by_path if p[0] == TEXT)
        masks = [p[1:] for p in layout.by_path if p[0] == MASK]
        self.optional: dict[Path, list[Path]] = {
            mask: [p for p in self.fields if p[: len(mask)] == mask] for mask in masks
        }
        covered = {p for leaves in self.optional.values() for p in leaves}
        self._required = [p for p in self.fields if p not in covered]
        self._known = frozenset(self.fields)

    @functools.cached_property
    def marked(self) -> Layout:
        """With a leaf that says whether a row is a demo's."""
        return self.layout.with_leaves([((IS_DEMO,), (), np.dtype(np.bool_))])[0]

    @staticmethod
    def of(first: Flat, optional: Optional) -> Record:
        """The record of trajectories of which one is known.

        Raises:
            LayoutError: an optional field that it lacks and nothing else describes.
        """
        texts = {
            p: ShapeDtype((text_width(c),), np.uint8)
            for p, c in first.columns.items()
            if c.dtype.kind == "S"
        }
        leaves = texts | {
            p: ShapeDtype(c.shape[1:], c.dtype) for p, c in first.columns.items() if p not in texts
        }
        masks = {}
        for path, specs in optional.items():
            if specs is None and not any(p[: len(path)] == path for p in leaves):
                raise LayoutError(
                    f"optional field {show_path(path)} is not in the first trajectory: say what it "
                    f"is, optional={{{show_path(path)}: ShapeDtype(shape_of_a_row, dtype)}}"
                )
            leaves = {**(specs or {}), **leaves}  # what is given is checked when it is stored
            masks[path] = ShapeDtype((), np.bool_)
        if masks and any(p[0] == MASK for p in leaves):
            raise LayoutError(f'a field named "{MASK}" cannot go with optional fields')
        tree = {FIELDS: nested({p: x for p, x in leaves.items() if p not in texts})}
        if texts:
            tree[TEXT] = nested(texts)
        return Record(Layout({**tree, MASK: nested(masks)} if masks else tree))

    @staticmethod
    def stored(layout: Layout, optional: Optional) -> Record:
        """The record of a storage that exists.

        Raises:
            LayoutError: it was made with other optional fields.
        """
        record = Record(layout)
        if any(p[0] not in (FIELDS, TEXT, MASK) for p in layout.by_path):
            raise LayoutError(NOT_OURS)
        other = [p for p in optional if p not in record.optional]
        if other:
            known = ", ".join(show_path(p) for p in record.optional) or "none"
            raise LayoutError(
                f"optional field {show_path(other[0])}: the storage was made without it (its "
                f"optional fields: {known}); use another path"
            )
        return record

    def tree(self, flat: Flat) -> dict[str, Any]:
        """Rows of a trajectory as this layout wants them.

        Raises:
            LayoutError: fields that are missing and not optional, or not known.
        """
        columns = flat.columns
        for path in columns:
            if path not in self._known:
                raise LayoutError(
                    f"{show_path(path)}: earlier trajectories have no such field; leave it out, or "
                    "declare it when the buffer is made: "
                    f"optional={{{show_path(path)}: ShapeDtype(shape_of_a_row, dtype)}}"
                )
        for path in self._required:
            if path not in columns:
                raise LayoutError(
                    f"{show_path(path)}: missing, but earlier trajectories have it; if that is "
                    f"right, declare it when the buffer is made: optional=[{show_path(path)}]"
                )
        if not self.optional:
            return self._apart(columns)
        out, masks = dict(columns), {}
        for path, leaves in self.optional.items():
            given = [p for p in leaves if p in columns]
            if given and len(given) < len(leaves):
                lacking = next(p for p in leaves if p not in columns)
                raise LayoutError(
                    f"{show_path(lacking)}: missing, while {show_path(given[0])} is there; the "
                    f"optional field {show_path(path)} is given whole or not at all"
                )
            masks[path] = np.full(flat.rows, bool(given))
            for leaf in leaves if not given else ():
                spec = self.layout.by_path[self.place(leaf)]
                empty = np.zeros((flat.rows, *spec.shape), spec.dtype)
                out[leaf] = np.zeros(flat.rows, "S1") if leaf in self._text else empty
        return {**self._apart(out), MASK: nested(masks)}

    def place(self, path: Path) -> Path:
        """The place of a field in a row."""
        return (TEXT if path in self._text else FIELDS, *path)

    def _apart(self, columns: dict[Path, Array]) -> dict[str, Any]:
        """Columns as the layout has them, text as it is stored."""
        texts = {}
        for path, column in columns.items():
            if (column.dtype.kind == "S") != (path in self._text):
                said = "strings" if path in self._text else "numbers"
                raise LayoutError(f"{show_path(path)}: earlier trajectories have {said} there")
            if path in self._text:
                width = self.layout.by_path[TEXT, *path].shape[0]
                texts[path] = stored_text(path, column, width)
        tree = {FIELDS: nested({p: x for p, x in columns.items() if p not in texts})}
        return {**tree, TEXT: nested(texts)} if texts else tree

    def columns(self, batch: Any) -> dict[Path, Array]:
        """The fields of rows of one trajectory, without those it lacks."""
        absent = {
            p
            for path, leaves in self.optional.items()
            if not batch[(MASK, *path)].all()
            for p in leaves
        }
        given = {p: batch[self.place(p)] for p in self.fields if p not in absent}
        return {p: unstored_text(x) if p in self._text else x for p, x in given.items()}

    def whole(
        self, batch: Any, entry: TrajectoryEntry, make: Callable[[Array], Any]
    ) -> dict[str, Any]:
        """A trajectory from its rows: fields ``[T, B, ...]``, copied, and what describes it."""
        fields = {
            path: show_text(column.reshape(entry.shape[:2]))
            if path in self._text
            else make(column.reshape(*entry.shape[:2], *column.shape[1:]).copy())
            for path, column in self.columns(batch).items()
        }
        return {
            "max_episode_length": entry.max_episode_length,
            "model_weights_id": entry.model_weights_id,
            **nested(fields),
        }

    @staticmethod
    def output(tree: dict[str, Any]) -> dict[str, Any]:
        """What `sample` returns, from a batch's tree."""
        out: dict[str, Any] = tree[FIELDS]
        if TEXT in tree:
            _put_text(out, tree[TEXT])
        return out | {name: tree[name] for name in (MASK, IS_DEMO) if name in tree}


def _put_text(out: dict[str, Any], texts: dict[str, Any]) -> None:
    """Puts lists of strings where they belong."""
    for key, node in texts.items():
        if isinstance(node, dict):
            _put_text(out.setdefault(key, {}), node)
        else:
            out[key] = show_text(unstored_text(node))
