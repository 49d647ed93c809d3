"""Leaves by path of whatever holds rows: nested dicts, a Batch or a TensorDict.

Results come back in the form the data had, where that can hold them: dicts as `Nested`, which
also takes paths as keys; a Batch holds numpy arrays only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import as_array, to_torch
from ..forms import torch_column
from ..keys import INIT, TRAJ_IDS
from ..ragged import Ragged
from ..tree import Nested, Path, show_path
from .any_size import AnySize
from .steps import Array, is_tensor

__all__ = [
    "as_leaves",
    "batch_shape",
    "boundaries",
    "build",
    "columns_of",
    "flat_shape",
    "is_tensordict",
    "leaves",
    "no_marks",
    "read",
    "tensors",
    "write",
]


def is_tensordict(data: Any) -> bool:
    return type(data).__module__.startswith("tensordict") and hasattr(data, "batch_size")


def _check(data: Any) -> None:
    if not (isinstance(data, (Mapping, Batch)) or is_tensordict(data)):
        raise TypeError(
            f"expected a mapping, a Batch or a TensorDict of rows, got {type(data).__name__}"
        )


def read(data: Any, path: Path) -> Any:
    """The leaf at a path, or None."""
    _check(data)
    if isinstance(data, Batch):
        return data.get(path)
    if is_tensordict(data):
        return data.get(path if len(path) > 1 else path[0], None)
    node = data
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node


def leaves(data: Any) -> dict[Path, Any]:
    """All leaves by path; also those of a TensorDict that are no tensors."""
    _check(data)
    if isinstance(data, Batch):
        return {p: data[p] for p in data.layout.by_path}
    out: dict[Path, Any] = {}

    def walk(node: Any, path: Path) -> None:
        for key, child in node.items():
            inner = isinstance(child, Mapping) or is_tensordict(child)
            if inner and not getattr(type(child), "_is_non_tensor", False):
                walk(child, (*path, key))
            else:
                out[(*path, key)] = child

    walk(data, ())
    return out


def columns_of(data: Any, shape: tuple[int, ...]) -> dict[Path, Any]:
    """All leaves as flat columns: arrays and tensors ``[N, ...]``, `AnySize` of leaves of any size.

    Raises:
        ValueError: a leaf has other batch dims, or is neither.
    """
    out: dict[Path, Any] = {}
    rows = math.prod(shape)
    for path, value in leaves(data).items():
        some = AnySize.of(value, path)
        if some is not None:
            out[path], there, expected = some, [len(some)], [rows]
        else:
            array = value if is_tensor(value) else np.asarray(value)
            there, expected = list(array.shape[: len(shape)]), list(shape)
            if there == expected:
                out[path] = array.reshape(rows, *array.shape[len(shape) :])
        if there != expected:
            raise ValueError(
                f"{show_path(path)}: shape {there}, expected the batch's {expected} first"
            )
    return out


def write(data: Any, columns: dict[Path, Any]) -> Any:
    """The data with leaves added or replaced. A TensorDict is changed in place; others are not."""
    if isinstance(data, Batch):
        return data.with_leaves({p: as_array(v) for p, v in columns.items()}, extra=True)
    if is_tensordict(data):
        for path, value in columns.items():
            data.set(path if len(path) > 1 else path[0], value)
        return data
    out = Nested(data)
    for path, value in columns.items():
        node = out
        for key in path[:-1]:
            child = dict(node.get(key) or {})
            node[key] = child
            node = child  # type: ignore[assignment]
        node[path[-1]] = value
    return out


def as_leaves(columns: dict[Path, Any], shape: tuple[int, ...], whole: bool) -> dict[Path, Any]:
    """Columns of any size in the form that their data had; others as they are.

    Args:
        whole: they go into a TensorDict.
    """
    return {
        p: v.column(p, shape, whole) if isinstance(v, AnySize) else v for p, v in columns.items()
    }


def build(like: Any, columns: dict[Path, Any], shape: tuple[int, ...]) -> Any:
    """Leaves in the form `like` has, with other batch dims."""
    columns = as_leaves(columns, shape, is_tensordict(like))
    if is_tensordict(like):
        from tensordict import TensorDict

        out = TensorDict({}, batch_size=list(shape), device=like.device)
        return write(out, columns)
    nested = write({}, columns)
    if isinstance(like, Batch):
        return Batch.from_tree(dict(nested), len(shape))
    return nested


def tensors(data: Any) -> Any:
    """The same with torch tensors as leaves, over the same memory where they were numpy arrays."""
    _check(data)
    if is_tensordict(data):
        return data
    if isinstance(data, Batch):
        return Nested(data.torch())

    def convert(node: Any) -> Any:
        if isinstance(node, Mapping):
            return {k: convert(v) for k, v in node.items()}
        return node if is_tensor(node) else _as_tensor(node)

    return Nested(convert(data))


def _as_tensor(value: Any) -> Any:
    """What can be none stays as it is: nobody may ask for it."""
    if isinstance(value, Ragged):
        return torch_column(value)
    try:
        return to_torch(np.asarray(value))
    except (TypeError, ValueError):
        return value


def batch_shape(data: Any) -> tuple[int, ...] | None:
    """The batch dims, if the data knows them."""
    if isinstance(data, Batch):
        return data.shape
    return tuple(data.batch_size) if is_tensordict(data) else None


def flat_shape(data: Any, marks: Sequence[Path]) -> tuple[int, ...]:
    """The batch dims: those the data knows, else those of the first of some per-row leaves.

    Raises:
        KeyError: there is none of them.
    """
    shape = batch_shape(data)
    if shape is not None:
        return shape
    for path in marks:
        found = read(data, path)
        if found is not None:
            shape = tuple(np.shape(found))
            # [N, 1] is the form of flags in TensorDicts; nobody gives ids so.
            flag = path[:1] != ("collector",) and len(shape) > 1 and shape[-1] == 1
            return shape[:-1] if flag else shape
    raise no_marks(data, marks)


def no_marks(data: Any, marks: Sequence[Path]) -> KeyError:
    """The error where none of some per-row leaves is there."""
    known = ", ".join(show_path(p) for p in leaves(data))
    looked = ", ".join(show_path(p) for p in marks)
    return KeyError(
        f"no leaf says which rows belong together: looked for {looked}; there are {known}"
    )


def column(data: Any, path: Path, shape: tuple[int, ...]) -> Array | None:
    """A per-row leaf as numpy ``[*shape]``, or None if it is not there.

    Raises:
        ValueError: it has another number of elements.
    """
    found = read(data, path)
    if found is None:
        return None
    array = as_array(found)
    if array.shape not in (shape, (*shape, 1)):
        raise ValueError(
            f"{show_path(path)}: shape {list(array.shape)}, expected one per row: {list(shape)} or "
            f"{[*shape, 1]}"
        )
    return array.reshape(shape)


def boundaries(
    data: Any, shape: tuple[int, ...], *, init: Path | None = INIT, ids: Path | None = TRAJ_IDS
) -> Array:
    """Where a run starts, bool ``[*shape]``, time being the last dim.

    A run starts at the first step of each lane, at `init`, and where the id changes.
    """
    start = np.zeros(shape, np.bool_)
    if start.size == 0:
        return start
    start[..., 0] = True
    marks = None if init is None else column(data, init, shape)
    if marks is not None:
        start |= marks.astype(np.bool_, copy=False)
    numbers = None if ids is None else column(data, ids, shape)
    if numbers is not None:
        start[..., 1:] |= numbers[..., 1:] != numbers[..., :-1]
    return start
