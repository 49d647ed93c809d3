"""From a rollout to trajectories on a tape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..batch import Batch
from ..convert import as_array, is_tensor, plain_tree
from .field import Field
from .rows import FilledRows

__all__ = ["leaves_of", "write_trajectories"]

_LEAVES = {
    "observations": "observation",
    "critic_observations": "critic_observation",
    "actions": "action",
    "values": "value",
    "actions_log_prob": "action_log_prob",
}


def leaves_of(fields: dict[str, Field], cuts: torch.Tensor, window: FilledRows) -> dict[str, Any]:
    """Trees of ``[T, N, ...]`` tensors in time order.

    Args:
        fields: that the rollout has.
        cuts: where episodes end, ``[T, N, 1]``.
    """
    out: dict[str, Any] = {}
    for mine, theirs in _LEAVES.items():
        if mine in fields:
            out[theirs] = fields[mine].view(window.rows).map(window.ordered, 2)
    done = window.ordered(cuts)
    late = torch.zeros_like(done)
    if "time_outs" in fields:
        late = window.ordered(fields["time_outs"].tensors[0])
    ends = {"done": done, "terminated": done & ~late, "truncated": late}
    out["next"] = {"reward": window.ordered(fields["rewards"].tensors[0]), **ends}
    return out


def write_trajectories(leaves: dict[str, Any], buffer: Any, continues: bool) -> Any:
    """Appends ``[T, N, ...]`` tensors to a buffer as N lanes of T rows. Returns seqs."""
    # One number per row is a scalar on the tape.
    for node, key in (
        (leaves, "value"),
        (leaves, "action_log_prob"),
        *((leaves["next"], key) for key in ("reward", "done", "terminated", "truncated")),
    ):
        if key in node and node[key].shape[2] == 1:
            node[key] = node[key].squeeze(2)
    tree = {key: _lanes(plain_tree(value, text=False)[0]) for key, value in leaves.items()}
    # A buffer elsewhere has no storage that could take tensors of a device as they are.
    as_rows = getattr(getattr(buffer, "storage", None), "as_rows", Batch.from_tree)
    return buffer.extend(as_rows(tree, 2), continues=continues)


def _lanes(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _lanes(child) for key, child in node.items()}
    return node.transpose(0, 1) if is_tensor(node) else np.swapaxes(as_array(node), 0, 1)
