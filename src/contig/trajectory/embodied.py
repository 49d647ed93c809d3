"""RLinf's rollout results as trajectories, by the attributes they have: RLinf itself is not needed.

    ChunkStepResult        what one policy call led to: actions [B, k * A], rewards [B, k], ...
    EmbodiedRolloutResult  lists of those, T of each, or T + E where each of E epochs has one more
    Trajectory             [T, B, ...] of each, as `TrajectoryReplayBuffer` takes it

A policy call gives a chunk of k actions for each of B envs. RLinf keeps them side by side, and so
does a Trajectory, unless it is told k.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arguments import whole
from ..convert import as_array, to_torch
from ..errors import LayoutError
from ..tree import Path, show_path
from .trajectory import Array, Trajectory

__all__ = ["from_chunk_steps", "from_rollout_result"]

_ARRAYS = (
    "actions",
    "intervene_flags",
    "rewards",
    "terminations",
    "truncations",
    "dones",
    "prev_logprobs",
    "prev_values",
    "versions",
)
_TREES = ("forward_inputs", "curr_obs", "next_obs")
# Text that comes with observations, which RLinf leaves out of transitions, too.
_TEXT = "task_descriptions"
# The policy's action before it was fitted to the env. Steps in which a human acted have none, and a
# trajectory with such steps neither: `action` is what was done in all of them.
_MODEL_ACTION = "model_action"


def from_rollout_result(result: Any, *, chunk: int | None = None) -> Trajectory:
    """The trajectory of an EmbodiedRolloutResult, or of anything with lists of its names.

    Args:
        result: its lists have one entry ``[B, ...]`` for each step (or, as some versions keep them,
            one list of T entries for each env). Empty and missing ones are absent.
        chunk: k, to have actions as ``[T, B, k, A]`` and `intervene_flags` as ``[T, B, k]``; None:
            as RLinf has them, ``[T, B, k * A]``.

    Raises:
        TypeError: it has no such list.
        LayoutError: entries that do not fit together, with field and step.
    """
    fields: dict[str, Any] = {}
    for name in (*_ARRAYS, *_TREES):
        steps = getattr(result, name, None)
        if steps is not None and len(steps):
            stacked = _stacked_envs(steps, (name,))
            if stacked is not None:
                fields[name] = stacked
    return _trajectory(fields, result, getattr(result, "max_episode_length", 0), chunk)


def from_chunk_steps(
    steps: Iterable[Any],
    *,
    transitions: Iterable[tuple[Any, Any]] = (),
    interventions: Iterable[tuple[Any, Any] | None] = (),
    max_episode_length: int = 0,
    chunk: int | None = None,
) -> Trajectory:
    """The trajectory of ChunkStepResults, in their order.

    Attributes of a step that are None are left out, so that the first step of an epoch may have
    flags only, and its last `prev_values` only.

    Args:
        transitions: ``(curr_obs, next_obs)`` of each step that has actions.
        interventions: of each step that has actions, None or ``(actions [B, k * A], flags [B, k])``
            of a human. They take the place of the policy's where the flag is set, in
            `forward_inputs["action"]`, too; `forward_inputs["model_action"]` is left out then.
        max_episode_length: of the envs.
        chunk: as of `from_rollout_result`.

    Raises:
        TypeError: a step has none of the attributes.
        LayoutError: entries that do not fit together, with field and step.
    """
    lists: dict[str, list[Any]] = {name: [] for name in (*_ARRAYS, *_TREES)}
    given, last = iter(interventions), None
    for last in steps:
        step = {name: getattr(last, name, None) for name in (*_ARRAYS, "forward_inputs")}
        if step["actions"] is not None:
            if step["intervene_flags"] is None:
                nobody = np.zeros(step["actions"].shape, np.bool_)
                step["intervene_flags"] = _like(step["actions"], nobody)
            human = next(given, None)
            if human is not None:
                step |= _intervened(step, *human, len(lists["actions"]))
        for name, value in step.items():
            if value is not None and not (isinstance(value, Mapping) and not value):
                lists[name].append(value)
    for before, after in transitions:
        lists["curr_obs"].append(before)
        lists["next_obs"].append(after)
    fields = {name: _stacked(values, (name,)) for name, values in lists.items() if values}
    return _trajectory(fields, last, max_episode_length, chunk)


def _trajectory(fields: dict[str, Any], source: Any, length: Any, chunk: int | None) -> Trajectory:
    if not fields:
        raise TypeError(
            f"expected RLinf's rollout results, got {type(source).__name__} with none of "
            f"{', '.join((*_ARRAYS, *_TREES))}"
        )
    for name in ("actions", "intervene_flags") if chunk is not None else ():
        if name in fields:
            fields[name] = _in_chunks(fields[name], whole("chunk", chunk, 1), name)
    if chunk is not None and "intervene_flags" in fields:
        fields["intervene_flags"] = fields["intervene_flags"].any(-1)
    weights = _weights_id(fields.get("versions"))
    return Trajectory(max_episode_length=int(length or 0), model_weights_id=weights, **fields)


def _weights_id(versions: Any) -> str:
    """RLinf's own name for the weights of these versions: the same here and there."""
    array = np.zeros(1, np.float32) if versions is None else as_array(versions)
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, np.ascontiguousarray(array).tobytes().hex()))


