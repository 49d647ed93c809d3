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
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import _native
from ..codecs import Codec, check_leaf
from ..convert import leaf_spec
from ..errors import LayoutError
from ..tree import Path, Structure, flatten, show_path, tree_builder, unflatten
from .columns import Columns
from .fit import difference, find_leaves, fit_arrays
from .fit_ragged import as_column, columns_in, is_column
from .leaf import (
    BLOB,
    FIXED,
    Leaf,
    LeafSpec,
    ShapeDtype,
    as_bytes,
    leaf_from_json,
    place_leaves,
    plan_leaf,
    spec_of,
)

__all__ = ["Layout"]

_MOST_BYTES = 1 << 47  # of a row: as much as a process can address


class Layout:
    """The record of one step (or one item), from an example of it.

    Args:
        example: any pytree of arrays, tensors, numbers or things with ``shape`` and ``dtype``; and
            of leaves of any size: a Ragged, a Blob, bytes or text.
    """

    def __init__(self, example: Any) -> None:
        # A ShapeDtype is a tuple, but not to be walked into.
        paths, leaves, structure = flatten(example, lambda node: isinstance(node, ShapeDtype))
        specs = [spec_of(leaf, path) for path, leaf in zip(paths, leaves)]
        self._init(structure, specs)

    def _init(self, structure: Structure, specs: Iterable[Any]) -> None:
        leaves, self.record_size = place_leaves(specs)
        if not leaves:
            raise LayoutError("the example has no leaves; give at least one array or number")
        if self.record_size > _MOST_BYTES:
            largest = max(leaves, key=lambda x: x.nbytes)
            raise LayoutError(
                f"{show_path(largest.path)}: {largest.describe()} makes a row of "
                f"{self.record_size:,} bytes; expected at most {_MOST_BYTES:,}"
            )
        self.structure = structure
        self.leaves: tuple[Leaf, ...] = leaves
        self.by_path: dict[Path, Leaf] = {leaf.path: leaf for leaf in leaves}
        self.number: dict[Path, int] = {leaf.path: i for i, leaf in enumerate(leaves)}
        # Leaves of any size, in the record; and those of them that are so wherever they are used.
        self.variable: tuple[Leaf, ...] = tuple(x for x in leaves if x.variable)
        self.ragged: tuple[int, ...] = tuple(i for i, x in enumerate(leaves) if x.ragged)
        # [offset, bytes] pairs, as the kernels want them
        self.table = np.array([(x.offset, x.nbytes) for x in leaves], np.int64).ravel()

    @staticmethod
    def of(structure: Structure, specs: Iterable[Any]) -> Layout:
        """A layout from its parts (LeafSpecs, or path, shape and dtype); leaves beyond those of the
        structure are extras."""
        layout = Layout.__new__(Layout)
        layout._init(structure, specs)
        return layout

    @staticmethod
    def of_rows(tree: Any) -> Layout:
        """The layout of a tree of columns, batch dims included; see `row`. A list of bytes or text
        is a column, and so is a jagged nested tensor."""
        paths, leaves, structure = flatten(tree, is_column)
        return Layout.of(structure, [spec_of(as_column(x), p) for p, x in zip(paths, leaves)])

    def row(self, batch_ndim: int) -> Layout:
        """This layout without so many leading dims: that of one row."""
        specs = [
            x.spec if x.ragged else x.spec._replace(shape=x.shape[batch_ndim:]) for x in self.leaves
        ]
        return Layout.of(self.structure, specs)

    def with_codecs(self, codecs: Mapping[Path, Codec]) -> Layout:
        """This layout with some leaves encoded where they are stored.

        Raises:
            LayoutError: there is no such leaf, or the codec cannot hold it; or it has another.
        """
        specs = {x.path: x.spec for x in self.leaves}
        for path, codec in codecs.items():
            spec = specs.get(path)
            if spec is None:
                known = ", ".join(show_path(p) for p in specs)
                raise LayoutError(f"codecs: no leaf {show_path(path)}; there are {known}")
            if spec.kind != FIXED:
                raise LayoutError(
                    f"{show_path(path)}: codec {codec.name} for {self.by_path[path].describe()}; "
                    "codecs are for arrays of a fixed shape"
                )
            if spec.codec not in (None, codec.name):
                raise LayoutError(
                    f"{show_path(path)}: codec {codec.name}, but it has {spec.codec} already"
                )
            check_leaf(codec, spec.shape, spec.dtype, path)
            specs[path] = spec._replace(codec=codec.name)
        return Layout.of(self.structure, specs.values()) if codecs else self

    @functools.cached_property
    def decoded(self) -> Layout:
        """The same without codecs: that of batches."""
        if not any(x.codec for x in self.leaves):
            return self
        return Layout.of(self.structure, [x.spec._replace(codec=None) for x in self.leaves])

    @functools.cached_property
    def encoded(self) -> Layout:
        """The same records, leaves with codecs as the bytes that they are."""
        byte = np.dtype(np.uint8)
        return Layout.of(
            self.structure,
            [LeafSpec(x.path, (), byte, BLOB) if x.codec else x.spec for x in self.leaves],
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of paths, shapes and dtypes: equal if and only if records are interchangeable."""
        text = json.dumps([x.identity() for x in self.leaves])
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
        """A description in plain dicts and lists, for `from_json`."""
        return {
            "structure": self.structure.to_json(),
            "leaves": [x.to_json() for x in self.leaves],
            "record_size": self.record_size,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Layout:
        """The layout that `to_json` described.

        Raises:
            LayoutError: it is none. Whatever comes over a network is safe to give here.
        """
        try:
            specs = [leaf_from_json(x) for x in data["leaves"]]
            structure = Structure.from_json(data["structure"])
            paths = [spec.path for spec in specs]
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

    def need_fixed(self, what: str) -> Layout:
        """This layout.

        Raises:
            LayoutError: it has leaves of any size, and `what` takes none.
        """
        if self.variable:
            leaf = self.variable[0]
            raise LayoutError(
                f"{show_path(leaf.path)}: {leaf.describe()}, and {what} have leaves of fixed size "
                "only; encode it as an array of one length"
            )
        return self

    def diff(self, other: Layout) -> str:
        """What a person must change in `other` to get this layout; empty if nothing."""
        return difference(self.by_path, other.by_path)

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
    def blob_offsets(self) -> tuple[int, ...]:
        """Where a record has the places of its leaves of any size."""
        return tuple(x.offset for x in self.variable)

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
            if known is not None and not known.ragged:
                shape = leaf_spec(leaf, path)[0]
                return max(len(shape) - len(known.shape), 0)
        return 0

    def columns_in(self, tree: Any, batch_ndim: int) -> Any:
        """A tree of dicts whose leaves of any size are columns (Ragged, Blob), as they can be told
        without this layout; any other as it is."""
        if not self.ragged:
            return tree
        return columns_in(tree, [self.leaves[i] for i in self.ragged], batch_ndim)

    def columns(
        self, tree: Any, batch_ndim: int, optional: frozenset[Path] = frozenset()
    ) -> tuple[list[Any], tuple[int, ...]]:
        """Contiguous arrays ``[*batch, *leaf.shape]`` in leaf order, checked and cast; of leaves of
        any size, flat columns (Ragged, Blob).

        Leaves in `optional` may be missing and come back as None.
        """
        return fit_arrays(self.leaves, self.values(tree, optional), batch_ndim)

    def values(self, tree: Any, optional: frozenset[Path] = frozenset()) -> list[Any]:
        """What a tree has for each leaf, as it is; None for those in `optional` that are missing.

        Raises:
            LayoutError: other leaves, or other containers.
        """
        found = self.structure.pick(tree, optional if self.variable else None)
        if found is None or (
            self.variable
            and any(x is None and y.path not in optional for x, y in zip(found, self.leaves))
        ):
            return find_leaves(self.structure, self.by_path, tree, optional)
        return found

    def apart(self, columns: list[Any]) -> tuple[list[Any], list[int], tuple[list[Any], ...]]:
        """Columns as native code takes them: the bytes of fixed ones, and their offsets; and, if
        there are leaves of any size, (values, offsets, bytes of an element, place) of each."""
        if not self.variable:
            return [as_bytes(c) for c in columns], [x.offset for x in self.leaves], ()
        fixed, offsets, blobs = [], [], []
        for leaf, column in zip(self.leaves, columns):
            if leaf.variable:
                values, element = as_bytes(column.values), leaf.stored_element_bytes
                blobs.append((values, column.offsets, element, leaf.offset))
            else:
                fixed.append(as_bytes(column))
                offsets.append(leaf.offset)
        return fixed, offsets, (blobs,)

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
            cached = self._column_cache[n] = Columns.of(self.leaves, n)
        return cached

    @functools.cached_property
    def build_tree(self) -> Any:
        """A function from the list of leaves to the tree; extras are left out."""
        if self.structure.kind != "dict":
            order = [self.number[p] for p in self.structure.paths()]
            return lambda leaves: unflatten(self.structure, iter([leaves[i] for i in order]))
        return tree_builder(self.structure)

    def with_leaves(self, extra: Iterable[Any]) -> tuple[Layout, list[int]]:
        """A layout with more leaves, and the numbers this layout's leaves have in it.

        Below a mapping they become part of the tree; a tree that is no mapping keeps its form, and
        they are reached by key only.
        """
        specs: dict[Path, Any] = {x.path: x.spec for x in self.leaves}
        structure = self.structure
        for spec in extra:
            path = spec[0]
            new = path not in specs
            specs[path] = spec
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


@functools.lru_cache(maxsize=256)
def _layout_from_text(text: str) -> Layout:
    return Layout.from_json(json.loads(text))
