"""TensorDicts as trees, and trees as TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..tree import Path, nested, show_path

__all__ = [
    "non_tensors",
    "plain_tree",
    "refuse_non_tensor",
    "tensordict_shape",
    "text_of",
    "to_tensordict",
]


def plain_tree(data: Any, text: bool = True) -> tuple[Any, tuple[int, ...] | None]:
    """A TensorDict, or a tensorclass, as nested dicts, with its batch shape; anything else as it
    is, with None.

    Args:
        text: whether there may be text and bytes: they are str, bytes or lists of them then.

    Raises:
        ValueError: text or another object is in the TensorDict, with its path.
    """
    shape = tensordict_shape(data)
    return (data, None) if shape is None else (_from_tensordict(data, text), shape)


def tensordict_shape(data: Any) -> tuple[int, ...] | None:
    """The batch shape of a TensorDict, or of a tensorclass; None of anything else."""
    kind = type(data)
    if kind.__module__.startswith("tensordict") or getattr(kind, "_is_tensorclass", False):
        shape = getattr(data, "batch_size", None)
        return None if shape is None else tuple(shape)
    return None


def _from_tensordict(data: Any, text: bool, path: Path = ()) -> dict[str, Any]:
    _refuse_partial(data, path)
    out: dict[str, Any] = {}
    for key, value in data.items():
        if getattr(type(value), "_is_non_tensor", False):
            if not text:
                refuse_non_tensor(value, (*path, key))
            value = text_of(value, (*path, key))
        elif isinstance(value, Mapping) or hasattr(value, "batch_size"):
            value = _from_tensordict(value, text, (*path, key))
        out[key] = value
    return out


def _refuse_partial(data: Any, path: Path) -> None:
    """A lazy stack has only the keys that all its parts have: the others would be lost.

    Raises:
        ValueError: a key that only some of them have.
    """
    parts = getattr(data, "tensordicts", None)
    if not isinstance(parts, list):
        return
    for part in parts:  # they may be stacks themselves
        _refuse_partial(part, path)
    keys = [set(part.keys()) for part in parts]
    some = set().union(*keys) - keys[0].intersection(*keys[1:])
    if some:
        key = min(some, key=str)
        where = (*path, key)
        lacking = next(i for i, mine in enumerate(keys) if key not in mine)
        raise ValueError(
            f"{show_path(where)}: only some of the {len(keys)} stacked TensorDicts have it (number "
            f"{lacking} does not), and every row has the same leaves; give it to all of them, or "
            f"leave it out: data.exclude({(key if len(where) == 1 else where)!r})"
        )


def text_of(value: Any, path: Path) -> Any:
    """What a node without tensors holds: one str or bytes, or a list of them, one per row.

    Raises:
        ValueError: it holds something else.
    """
    shape = tuple(value.batch_size)
    whole = None if hasattr(value, "tensordicts") else value.data
    if isinstance(whole, list) and shape == (len(whole),):  # set_non_tensor of one for each row
        held: Any = whole
    else:
        held = value.tolist()
    rows = [held]
    for _ in shape:
        rows = [row for part in rows for row in part] if isinstance(held, list) else rows
    if not isinstance(held, list) and shape:  # one for all rows
        held = np.full(shape, None, object)
        held[...] = value.data
        rows, held = [value.data], held.tolist()
    if not all(isinstance(row, (str, bytes)) for row in rows):
        refuse_non_tensor(value, path)
    return held


def refuse_non_tensor(value: Any, path: Path) -> None:
    """Objects are in a TensorDict as nodes without leaves: they would be lost.

    Raises:
        ValueError: the value is such a node.
    """
    if getattr(type(value), "_is_non_tensor", False):
        raise ValueError(
            f"{show_path(path)}: a {type(value).__name__}, which is text or another object, has no "
            "fixed-size numeric form; encode text as integers (token ids), or leave it out: "
            f"data.exclude({path[0] if len(path) == 1 else path!r})"
        )


def non_tensors(rows: list[Any]) -> Any:
    """Text or bytes, one per row, as a TensorDict has them."""
    from tensordict import NonTensorData, NonTensorStack

    if not rows:
        return NonTensorData(data=[], batch_size=[0])
    return NonTensorStack(*(NonTensorData(data=row) for row in rows))


def to_tensordict(
    flat: dict[tuple[str, ...], Any], shape: tuple[int, ...], device: Any, checked: bool = False
) -> Any:
    """A TensorDict from leaves by path.

    Args:
        checked: all are tensors with these batch dims, on this device: nobody looks again, which is
            half of the time that it takes.
    """
    from tensordict import TensorDict

    tree = nested(flat)
    if checked and device is None:
        from torch import Size

        make = getattr(TensorDict, "_new_unsafe", None)  # tensordict's own way inside its library
        if make is not None:
            return make(tree, batch_size=Size(shape))
    return TensorDict(tree, batch_size=list(shape), device=device)