def _in_chunks(column: Any, k: int, name: str) -> Any:
    if len(column.shape) != 3 or column.shape[2] % k:
        raise LayoutError(
            f"{name}: shape {list(column.shape)} cannot be [T, B, {k} * A]; chunk= is how many "
            "actions a policy call gives"
        )
    return column.reshape(*column.shape[:2], k, -1)


def _intervened(step: dict[str, Any], actions: Any, flags: Any, number: int) -> dict[str, Any]:
    """What of a step is a human's."""
    mine, theirs, where = as_array(step["actions"]), as_array(actions), as_array(flags) != 0
    where = where.reshape(len(where), -1)
    k = where.shape[1]
    if mine.shape != theirs.shape or mine.ndim != 2 or len(where) != len(mine) or mine.shape[1] % k:
        raise LayoutError(
            f"interventions, step {number}: actions of shape {list(theirs.shape)} and flags of "
            f"shape {list(where.shape)}, expected {list(mine.shape)}, as the policy's are, and "
            "[B, k]"
        )
    each = np.repeat(where, mine.shape[1] // k, axis=1)
    whole_action = _like(step["actions"], np.where(each, theirs, mine).astype(mine.dtype))
    out: dict[str, Any] = {"actions": whole_action}
    out["intervene_flags"] = _like(step["actions"], each)
    inputs = step["forward_inputs"]
    if inputs:  # the policy's own action would be trained on
        out["forward_inputs"] = {key: x for key, x in inputs.items() if key != _MODEL_ACTION}
        if "action" in inputs:
            out["forward_inputs"]["action"] = whole_action
    return out


def _stacked_envs(steps: Sequence[Any], path: Path) -> Any:
    """``[T, B, ...]`` of T entries, or of a list of T entries for each env."""
    if not isinstance(steps[0], (list, tuple)):
        return _stacked(steps, path)
    lengths = {len(env) for env in steps}
    if len(lengths) != 1:
        raise LayoutError(
            f"{show_path(path)}: envs with {sorted(lengths)} steps, expected as many of each; "
            "convert whole episodes (`to_trajectory`) one by one"
        )
    if not len(steps[0]):
        return None
    return _stacked([_stacked([env[t] for env in steps], path) for t in range(len(steps[0]))], path)


def _stacked(steps: Sequence[Any], path: Path) -> Any:
    """Entries of every step as one: arrays, or dicts of arrays; what is None in all is left out.

    Raises:
        LayoutError: they differ.
    """
    first = steps[0]
    if isinstance(first, Mapping):
        out = {}
        for key in dict.fromkeys(key for step in steps for key in step):
            if key == _TEXT:
                continue
            column = [step.get(key) for step in steps]
            if key == _MODEL_ACTION and any(x is None for x in column):
                continue
            if any(x is not None for x in column):
                out[key] = _stacked(column, (*path, key))
        return out
    arrays: list[Array] = []
    for t, value in enumerate(steps):
        if value is None or isinstance(value, Mapping) or not hasattr(value, "shape"):
            raise LayoutError(
                f"{show_path(path)}, step {t}: expected an array [B, ...], got "
                f"{type(value).__name__}; every step has the same fields"
            )
        arrays.append(as_array(value))
        if arrays[-1].shape != arrays[0].shape:
            raise LayoutError(
                f"{show_path(path)}, step {t}: shape {list(arrays[-1].shape)}, in step 0 "
                f"{list(arrays[0].shape)}"
            )
    return _like(first, np.stack(arrays))


def _like(value: Any, array: Array) -> Any:
    """An array as the kind of array that another is."""
    return to_torch(array) if type(value).__module__.startswith("torch") else array
