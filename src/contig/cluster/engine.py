"""Ray, or an error that says how to get it."""

from __future__ import annotations

from typing import Any

from ..lazy import requires_extra

with requires_extra("contig on a cluster", "ray"):
    import ray as _ray

__all__ = ["need_cluster", "own_node", "ray"]

ray: Any = _ray  # only parts of it have types


def need_cluster() -> None:
    """Raises unless this process is connected to a cluster: which one is the user's choice."""
    if not ray.is_initialized():
        raise RuntimeError(
            "this process is not connected to a Ray cluster: call ray.init() for one on this "
            'machine, or ray.init(address="auto") for one that runs'
        )


def own_node() -> str:
    """The id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())
