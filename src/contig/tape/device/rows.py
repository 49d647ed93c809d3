"""DeviceRows: a batch of which most leaves are on a device.

    marks     what says where trajectories begin and end, rewards, and what a sampler added: columns
              of a block in host memory, as in any batch
    others    tensors, views of the records that were gathered on the device

Samplers write their marks into the block; then all of it goes to the device in one copy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...batch import Batch, stack_batches
from ...convert import (
    Arriving,
    as_array,
    is_tensor,
    joined,
    moved,
    plain_tree,
    to_tensordict,
    to_torch,
    to_torch_all,
    torch_dtype,
)
from ...errors import LayoutError
from ...forms import block_tensors, is_rows, named_tensors
from ...layout import Layout, RaggedBlock
from ...tree import Path, as_path, flatten, nested, show_path, unflatten
from .fitting import HIDDEN

__all__ = ["DeviceRows"]

Array = np.ndarray[Any, Any]


class DeviceRows(Batch):
    """A batch with leaves on a device: ``batch["observation"]`` is a tensor of it, and marks are
    arrays. `to` and `torch` give everything as tensors of the device, `numpy` everything as arrays.

    Args:
        marks: the batch of those in host memory.
        layout: of all leaves.
        tensors: of the others, by path.
        device: where those are.
        arriving: what other streams wait for before they use the tensors.
    """

    __slots__ = ("_all", "_arriving", "_device", "_late", "_there")

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
        self._device, self._arriving = device, arriving
        self._late: list[tuple[Path, Any, Any]] = []  # marks that were made on the device

    @property
    def layout(self) -> Layout:
        return self._all

    @property
    def device(self) -> Any:
        """Where its tensors are."""
        return self._device

    @staticmethod
    def of_tree(tree: Any, batch_ndim: int, device: Any) -> DeviceRows:
        """Data of a device, ``[*batch, ...]``, as it is."""
        tree, shape = plain_tree(tree)
        paths, leaves, _ = flatten(tree)
        tensors = [x if is_tensor(x) else to_torch(as_array(x, p)) for p, x in zip(paths, leaves)]
        batch_ndim = batch_ndim if shape is None else len(shape)
        layout = Layout.of_rows(tree).row(batch_ndim)
        nothing = Batch.empty(
            Layout(nested({HIDDEN: np.uint8(0)})), tuple(tensors[0].shape[:batch_ndim])
        )
        there = {p: x.to(device) for p, x in zip(paths, tensors)}
        return DeviceRows(nothing, layout, there, device)

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

    def _mark(self, path: Path) -> Array:
        column: Array = super()._leaf(self._layout.number[path])
        late = [x for x in self._late if x[0] == path]
        if late:  # somebody looks at what was made on the device: now it has to come over
            self._late = [x for x in self._late if x[0] != path]
            for _, places, values in late:
                column[places] = as_array(values)
        return column

    def _on_this_stream(self) -> dict[Path, Any]:
        if self._arriving is not None:
            self._arriving.tensor()
        return self._there

    def put(self, path: Path, places: Array, values: Any) -> None:
        """Replaces a leaf of some rows. What comes from the device stays there."""
        if path in self._there:
            if not is_tensor(values):
                values = to_torch(np.ascontiguousarray(values)).to(self.device)
            column = self._on_this_stream()[path]
            column[to_torch(places).to(self.device)] = values.to(column.dtype)
        elif is_tensor(values):
            self._late.append((path, places, values))
        else:
            self._mark(path)[places] = values

    # -- other forms --------------------------------------------------------------------------

    def _leaves(self) -> Sequence[Any]:
        """All columns as arrays of the host."""
        return [self._host(path) for path in self._all.by_path]

    def _host(self, path: Path) -> Array:
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
        if device is not None and str(device) not in (str(self.device), self.device.type):
            return self.host()._tensors(device, pin)
        there = dict(self._on_this_stream())
        if self.device.type == "cpu":
            marks = to_torch_all(super()._leaves())
        else:
            marks = block_tensors(self._ragged, moved(self.block, self.device), self._shape)
        there.update(zip(self._layout.by_path, marks))
        for path, places, values in self._late:
            index = to_torch(places).to(self.device)
            there[path][index] = values.to(torch_dtype(self._all.by_path[path].dtype))
        return [there[path] for path in self._all.by_path]

    def to_tensordict(self, device: Any = None) -> Any:
        if self._all.structure.kind != "dict":
            raise LayoutError("only a batch whose tree is a mapping can become a TensorDict")
        whole = RaggedBlock(self._all, self._columns, self._block)
        flat = named_tensors(whole, self._tensors(device), self._shape)
        return to_tensordict(flat, self._shape, self.device if device is None else device)

    def jax(self, copy: bool = True) -> Any:
        return self.host().jax(copy)

    def pin(self) -> Batch:
        return self  # nothing of it waits to be copied

    def reshape(self, *shape: int) -> Batch:
        marks = Batch(self._block, self._layout, self._shape, self._extras).reshape(*shape)
        n = len(self._shape)
        tensors = {
            p: t.reshape((*marks.shape, *t.shape[n:])) for p, t in self._on_this_stream().items()
        }
        return self._like(marks, self._all, tensors)

    # -- derived batches ----------------------------------------------------------------------

    def _like(self, marks: Batch, layout: Layout, tensors: dict[Path, Any]) -> DeviceRows:
        out = DeviceRows(marks, layout, tensors, self._device)
        out._late = [x for x in self._late if x[0] in layout.by_path]
        return out

    def _plain(self) -> Batch:
        """The marks, all of them in host memory."""
        for path in {x[0] for x in self._late}:
            self._mark(path)
        return Batch(self._block, self._layout, self._shape, self._extras)

    def _rows_at(self, rows: Any) -> Batch:
        marks = self._plain()._rows_at(rows)
        index = rows
        if isinstance(rows, np.ndarray):
            index = to_torch(np.ascontiguousarray(rows)).to(self.device)
        picked = {path: tensor[index] for path, tensor in self._on_this_stream().items()}
        return self._like(marks, self._all, picked)

    def with_leaves(self, columns: dict[Any, Any], extra: bool = False) -> Batch:
        paths = {as_path(key): value for key, value in columns.items()}
        marks = self._plain().with_leaves({p: as_array(v) for p, v in paths.items()}, extra)
        specs = [marks.layout.by_path[p].spec for p in paths]
        layout, _ = self._all.with_leaves(specs)
        kept = {p: t for p, t in self._on_this_stream().items() if p not in paths}
        return self._like(marks, layout, kept)

    def joined(self, others: Sequence[Batch]) -> Batch:
        """This batch and others of its layout, one after another."""
        every = [self, *others]
        if not all(isinstance(b, DeviceRows) for b in every):
            raise LayoutError(
                "batches of a device and of the host cannot be joined; use storages of one kind"
            )
        mine = [b for b in every if isinstance(b, DeviceRows)]
        marks = stack_batches([b._plain() for b in mine])
        tensors = {p: joined([b._on_this_stream()[p] for b in mine]) for p in self._there}
        return self._like(marks, self._all, tensors)

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
