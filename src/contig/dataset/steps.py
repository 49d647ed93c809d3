"""Buffers of transitions: single steps of them, and what DataLoaders make of several.

A buffer is a tensor, a TensorDict, or named tuples, tuples, lists and dicts of such; None is a
field that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate

from ..errors import LayoutError

__all__ = ["DatasetTransition", "part", "rows_until", "step_of", "took"]

_NOTHING = object()


class DatasetTransition(NamedTuple):
    """One step of all envs, or T of them; privileged observations are None if there are none.

    Attributes:
        observation, next_observation: before and after the step.
        privileged_observation, next_privileged_observation: what only a critic sees.
        action, reward: of the step.
        done, timeout: whether it ended an episode, and whether by a time limit.
    """

    observation: Any
    privileged_observation: Any
    action: Any
    reward: Any
    done: Any
    timeout: Any
    next_observation: Any
    next_privileged_observation: Any


def part(buffer: Any, name: str, default: Any = _NOTHING) -> Any:
    """A field by name: a key of a mapping, or an attribute.

    Raises:
        LayoutError: there is no such field, and no default.
    """
    keyed = isinstance(buffer, Mapping) or _is_tensordict(buffer)
    found = buffer.get(name, default) if keyed else getattr(buffer, name, default)
    if found is not _NOTHING:
        return found
    has = list(buffer.keys()) if keyed else list(getattr(buffer, "_fields", ()))
    raise LayoutError(
        f"{type(buffer).__name__} has no {name}, which a transition needs; it has "
        f"{', '.join(map(str, has)) or 'no fields'}"
    )


def step_of(buffer: Any, t: int) -> Any:
    """Step t of ``[T, num_envs, ...]``; its tensors are views."""
    return _each(buffer, lambda tensor: tensor[t])


def rows_until(buffer: Any, t: int) -> Any:
    """The first t steps."""
    return _each(buffer, lambda tensor: tensor[:t])


def took(buffer: Any, t: int, row: Any) -> None:
    """Copies what was put into a step's dicts in place of its views.

    Raises:
        LayoutError: something that the buffer has no room for.
    """
    if isinstance(buffer, Mapping):
        for key, value in row.items():
            if key not in buffer:
                raise LayoutError(
                    f"fill_transition wrote {key!r}, for which get_buffer made no tensor; it made "
                    f"{', '.join(map(repr, buffer)) or 'none'}"
                )
            mine = buffer[key]
            if not isinstance(mine, torch.Tensor):
                took(mine, t, value)
            elif value.data_ptr() != mine[t].data_ptr():
                mine[t].copy_(value)
    elif isinstance(buffer, (tuple, list)):
        for mine, value in zip(buffer, row):
            if isinstance(mine, (Mapping, tuple, list)):
                took(mine, t, value)


def _each(buffer: Any, function: Callable[[Any], Any]) -> Any:
    if buffer is None:
        return None
    if isinstance(buffer, torch.Tensor) or _is_tensordict(buffer):
        return function(buffer)
    if isinstance(buffer, Mapping):
        return {key: _each(value, function) for key, value in buffer.items()}
    if isinstance(buffer, tuple) and hasattr(buffer, "_fields"):
        return type(buffer)(*(_each(value, function) for value in buffer))
    if isinstance(buffer, (tuple, list)):
        return type(buffer)(_each(value, function) for value in buffer)
    raise LayoutError(
        f"get_buffer returned {type(buffer).__name__}: expected tensors, Nones, and named tuples, "
        "tuples, lists, dicts or TensorDicts of such"
    )


def _is_tensordict(value: Any) -> bool:
    return type(value).__module__.startswith("tensordict") and hasattr(value, "batch_size")


def _collate(steps: list[DatasetTransition], *, collate_fn_map: Any = None) -> DatasetTransition:
    """Steps in a row, ``[T, num_envs, ...]``, for DataLoaders with a batch size."""
    columns = zip(*steps)
    return DatasetTransition._make(
        None if c[0] is None else default_collate(list(c)) for c in columns
    )


def _teach_data_loaders() -> None:
    """A DataLoader's own way stops at fields that are None; torch has this table for such types."""
    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map[DatasetTransition] = _collate


_teach_data_loaders()
