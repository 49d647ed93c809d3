"""What collectors give out: TensorDicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrl.collectors.utils import split_trajectories

from ...batch import Batch
from .rows import with_next_init

__all__ = ["Deliveries", "OnTensorDict"]


class OnTensorDict:
    """A hook that gets a TensorDict of what it is called with. Can be pickled if it can."""

    def __init__(self, hook: Callable[[Any], Any]) -> None:
        self._hook = hook

    def __call__(self, data: Any) -> Any:
        return self._hook(data.to_tensordict() if isinstance(data, Batch) else data)

    @staticmethod
    def of(hook: Callable[[Any], Any] | None) -> OnTensorDict | None:
        return None if hook is None else OnTensorDict(hook)


class Deliveries:
    """From batches to what iteration gives.

    Args:
        device: where TensorDicts go; None: they stay.
        padded: trajectories as ``[N, T_max]``, with `("collector", "mask")`.

    Attributes:
        marks_init: also ("next", "is_init"), as environments with an InitTracker have it.
    """

    def __init__(self, device: Any, padded: bool) -> None:
        self._device, self._padded = device, padded
        self.marks_init = False

    def __call__(self, data: Any) -> Any:
        td = data.to_tensordict() if isinstance(data, Batch) else data
        if self.marks_init:
            td = with_next_init(td)
        if self._padded:
            td = split_trajectories(td, prefix="collector")
        return td if self._device is None else td.to(self._device)
