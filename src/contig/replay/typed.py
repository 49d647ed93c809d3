"""What `sample` returns, for type checkers: it depends on `output=`.

"numpy"  Batch          "torch", "jax"  Nested (dicts that take a path as key)
"tensordict"  TensorDict
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ..sample import RateLimiter

__all__ = ["BufferOptions", "EnsembleOptions", "Info", "Out_co", "ShardOptions"]

if TYPE_CHECKING:
    # A default: `ReplayBuffer` alone gives batches, and `ReplayBuffer[Any]` stands for all kinds.
    # typing has it from 3.13 on; type checkers know typing_extensions, installed or not.
    from typing_extensions import TypeVar

    from ..batch import Batch

    Out_co = TypeVar("Out_co", covariant=True, default=Batch)
else:
    Out_co = typing.TypeVar("Out_co", covariant=True)

#: What `sample(return_info=True)` returns beside the batch.
Info = dict[str, Any]


class BufferOptions(TypedDict, total=False):
    """Arguments of ReplayBuffer that have nothing to do with what samples are."""

    batch_size: int | None
    transform: Any
    prefetch: int
    seed: int | None
    limiter: RateLimiter | None
    sample_timeout_s: float | None
    rank: int
    world_size: int


class EnsembleOptions(TypedDict, total=False):
    """The same of ReplayBufferEnsemble."""

    sample_from_all: bool
    p: Sequence[float] | None
    batch_size: int | None
    seed: int | None
    device: Any


class ShardOptions(TypedDict, total=False):
    """The same of RayReplayBuffer."""

    placement: Any
    batch_size: int | None
    prefetch: int
    seed: int | None
    rank: int
    world_size: int
    device: Any
    sample_timeout_s: float | None
    name: str | None
    num_cpus: float
