"""TensorDictReplayBuffer: a ReplayBuffer that takes priorities out of TensorDicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensordict import is_tensor_collection
from torchrl.data import replay_buffers as theirs

from .buffers import ReplayBuffer
from .priorities import priorities_of
from .rows import check_named

__all__ = ["TensorDictReplayBuffer"]


class TensorDictReplayBuffer(ReplayBuffer):
    """A ReplayBuffer that takes priorities out of TensorDicts.

    Args:
        priority_key: where they are in what `extend` and `update_tensordict_priority` are given.
        options: as in `ReplayBuffer`.
    """

    _service_cls: Any = theirs.TensorDictReplayBuffer

    def __init__(self, *, priority_key: Any = "td_error", **options: Any) -> None:
        super().__init__(**options)
        self.priority_key = priority_key

    def extend(self, data: Any, *, update_priority: bool | None = None, **options: Any) -> Any:
        """Appends rows, with the priorities that they have at `priority_key`.

        Args:
            update_priority: False: they are not looked for.

        Raises:
            TypeError: data without names, such as a tensor or a tuple.
        """
        check_named(data)
        seqs = super().extend(data, **options)
        if self.has_priorities and update_priority is not False and is_tensor_collection(data):
            # Transforms may have stored fewer rows, and a storage may have kept fewer.
            given = data.get(self.priority_key, None)
            if given is not None and len(given.reshape(-1)) >= len(seqs) > 0:
                self.update_priority(seqs, self._reduced(given, len(seqs)))
        return seqs

    def add(self, data: Any, fields: Any = None) -> int:
        check_named(data)
        seq = super().add(data, fields)
        if self.has_priorities and is_tensor_collection(data):
            given = data.get(self.priority_key, None)
            if given is not None:
                self.update_priority(np.array([seq]), self._reduced(given, 1))
        return seq

    def update_tensordict_priority(self, data: Any, key: Any = None) -> None:
        """Sets priorities of a sample's rows from what it has at `priority_key`; of one that has
        none, the largest there is."""
        if not self.has_priorities:
            return
        rows = data.get("index").reshape(-1)
        given = data.get(self.priority_key if key is None else key, None)
        if given is None:
            largest = self.sampler.priorities.largest  # type: ignore[attr-defined]
            self.update_priority(rows, np.full(len(rows), largest))
        else:
            self.update_priority(rows, self._reduced(given, len(rows)))

    def _reduced(self, given: Any, rows: int) -> Any:
        return priorities_of(given, rows, getattr(self.sampler, "reduction", "max"))
