"""The values of rows and of their next states, by a value net: in two calls, or in one.

In one call, each run is followed by the next state of its last row, so that a recurrent net goes on
to it from the run's state; a row's next value is the value of the row after it.

    rows          s0 s1 s2 | s3 s4             (two runs)
    net's input   s0 s1 s2 s2' | s3 s4 s4'
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..convert import as_array
from ..tree import Path, show_path
from .any_size import AnySize, is_plain
from .rows import as_leaves, build, is_tensordict, leaves, read, tensors, write
from .steps import Array, is_tensor

__all__ = ["values_of"]


def values_of(
    data: Any, stop: Array, *, time: int, net: Any, single_call: bool, key: Path, init: Path
) -> tuple[Any, Any]:
    """Values of the rows and of their next states.

    Args:
        stop: where runs end, bool, the batch's shape.
        others: as in the estimators.
    """
    if net is None:
        return _stored(data, key), _stored(data, ("next", *key))
    if _is_module(net) or is_tensordict(data):
        data = tensors(data)
    if single_call:
        return _once(data, stop, time, net, key, init)
    shape = stop.shape
    columns = leaves(data)
    now = {p: v for p, v in columns.items() if p[0] != "next"}
    after = {**now, **{p[1:]: v for p, v in columns.items() if p[0] == "next" and len(p) > 1}}
    return _call(net, data, now, shape, key), _call(net, data, after, shape, key)


def _stored(data: Any, path: Path) -> Any:
    found = read(data, path)
    if found is None:
        known = ", ".join(show_path(p) for p in leaves(data))
        raise KeyError(
            f"no values at {show_path(path)}; there are {known}; give a value_net, or store the "
            "values of the rows and of their next states"
        )
    return found


def _once(data: Any, stop: Array, time: int, net: Any, key: Path, init: Path) -> tuple[Any, Any]:
    shape, ndim = stop.shape, stop.ndim
    columns = leaves(data)
    # Flat, lane by lane: the number of each row in the arrays as they are.
    numbers = np.moveaxis(np.arange(stop.size).reshape(shape), time, -1).reshape(-1)
    ends = np.moveaxis(stop, time, -1).reshape(-1)
    if len(ends):
        ends = ends.copy()
        ends[shape[time] - 1 :: shape[time]] = True
    extra = np.cumsum(ends) - ends  # of each row, how many next states lie before it
    place = np.arange(len(ends)) + extra
    total = len(ends) + int(ends.sum())
    source = np.empty(total, np.int64)
    source[place] = numbers
    source[place[ends] + 1] = numbers[ends]
    is_next = np.zeros(total, np.bool_)
    is_next[place[ends] + 1] = True

    merged: dict[Path, Any] = {}
    for path, value in columns.items():
        if path[0] == "next":
            continue
        after = columns.get(("next", *path))
        if not is_plain(value):
            merged |= _any_size(value, after, source, is_next, path)
            continue
        rows = _take(value.reshape(-1, *value.shape[ndim:]), source)
        if after is not None:
            late = _take(after.reshape(-1, *after.shape[ndim:]), source[is_next])
            rows = _put(rows, is_next, late)
        merged[path] = rows
    if init in merged:  # as the runs begin, and nowhere else
        begins = np.roll(is_next, 1)
        merged[init] = _begin(merged[init], begins, is_next)
    value = _call(net, data, merged, (total,), key)
    back = np.empty(stop.size, np.int64)
    back[numbers] = place
    tail = value.shape[1:]
    return (
        _take(value, back).reshape(*shape, *tail),
        _take(value, back + 1).reshape(*shape, *tail),
    )


def _any_size(
    value: Any, after: Any, source: Array, is_next: Array, path: Path
) -> dict[Path, AnySize]:
    """The same of a leaf of any size; none of objects that have no rows."""
    try:
        now, later = AnySize.of(value, path), AnySize.of(after, path)
    except ValueError:
        return {}
    if now is None or later is None:
        return {} if now is None else {path: now.take(source)}
    return {path: now.followed_by(later).take(np.where(is_next, source + len(now), source))}


def _take(array: Any, rows: Array) -> Any:
    if not is_tensor(array):
        return array[rows]
    import torch

    return array.index_select(0, torch.from_numpy(rows).to(array.device))


def _put(rows: Any, where: Array, values: Any) -> Any:
    if not is_tensor(rows):
        rows[where] = values
        return rows
    import torch

    at = torch.from_numpy(np.flatnonzero(where)).to(rows.device)
    return rows.index_copy(0, at, values.to(rows.dtype))


def _begin(marks: Any, begins: Array, is_next: Array) -> Any:
    shape = marks.shape
    new = (as_array(marks).astype(np.bool_).reshape(len(begins), -1) | begins[:, None]) & ~is_next[
        :, None
    ]
    new = new.reshape(tuple(shape))
    if not is_tensor(marks):
        return new.astype(marks.dtype)
    import torch

    return torch.from_numpy(new).to(marks.device, marks.dtype)


def _is_module(net: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(net, torch.nn.Module)


def _call(net: Any, like: Any, columns: dict[Path, Any], shape: tuple[int, ...], key: Path) -> Any:
    torch = sys.modules.get("torch")
    if is_tensordict(like):
        given = build(like, columns, shape)
    else:
        given = write({}, as_leaves(columns, shape, False))
    if torch is None:
        out = net(given)
    else:
        with torch.no_grad():
            out = net(given)
    if hasattr(out, "keys"):
        found = read(out, key)
        if found is None:
            raise KeyError(f"value_net returned rows without {show_path(key)}")
        out = found
    if tuple(np.shape(out))[: len(shape)] != shape:
        raise ValueError(
            f"value_net: got values of shape {list(np.shape(out))} for rows {list(shape)}; "
            "expected one value per row"
        )
    return out.detach() if is_tensor(out) else np.asarray(out)
