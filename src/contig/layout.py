"""The Layout: what one record is, byte by byte.

Offsets are canonical: leaves in sorted-key order, each at the next multiple of its alignment, the
record's size a multiple of the largest alignment. So equal paths, shapes and dtypes mean equal
bytes, in memory, on the wire and on disk.

Layouts are immutable and safe to share between threads.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from . import _native
from .convert import as_array, cast, leaf_spec, numpy_dtype
from .errors import LayoutError
from .tree import Path, Structure, flatten, show_path, tree_builder, unflatten

__all__ = ["Columns", "Layout", "Leaf", "ShapeDtype"]

_ALIGN = 64  # columns of a batch start at multiples of this


class ShapeDtype(NamedTuple):
    """A leaf without data, for examples: ``ShapeDtype((84, 84), np.uint8)``."""

    shape: tuple[int, ...]
    dtype: Any


class Leaf(NamedTuple):
    """One array of the record: its path, per-row shape and dtype, and its place."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    nbytes: int

    def describe(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


class Columns(NamedTuple):
    """A block's columns.

    Attributes:
        views: (shape, dtype, offset) of each leaf.
        nbytes: the block's size.
        fields: the whole block as one structure, or None where numpy cannot have one.
        names: of its fields, one per leaf.
    """

    views: list[tuple[tuple[int, ...], np.dtype[Any], int]]
    nbytes: int
    fields: np.dtype[Any] | None
    names: tuple[str, ...]

    @staticmethod
    def of(views: list[tuple[tuple[int, ...], np.dtype[Any], int]], nbytes: int) -> Columns:
        names = tuple(f"{i}" for i in range(len(views)))
        fields = None
        if 0 < nbytes < 2**31:
            formats = [(dtype, shape) for shape, dtype, _ in views]
            offsets = [at for _, _, at in views]
            spec = {"names": names, "formats": formats, "offsets": offsets, "itemsize": nbytes}
            fields = np.dtype(spec)  # type: ignore[call-overload]
        return Columns(views, nbytes, fields, names)


def _alignment(dtype: np.dtype[Any]) -> int:
    size = dtype.itemsize
    return size if size & (size - 1) == 0 else dtype.alignment


class Layout:
    """The record of one step (or one item), from an example of it.

    Args:
        example: any pytree of arrays, tensors, numbers or things with ``shape`` and ``dtype``.
    """

    def __init__(self, example: Any) -> None:
        example = _specs_as_leaves(example)
        paths, leaves, structure = flatten(example)
        specs = [(path, *leaf_spec(leaf, path)) for path, leaf in zip(paths, leaves)]
        self._init(structure, specs)

    def _init(
        self, structure: Structure, specs: Iterable[tuple[Path, tuple[int, ...], np.dtype[Any]]]
    ) -> None:
        offset, largest = 0, 1
        leaves = []
        for path, shape, dtype in specs:
            align = _alignment(dtype)
            largest = max(largest, align)
            offset = -(-offset // align) * align
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            leaves.append(Leaf(path, shape, dtype, offset, nbytes))
            offset += nbytes
        if not leaves:
            raise LayoutError("the example has no leaves; give at least one array or number")
        self.structure = structure
        self.leaves: tuple[Leaf, ...] = tuple(leaves)
        self.record_size = max(-(-offset // largest) * largest, 1)
        self.by_path: dict[Path, Leaf] = {leaf.path: leaf for leaf in leaves}
        self.number: dict[Path, int] = {leaf.path: i for i, leaf in enumerate(leaves)}
        # [offset, bytes] pairs, as the kernels want them
        self.table = np.array([(x.offset, x.nbytes) for x in leaves], np.int64).ravel()

    @staticmethod
    def of(
        structure: Structure, specs: Iterable[tuple[Path, tuple[int, ...], np.dtype[Any]]]
    ) -> Layout:
        """A layout from its parts; leaves beyond those of the structure are extras."""
        layout = Layout.__new__(Layout)
        layout._init(structure, specs)
        return layout

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of paths, shapes and dtypes: equal if and only if records are interchangeable."""
        text = json.dumps([[x.path, x.shape, _dtype_name(x.dtype)] for x in self.leaves])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @functools.cached_property
    def plan(self) -> Any:
        """The native packer for trees of exactly this structure."""
        return _native.Plan(
            self.structure.numbered(), [plan_leaf(x) for x in self.leaves], [], self.record_size
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        inside = ", ".join(f"{show_path(x.path)}: {x.describe()}" for x in self.leaves)
        return f"Layout({self.record_size} B; {inside})"

    # -- JSON -------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "structure": self.structure.to_json(),
            "leaves": [
                {"path": list(x.path), "shape": list(x.shape), "dtype": _dtype_name(x.dtype)}
                for x in self.leaves
            ],
            "record_size": self.record_size,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Layout:
        """The layout that `to_json` described.

        Raises:
            LayoutError: it is none. Whatever comes over a network is safe to give here.
        """
        try:
            specs = [_leaf_of(x) for x in data["leaves"]]
            structure = Structure.from_json(data["structure"])
            paths = [path for path, _, _ in specs]
            tree = list(structure.paths())
            # Leaves that a sampler added to a tree that is no mapping are not part of it.
            if len(set(paths)) != len(paths) or not set(tree) <= set(paths):
                raise ValueError("its leaves are not those of its structure")
            if structure.kind == "dict" and tree != paths:
                raise ValueError("its leaves are not those of its structure, in its order")
            layout = Layout.of(structure, specs)
            if data.get("record_size", layout.record_size) != layout.record_size:
                raise ValueError(f"its record has {layout.record_size} bytes, not what it says")
            return layout
        except LayoutError:
            raise
        except ImportError as error:  # of a dtype
            raise LayoutError(str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise LayoutError(f"not a layout: {error}") from None

    def __reduce__(self) -> Any:
        return _layout_from_text, (json.dumps(self.to_json()),)

    # -- differences ------------------------------------------------------------------------

    def diff(self, other: Layout) -> str:
        """What a person must change in `other` to get this layout; empty if nothing."""
        lines = []
        for path, leaf in self.by_path.items():
            theirs = other.by_path.get(path)
            if theirs is None:
                # A bare array has the empty path, which is like no other.
                near = [p for p in other.by_path if path and p[-1:] == path[-1:]]
                hint = f" (there is {show_path(near[0])}: renamed or nested?)" if near else ""
                lines.append(f"{show_path(path)}: missing, expected {leaf.describe()}{hint}")
                continue
            if theirs.shape != leaf.shape:
                lines.append(
                    f"{show_path(path)}: shape {list(theirs.shape)}, expected {list(leaf.shape)}"
                )
            if theirs.dtype != leaf.dtype:
                lines.append(
                    f"{show_path(path)}: dtype {theirs.dtype.name}, expected {leaf.dtype.name}"
                )
        lines += [
            f"{show_path(p)}: not expected ({x.describe()}); leave it out"
            for p, x in other.by_path.items()
            if p not in self.by_path
        ]
        return "\n".join(lines)

    # -- packing ----------------------------------------------------------------------------

    def pack(self, tree: Any) -> np.ndarray[Any, Any]:
        """Rows as records: uint8 ``[*batch, record_size]``, the batch dims those all leaves share.

        Raises:
            ValueError: structure, shape or value that does not fit, with the leaf's path.
        """
        record = np.zeros(self.record_size, np.uint8)
        if self.plan.pack(tree, record):
            return record
        batch_ndim = self.batch_ndim(tree)
        arrays, batch = self.columns(tree, batch_ndim)
        n = int(np.prod(batch, dtype=np.int64))
        out = np.zeros(n * self.record_size, np.uint8)
        _native.join_columns([as_bytes(a) for a in arrays], self.table, n, self.record_size, out)
        return out.reshape(*batch, self.record_size)

    def pack_one(self, tree: Any) -> np.ndarray[Any, Any]:
        """One row as a record: uint8 ``[record_size]``. Raises as `pack` does."""
        record = np.zeros(self.record_size, np.uint8)
        if not self.plan.pack(tree, record):
            arrays, _ = self.columns(tree, 0)
            leaves = [as_bytes(a) for a in arrays]
            _native.join_columns(leaves, self.table, 1, self.record_size, record)
        return record

    def join(self, columns: list[np.ndarray[Any, Any]], n: int) -> np.ndarray[Any, Any]:
        """Columns of n rows, one of bytes per leaf, as packed records: uint8, one after another."""
        out = np.zeros(n * self.record_size, np.uint8)
        _native.join_columns(columns, self.table, n, self.record_size, out)
        return out

    @property
    def padded(self) -> bool:
        """Whether there are bytes between leaves."""
        return sum(x.nbytes for x in self.leaves) != self.record_size

    def unpack(self, records: np.ndarray[Any, Any]) -> Any:
        """The tree of views into records ``[*batch, record_size]``; nothing is copied."""
        if records.dtype != np.uint8 or records.shape[-1:] != (self.record_size,):
            raise LayoutError(
                f"records: expected uint8 [..., {self.record_size}], got {records.dtype.name} "
                f"{list(records.shape)}"
            )
        if records.strides[-1] != 1:
            records = np.ascontiguousarray(records)
        views = []
        for leaf in self.leaves:
            field = records[..., leaf.offset : leaf.offset + leaf.nbytes]
            shape = (*records.shape[:-1], *leaf.shape)
            if leaf.nbytes and records.size:
                views.append(field.view(leaf.dtype).reshape(shape))
            else:
                views.append(np.empty(shape, leaf.dtype))
        return unflatten(self.structure, iter(views))

    def batch_ndim(self, tree: Any) -> int:
        """How many leading dims a tree has beyond one row's, judged by its first leaf."""
        paths, leaves, _ = flatten(tree)
        for path, leaf in zip(paths, leaves):
            known = self.by_path.get(path)
            if known is not None:
                shape = leaf_spec(leaf, path)[0]
                return max(len(shape) - len(known.shape), 0)
        return 0

    def columns(
        self, tree: Any, batch_ndim: int, optional: frozenset[Path] = frozenset()
    ) -> tuple[list[np.ndarray[Any, Any] | None], tuple[int, ...]]:
        """Contiguous arrays ``[*batch, *leaf.shape]`` in leaf order, checked and cast.

        Leaves in `optional` may be missing and come back as None.
        """
        found = self.structure.pick(tree)
        if found is None:
            found = self._find(tree, optional)
        batch: tuple[int, ...] | None = None
        first: Path = ()
        out: list[np.ndarray[Any, Any] | None] = []
        for leaf, value in zip(self.leaves, found):
            if value is None:
                out.append(None)
                continue
            array = as_array(value, leaf.path)
            lead = array.shape[:batch_ndim]
            if array.shape[batch_ndim:] != leaf.shape or len(lead) != batch_ndim:
                dims = ["n"] * batch_ndim + [str(n) for n in leaf.shape]
                raise LayoutError(
                    f"{show_path(leaf.path)}: shape {list(array.shape)}, expected "
                    f"[{', '.join(dims)}]; nothing is broadcast: reshape the data"
                )
            if batch is None:
                batch, first = lead, leaf.path
            elif lead != batch:
                raise LayoutError(
                    f"{show_path(leaf.path)}: {list(lead)} rows, but {show_path(first)} has "
                    f"{list(batch)}; all leaves need the same leading dims"
                )
            out.append(np.ascontiguousarray(cast(array, leaf.dtype, leaf.path)))
        assert batch is not None
        return out, batch

    def _find(self, tree: Any, optional: frozenset[Path]) -> list[Any]:
        """The leaves of any tree, in order; None where an optional one is missing."""
        paths, values, structure = flatten(tree)
        given = dict(zip(paths, values))
        missing = [p for p in self.by_path if p not in given and p not in optional]
        surplus = [p for p in given if p not in self.by_path]
        if missing or surplus:
            raise LayoutError(self._structure_error(missing, surplus, given))
        if not optional and structure != self.structure:
            raise LayoutError(
                "the tree has the right leaves in other containers: expected "
                f"{self.structure.kind} where a {structure.kind} came"
                if structure.kind != self.structure.kind
                else "the tree has the right leaves in other containers than the layout"
            )
        return [given.get(leaf.path) for leaf in self.leaves]

    def _structure_error(
        self, missing: list[Path], surplus: list[Path], given: dict[Path, Any]
    ) -> str:
        parts = []
        if missing:
            parts.append("missing " + ", ".join(show_path(p) for p in missing))
        if surplus:
            parts.append("unexpected " + ", ".join(show_path(p) for p in surplus))
        known = ", ".join(show_path(p) for p in self.by_path)
        return f"the data does not fit the layout: {'; '.join(parts)}. The layout has {known}"

    # -- batches ----------------------------------------------------------------------------

    @functools.cached_property
    def _column_cache(self) -> dict[int, Columns]:
        return {}

    def block_columns(self, n: int) -> Columns:
        """Where the columns of a block of n rows are, and the block's size."""
        cached = self._column_cache.get(n)
        if cached is None:
            if len(self._column_cache) > 64:
                self._column_cache.clear()
            columns, at = [], 0
            for leaf in self.leaves:
                columns.append(((n, *leaf.shape), leaf.dtype, at))
                at += -(-leaf.nbytes * n // _ALIGN) * _ALIGN
            cached = self._column_cache[n] = Columns.of(columns, at)
        return cached

    @functools.cached_property
    def build_tree(self) -> Any:
        """A function from the list of leaves to the tree; extras are left out."""
        if self.structure.kind != "dict":
            order = [self.number[p] for p in self.structure.paths()]
            return lambda leaves: unflatten(self.structure, iter([leaves[i] for i in order]))
        return tree_builder(self.structure)

    def with_leaves(
        self, extra: Iterable[tuple[Path, tuple[int, ...], np.dtype[Any]]]
    ) -> tuple[Layout, list[int]]:
        """A layout with more leaves, and the numbers this layout's leaves have in it.

        Below a mapping they become part of the tree; a tree that is no mapping keeps its form, and
        they are reached by key only.
        """
        specs = {x.path: (x.path, x.shape, x.dtype) for x in self.leaves}
        structure = self.structure
        for path, shape, dtype in extra:
            new = path not in specs
            specs[path] = (path, shape, dtype)
            if structure.kind == "dict" and new:
                try:
                    structure = structure.with_leaf(path)
                except ValueError as error:
                    raise LayoutError(
                        f"{show_path(path)}: {error}; a batch gets a leaf there, so give what is "
                        "stored another name"
                    ) from error
        order = list(structure.paths()) if structure.kind == "dict" else list(specs)
        wide = Layout.of(structure, [specs[p] for p in order])
        return wide, [wide.number[x.path] for x in self.leaves]


def plan_leaf(leaf: Leaf) -> tuple[str, int, int, int, tuple[int, ...]]:
    """A leaf as the native planner takes it. Kinds it does not know never match a buffer."""
    kind = leaf.dtype.kind if leaf.dtype.kind in "biufc" else "?"
    return (kind, leaf.dtype.itemsize, leaf.offset, leaf.nbytes, leaf.shape)


def as_bytes(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """A contiguous array as flat uint8, without a copy."""
    assert array is not None
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


def _specs_as_leaves(tree: Any) -> Any:
    # A ShapeDtype is a tuple; wrap it so that it is not walked into.
    if isinstance(tree, ShapeDtype):
        return _Spec(tree.shape, tree.dtype)
    if isinstance(tree, dict):
        return {k: _specs_as_leaves(v) for k, v in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_specs_as_leaves(v) for v in tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_specs_as_leaves(v) for v in tree))
    return tree


def _leaf_of(data: dict[str, Any]) -> tuple[Path, tuple[int, ...], np.dtype[Any]]:
    path, shape, name = data["path"], data["shape"], data["dtype"]
    if not isinstance(path, list) or not all(type(k) in (str, int) for k in path):
        raise ValueError(f"path {path!r}: expected a list of keys")
    sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not sizes or len(shape) > 32:
        raise ValueError(f"shape {shape!r}: expected a list of sizes")
    if not isinstance(name, str):
        raise ValueError(f"dtype {name!r}: expected its name")
    dtype = numpy_dtype(name)
    if dtype.hasobject or dtype.itemsize == 0 or name.startswith((">", "!")):
        raise ValueError(f"dtype {name!r}: not a little-endian one of fixed size")
    if math.prod(shape) * dtype.itemsize >= 1 << 47:
        raise ValueError(f"shape {shape!r} of {name}: too large")
    return tuple(path), tuple(shape), dtype


class _Spec:
    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind in "biufcV" else dtype.str


@functools.lru_cache(maxsize=256)
def _layout_from_text(text: str) -> Layout:
    return Layout.from_json(json.loads(text))
