"""Items as callers give them: their layout, and their records."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..accumulate import Built
from ..batch import Batch
from ..convert import plain_tree
from ..layout import Layout, as_bytes
from ..tape.asked import Asked
from ..tape.stacks import stacks_to_json

__all__ = ["NO_FIELDS", "layout_of", "records_of", "stacks_of"]

NO_FIELDS = (
    "fields: this table is a queue of single items, which have no trajectories; a server with a "
    "ReplayBuffer has (Server(buffer=...) or Server(tables=...))"
)


def layout_of(sample: Any) -> Layout | None:
    """Of a `data_sample`: an item, or a layout; None: the server's is taken."""
    if sample is None or isinstance(sample, Layout):
        return sample
    return Layout(dict(sample) if isinstance(sample, Built) else plain_tree(sample)[0])


def stacks_of(sample: Any) -> list[Any]:
    """Stacks of frames that a `data_sample` shows, for a server: a real step does, zeros and a
    layout do not."""
    if sample is None or isinstance(sample, Layout):
        return []
    tree = dict(sample) if isinstance(sample, Built) else plain_tree(sample)[0]
    return stacks_to_json(Asked().shown(Layout(tree), tree).stack or {})


def records_of(layout: Layout, tree: Any) -> np.ndarray[Any, Any]:
    """The bytes of n items, ``[n, ...]`` each leaf."""
    plain = tree.stored(layout.by_path) if isinstance(tree, Batch) else plain_tree(tree)[0]
    columns, batch = layout.columns(plain, 1)
    return layout.join([as_bytes(c) for c in columns], batch[0])
