"""DeviceRows: a batch of which most leaves are on a device.

    marks     what says where trajectories begin and end, rewards, leaves of any size, and what a
              sampler added: columns of a block in host memory, as in any batch
    others    tensors, views of the records that were gathered on the device

Samplers write their marks into the block; then all of it goes to the device in one copy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...batch import Batch, stack_batches
from ...convert import (
    Arriving,
    Places,
    as_array,
    device_of,
    is_tensor,
    joined,
    moved,
    numpy_dtype,
    plain_tree,
    put_rows,
    to_tensordict,
    torch_dtype,
)
from ...errors import LayoutError
from ...forms import block_tensors, is_rows, named_tensors, torch_columns
from ...layout import Layout, RaggedBlock, ShapeDtype, is_column, spec_of_column
from ...ragged import Blob, Ragged
from ...tree import Path, as_path, flatten, nested, show_path, unflatten
from .fitting import HIDDEN

__all__ = ["DeviceRows", "moved_column"]

Array = np.ndarray[Any, Any]


class _Late(NamedTuple):
    """Some rows of a mark that were made on the device.

    Attributes:
        path: of the mark.
        places: the rows, whatever the batch dims are.
        values: one for each of them.
    """

    path: Path
    places: Places
    values: Arriving


class DeviceRows(Batch):
    """A batch with leaves on a device: ``batch["observation"]`` is a tensor of it, marks are
    arrays, and leaves of any size are as in any batch. `to` and `torch` give everything as tensors
    of the device, `numpy` everything as arrays.

    Args:
        marks: the batch of those in host memory.
        layout: of all leaves.
        tensors: of the others, by path.
        device: where those are.
        arriving: what other streams wait for before they use the tensors; None: nothing.
    """

    __slots__ = ("_all", "_arriving", "_device", "_late", "_places", "_there")

    def __init__(
        self,
        marks: Batch,
        layout: Layout,
        tensors: dict[Path, Any],
        device: Any,
        arriving: Arriving | None = None,
    ) -> None:
        super().__init__(marks.memory, marks.layout, marks.shape, marks.extras)
        self._all, self._there = layout, tensors
        self._device, self._arriving = device, arriving or Arriving(None, ())
        self._late: list[_Late] = []
        self._places = Places(np.empty(0, np.int64))  # those that were asked for last

    @property
    def layout(self) -> Layout:
        return self._all

    @property
    def device(self) -> Any:
        """Where its tensors are."""
        return self._device

    @staticmethod
    def of_tree(tree: Any, batch_ndim: int, device: Any) -> DeviceRows:
        """Data ``[*batch, ...]`` as it is: what is on the device stays there, what is in host
        memory too."""
        tree, shape = plain_tree(tree)
        paths, leaves, _ = flatten(tree, is_column)
        batch_ndim = batch_ndim if shape is None else len(shape)
        layout = Layout.of_rows(tree).row(batch_ndim)
        there: dict[Path, Any] = {}
        here: dict[Path, Any] = {}
        for path, leaf in zip(paths, leaves):
            if is_tensor(leaf) and (leaf.device == device or leaf.device.type != "cpu"):
                there[path] = leaf.detach().to(device)
            else:
                here[path] = leaf if layout.by_path[path].ragged else as_array(leaf, path)
        if not here:
            dims = tuple(np.shape(leaves[0])[:batch_ndim])
            marks = Batch.empty(Layout(nested({HIDDEN: np.uint8(0)})), dims)
        else:
            marks = Batch.from_tree(nested(here), batch_ndim)
        return DeviceRows(marks, layout, there, device)

    def sent(self, paths: Collection[Path]) -> DeviceRows:
        """The same with some arrays of a fixed shape on the device, too."""
        if not paths:
            return self
        mine = self._layout
        column = self._marks()._leaf
        tensors = {p: moved_column(column(mine.number[p]), self.device) for p in paths}
        left = [x for x in mine.leaves if x.path not in tensors]
        layout = Layout.of(mine.structure.without(frozenset(paths)), [x.spec for x in left])
        marks = Batch.of(layout, self._shape, [column(mine.number[x.path]) for x in left])
        marks._extras = self._extras
        return self._like(marks, self._all, {**self._there, **tensors})

    # -- access -------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, (str, tuple)) and is_rows(key):
            return super().__getitem__(key)
        path = as_path(key)
        if path in self._there:
            return self._on_this_stream()[path]
        if path in self._all.number:
            return self._mark(path)
        if path not in self:
            known = ", ".join(show_path(p) for p in self._all.by_path)
            raise KeyError(f"no leaf {show_path(path)}; there are {known}")
        below = self._all.structure.at(path)
        return unflatten(below, (self[p] for p in below.paths(path)))

    def __contains__(self, key: Any) -> bool:
        path = as_path(key)
        return any(p[: len(path)] == path for p in self._all.by_path)

    def keys(self) -> Any:
        return iter(self._all.by_path)

    def _mark(self, path: Path) -> Any:
        column: Any = super()._leaf(self._layout.number[path])
        late = [x for x in self._late if x.path == path]
        if late:  # somebody looks at what was made on the device: now it has to come over
            self._late = [x for x in self._late if x.path != path]
            flat = column.reshape((self._rows, *column.shape[len(self._shape) :]))
            for _, places, values in late:
                flat[places.numbers] = as_array(values.tensor())
        return column

    def _on_this_stream(self) -> dict[Path, Any]:
        self._arriving.tensor()
        return self._there

    def _sent(self, places: Array) -> Places:
        """Places, which go to the device once, however often they are asked for in a row."""
        if self._places.numbers is not places:
            self._places = Places(places)
        return self._places

    def take(self, column: Any, places: Array) -> Any:
        return self._sent(places).of(column)

    def put(self, path: Path, places: Array, values: Any) -> None:
        """Replaces a leaf of some rows of a flat batch. What comes from the device stays there."""
        if is_tensor(values) and values.device.type == "cpu" != self.device.type:
            values = as_array(values)
        if path in self._there:
            if not is_tensor(values):
                values = moved_column(values, self.device)
            column = self._on_this_stream()[path]
            put_rows(column, self._sent(places).on(self.device), values.to(self.device))
            self._arriving = self._arriving.after(list(self._there.values()))
        elif is_tensor(values):
            mine = self._arriving.after((values.detach().to(self.device),))
            self._late.append(_Late(path, self._sent(places), mine))
        else:
            self._mark(path)[places] = values

    # -- other forms --------------------------------------------------------------------------

    def _leaves(self) -> Sequence[Any]:
        """All columns as arrays of the host."""
        return [self._host(path) for path in self._all.by_path]

    def _host(self, path: Path) -> Any:
        if path not in self._there:
            return self._mark(path)
        return as_array(self._on_this_stream()[path])

    def host(self) -> Batch:
        """The same in host memory."""
        out = Batch.of(self._all, self._shape, self._leaves())
        out._extras = self._extras
        return out

    def tree(self) -> Any:
        return self._all.build_tree(self._leaves())

    numpy = tree

    def torch(self, device: Any = None, pin: bool = False) -> Any:
        """The pytree as tensors, where the rows are if no device is given."""
        return self._all.build_tree(self._tensors(device, pin))

    def _tensors(self, device: Any, pin: bool = False) -> list[Any]:
        where = self.device if device is None else device_of(device)
        if where != self.device and "cpu" in (where.type, self.device.type):
            return self.host()._tensors(where, pin)
        if self.device.type == "cpu":
            marks = torch_columns(super()._leaves(), not self._layout.ragged)
        else:
            marks = block_tensors(self._ragged, moved(self.block, self.device), self._shape)
        found = dict(zip(self._layout.by_path, marks))
        for path, places, values in self._late:
            column = found[path]
            flat = column.view((self._rows, *column.shape[len(self._shape) :]))
            put_rows(flat, places.on(self.device), values.tensor())
        found.update(self._on_this_stream())
        columns = [found[path] for path in self._all.by_path]
        return [x if isinstance(x, Blob) else x.to(where) for x in columns]  # bytes are no tensors

    def to_tensordict(self, device: Any = None) -> Any:
        if self._all.structure.kind != "dict":
            raise LayoutError("only a batch whose tree is a mapping can become a TensorDict")
        whole = RaggedBlock(self._all, self._columns, self._block)
        flat = named_tensors(whole, self._tensors(device), self._shape)
        where = self.device if device is None else device_of(device)
        return to_tensordict(flat, self._shape, where, checked=not self._all.ragged)

    def jax(self, copy: bool = True) -> Any:
        return self.host().jax(copy)

    def pin(self) -> Batch:
        return self  # nothing of it waits to be copied

    # -- derived batches ----------------------------------------------------------------------

    def _like(self, marks: Batch, layout: Layout, tensors: dict[Path, Any]) -> DeviceRows:
        """A batch of tensors that the calling thread's stream has made of this one's."""
        arriving = self._arriving.after(list(tensors.values()))
        return DeviceRows(marks, layout, tensors, self._device, arriving)

    def _marks(self) -> Batch:
        """The marks, without those that are late."""
        return Batch(self._block, self._layout, self._shape, self._extras)

    def _plain(self) -> Batch:
        """The marks, all of them in host memory."""
        for path in {x.path for x in self._late}:
            self._mark(path)
        return self._marks()

    def reshape(self, *shape: int) -> Batch:
        marks = self._marks().reshape(*shape)
        n = len(self._shape)
        tensors = {
            p: t.reshape((*marks.shape, *t.shape[n:])) for p, t in self._on_this_stream().items()
        }
        out = self._like(marks, self._all, tensors)
        out._late = list(self._late)
        return out

    def _rows_at(self, rows: Any) -> Batch:
        marks = self._plain()._rows_at(rows)
        index = rows
        if isinstance(rows, np.ndarray):
            numbers = np.flatnonzero(rows) if rows.dtype == bool and rows.ndim == 1 else rows
            index = moved_column(numbers, self.device)
        picked = {path: tensor[index] for path, tensor in self._on_this_stream().items()}
        return self._like(marks, self._all, picked)

    def with_leaves(self, columns: dict[Any, Any], extra: bool = False) -> Batch:
        given = {as_path(key): value for key, value in columns.items()}
        there = {
            path: value.detach()
            for path, value in given.items()
            if is_tensor(value) and value.device == self.device
        }
        here: dict[Any, Any] = {
            path: value if isinstance(value, Ragged) else as_array(value)
            for path, value in given.items()
            if path not in there
        }
        specs = [spec_of_column(_described(v), p, self._shape) for p, v in given.items()]
        layout, _ = self._all.with_leaves(specs)
        marks = self._marks().with_leaves(here, extra)
        if extra:
            marks._extras |= there.keys()
        kept = {p: t for p, t in self._on_this_stream().items() if p not in given}
        out = self._like(marks, layout, {**kept, **there})
        out._late = [x for x in self._late if x.path not in given]
        return out

    @staticmethod
    def joined(batches: Sequence[Batch]) -> Batch:
        """Flat batches of one layout, one after another.

        Raises:
            LayoutError: some of them are in host memory, or on another device.
        """
        mine = [b for b in batches if isinstance(b, DeviceRows)]
        first = mine[0]
        if len(mine) < len(batches) or any(b.device != first.device for b in mine):
            raise LayoutError(
                "batches of a device and of the host, or of several devices, cannot be joined; use "
                "storages of one kind on one device"
            )
        marks = stack_batches([b._marks() for b in mine])
        tensors = {p: joined([b._on_this_stream()[p] for b in mine]) for p in first._there}
        out, at = first._like(marks, first._all, tensors), 0
        for batch in mine:
            out._late += [x._replace(places=Places(x.places.numbers + at)) for x in batch._late]
            at += len(batch)
        return out

    def stored(self, but: Collection[Path] = ()) -> Any:
        structure = self._all.structure
        added = self._extras.difference(but)
        if added:
            structure = structure.without(added)
        return unflatten(structure, (self[p] for p in structure.paths()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{show_path(x.path)}: {x.describe()}" for x in self._all.leaves)
        return f"DeviceRows(shape={list(self._shape)}, device={self.device}, {inside})"

    def __reduce__(self) -> Any:
        return self.host().__reduce__()


def moved_column(column: Array, device: Any) -> Any:
    """An array as a tensor of a device, for the calling thread's stream."""
    array = np.ascontiguousarray(column)
    flat = array.reshape(-1).view(np.uint8)
    return moved(flat, device).view(torch_dtype(array.dtype)).view(array.shape)


def _described(column: Any) -> Any:
    """A column as a layout's specs take it."""
    if not is_tensor(column):
        return column if isinstance(column, Ragged) else as_array(column)
    return ShapeDtype(tuple(column.shape), numpy_dtype(column.dtype))
