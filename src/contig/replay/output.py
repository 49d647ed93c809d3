"""What `sample` hands out: numpy, torch, jax or tensordict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..batch import Batch
from ..tree import Nested

__all__ = ["info_of", "to_output"]


def to_output(kind: str, device: Any) -> Callable[[Batch], Any]:
    """A function from a Batch to the output a buffer was asked for.

    Raises:
        ValueError: no such output, or a device that it does not have.
    """
    if kind not in ("numpy", "torch", "jax", "tensordict"):
        raise ValueError(f'output: expected "numpy", "torch", "jax" or "tensordict", got {kind!r}')
    if device is not None and kind in ("numpy", "jax"):
        raise ValueError(f'device={device!r} goes with output="torch" or "tensordict"')
    outputs: dict[str, Callable[[Batch], Any]] = {
        "numpy": lambda batch: batch,
        "torch": lambda batch: Nested.of(batch.torch(device)),
        "jax": lambda batch: batch.jax(),
        "tensordict": lambda batch: batch.to_tensordict(device),
    }
    return outputs[kind]


def info_of(batch: Batch) -> dict[str, Any]:
    """What `sample` returns beside a batch, if asked."""
    info = {"index": batch["index"]}
    if "priority_weight" in batch:
        info["priority_weight"] = batch["priority_weight"]
    return info
