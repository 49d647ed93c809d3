"""From a rollout to trajectories on a tape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..batch import Batch
from ..convert import as_array, plain_tree

__all__ = ["write_trajectories"]


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
    tree = {key: _lanes(plain_tree(value)[0]) for key, value in leaves.items()}
    return buffer.extend(Batch.from_tree(tree, 2), continues=continues)


def _lanes(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _lanes(child) for key, child in node.items()}
    return np.swapaxes(as_array(node), 0, 1)
