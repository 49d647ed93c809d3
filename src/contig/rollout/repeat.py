"""Steps like the one before them: the same fields, with the same shapes, dtypes and devices.

A step is looked over field by field once. For those that follow, what was found is compared, and
all their tensors are copied by one call. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .transition import FLAGS

__all__ = ["Kept", "Repeat"]

Tensor = torch.Tensor

_UNSIGNED = {torch.uint8: np.uint8, torch.int32: np.uint32, torch.int64: np.uint64}
_MOST_VIEWS = 4096  # kept of rows: each is an object of its own


class Kept(NamedTuple):
    """Where an attribute of steps goes.

    Attributes:
        owner, key, there: ``owner[key] is there`` as long as these are its tensors.
        tensors: ``[T, ...]`` each.
    """

    owner: Any
    key: Any
    there: Any
    tensors: Sequence[Tensor]


class _Leaf(NamedTuple):
    """A tensor of a step, and the rows it goes to."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    rows: Tensor


class _Found(NamedTuple):
    """Arguments of `Repeat`."""

    attributes: list[tuple[str, Any]]
    kept: list[Kept]
    leaves: list[_Leaf]
    flags: list[int]


class Repeat:
    """What a step was like. Made by `of`. A copy, or a pickle of it, is None: it would know tensors
    of another storage.

    Args:
        attributes: of a transition, and what each held: None, or what `_leaves` takes.
        kept: where they go.
        leaves: all tensors in them, in order.
        flags: which of them hold 0 and 1 in whole numbers.
    """

    def __init__(
        self,
        attributes: list[tuple[str, Any]],
        kept: list[Kept],
        leaves: list[_Leaf],
        flags: list[int],
    ) -> None:
        self._attributes, self._kept = attributes, kept
        self._leaves, self._flags = leaves, flags
        rows = len(leaves[0].rows)
        self._views: list[list[Tensor] | None] | None = None
        if rows * len(leaves) <= _MOST_VIEWS:
            self._views = [None] * rows

    @classmethod
    def of(
        cls, transition: Any, names: Sequence[str], into: Mapping[str, Sequence[Kept]]
    ) -> Repeat | None:
        """What a step was like that has just been written; None if another must be looked over.

        Args:
            names: attributes that were read.
            into: where those that were stored went.
        """
        out = _Found([], [], [], [])
        for name in names:
            value = getattr(transition, name, None)
            form = _form(value)
            out.attributes.append((name, form))
            if form is None:
                continue
            given: list[Tensor] = []
            kept = into.get(name, ())
            tensors = [tensor for one in kept for tensor in one.tensors]
            if not _leaves(value, form, given) or len(given) != len(tensors):
                return None
            for mine, tensor in zip(given, tensors):
                leaf = _leaf(mine, tensor)
                if leaf is None or not _fits(mine, tensor, name, len(out.leaves), out.flags):
                    return None
                out.leaves.append(leaf)
            out.kept.extend(kept)
        return cls(*out) if out.leaves else None

    def write(self, row: int, transition: Any) -> bool:
        """Writes such a step; False: it is another, and nothing was written."""
        given: list[Tensor] = []
        for name, form in self._attributes:
            value: Any = getattr(transition, name, None)
            if form is torch.Tensor:
                given.append(value)
            elif form is None:
                if value is not None and value != (None, None):
                    return False
            elif not _leaves(value, form, given):
                return False
        for value, (shape, dtype, device, _) in zip(given, self._leaves, strict=True):
            if (
                not isinstance(value, Tensor)
                or value.dtype is not dtype
                or value.shape != shape
                or value.device != device
            ):
                return False
        for owner, key, there, _ in self._kept:
            if owner[key] is not there:
                return False
        for number in self._flags:
            if not _are_flags(given[number]):
                return False
        torch._foreach_copy_(self._rows(row), given)
        return True

    def __reduce__(self) -> Any:
        return _nothing, ()

    def _rows(self, row: int) -> list[Tensor]:
        views = None if self._views is None else self._views[row]
        if views is None:
            with torch.inference_mode(False), torch.no_grad():  # or they could not be kept
                views = [leaf.rows[row] for leaf in self._leaves]
            if self._views is not None:
                self._views[row] = views
        return views


def _form(value: Any) -> Any:
    """What a value consists of: None, `Tensor`, or a dict or tuple of such forms; or `...`, which
    nothing is like."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, (tuple, list)):
        forms = tuple(map(_form, value))
        return None if all(form is None for form in forms) else forms
    if value is None:
        return None
    inside = _mapping(value)
    if inside is None or not all(isinstance(key, str) for key in inside):
        return ...
    return {key: _form(inside[key]) for key in sorted(inside)}


def _mapping(value: Any) -> dict[str, Any] | None:
    """A dict, or the one inside a plain TensorDict, whose own access takes ten times as long."""
    inside = getattr(value, "_tensordict", value)
    return inside if type(inside) is dict else None


def _leaves(value: Any, form: Any, out: list[Tensor]) -> bool:
    """Appends the tensors of a value, if it has that form."""
    if form is torch.Tensor:
        out.append(value)
        return isinstance(value, torch.Tensor)
    if isinstance(form, tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(form):
            return False
        return _all_leaves(value, form, out)
    if isinstance(form, dict):
        inside = _mapping(value)
        if inside is None or inside.keys() != form.keys():
            return False
        return _all_leaves([inside[key] for key in form], form.values(), out)
    return form is None and value is None


def _all_leaves(values: Iterable[Any], forms: Iterable[Any], out: list[Tensor]) -> bool:
    return all(_leaves(value, form, out) for value, form in zip(values, forms))


def _leaf(given: Tensor, tensor: Tensor) -> _Leaf | None:
    """Where a step's tensor goes; None: not as it stands."""
    rows = tensor
    if given.shape != tensor.shape[1:]:
        if given.ndim != 1 or tensor.shape[1:] != (*given.shape, 1):
            return None
        with torch.inference_mode(False), torch.no_grad():
            rows = tensor[..., 0]
    if given.device != tensor.device:
        return None
    return _Leaf(given.shape, given.dtype, given.device, rows)


def _fits(given: Tensor, tensor: Tensor, name: str, number: int, flags: list[int]) -> bool:
    """Whether copying is all that is to be done with a step's tensor."""
    if given.dtype is tensor.dtype:
        return True
    if name not in FLAGS or given.dtype not in _UNSIGNED:
        return False
    if given.device.type == "cpu":  # elsewhere nobody looks: see `as_flags`
        flags.append(number)
    return True


def _are_flags(value: Tensor) -> bool:
    """Whether whole numbers are all 0 or 1."""
    unsigned = value.numpy().view(_UNSIGNED[value.dtype])
    return unsigned.size == 0 or bool(unsigned.max() <= 1)


def _nothing() -> None:
    return None
