"""The Batch: what a sample returns. One block of bytes, one contiguous column per leaf.

A batch owns its block: it stays valid, and unchanged, as long as it or any array taken from it is
referenced. Arrays are made when they are asked for. Not thread-safe to modify, safe to read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from . import _native
from .convert import as_array, cast, leaf_spec, plain_tree, to_jax, to_tensordict, to_torch
from .errors import LayoutError
from .layout import Layout
from .tree import Path, as_path, flatten, show_path, unflatten

__all__ = ["Batch", "stack_batches"]

Array = np.ndarray[Any, Any]

# Per-row scalars that TensorDict users expect as [N, 1].
_TRAILING_DIM = ("reward", "done", "terminated", "truncated", "is_init")


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
        self._cache: dict[int, Array] = {}

    @staticmethod
    def empty(layout: Layout, shape: tuple[int, ...]) -> Batch:
        """A batch of uninitialised rows."""
        n = int(np.prod(shape, dtype=np.int64))
        return Batch(_native.Block(layout.block_columns(n).nbytes), layout, shape)

    @staticmethod
    def from_records(layout: Layout, records: Array) -> Batch:
        """A batch from packed rows ``[n, record_size]``."""
        n = len(records)
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
        full = Layout(tree)
        for leaf in full.leaves:
            if len(leaf.shape) < batch_ndim:
                raise LayoutError(
                    f"{show_path(leaf.path)}: shape {list(leaf.shape)} has fewer than the "
                    f"{batch_ndim} batch dims"
                )
        layout = Layout.of(
            full.structure, [(x.path, x.shape[batch_ndim:], x.dtype) for x in full.leaves]
        )
        columns, batch = layout.columns(tree, batch_ndim)
        out = Batch.empty(layout, batch)
        for i, column in enumerate(columns):
            out._leaf(i)[...] = column
        return out

    @staticmethod
    def one(row: Any) -> Batch:
        """A batch of one row, from a tree without batch dims."""
        tree, _ = plain_tree(row)
        paths, values, structure = flatten(tree)
        arrays = (cast(as_array(v), leaf_spec(v, p)[1], p)[None] for p, v in zip(paths, values))
        return Batch.from_tree(unflatten(structure, arrays), 1)

    # -- access -----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def extras(self) -> frozenset[Path]:
        """Leaves that a sampler added to what is stored."""
        return self._extras

    @property
    def memory(self) -> Any:
        """The owner of the block, as the kernels take it."""
        return self._block

    @property
    def block(self) -> Array:
        """All bytes of the batch, uint8."""
        return np.frombuffer(self._block, np.uint8)

    def __len__(self) -> int:
        return self._shape[0] if self._shape else 1

    def _leaf(self, number: int) -> Array:
        array = self._cache.get(number)
        if array is None:
            shape, dtype, offset = self._columns.views[number]
            if len(self._shape) != 1:
                shape = (*self._shape, *shape[1:])
            array = self._cache[number] = np.ndarray(shape, dtype, self._block, offset)
        return array

    def __getitem__(self, key: Any) -> Any:
        """The column at a path, the subtree below one, or some rows: by number, slice or range, or
        a list, array or tensor of numbers or booleans."""
        if not isinstance(key, (str, tuple)) and _is_rows(key):
            return self._rows_at(_row_index(key))
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
        return self[key] if key in self else default  # noqa: SIM401 (this is get)

    def keys(self) -> Iterator[Path]:
        """Paths of all leaves."""
        return iter(self._layout.by_path)

    def _rows_at(self, rows: Any) -> Batch:
        picked = [self._leaf(i)[rows] for i in range(len(self._layout.leaves))]
        ndim = picked[0].ndim - len(self._layout.leaves[0].shape)
        out = Batch.empty(self._layout, picked[0].shape[:ndim])
        out._extras = self._extras
        for i, column in enumerate(picked):
            out._leaf(i)[...] = column
        return out

    def __repr__(self) -> str:
        inside = ", ".join(f"{show_path(x.path)}: {x.describe()}" for x in self._layout.leaves)
        return f"Batch(shape={list(self._shape)}, {inside})"

    # -- forms ------------------------------------------------------------------------------

    def tree(self) -> Any:
        """The plain pytree of numpy arrays."""
        return self._layout.build_tree(self._leaves())

    def _leaves(self) -> Sequence[Array]:
        columns = self._columns
        if len(self._shape) == 1 and columns.fields is not None:
            # All columns as fields of one structure: half the time of an array for each.
            whole = np.ndarray((), columns.fields, self._block)
            leaves = [whole[name] for name in columns.names]
            for number, array in self._cache.items():
                leaves[number] = array
            return leaves
        return [self._leaf(i) for i in range(len(columns.views))]

    numpy = tree

    def torch(self, device: Any = None, pin: bool = False) -> Any:
        """The pytree as torch tensors; to another device in one copy of the whole block.

        Args:
            device: where to; None or "cpu" shares this batch's memory.
            pin: go through page-locked memory, so that the copy is asynchronous.
        """
        return self._layout.build_tree(self._tensors(device, pin))

    def _tensors(self, device: Any, pin: bool = False) -> list[Any]:
        if device is None and not pin:
            return [to_torch(leaf) for leaf in self._leaves()]
        block = to_torch(self.block)
        if pin:
            block = block.pin_memory()
        if device is not None:
            block = block.to(device, non_blocking=pin)
        return [self._tensor(i, block) for i in range(len(self._columns.views))]

    def _tensor(self, number: int, block: Any) -> Any:
        leaf = self._layout.leaves[number]
        start = self._columns.views[number][2]
        dtype = to_torch(np.empty(0, leaf.dtype)).dtype
        column = block[start : start + leaf.nbytes * self._rows].view(dtype)
        return column.view((*self._shape, *leaf.shape))

    def jax(self) -> Any:
        """The pytree as jax arrays, copied."""
        leaves = zip(self._leaves(), self._layout.leaves)
        return self._layout.build_tree([to_jax(array, leaf.path) for array, leaf in leaves])

    def to_tensordict(self, device: Any = None) -> Any:
        """A TensorDict; per-row rewards and flags get the trailing dim TorchRL gives them."""
        if self._layout.structure.kind != "dict":
            raise LayoutError("only a batch whose tree is a mapping can become a TensorDict")
        flat = {}
        for leaf, tensor in zip(self._layout.leaves, self._tensors(device)):
            if leaf.shape == () and leaf.path[-1] in _TRAILING_DIM:
                tensor = tensor.unsqueeze(-1)
            flat[tuple(str(k) for k in leaf.path)] = tensor
        return to_tensordict(flat, self._shape, device)

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
        ndim = len(self._shape)
        for key, value in columns.items():
            if value.shape[:ndim] != self._shape:
                raise LayoutError(
                    f"{show_path(as_path(key))}: shape {list(value.shape)}, expected the batch's "
                    f"{list(self._shape)} first"
                )
        specs = [(as_path(k), v.shape[ndim:], v.dtype) for k, v in columns.items()]
        layout, moved = self._layout.with_leaves(specs)
        out = Batch.empty(layout, self._shape)
        paths = {s[0] for s in specs}
        out._extras = self._extras | (frozenset(paths) if extra else frozenset())
        for i, number in enumerate(moved):
            if self._layout.leaves[i].path not in paths:
                out._leaf(number)[...] = self._leaf(i)
        for key, value in columns.items():
            out[key][...] = value
        return out

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
        return _rebuild, (self._layout, self.block, self._shape, self._extras)


def _is_rows(key: Any) -> bool:
    if isinstance(key, list):  # of keys it is a path
        return not any(isinstance(k, str) for k in key)
    return isinstance(key, (int, float, slice, range)) or hasattr(key, "dtype")


def _row_index(key: Any) -> Any:
    """What numpy takes for some rows."""
    if isinstance(key, slice):
        return key
    index = as_array(key)
    if index.size == 0:
        return np.empty(0, np.int64)
    if index.dtype.kind not in "iu" and not (index.dtype.kind == "b" and index.ndim):
        raise IndexError(
            f"rows by {index.dtype}: expected whole numbers, a slice, or a boolean for each row"
        )
    return index if index.ndim else int(index)


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
    rows = [len(b) for b in batches]
    out = Batch.empty(first.layout, (sum(rows),))
    out._extras = first._extras
    at = 0
    for batch, n in zip(batches, rows):
        for i in range(len(first.layout.leaves)):
            out._leaf(i)[at : at + n] = batch._leaf(i)
        at += n
    return out
