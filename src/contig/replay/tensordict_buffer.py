"""TensorDictReplayBuffer: a ReplayBuffer whose samples are TensorDicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..sample import Sampler
from ..tape import Storage
from .buffer import ReplayBuffer

if TYPE_CHECKING:
    from ..convert.types import TensorDict  # noqa: F401 (of which the base is made)

__all__ = ["TensorDictReplayBuffer"]


class TensorDictReplayBuffer(ReplayBuffer["TensorDict"]):
    """A ReplayBuffer whose samples are TensorDicts.

    Args:
        storage, sampler, options: as in ReplayBuffer, whose `output` is "tensordict".
    """

    def __init__(
        self, storage: Storage | None = None, sampler: Sampler | None = None, **options: Any
    ):
        super().__init__(storage, sampler, **{"output": "tensordict", **options})
