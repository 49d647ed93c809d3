"""Primers: what a policy's hidden states start from at every reset, by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ..convert import as_array
from ..layout import ShapeDtype
from ..tree import Path, as_path, show_path
from ..weights.policy import modules_of
from .specs import Array

__all__ = ["default_values", "policy_primers", "register_primers"]


def default_values(primers: Mapping[Any, Any]) -> dict[Path, Array]:
    """Arrays by path, of what a `TensorDictPrimer` is given.

    Raises:
        ValueError: it is neither an array nor says what zeros to make.
    """
    return {as_path(k): _default(as_path(k), v) for k, v in primers.items()}


def _default(path: Path, value: Any) -> Array:
    if isinstance(value, ShapeDtype):
        return np.zeros(value.shape, value.dtype)
    if isinstance(value, tuple) and all(isinstance(n, int) for n in value):
        return np.zeros(value, np.float32)
    array = np.array(as_array(value))
    if array.dtype == object:
        raise ValueError(
            f"{show_path(path)}: expected an array, a ShapeDtype or a shape, got {value!r}"
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array


def policy_primers(policy: Any) -> dict[Path, Array]:
    """The hidden states that a policy's recurrent parts ask for, by `make_tensordict_primer`."""
    parts: list[Any] = [policy]
    for module in modules_of(policy):
        parts.extend(module.modules())
    held = getattr(policy, "__dict__", {})
    parts.extend(x for x in held.values() if hasattr(x, "make_tensordict_primer"))
    out: dict[Path, Array] = {}
    for part in parts:
        make = getattr(part, "make_tensordict_primer", None)
        if not callable(make):
            continue
        primer = make()
        if isinstance(primer, Mapping):
            out.update(default_values(primer))
        elif isinstance(defaults := getattr(primer, "defaults", None), dict):
            out.update(defaults)  # a TensorDictPrimer's
        elif hasattr(getattr(primer, "primers", None), "zero"):  # one of TorchRL's
            out.update(_torchrl_defaults(primer))
        else:
            raise TypeError(
                f"{type(part).__name__}.make_tensordict_primer: expected a "
                f"contig.TensorDictPrimer or a mapping, got {type(primer).__name__}"
            )
    return out


def _torchrl_defaults(primer: Any) -> dict[Path, Array]:
    """What a TensorDictPrimer of TorchRL's starts from: its `default_value`, of each or of all."""
    given, out = primer.default_value, {}
    for key, spec in primer.primers.items(True, True):
        value = given.get(key, 0.0) if isinstance(given, Mapping) else given
        zeros = np.array(as_array(spec.zero()))
        out[as_path(key)] = np.full_like(zeros, 0.0 if value is None else as_array(value))
    return out


class _Primed(Protocol):
    """An environment, as this module needs it."""

    primers: dict[Path, Array]
    marks_init: bool


def register_primers(env: _Primed, policy: Any) -> None:
    """Gives an environment what a policy's recurrent parts need and it lacks."""
    wanted = policy_primers(policy)
    if wanted:
        env.marks_init = True
    for path, value in wanted.items():
        env.primers.setdefault(path, value)
