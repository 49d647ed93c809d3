"""TorchRL's prioritized buffers: a TensorDictReplayBuffer with a PrioritizedSampler."""

from __future__ import annotations

from typing import Any

from torchrl.data import replay_buffers as theirs

from ...tape import Storage
from .arguments import made, without_effect
from .buffers import ReplayBuffer
from .samplers import PrioritizedSampler
from .storages import LazyTensorStorage
from .tensordict_buffer import TensorDictReplayBuffer

__all__ = ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"]


def _by_priority(
    alpha: float, beta: float, eps: float, reduction: str, storage: Any
) -> dict[str, Any]:
    kept = made(storage, Storage, "storage", "import it from contig.adapters.torchrl")
    kept = LazyTensorStorage(1000) if kept is None else kept
    sampler = PrioritizedSampler(kept.capacity, alpha, beta, eps, reduction=reduction)
    return {"storage": kept, "sampler": sampler}


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ReplayBuffer whose rows are drawn by priority.

    Args:
        alpha, beta, eps: as in `PrioritizedSampler`.
        storage: as in `ReplayBuffer`.
        dtype, sampler_device, sync: without effect.
        options: as in `ReplayBuffer`.
    """

    _service_cls: Any = theirs.PrioritizedReplayBuffer

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: Any = None,
        storage: Any = None,
        sampler_device: Any = None,
        sync: bool = True,
        **options: Any,
    ) -> None:
        without_effect(dtype, sampler_device, sync)
        super().__init__(**{**options, **_by_priority(alpha, beta, eps, "max", storage)})


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A TensorDictReplayBuffer whose rows are drawn by priority.

    Args:
        alpha, beta, eps: as in `PrioritizedSampler`.
        priority_key: where priorities are in TensorDicts.
        reduction: of several priorities of one row: "max", "mean", "median" or "min".
        storage: as in `ReplayBuffer`.
        sampler_device, sync: without effect.
        options: as in `ReplayBuffer`.
    """

    _service_cls: Any = theirs.TensorDictPrioritizedReplayBuffer

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: Any = "td_error",
        eps: float = 1e-8,
        storage: Any = None,
        sampler_device: Any = None,
        sync: bool = True,
        reduction: str = "max",
        **options: Any,
    ) -> None:
        without_effect(sampler_device, sync)
        by_priority = _by_priority(alpha, beta, eps, reduction, storage)
        super().__init__(**{**options, **by_priority, "priority_key": priority_key})
