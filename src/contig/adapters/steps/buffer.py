"""A buffer with the interface of stable-baselines3's ReplayBuffer, with rows on a tape.

    add     -> RowShape (SB3's casts) -> Tracks -> contig's writer
    sample  -> rows in one gather -> a named tuple of tensors

Not thread-safe, as SB3's are not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from ...batch import Batch
from ...keys import DONE, NEXT, REWARD, TERMINATED, TRUNCATED
from ...layout import Layout
from ...replay import ReplayBuffer as TapeBuffer
from ...sample import RandomSampler, Sampler
from ...tape import LazyTensorStorage
from ...tape.one_leaf import read_leaf
from ...tree import Path
from ..saving import packed, unpack
from .column import Column
from .rows import ACTION, OBSERVATION, RowShape
from .tracks import Tracks

__all__ = ["StepBuffer"]

Array = np.ndarray[Any, Any]

# What is not pickled: it is made anew, and filled from the checkpoint.
_LIVE = ("storage", "_buffer", "_tracks", "_rows", "_layout", "_drawn")


class StepBuffer:
    """A base for such buffers, which set the attributes below and then call `_open`.

    `observations`, `actions`, `rewards` and so on can be read as SB3's arrays can; flags of the
    last step (`dones`, `timeouts`) can be set, other rows do not change.

    Attributes:
        storage: where the rows are, as trajectories; `storage.episodes()` lists them.
        buffer_size: steps that fit, each of `n_envs` rows.
        pos, full: where the next step goes in a ring of steps, and whether it has turned.
    """

    storage: LazyTensorStorage
    buffer_size: int
    n_envs: int
    observation_space: Any
    action_space: Any
    obs_shape: Any
    action_dim: int
    device: torch.device
    optimize_memory_usage: bool
    handle_timeout_termination: bool
    pos: int
    full: bool

    def _open(self) -> None:
        """Makes what `_LIVE` lists."""
        dtype = np.dtype(self.action_space.dtype)
        dtype = np.dtype(np.float32) if dtype == np.float64 else dtype  # as SB3 stores actions
        self._rows = RowShape(
            self.observation_space, self.obs_shape, self.action_dim, dtype, self.n_envs
        )
        self._layout = Layout(self._rows.example())
        # Without an example: the first rows show whether observations are stacks of frames.
        self.storage = LazyTensorStorage(self.buffer_size * self.n_envs)
        self._buffer = TapeBuffer(self.storage, self._make_sampler(), seed=_seed(), output="numpy")
        self._tracks = Tracks(self.storage, self.n_envs)

    def _make_sampler(self) -> Sampler:
        return RandomSampler()

    def size(self) -> int:
        """Steps that are there."""
        return self.buffer_size if self.full else self.pos

    # -- writing ------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """A step of all envs.

        Args:
            infos: of each env; "TimeLimit.truncated" counts with `handle_timeout_termination`.
        """
        timeouts = self._rows.none
        if self.handle_timeout_termination:
            for info in infos:  # a loop without a list: it runs at every step, for nothing
                if info.get("TimeLimit.truncated", False):
                    late = [info.get("TimeLimit.truncated", False) for info in infos]
                    timeouts = self._rows.flags(late)
                    done = self._rows.flags(done) | timeouts
                    break
        self._add(obs, next_obs, action, reward, done, timeouts)

    def _add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, ended: Any, timeouts: Array
    ) -> None:
        """A step of all envs, with what has ended, of which `timeouts` was no termination."""
        rows = self._rows
        step = rows.as_given(obs, next_obs, action, reward, ended, timeouts)
        if not self._tracks.add_given(step):
            rows.fit = self._tracks.packs  # else it is a writer's first step
            ended = rows.flags(ended)
            self._tracks.add(rows.step(obs, next_obs, action, reward, ended, timeouts), ended)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def reset(self) -> None:
        """Forgets every row."""
        self.pos, self.full = 0, False
        self._tracks.empty()
        self._buffer.sampler.reset()

    # -- sampling -----------------------------------------------------------------------------

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """As SB3 draws it, from numpy's own generator: with the same seed, the same rows."""
        size = self.size()
        if self.optimize_memory_usage and not self.handle_timeout_termination and self.full:
            # SB3, which has the option without time limits only, leaves the oldest step out then.
            places = (np.random.randint(1, max(size, 2), size=batch_size) + self.pos) % size
        else:
            places = np.random.randint(0, size, size=batch_size)
        return self._get_samples(places, env)

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        """Steps by their place in the buffer, of a random env each."""
        while self._tracks.steps < self.size():  # `pos` or `full` was set by hand
            self._tracks.add(self._rows.zeros(), self._rows.none)
        envs: Any = 0  # of one env nothing is drawn: numpy's generator stays where it is
        if self.n_envs > 1:
            envs = np.random.randint(0, high=self.n_envs, size=len(batch_inds))
        return self._samples(self._read(self._seqs(batch_inds, envs)), env)

    def _read(self, seqs: Array) -> Batch:
        return self.storage.gather(seqs)[0]  # type: ignore[no-any-return]

    def _seqs(self, places: Array, envs: Any) -> Array:
        """Rows that are at some places of the ring now; negative ones if there are none."""
        newest = self._tracks.steps - 1
        return self._tracks.behind((newest - places) % self.buffer_size, envs)

    def _samples(self, batch: Batch, env: Any, **more: Any) -> Any:
        return self._samples_type(
            observations=self._tensors(self._taken(batch, (), env)),
            actions=self._tensors(batch[ACTION]),
            next_observations=self._tensors(self._taken(batch, NEXT, env)),
            dones=self._tensors(batch[TERMINATED].astype(np.float32).reshape(-1, 1)),
            rewards=self._tensors(self._reward(batch, env)),
            **more,
        )

    @property
    def _samples_type(self) -> Any:
        """A named tuple."""
        raise NotImplementedError

    def _taken(self, batch: Batch, parent: Path, env: Any) -> Any:
        """Observations of a batch; `env` is for those who normalise them."""
        return self._rows.taken(batch, parent)

    def _reward(self, batch: Batch, env: Any) -> Array:
        reward: Array = batch[REWARD].reshape(-1, 1)
        return reward

    def _tensors(self, values: Any) -> Any:
        """A batch's own memory, which nobody else has, or a copy on the device."""
        if isinstance(values, dict):
            return {key: self._tensors(value) for key, value in values.items()}
        tensor = torch.from_numpy(values)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    # -- SB3's arrays -------------------------------------------------------------------------

    def _column(self, path: Path, dtype: Any = None, settable: bool = False) -> Column:
        leaf = self._layout.by_path[path]
        return Column(
            lambda slots: self._values(slots, path),
            partial(self._assign, path) if settable else None,
            (self.buffer_size, self.n_envs, *leaf.shape),
            leaf.dtype if dtype is None else np.dtype(dtype),
        )

    def _values(self, slots: Array, path: Path) -> Array:
        if self.storage.schema is None:
            leaf = self._layout.by_path[path]
            return np.zeros((len(slots), *leaf.shape), leaf.dtype)
        seqs = self._seqs(slots // self.n_envs, slots % self.n_envs)
        there = seqs >= self._tracks.first
        if there.all():
            return read_leaf(self.storage, seqs, path)[0]
        rows = read_leaf(self.storage, np.ascontiguousarray(seqs[there]), path)[0]
        out = np.zeros((len(slots), *rows.shape[1:]), rows.dtype)
        out[there] = rows
        return out

    def _assign(self, path: Path, column: Column, key: Any, value: Any) -> None:
        """Sets flags of the last step: that ends its trajectories."""
        before = np.asarray(column)
        after = before.copy()
        after[key] = value
        last = (self.pos - 1) % self.buffer_size
        changed = before != after
        set_now = changed[last].copy()
        changed[last] = False
        if changed.any() or (set_now & ~((after[last] == 1) & self._tracks.open)).any():
            raise TypeError(
                f"of flags only those of the last step, {last}, can be set, and only to 1 where an "
                "episode goes on: that ends it there. Other rows are not changed once written"
            )
        if set_now.any():
            done, timeouts = self.dones[last] != 0, self.timeouts[last] != 0
            self._tracks.end(done | set_now, timeouts | (set_now & (path == TRUNCATED)))

    def _observations(self, parent: Path) -> Any:
        if self._rows.keys is None:
            return self._column((*parent, *OBSERVATION))
        return {key: self._column((*parent, *OBSERVATION, key)) for key in self._rows.keys}

    @property
    def observations(self) -> Any:
        """An array ``[buffer_size, n_envs, ...]``, or a dict of arrays."""
        return self._observations(())

    @property
    def next_observations(self) -> Any:
        """What each step led to: an array, or a dict of arrays."""
        return self._observations(NEXT)

    @property
    def actions(self) -> Any:
        """As an array ``[buffer_size, n_envs, ...]``, read from the storage."""
        return self._column(ACTION)

    @property
    def rewards(self) -> Any:
        """As an array ``[buffer_size, n_envs]``."""
        return self._column(REWARD)

    @property
    def dones(self) -> Any:
        """1 where an episode ended; the last step's can be set."""
        return self._column(DONE, np.float32, settable=True)

    @property
    def timeouts(self) -> Any:
        """1 where a time limit ended an episode; the last step's can be set."""
        return self._column(TRUNCATED, np.float32, settable=True)

    # -- saving -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self.storage.schema is None:  # a checkpoint has one
            self.storage.publish(self._layout)
        state = {key: value for key, value in self.__dict__.items() if key not in _LIVE}
        return {**state, "_saved": (packed(self._buffer), self._tracks.state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        files, tracks = state.pop("_saved")
        self.__dict__.update(state)
        self._open()
        unpack(self._buffer, files)
        self._tracks.load(tracks)


def _seed() -> int:
    """For samplers with random numbers of their own. SB3 seeds numpy's generator: what that would
    say next, without taking it, so that the rest of SB3 goes on as without us."""
    other = np.random.RandomState()
    other.set_state(np.random.get_state())
    return int(other.randint(2**31))
