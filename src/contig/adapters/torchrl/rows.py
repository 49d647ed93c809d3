"""TensorDicts as rows are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch.utils._pytree import tree_map

from ...batch import Batch
from ...convert import plain_tree
from ...forms import TRAILING_DIM

__all__ = ["as_rows", "check_named", "on_each", "with_next_init"]


def as_rows(data: Any, ndim: int) -> Any:
    """Data with one number where TorchRL has one in a list: rewards and flags ``[N, 1]``.

    That is how collectors store them, so that rows from anywhere fit together; samples have the
    trailing dim again. Data that is neither a TensorDict nor a tensorclass stays as it is.

    Args:
        ndim: batch dims of mappings, where it is going: with as many, it becomes one.
    """
    if not is_tensor_collection(data):
        return data
    tree, shape = plain_tree(data)
    assert shape is not None
    after = tree.get("next")
    for node in (tree, after):
        if isinstance(node, dict):
            _flatten(node, (*shape, 1))
    if isinstance(after, dict):
        _make_agree(after)
    return tree if len(shape) == ndim else TensorDict(tree, batch_size=shape)


def check_named(data: Any) -> None:
    """Raises TypeError for data whose leaves have no names: it cannot become a TensorDict."""
    rows = data if isinstance(data, list) else [data]
    for row in rows:
        if not (is_tensor_collection(row) or isinstance(row, (Mapping, Batch))):
            raise TypeError(
                "data: expected a TensorDict, a mapping, or a list of them, got "
                f"{'a list with a ' if row is not data else ''}{type(row).__name__}; ReplayBuffer "
                "takes tensors and tuples of tensors, or give them a name: TensorDict({...}, [n])"
            )


def on_each(do: Callable[[Any], Any], sample: Any) -> Any:
    """`do` of a TensorDict, of a tensor, or of each tensor of a tuple."""
    return do(sample) if is_tensor_collection(sample) else tree_map(do, sample)


def with_next_init(td: Any) -> Any:
    """The TensorDict with `("next", "is_init")`, which is False always: losses of recurrent modules
    run them on the next observations, too."""
    first, after = td.get("is_init", None), td.get("next", None)
    if first is not None and isinstance(after, TensorDictBase):
        if after.get("is_init", None) is None:
            after.set("is_init", torch.zeros_like(first))
    return td


def _flatten(node: dict[str, Any], whole: tuple[int, ...]) -> None:
    for key in TRAILING_DIM:
        value = node.get(key)
        if value is not None and tuple(value.shape) == whole:
            node[key] = value.squeeze(-1)


def _make_agree(after: dict[str, Any]) -> None:
    """No row is truncated that is not done: where some are, those that are done and not terminated
    are. TorchRL's ReplayBufferTrainer marks the last of the trailing dim, and not of time: all."""
    done, terminated, truncated = (after.get(k) for k in ("done", "terminated", "truncated"))
    if done is None or terminated is None or truncated is None or done.shape != truncated.shape:
        return
    if bool((truncated & ~done).any()):
        after["truncated"] = done & ~terminated
