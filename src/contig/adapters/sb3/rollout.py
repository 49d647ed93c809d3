"""RolloutBuffer and DictRolloutBuffer of stable-baselines3.

The arrays are SB3's, since callbacks write to them (rewards of their own, for one), between one
`get` and the next too. What is made of them is contig's:

    compute_returns_and_advantage   one native scan instead of a loop over steps
    get                             the rows packed, and each minibatch gathered in one call
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

from ...learn import gae
from ...tape import LazyTensorStorage

__all__ = ["DictRolloutBuffer", "RolloutBuffer"]

Array = np.ndarray[Any, Any]

# As SB3's samples have them, and where they come from.
_PARTS = {
    "observations": "observations",
    "actions": "actions",
    "old_values": "values",
    "old_log_prob": "log_probs",
    "advantages": "advantages",
    "returns": "returns",
}


class RolloutBuffer(sb3.RolloutBuffer):
    """SB3's RolloutBuffer. Its arrays stay ``[buffer_size, n_envs, ...]``, also after `get`.

    Args:
        as SB3's.
    """

    _samples_type: Any = RolloutBufferSamples

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._storage: LazyTensorStorage | None = None
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        super().reset()
        if self._storage is None:
            self._storage = self._make_storage()

    def _make_storage(self) -> LazyTensorStorage:
        rows = self._rows(lambda array: array[:1, 0])
        example = {
            name: {k: v[0] for k, v in x.items()} if isinstance(x, dict) else x[0]
            for name, x in rows.items()
        }
        return LazyTensorStorage(self.buffer_size * self.n_envs, example=example)

    def _rows(self, flatten: Any) -> dict[str, Any]:
        """What a minibatch has of each step, flattened."""
        out: dict[str, Any] = {}
        for name, source in _PARTS.items():
            given = getattr(self, source)
            if isinstance(given, dict):
                out[name] = {key: flatten(array) for key, array in given.items()}
            else:
                out[name] = flatten(given)
        out["actions"] = out["actions"].astype(np.float32, copy=False)  # as SB3 hands them out
        return out

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: Array) -> None:
        last = last_values.detach().cpu().numpy().reshape(1, -1)
        ends = np.asarray(dones).reshape(1, -1)
        advantage, returns = gae(
            reward=self.rewards,
            value=self.values,
            next_value=np.concatenate((self.values[1:], last)).astype(np.float32, copy=False),
            done=np.concatenate((self.episode_starts[1:] != 0, ends != 0)),
            gamma=self.gamma,
            lmbda=self.gae_lambda,
        )
        self.advantages[...], self.returns[...] = advantage, returns
        self.generator_ready = False

    def get(self, batch_size: int | None = None) -> Iterator[Any]:  # type: ignore[override]
        """Minibatches of a full buffer, in random order; without `batch_size`, all rows."""
        assert self.full, ""
        rows = self.buffer_size * self.n_envs
        order = np.random.permutation(rows)  # as SB3 draws it
        self._pack()  # every time: anybody may have written to the arrays since
        for start in range(0, rows, batch_size or rows):
            yield self._get_samples(order[start : start + (batch_size or rows)])

    def _pack(self) -> None:
        """Each step of each env as one row, in the order of the arrays, which needs no copy."""
        assert self._storage is not None
        self._storage.empty()
        seqs = self._storage.default_writer.extend(self._rows(_flat), continues=False)
        self._first = int(seqs[0])
        self.generator_ready = True

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        """Rows by SB3's numbers, which go env by env."""
        assert self._storage is not None
        envs, steps = np.divmod(np.asarray(batch_inds, np.int64), self.buffer_size)
        batch, _ = self._storage.gather(steps * self.n_envs + envs + self._first)
        return self._samples_type(**{name: self._tensors(batch[name]) for name in _PARTS})

    def _tensors(self, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: self._tensors(value) for key, value in values.items()}
        return torch.as_tensor(values, device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_storage": None, "generator_ready": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._storage = self._make_storage()


def _flat(array: Array) -> Array:
    """``[T, N, ...]`` as ``[T * N, ...]``."""
    return array.reshape(-1, *array.shape[2:])


class DictRolloutBuffer(RolloutBuffer, sb3.DictRolloutBuffer):  # type: ignore[misc]
    """SB3's DictRolloutBuffer: observations of several keys. Args as SB3's."""

    _samples_type = DictRolloutBufferSamples
