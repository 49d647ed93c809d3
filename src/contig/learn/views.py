"""Other views of flat rows: trajectory by trajectory, and with a time dim of fixed length.

Rows are nested dicts of numpy arrays or tensors, a Batch or a TensorDict, flat ``[N]`` or
``[B, T]``; what comes back has that form. Learning from flat rows needs none of this.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import as_array
from ..keys import DONE, FLAGS, INIT, MASK, REWARD, SLICE_END, TRAJ_IDS
from ..tree import Path, as_path, show_path
from .any_size import AnySize
from .rows import (
    boundaries,
    build,
    column,
    columns_of,
    flat_shape,
    leaves,
    no_marks,
    read,
)
from .steps import Array, is_tensor

__all__ = ["split_trajectories", "per_trajectory", "pad_slices", "unpad_slices"]

_MARKS = (TRAJ_IDS, DONE, DONE[1:], INIT)
Columns = dict[Path, Any]


def _flat(
    data: Any, ids: Path | None = None, done: Path | None = None
) -> tuple[Columns, Array, int]:
    """Leaves ``[N, ...]``, where trajectories start, and N. Marks that are named decide alone."""
    named = ids or done
    if named is not None and read(data, named) is None:
        raise no_marks(data, [named])
    shape = flat_shape(data, _MARKS if named is None else (named,))
    columns = columns_of(data, shape)
    start = boundaries(data, shape, init=None if named else INIT, ids=ids if named else TRAJ_IDS)
    if done is not None and ids is None:
        start[..., 1:] |= np.asarray(column(data, done, shape), np.bool_)[..., :-1]
    for path in () if named else (DONE, DONE[1:], SLICE_END):
        # A row after an end; only the first of the done flags counts.
        if path == DONE[1:] and DONE in columns:
            continue
        if path in columns and (found := _ends(columns[path], shape)) is not None:
            start[..., 1:] |= found[..., :-1]
    return columns, start.reshape(-1), start.size


def _ends(value: Any, shape: tuple[int, ...]) -> Array | None:
    """One flag per row, or None if there are several, as of agents."""
    if isinstance(value, AnySize) or tuple(value.shape[1:]) not in ((), (1,)):
        return None
    return as_array(value).reshape(shape).astype(np.bool_)


def _pieces(start: Array, n: int) -> tuple[Array, Array]:
    first = np.flatnonzero(start)
    return first, np.diff(first, append=n)


def _take(array: Any, rows: Array) -> Any:
    if isinstance(array, AnySize):
        return array.take(rows)
    if not is_tensor(array):
        return array[rows]
    import torch

    return array[torch.from_numpy(rows).to(array.device)]


def _like(array: Array, data: Any, columns: Columns) -> Any:
    """A new leaf in the form that the others have."""
    tensor = next((v for v in columns.values() if is_tensor(v)), None)
    if tensor is None or isinstance(data, Batch):
        return array
    import torch

    return torch.from_numpy(array).to(tensor.device)


# -- trajectories --------------------------------------------------------------------------------


def split_trajectories(
    data: Any = None,
    as_nested: bool = False,
    *,
    rollout_tensordict: Any = None,
    prefix: Any = None,
    trajectory_key: Any = None,
    done_key: Any = None,
) -> Any:
    """One row per trajectory.

    Padded with zeros to ``[trajectories, longest]``, with a bool `mask` of real steps, also at
    ``("collector", "mask")`` if there is a "collector". With `as_nested` nothing is padded: tensors
    become torch's jagged nested tensors; numpy arrays, and a Batch, a list with one item per
    trajectory.

    A trajectory ends at a done row, at a slice's end, and where the id or a first step says so.

    Args:
        data: the rows.
        rollout_tensordict: another name for `data`, as TorchRL has it.
        prefix: where `traj_ids` are and `mask` goes, in place of the above.
        trajectory_key: ids; they decide alone.
        done_key: flags of the last rows, also below ``"next"``; they decide alone, if no ids are
            named.

    Raises:
        KeyError: no leaf says which rows belong together, or none has the key that was given.

    Warns:
        UserWarning: for the padded form, which costs memory and a mask everywhere.
    """
    if (data is None) == (rollout_tensordict is None):
        raise TypeError("split_trajectories: expected rows, as data or as rollout_tensordict")
    data = rollout_tensordict if data is None else data
    under = None if prefix is None else as_path(prefix)
    ids, done = _keys(data, under, trajectory_key, done_key)
    columns, start, n = _flat(data, ids, done)
    first, lengths = _pieces(start, n)
    if as_nested:
        return _nested(data, columns, first, lengths)
    warnings.warn(
        "split_trajectories pads: every consumer must honour the mask. Flat rows need no padding: "
        "recurrent modules and value estimators take them as they are",
        UserWarning,
        stacklevel=2,
    )
    return _padded(data, columns, first, lengths, under)


def _padded(data: Any, columns: Columns, first: Array, lengths: Array, prefix: Path | None) -> Any:
    """Rows ``[trajectories, longest]``, and the mask of real ones."""
    longest = int(lengths.max(initial=0))
    steps = np.arange(longest)
    mask = steps < lengths[:, None]
    rows = np.where(mask, first[:, None] + steps, 0)
    out: Columns = {}
    for path, value in columns.items():
        if isinstance(value, AnySize):
            out[path] = value.take(np.where(mask, rows, -1))
            continue
        taken = _take(value, rows)
        shape = (*mask.shape, *[1] * (taken.ndim - 2))
        if is_tensor(taken):
            out[path] = taken.masked_fill(~_like(mask, None, {path: taken}).reshape(shape), 0)
        else:
            out[path] = np.where(mask.reshape(shape), taken, np.zeros((), taken.dtype))
    places: list[Path] = [("mask",)] if prefix is None else [(*prefix, "mask")]
    if prefix is None and any(p[0] == "collector" for p in columns):
        places.append(MASK)
    for path in places:
        out[path] = _like(mask, data, columns)
    return build(data, out, mask.shape)


def _keys(data: Any, prefix: Path | None, ids: Any, done: Any) -> tuple[Path | None, Path | None]:
    """Paths of the marks that were named."""
    if ids is not None:
        return as_path(ids), None
    if prefix is not None and read(data, (*prefix, "traj_ids")) is not None:
        return (*prefix, "traj_ids"), None
    if done is None:
        return None, None
    below = ("next", *as_path(done))
    return None, below if read(data, below) is not None else as_path(done)


def _nested(data: Any, columns: Columns, first: Array, lengths: Array) -> Any:
    if not any(is_tensor(v) for v in columns.values()):
        return [
            build(data, {p: _take(v, at + np.arange(n)) for p, v in columns.items()}, (n,))
            for at, n in zip(first.tolist(), lengths.tolist())
        ]
    for path, value in columns.items():
        if isinstance(value, AnySize):
            raise ValueError(
                f"{show_path(path)}: its rows have different lengths already, and nested tensors "
                "hold no nested ones; leave it out, or give a Batch, which becomes a list"
            )
    import torch

    offsets = np.append(first, int(lengths.sum()))
    out = {
        p: torch.nested.nested_tensor_from_jagged(
            torch.as_tensor(v), torch.from_numpy(offsets).to(getattr(v, "device", None))
        )
        for p, v in columns.items()
    }
    return build(data, out, (len(first),))


def per_trajectory(data: Any, fn: Callable[[Any], Any] | None = None) -> Any:
    """Something about each trajectory of some rows, in the order in which they first appear.

    Rows with one ``("collector", "traj_ids")`` belong together, wherever they are; without ids,
    rows up to an end do.

    Args:
        fn: gets the rows of one trajectory, in the form the data has, and returns a number, an
            array, or a mapping of these. None: `traj_ids` (if there are), `length` and `return`,
            the sum of ``("next", "reward")`` or `reward`.

    Returns:
        numpy arrays with one entry per trajectory, of what `fn` returned.
    """
    columns, start, n = _flat(data)
    ids = columns.get(TRAJ_IDS)
    number = np.cumsum(start) - 1
    if ids is not None:
        known, seen, number = np.unique(
            as_array(ids).reshape(n), return_index=True, return_inverse=True
        )
        rank = np.empty(len(known), np.int64)
        rank[np.argsort(seen)] = np.arange(len(known))
        number = rank[number.reshape(-1)]
    count = int(number.max()) + 1 if n else 0
    lengths = np.bincount(number, minlength=count)
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(lengths)[:-1]) if n else []
    if fn is not None:
        found = [
            fn(build(data, {p: _take(v, r) for p, v in columns.items()}, (len(r),))) for r in rows
        ]
        return _stack(found)
    out: dict[str, Any] = {}
    if ids is not None:
        out["traj_ids"] = as_array(ids).reshape(n)[[r[0] for r in rows]]
    out["length"] = lengths
    for path in (REWARD, REWARD[1:]):
        if path in columns:
            reward = as_array(columns[path]).reshape(n, -1).astype(np.float64)
            sums = np.zeros((count, reward.shape[1]))
            np.add.at(sums, number, reward)
            shape = np.shape(columns[path])[1:]
            out["return"] = sums.reshape(count, *(shape if shape != (1,) else ()))
            break
    return out


def _stack(found: list[Any]) -> Any:
    if found and isinstance(found[0], Mapping):
        return {k: _stack([f[k] for f in found]) for k in found[0]}
    return np.stack([as_array(f) for f in found]) if found else np.empty(0)


# -- slices --------------------------------------------------------------------------------------


def pad_slices(data: Any, length: int | None = None) -> Any:
    """Flat slices as ``[slices, length]``, each one's last row repeated.

    ``("collector", "mask")`` says which rows are real. Marks of starts and ends are False in
    padding, as with `SliceSampler(pad_output=True)`.

    Args:
        length: rows of each; None: the longest one's.

    Raises:
        ValueError: a longer slice, or rows that are padded already.
    """
    columns, start, n = _flat(data)
    if MASK in columns:
        raise ValueError(
            f"{show_path(MASK)} is there: the rows are padded already; unpad_slices takes it off"
        )
    first, lengths = _pieces(start, n)
    longest = int(lengths.max()) if n else 0
    length = longest if length is None else length
    if length < longest:
        raise ValueError(f"length {length}: there is a slice of {longest} rows")
    steps = np.arange(length)
    mask = steps < lengths[:, None]
    rows = first[:, None] + np.minimum(steps, lengths[:, None] - 1)
    out: Columns = {}
    for path, value in columns.items():
        taken = _take(value, rows)
        marks = path in (INIT, SLICE_END) or path[-1] in FLAGS
        if marks and not isinstance(taken, AnySize):
            real = _like(mask, None, {path: value}).reshape(*mask.shape, *[1] * (taken.ndim - 2))
            taken = taken * real if is_tensor(taken) else taken & real.astype(taken.dtype)
        out[path] = taken
    out[MASK] = _like(mask, data, columns)
    return build(data, out, mask.shape)


def unpad_slices(data: Any) -> Any:
    """The real rows of padded ones, flat, without the mask: what `pad_slices` was given.

    Raises:
        KeyError: there is no ``("collector", "mask")``.
    """
    if read(data, MASK) is None:
        known = ", ".join(show_path(p) for p in leaves(data))
        raise KeyError(f"no {show_path(MASK)}, so the rows are not padded; there are {known}")
    shape = flat_shape(data, (MASK,))  # [slices, length], or flat
    mask = column(data, MASK, shape)
    assert mask is not None
    rows = np.flatnonzero(mask)
    columns = columns_of(data, shape)
    del columns[MASK]
    return build(data, {p: _take(v, rows) for p, v in columns.items()}, (len(rows),))
