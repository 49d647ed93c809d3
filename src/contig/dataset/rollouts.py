"""RolloutDataset: trajectories from a directory or a storage, as `num_envs` envs side by side.

trajectory_*/traj_<start>_<end>.npz  ->  a trajectory per env  ->  Transition [num_envs, ...]
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import LayoutError, NothingEligibleError
from .base import RolloutFileBase
from .deck import Deck
from .frames import Frames, canonical, frame_range
from .source import DirectorySource, Piece, StorageSource, source_of

__all__ = ["RolloutDataset", "Transition"]

log = logging.getLogger("contig.dataset")

_POLL_S = 0.05
_NEXT = ("next_observation", "next_privileged_observation")


class Transition(NamedTuple):
    """One step of all envs, or T of them; privileged observations are None if there are none."""

    observation: Any
    privileged_observation: Any
    action: Any
    reward: Any
    done: Any
    timeout: Any
    next_observation: Any
    next_privileged_observation: Any


class RolloutDataset(RolloutFileBase):
    """Rollouts from files.

    Each env reads one trajectory after another; no two read the same one in a loop. The dataset
    ends when an env needs a trajectory and `dataset_loops` loops have been handed out; rows that
    the other envs have not come to by then are left (with one env, none). In workers of a
    DataLoader each reads every so-manieth trajectory, with `num_envs` envs of its own.

    - `done` is True at the first frame of a trajectory (`first_frame_done`) and at its last.
    - `timeout` is the file's; also True at a last frame that did not terminate.
    - `next_observation` is the next frame's of the same episode. At an episode's end it is what
      the file says, if it has next observations, else the frame's own.

    Args:
        data_dir: a directory, or a storage (say, a `DiskStorage`): its complete trajectories, also
            those that are committed later.
        num_envs: trajectories that are read side by side.
        dataset_loops: how often the data is handed out.
        random_shuffle_traj_order: another order in each loop; else the oldest first.
        keep_latest_n_trajs: only the newest so many; 0: all.
        starting_frame_range: [low, high): a trajectory begins at a random frame of these.
        device: where batches go; None: cuda if there is one.
        wait_s: how long to wait for as many trajectories as envs.
        follow_s: how long to wait for new trajectories at the end of a loop.
        first_frame_done: whether first frames are marked.
        check_finite: refuse frames with a NaN or an infinity; it names the env, file and frame.
        seed: of orders and starting frames.
    """

    def __init__(
        self,
        data_dir: Any,
        num_envs: int = 1,
        dataset_loops: int = 1,
        random_shuffle_traj_order: bool = False,
        keep_latest_n_trajs: int = 0,
        starting_frame_range: Any = (0, 1),
        device: Any = None,
        *,
        wait_s: float = 5.0,
        follow_s: float = 0.0,
        first_frame_done: bool = True,
        check_finite: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(data_dir, num_envs, device)
        low, high = starting_frame_range
        if not 0 <= low < high:
            raise ValueError(
                f"starting_frame_range={list(starting_frame_range)}: expected [low, high) with "
                "0 <= low < high"
            )
        if dataset_loops < 1 or keep_latest_n_trajs < 0:
            raise ValueError(
                f"dataset_loops={dataset_loops}, keep_latest_n_trajs={keep_latest_n_trajs}: "
                "expected at least 1 loop, and 0 or more trajectories"
            )
        self.dataset_loops = dataset_loops
        self.random_shuffle_traj_order = random_shuffle_traj_order
        self.keep_latest_n_trajs = keep_latest_n_trajs
        self.starting_frame_range = (int(low), int(high))
        self.wait_s, self.follow_s = wait_s, follow_s
        self.first_frame_done = first_frame_done
        self.check_finite = check_finite
        self.seed = seed
        self.num_dataset_looped = 0
        self.source = source_of(data_dir)
        self._worker = (0, 1)
        self._known: list[str] = []  # of this worker
        self._unused: deque[str] = deque()
        self._deck: Deck | None = None

    # -- files --------------------------------------------------------------------------------

    def get_frame_range(self, filename: str) -> tuple[int, int]:
        """(start, end) from a file's name, ``traj_<start>_<end>.npz``."""
        return frame_range(filename)

    def assemble_obs_components(self, traj_data: dict[str, Any]) -> Frames:
        """The frames with one observation put together from its parts (``obs_<part>``)."""
        if not isinstance(self.source, DirectorySource):
            raise LayoutError("a storage has whole observations: there is nothing to assemble")
        return self.source.assemble(canonical(traj_data), self.source.path)

    def read_dataset_directory(self) -> bool:
        """Looks for trajectories. True if there are enough for every env.

        Trajectories that were not there before are to be read next.
        """
        found = self.source.trajectories()
        if self.keep_latest_n_trajs:
            found = found[-self.keep_latest_n_trajs :]
        rank, world = self._worker
        # By number among those seen first, so that a later look shards the old ones as before.
        self._all += [name for name in found if name not in self._seen]
        self._seen.update(found)
        there = set(found)
        mine = [name for name in self._all[rank::world] if name in there]
        fresh = [name for name in mine if name not in self._taken]
        self._taken.update(fresh)
        self._known = mine
        self._unused.extend(self._ordered(fresh))
        return len(mine) >= self.num_envs

    def _ordered(self, names: list[str]) -> list[str]:
        if not self.random_shuffle_traj_order:
            return names
        return [names[i] for i in self._random.permutation(len(names))]

    # -- envs ---------------------------------------------------------------------------------

    def reset_all(self) -> None:
        info = torch.utils.data.get_worker_info()
        self._worker = (0, 1) if info is None else (info.id, info.num_workers)
        if info is not None and isinstance(self.source, StorageSource):
            self.source.in_worker()
        self._random = np.random.default_rng([self.seed, self._worker[0]])
        self.num_dataset_looped = 0
        self._unused.clear()
        self._all: list[str] = []
        self._seen: set[str] = set()
        self._taken: set[str] = set()
        self._await_trajectories()
        count = self.num_envs
        self._names = [""] * count
        self._pieces: list[list[Piece]] = [[] for _ in range(count)]
        self._piece = np.zeros(count, np.int64)
        self._cursor = np.zeros(count, np.int64)
        self._length = np.zeros(count, np.int64)
        self._first = np.zeros(count, bool)  # the frame at the cursor is a first one
        self._wanting = np.ones(count, bool)  # needs a trajectory before the next frame
        self._ended = False
        self._maintain()

    def _await_trajectories(self) -> None:
        deadline = time.monotonic() + self.wait_s
        told = False
        while not self.read_dataset_directory():
            rank, world = self._worker
            share = f" for worker {rank} of {world}" if world > 1 else ""
            have = f"{self.source.describe()}: {len(self._known)} trajectories{share}"
            if time.monotonic() >= deadline:
                raise NothingEligibleError(
                    f"{have}, but num_envs={self.num_envs} envs read one each; waited "
                    f"{self.wait_s} s; record more, or read with fewer envs or workers"
                )
            if not told:
                log.warning("%s, waiting up to %s s for %d", have, self.wait_s, self.num_envs)
                told = True
            time.sleep(_POLL_S)

    def refresh_handlers(self, env_ids: Any) -> None:
        self._wanting[np.asarray(torch.as_tensor(env_ids).cpu())] = True
        self._maintain()

    def _maintain(self) -> None:
        """Gives envs that need it their next trajectory."""
        for env in np.flatnonzero(self._wanting):
            self._begin(int(env), self._next_name())

    def _next_name(self) -> str:
        if not self._unused and not self._ended:
            deadline = time.monotonic() + self.follow_s
            self.read_dataset_directory()
            while not self._unused and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                self.read_dataset_directory()
        if not self._unused:
            if not self._ended:
                self.num_dataset_looped += 1
            self._ended = self.num_dataset_looped >= self.dataset_loops
            if self._ended:
                raise StopIteration(
                    f"{self.source.describe()}: read {self.dataset_loops} times, as dataset_loops "
                    "says; reset() starts anew"
                )
            self._unused.extend(self._ordered(self._known))
        return self._unused.popleft()

    def _begin(self, env: int, name: str) -> None:
        pieces = self.source.pieces(name)
        if not pieces:
            raise LayoutError(f"{self.source.describe()}: {name} has no frames any more")
        low, high = self.starting_frame_range
        frame = int(self._random.integers(low, high)) if high - low > 1 else low
        frame = min(pieces[0].start + frame, pieces[-1].end - 1)
        number = next(i for i, piece in enumerate(pieces) if frame < piece.end)
        self._names[env], self._pieces[env] = name, pieces
        self._load(env, number)
        self._cursor[env] = frame - pieces[number].start
        self._first[env] = True
        self._wanting[env] = False

    def _load(self, env: int, number: int) -> None:
        piece = self._pieces[env][number]
        frames = self.source.load(self._names[env], piece)
        frames = _complete(frames)
        where = f"{self.source.describe()}: {self._names[env]}, {piece.file}"
        if self.check_finite:
            _check_finite(frames, env, piece.start, where)
        if self._deck is None:
            self._deck = Deck(frames, self.num_envs, self.device)
        self._deck.put(env, frames, where)
        self._piece[env], self._length[env] = number, piece.end - piece.start

    # -- batches ------------------------------------------------------------------------------

    def get_buffer(self, num_transitions_per_env: int | None = None) -> Transition:
        if not self._ready:
            self.reset()
        assert self._deck is not None
        fields = self._deck.fields
        lead = () if num_transitions_per_env is None else (num_transitions_per_env,)

        def new(name: str) -> Any:
            if name not in fields:
                return None
            shape, dtype = fields[name].shape[2:], fields[name].dtype
            return torch.empty(*lead, self.num_envs, *shape, dtype=dtype, device=self.device)

        stored = [*Transition._fields[:6], "observation", "privileged_observation"]
        return Transition._make(new(name) for name in stored)

    def fill_transition(self, buffer: Any, env_ids: Any = None) -> None:
        if env_ids is None:
            envs = np.arange(self.num_envs)
            rows: Any = slice(None)
        else:
            rows = torch.as_tensor(env_ids, device=self.device)
            envs = np.asarray(rows.cpu(), np.int64)
        if self._wanting[envs].any():
            self._maintain()
        deck = self._deck
        assert deck is not None
        whole = env_ids is None
        at = deck.index(envs, self._cursor[envs])
        for name in Transition._fields[:6]:
            target = getattr(buffer, name)
            if target is not None:
                _put(target, rows, deck.read(name, at, target if whole else None))
        for name in _NEXT:  # before other frames take the place of these
            target = getattr(buffer, name)
            if name in deck.fields and target is not None:
                _put(target, rows, deck.read(name, at, target if whole else None))
        done, late = buffer.done[rows], buffer.timeout[rows]
        over = np.asarray(done.cpu()) | np.asarray(late.cpu())  # by the file, before marks
        self._cursor[envs] += 1
        last = self._cross(envs)
        ended = torch.from_numpy(last).to(self.device)
        late = late | (ended & ~done)
        done = done | ended
        if self.first_frame_done:
            done = done | torch.from_numpy(self._first[envs]).to(self.device)
        _put(buffer.done, rows, done)
        _put(buffer.timeout, rows, late)
        self._first[envs] = False
        self._fill_next(buffer, rows, envs, last | over)

    def _cross(self, envs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Loads the next piece where one has been read; which trajectories have ended."""
        last = np.zeros(len(envs), bool)
        for i in np.flatnonzero(self._cursor[envs] >= self._length[envs]):
            env = int(envs[i])
            number = int(self._piece[env]) + 1
            if number < len(self._pieces[env]):
                self._load(env, number)
                self._cursor[env] = 0
            else:
                last[i] = self._wanting[env] = True
        return last

    def _fill_next(self, buffer: Any, rows: Any, envs: Any, over: Any) -> None:
        """Next observations, where the file has none."""
        deck = self._deck
        assert deck is not None
        after = deck.index(envs, np.where(self._wanting[envs], 0, self._cursor[envs]))
        for name in ("observation", "privileged_observation"):
            target = getattr(buffer, f"next_{name}")
            if target is None or f"next_{name}" in deck.fields:
                continue
            whole = isinstance(rows, slice)
            new = deck.read(name, after, target if whole else None)
            if over.any():  # not the next episode's
                own = torch.from_numpy(np.flatnonzero(over)).to(self.device)
                new[own] = getattr(buffer, name)[rows][own]
            _put(target, rows, new)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_deck"], state["_ready"] = None, False
        return state


def _complete(frames: Frames) -> Frames:
    """Frames with flags, as bool ``[n]``, and rewards ``[n]``."""
    rows = len(frames["observation"])
    out = dict(frames)
    for flag in ("done", "timeout"):
        given = frames.get(flag)
        if given is None:
            out[flag] = np.zeros(rows, bool)
        elif given.dtype != bool or given.ndim != 1:
            out[flag] = given.reshape(rows, -1)[:, 0] != 0
    if out["reward"].ndim == 2 and out["reward"].shape[1] == 1:
        out["reward"] = out["reward"][:, 0]
    return out


def _check_finite(frames: Frames, env: int, start: int, where: str) -> None:
    for name, array in frames.items():
        if array.dtype.kind == "f":
            bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))
            if len(bad):
                raise ValueError(
                    f"{where}: {name} is not finite at frame {start + int(bad[0])}, which env "
                    f"{env} was to read; leave the trajectory out, or check_finite=False"
                )


def _put(target: torch.Tensor, rows: Any, values: torch.Tensor) -> None:
    if values.data_ptr() != target.data_ptr():
        target[rows] = values
