"""Trajectory: what a rollout hands over, ``[T, B, ...]``, and how it becomes rows.

    step   t = 0 ... T - 1, of B envs            row = t * B + b
    flags  [T + E]: the first row of each of E epochs is from before its first step   dropped
    values [T + E]: the last row of each epoch is from after its last step            dropped

Values only: nothing here has a lock or a file.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..convert import as_array, leaf_spec
from ..errors import LayoutError
from ..tree import Path, nested, show_path
from .text import show_text, text_of, text_rows

__all__ = ["BOOTSTRAPPED", "Array", "Flat", "Trajectory", "flatten_trajectory"]

Array = np.ndarray[Any, Any]

# Fields that may have a row more per epoch, and where in the epoch that row is.
_FIRST_IS_EXTRA = ("dones", "terminations", "truncations")
_LAST_IS_EXTRA = ("prev_values",)
BOOTSTRAPPED = (*_FIRST_IS_EXTRA, *_LAST_IS_EXTRA)
_DESCRIBE = ("max_episode_length", "model_weights_id")


@dataclasses.dataclass(eq=False)
class Trajectory:
    """Steps of B envs, ``[T, B, ...]``; it may contain several episodes.

    Arrays are torch, numpy or jax; lists of strings ``[T][B]``, or ``[B]`` for all steps, are taken
    too, anywhere in the dicts. A field that is None, and an empty dict, is absent. `dones`,
    `terminations`, `truncations` and `prev_values` may have E more rows, one for each of E rollout
    epochs.

    Attributes:
        max_episode_length: kept in the index.
        model_weights_id: which weights acted; see `TrajectoryReplayBuffer(max_staleness=)`.
        actions, rewards, prev_logprobs, prev_values: of each step; log-probabilities and values are
            those of the policy that acted.
        intervene_flags: where a human acted, ``[T, B]`` or ``[T, B, ...]``.
        terminations, truncations, dones: how steps ended.
        versions: of the weights, step by step.
        forward_inputs, curr_obs, next_obs: nested dicts: what the model was given, and what was
            seen before and after each step.
    """

    max_episode_length: int = 0
    model_weights_id: str = ""
    actions: Any = None
    intervene_flags: Any = None
    rewards: Any = None
    terminations: Any = None
    truncations: Any = None
    dones: Any = None
    prev_logprobs: Any = None
    prev_values: Any = None
    versions: Any = None
    forward_inputs: Any = dataclasses.field(default_factory=dict)
    curr_obs: Any = dataclasses.field(default_factory=dict)
    next_obs: Any = dataclasses.field(default_factory=dict)

    def extract_intervene_traj(self, mode: str = "any") -> list[Trajectory]:
        """The steps in which a human acted: a trajectory ``[T', 1, ...]`` for each env with some.

        Args:
            mode: "any" or "all": whether one flag of a step is enough, where it has several.
        """
        if mode not in ("any", "all"):
            raise ValueError(f'mode: expected "any" or "all", got {mode!r}')
        if self.intervene_flags is None:
            return []
        flat = flatten_trajectory(self)
        steps, envs = flat.shape[:2]
        flags = flat.columns["intervene_flags",].reshape(steps, envs, -1) != 0
        acted = flags.any(-1) if mode == "any" else flags.all(-1)
        out = []
        for env in range(envs):
            kept = np.flatnonzero(acted[:, env])
            if len(kept):
                rows = kept * envs + env
                columns = {p: _like(self, p, c[rows][:, None]) for p, c in flat.columns.items()}
                meta = {name: getattr(self, name) for name in _DESCRIBE}
                out.append(Trajectory(**meta, **nested(columns)))
        return out


class Flat(NamedTuple):
    """A trajectory as rows.

    Attributes:
        columns: by path, ``[T * B, ...]``; of text, its bytes as UTF-8 (dtype S).
        shape: ``(T, B, ...)``, of `prev_logprobs` or `rewards` if there are any.
    """

    columns: dict[Path, Array]
    shape: tuple[int, ...]
    max_episode_length: int
    model_weights_id: str

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[1]


def flatten_trajectory(trajectory: Any) -> Flat:
    """Rows of a Trajectory, of another dataclass with such fields, or of a mapping.

    Raises:
        LayoutError: no steps, or fields that do not fit together, with the field's path.
    """
    fields = _fields(trajectory)
    length, weights = (fields.pop(name, None) for name in _DESCRIBE)
    arrays: dict[Path, Array] = {}
    texts: dict[Path, Array] = {}
    _collect(fields, (), arrays, texts)
    if not arrays:
        raise LayoutError("a trajectory without a field: give at least one array [T, B, ...]")
    paths = list(arrays)
    for path, array in arrays.items():
        if array.ndim < 2:
            raise LayoutError(
                f"{show_path(path)}: shape {list(array.shape)}, expected [T, B, ...]; what is one "
                "value per trajectory cannot be sampled with its steps: leave it out"
            )
    shape = arrays[_reference(paths)].shape
    if shape[0] * shape[1] == 0:
        raise LayoutError(f"{show_path(_reference(paths))}: shape {list(shape)} has no steps")
    columns = {path: _rows(path, array, *shape[:2]) for path, array in arrays.items()}
    columns |= {path: text_rows(path, array, *shape[:2]) for path, array in texts.items()}
    return Flat(columns, tuple(shape), int(length or 0), str("" if weights is None else weights))


def _fields(trajectory: Any) -> dict[str, Any]:
    if isinstance(trajectory, Mapping):
        return dict(trajectory)
    if dataclasses.is_dataclass(trajectory) and not isinstance(trajectory, type):
        return {name: getattr(trajectory, name) for name in _names(type(trajectory))}
    raise TypeError(
        f"expected a Trajectory or a mapping of fields, got {type(trajectory).__name__}"
    )


@functools.cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


def _collect(
    fields: Mapping[Any, Any], path: Path, arrays: dict[Path, Array], texts: dict[Path, Array]
) -> None:
    """Arrays of nested mappings, and lists of strings, by path; None is absent."""
    for key, value in fields.items():
        if value is None:
            continue
        text = text_of(value)
        if text is not None:
            texts[*path, key] = text
            continue
        if hasattr(value, "dtype"):
            array = as_array(value)
            if array.dtype.kind not in "biufc":
                leaf_spec(value, (*path, key))  # refuses text and objects
            arrays[*path, key] = array
        elif isinstance(value, Mapping):
            _collect(value, (*path, key), arrays, texts)
        else:
            leaf_spec(value, (*path, key))  # and lists
            arrays[*path, key] = as_array(value)


def _reference(paths: list[Path]) -> Path:
    """The field whose shape is the trajectory's."""
    for name in ("prev_logprobs", "rewards", "actions"):
        if (name,) in paths:
            return (name,)
    plain = (p for p in paths if p[0] not in BOOTSTRAPPED)
    return next(plain, paths[0])


def _rows(path: Path, array: Array, steps: int, envs: int) -> Array:
    """One field as rows, without the extra ones."""
    extra = array.shape[0] - steps
    may = path[0] in BOOTSTRAPPED
    if array.shape[1] != envs or extra < 0 or (extra and not may):
        more = " (or one more per epoch)" if may else ""
        raise LayoutError(
            f"{show_path(path)}: shape {list(array.shape)}, expected [{steps}, {envs}, ...]{more} "
            "as the trajectory's other fields have"
        )
    if extra:
        if steps % extra:
            raise LayoutError(
                f"{show_path(path)}: {array.shape[0]} rows are {extra} more than the trajectory's "
                f"{steps} steps, which cannot be divided into {extra} epochs"
            )
        epochs = array.reshape(extra, steps // extra + 1, *array.shape[1:])
        array = epochs[:, 1:] if path[0] in _FIRST_IS_EXTRA else epochs[:, :-1]
    row = array.shape[3:] if extra else array.shape[2:]
    return array.reshape(steps * envs, *row)


def _like(trajectory: Trajectory, path: Path, array: Array) -> Any:
    """An array as the kind of array that the field has."""
    if array.dtype.kind == "S":
        return show_text(array)
    node: Any = getattr(trajectory, str(path[0]))
    for key in path[1:]:
        node = node[key]
    if type(node).__module__.startswith("torch"):
        from ..convert import to_torch

        return to_torch(np.ascontiguousarray(array))
    return array
