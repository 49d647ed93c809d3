"""The Batch: what a sample returns. One block of bytes, one contiguous column per leaf.

A batch owns its block: it stays valid, and unchanged, as long as it or any array taken from it is
referenced. Arrays are made when they are asked for. Not thread-safe to modify, safe to read.

The column of a leaf of any size is a Ragged or a Blob: flat rows, whatever the batch dims are.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from . import _native
from .arguments import whole
from .convert import (
    as_array,
    moved,
    pinned_copy,
    plain_tree,
    register_nodes,
    to_tensordict,
    to_torch,
)
from .errors import LayoutError
from .forms import (
    block_tensors,
    host_tree,
    is_rows,
    jax_tree,
    named_tensors,
    one_row,
    plain_tensors,
    row_index,
    split_to_jax,
    torch_columns,
)
from .layout import (
    Layout,
    RaggedBlock,
    block_of,
    check_leaves,
    columns_of_records,
    spec_of_column,
)
from .tree import Nested, Path, as_path, flatten, show_path, unflatten

__all__ = ["Batch", "stack_batches"]

Array = np.ndarray[Any, Any]


class Batch:
    """Rows of one layout. ``batch["next", "reward"]`` is the column of a leaf.

    Args:
        block: the bytes, any object with the buffer protocol; columns are where
            `Layout.block_columns` places them.
        layout: the leaves.
        shape: the batch dims; their product is the number of rows.
        extras: paths that a sampler added to what is stored.
    """

    __slots__ = ("_block", "_cache", "_columns", "_extras", "_layout", "_rows", "_shape")

    def __init__(
        self,
        block: Any,
        layout: Layout,
        shape: tuple[int, ...],
        extras: frozenset[Path] = frozenset(),
    ) -> None:
        self._block = block
        self._layout = layout
        self._shape = shape
        self._extras = extras
        self._rows = shape[0] if len(shape) == 1 else int(np.prod(shape, dtype=np.int64))
        self._columns = layout.block_columns(self._rows)
        self._cache: dict[int, Any] = {}

    @staticmethod
    def empty(
        layout: Layout, shape: tuple[int, ...], extras: frozenset[Path] = frozenset()
    ) -> Batch:
        """A batch of uninitialised rows; leaves of any size have no elements in them."""
        n = int(np.prod(shape, dtype=np.int64))
        out = Batch(_native.Block(layout.block_columns(n).nbytes), layout, shape, extras)
        for i in layout.ragged:
            out._ragged.offsets(i)[...] = 0
        return out

    @staticmethod
    def of(layout: Layout, shape: tuple[int, ...], columns: Sequence[Any]) -> Batch:
        """A batch with a copy of some columns, one per leaf; of leaves of any size, a Ragged."""
        n = int(np.prod(shape, dtype=np.int64))
        out = Batch(block_of(layout, n, columns), layout, shape)
        for i, column in enumerate(columns):
            if i not in layout.ragged:
                out._leaf(i)[...] = column
        return out

    @staticmethod
    def from_records(layout: Layout, records: Array, blobs: Array | None = None) -> Batch:
        """A batch from packed rows ``[n, record_size]``.

        Args:
            blobs: the bytes of leaves of any size, uint8, where the records say.
        """
        n = len(records)
        if layout.ragged:
            assert blobs is not None, "rows have leaves of any size: give their bytes"
            return Batch.of(layout, (n,), columns_of_records(layout, records, blobs))
        out = Batch.empty(layout, (n,))
        starts = np.array([offset for _, _, offset in out._columns.views], np.int64)
        flat = np.ascontiguousarray(records).reshape(-1)
        _native.split_records(flat, n, layout.record_size, out.block, starts, layout.table)
        return out

    @staticmethod
    def from_tree(tree: Any, batch_ndim: int = 1) -> Batch:
        """A batch with a copy of a tree of ``[*batch, ...]`` arrays."""
        if isinstance(tree, Batch):
            return tree
        tree, shape = plain_tree(tree)
        if shape is not None:
            batch_ndim = len(shape)
        full = Layout.of_rows(tree)
        for leaf in full.leaves:
            if len(leaf.shape) < batch_ndim and not leaf.ragged:
                raise LayoutError(
                    f"{show_path(leaf.path)}: shape {list(leaf.shape)} has fewer than the "
                    f"{batch_ndim} batch dims"
                )
        layout = full.row(batch_ndim)
        return Batch.of(layout, *reversed(layout.columns(tree, batch_ndim)))

    @staticmethod
    def one(row: Any) -> Batch:
        """A batch of one row, from a tree without batch dims."""
        tree, _ = plain_tree(row)
        check_leaves(tree)
        paths, values, structure = flatten(tree)
        columns = (one_row(v, p) for p, v in zip(paths, values))
        return Batch.from_tree(unflatten(structure, columns), 1)

    # -- access -----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch dims: ``(rows,)``, or more after `reshape`."""
        return self._shape

    batch_size = shape  # as TensorDict calls it

    @property
    def layout(self) -> Layout:
        """What a row is."""
        return self._layout

    @property
    def extras(self) -> frozenset[Path]:
        """Leaves that a sampler added to what is stored."""
        return self._extras

    @property
    def block_layout(self) -> Layout:
        """The leaves that are in the block: all of them, unless some are on a device."""
        return self._layout

    @property
    def memory(self) -> Any:
        """The owner of the block, as the kernels take it."""
        return self._block

    @property
    def block(self) -> Array:
        """All bytes of the batch, uint8."""
        return np.frombuffer(self._block, np.uint8)

    @property
    def sealed_block(self) -> Array:
        """As `block`, for others: between columns are zeros, not what was in memory before."""
        return self._ragged.sealed()

    def __len__(self) -> int:
        return self._shape[0] if self._shape else 1

    @property
    def _ragged(self) -> RaggedBlock:
        return RaggedBlock(self._layout, self._columns, self._block)

    def _leaf(self, number: int) -> Any:
        array = self._cache.get(number)
        if array is None and number in self._layout.ragged:
            array = self._cache[number] = self._ragged.column(number)
        elif array is None:
            shape, dtype, offset = self._columns.views[number]
            if len(self._shape) != 1:
                shape = (*self._shape, *shape[1:])
            array = self._cache[number] = np.ndarray(shape, dtype, self._block, offset)
        return array

    def __getitem__(self, key: Any) -> Any:
        """The column at a path, the subtree below one, or some rows: by number, slice or range, or
        a list, array or tensor of numbers or booleans."""
        if not isinstance(key, (str, tuple)) and is_rows(key):
            return self._rows_at(row_index(key))
        path = as_path(key)
        number = self._layout.number.get(path)
        if number is not None:
            return self._leaf(number)
        try:
            below = self._layout.structure.at(path)
        except KeyError:
            known = ", ".join(show_path(p) for p in self._layout.by_path)
            raise KeyError(f"no leaf {show_path(path)}; there are {known}") from None
        numbers = self._layout.number
        return unflatten(below, (self._leaf(numbers[p]) for p in below.paths(path)))

    def __contains__(self, key: Any) -> bool:
        path = as_path(key)
        return any(p[: len(path)] == path for p in self._layout.by_path)

    def get(self, key: Any, default: Any = None) -> Any:
        """The leaf or subtree at `key`, or `default` if there is none."""
        return self[key] if key in self else default  # noqa: SIM401 (this is get)

    def keys(self) -> Iterator[Path]:
        """Paths of all leaves."""
        return iter(self._layout.by_path)

    def items(self) -> Iterator[tuple[Path, Any]]:
        """Each leaf's path and column."""
        return ((path, self[path]) for path in self._layout.by_path)

    def split(self, rows: int | Sequence[int]) -> list[Batch]:
        """The batch in parts along its first dim.

        Args:
            rows: of each part, the last of which may have fewer; or of one part after another, all
                rows of the batch together.
        """
        total = len(self)
        if isinstance(rows, (list, tuple)):
            sizes = [whole("split: each part", n, 0, "a number of rows") for n in rows]
            if not sizes or sum(sizes) != total:
                raise ValueError(f"split: {sizes} are {sum(sizes)} rows, and the batch has {total}")
        else:
            each = whole("split", rows, 1, "a number of rows")
            sizes = [min(each, total - at) for at in range(0, total, each)] or [0]
        ends = np.cumsum([0, *sizes]).tolist()
        return [self[low:high] for low, high in itertools.pairwise(ends)]

    def _rows_at(self, rows: Any) -> Batch:
        if self._layout.ragged:
            return self._ragged_rows_at(rows)
        picked = [self._leaf(i)[rows] for i in range(len(self._layout.leaves))]
        ndim = picked[0].ndim - len(self._layout.leaves[0].shape)
        out = Batch.empty(self._layout, picked[0].shape[:ndim])
        out._extras = self._extras
        for i, column in enumerate(picked):
            out._leaf(i)[...] = column
        return out

    def _ragged_rows_at(self, rows: Any) -> Batch:
        numbers = np.asarray(np.arange(self._rows).reshape(self._shape)[rows])
        ragged = self._layout.ragged
        columns = [
            self._leaf(i).take(numbers.reshape(-1)) if i in ragged else self._leaf(i)[rows]
            for i in range(len(self._layout.leaves))
        ]
        out = Batch.of(self._layout, numbers.shape, columns)
        out._extras = self._extras
        return out

    def __repr__(self) -> str:
        inside = ", ".join(f"{show_path(x.path)}: {x.describe()}" for x in self._layout.leaves)
        return f"Batch(shape={list(self._shape)}, {inside})"

    # -- forms ------------------------------------------------------------------------------

    def tree(self) -> Any:
        """The plain pytree of numpy arrays."""
        return self._layout.build_tree(self._leaves())

    def _leaves(self) -> Sequence[Any]:
        if len(self._shape) != 1:
            return [self._leaf(i) for i in range(len(self._columns.views))]
        leaves = self._columns.arrays.over(self._block)
        for number in self._layout.ragged:
            leaves[number] = self._leaf(number)
        for number, array in self._cache.items():
            leaves[number] = array
        return leaves

    numpy = tree

    def torch(self, device: Any = None, pin: bool = False) -> Any:
        """The pytree as torch tensors; to another device in one copy of the whole block. A Ragged
        is a jagged nested tensor; a Blob stays one: bytes and text are no tensors.

        Args:
            device: where to; None or "cpu" shares this batch's memory. Copies to CUDA are
                asynchronous, and in order for the stream that the calling thread computes on.
            pin: tensors in page-locked memory, if they stay on the host.
        """
        return self._layout.build_tree(self._tensors(device, pin))

    def _tensors(self, device: Any, pin: bool = False) -> list[Any]:
        if device is not None and str(device) != "cpu":
            return block_tensors(self._ragged, moved(self.block, device), self._shape)
        if pin:
            return block_tensors(self._ragged, to_torch(self.block).pin_memory(), self._shape)
        return torch_columns(self._leaves(), not self._layout.ragged)

    def to(self, device: Any) -> Any:
        """The tensors of `torch` on a device, as ``output="torch"`` has them: nested dicts that
        take paths, too."""
        return Nested.of(self.torch(device))

    def pin(self) -> Batch:
        """This batch in page-locked memory, from which others copy to a device faster; itself, if
        it is in such memory or there is no CUDA device. `to` needs none: it has blocks of its own.
        """
        block = pinned_copy(self.block)
        return self if block is None else Batch(block, self._layout, self._shape, self._extras)

    def jax(self, copy: bool = True) -> Any:
        """The pytree as jax arrays: nested dicts that take paths, too, as functions of jax have a
        batch. A Ragged is (values, offsets); a Blob stays one. Without `copy` large columns may be
        this batch's memory: do not write to it then.
        """
        if not copy and len(self._shape) == 1:
            tree = split_to_jax(self._block, self._layout, self._rows)
            if tree is not None:
                return tree
        return jax_tree(self._leaves(), self._layout, copy)

    def to_tensordict(self, device: Any = None) -> Any:
        """A TensorDict; per-row rewards and flags get the trailing dim TorchRL gives them. A Ragged
        is a jagged nested tensor, a Blob a NonTensorStack.
        """
        if self._layout.structure.kind != "dict":
            raise LayoutError("only a batch whose tree is a mapping can become a TensorDict")
        if type(self) is Batch and device is None and not self._layout.ragged:
            flat = plain_tensors(self._layout, self._leaves())
        else:
            flat = named_tensors(self._ragged, self._tensors(device), self._shape)
        return to_tensordict(flat, self._shape, device, checked=not self._layout.ragged)

    def reshape(self, *shape: int) -> Batch:
        """The same block with other batch dims; one of them may be -1."""
        # numpy's own rules, on an array without memory.
        dims = np.broadcast_to(np.uint8(0), self._shape).reshape(*shape).shape
        return Batch(self._block, self._layout, dims, self._extras)

    # -- derived batches --------------------------------------------------------------------

    def with_leaves(self, columns: dict[Any, Array], extra: bool = False) -> Batch:
        """A new batch with leaves added or replaced, each ``[*batch, ...]``.

        Raises:
            LayoutError: other batch dims, or a path through a leaf or to a subtree.
        """
        specs = [spec_of_column(value, as_path(key), self._shape) for key, value in columns.items()]
        layout, moved = self._layout.with_leaves(specs)
        paths = {s.path for s in specs}
        extras = self._extras | (frozenset(paths) if extra else frozenset())
        given: dict[int, Any] = {layout.number[as_path(k)]: v for k, v in columns.items()}
        if not layout.ragged:
            out = Batch.empty(layout, self._shape)
            out._extras = extras
            for i, number in enumerate(moved):
                if number not in given:
                    out._leaf(number)[...] = self._leaf(i)
            for number, value in given.items():
                out._leaf(number)[...] = value
            return out
        kept = {number: self._leaf(i) for i, number in enumerate(moved) if number not in given}
        all_columns = {**kept, **given}
        out = Batch.of(layout, self._shape, [all_columns[i] for i in range(len(layout.leaves))])
        out._extras = extras
        return out

    def take(self, column: Any, places: Array) -> Any:
        """Some rows of a column, which is where this batch's are."""
        return column[places]

    def put(self, path: Path, places: Array, values: Any) -> None:
        """Replaces a leaf of some rows of a flat batch."""
        self[path][places] = as_array(values)

    def stored(self, but: Collection[Path] = ()) -> Any:
        """The tree without what a sampler added: what a buffer would store.

        Args:
            but: leaves that stay all the same, because the buffer has leaves of that name.
        """
        added = self._extras.difference(but)
        if not added:
            return self.tree()
        structure = self._layout.structure.without(added)
        return unflatten(structure, (self[p] for p in structure.paths()))

    def __reduce__(self) -> Any:
        return _rebuild, (self._layout, self.sealed_block, self._shape, self._extras)


def _stack_ragged(batches: Sequence[Batch], rows: int) -> Batch:
    first, others = batches[0], batches[1:]
    columns = [
        first._leaf(i).joined([b._leaf(i) for b in others])
        if leaf.ragged
        else np.concatenate([b._leaf(i) for b in batches])
        for i, leaf in enumerate(first.layout.leaves)
    ]
    out = Batch.of(first.layout, (rows,), columns)
    out._extras = first._extras
    return out


def _rebuild(
    layout: Layout, block: Array, shape: tuple[int, ...], extras: frozenset[Path]
) -> Batch:
    aligned = _native.Block(len(block))  # as all blocks are, wherever pickle put this one
    memoryview(aligned)[:] = memoryview(block)  # type: ignore[arg-type]
    return Batch(aligned, layout, shape, extras)


def stack_batches(batches: Sequence[Batch]) -> Batch:
    """Flat batches of one layout, one after another, in one block.

    Raises:
        LayoutError: their layouts differ, with the difference.
    """
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    for other in batches[1:]:
        if other.layout != first.layout:
            raise LayoutError(
                "batches of different layouts cannot be joined:\n" + first.layout.diff(other.layout)
            )
    for batch in batches:
        if hasattr(batch, "joined"):  # leaves of it are elsewhere
            return batch.joined(batches)  # type: ignore[no-any-return]
    rows = [len(b) for b in batches]
    if first.layout.ragged:
        return _stack_ragged(batches, sum(rows))
    out = Batch.empty(first.layout, (sum(rows),))
    out._extras = first._extras
    at = 0
    for batch, n in zip(batches, rows):
        for i in range(len(first.layout.leaves)):
            out._leaf(i)[at : at + n] = batch._leaf(i)
        at += n
    return out


# So that functions of jax take a batch as it is: its columns are numpy's, which `jit` copies faster
# than anybody can make jax arrays of them.
register_nodes(Batch, lambda batch: host_tree(batch._leaves(), batch._layout))
