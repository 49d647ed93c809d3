"""RolloutDataset: trajectories from a directory or a storage, as `num_envs` envs side by side.

trajectory_*/traj_<start>_<end>.npz  ->  a trajectory per env  ->  Transition [num_envs, ...]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..arguments import seconds
from ..errors import LayoutError
from .base import RolloutFileBase
from .frame_slots import FrameSlots
from .frames import Frames, canonical, frame_range, must_be_finite, with_flags
from .reading_order import ReadingOrder
from .source import DirectorySource, Piece, StorageSource, source_of
from .steps import DatasetTransition, part

__all__ = ["RolloutDataset", "Transition"]

Transition = DatasetTransition

_OBSERVATIONS = ("observation", "privileged_observation")


class RolloutDataset(RolloutFileBase):
    """Rollouts from files.

    Each env reads one trajectory after another; no two read the same one in a loop. The dataset
    ends when an env needs a trajectory and `dataset_loops` loops have been handed out; rows that
    the other envs have not come to by then are left (with one env, none). In workers of a
    DataLoader each reads its share of the trajectories, with `num_envs` envs of its own.

    - `done` is True at the first frame of a trajectory (`first_frame_done`) and at its last.
    - `timeout` is the file's; also True at a last frame that did not terminate.
    - `next_observation` is the next frame's of the same episode. At an episode's end it is what
      the file says, if it has next observations, else the frame's own.

    Args:
        data_dir: a directory, with trajectories in it or in its sub-directories, or a list of such;
            or a storage (say, a `DiskStorage`): its complete trajectories, also those that are
            committed later.
        num_envs: trajectories that are read side by side.
        dataset_loops: how often the data is handed out; less than 1: for ever.
        random_shuffle_traj_order: another order in each loop; else the oldest first.
        keep_latest_n_trajs: how many, the newest, which are waited for; 0: all.
        starting_frame_range: [low, high): a trajectory begins at a random frame of these.
        device: where batches go; None: cuda if there is one.
        wait_s: how long to wait for as many trajectories as envs, and as are to be kept.
        follow_s: how long to wait for new trajectories at the end of a loop.
        first_frame_done: whether first frames are marked.
        check_finite: refuse frames with a NaN or an infinity; it names the env, file and frame.
        seed: of orders and starting frames.
    """

    Transition = Transition

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
        if keep_latest_n_trajs < 0:
            raise ValueError(f"keep_latest_n_trajs={keep_latest_n_trajs}: expected 0 or more")
        self.dataset_loops = dataset_loops
        self.random_shuffle_traj_order = random_shuffle_traj_order
        self.keep_latest_n_trajs = keep_latest_n_trajs
        self.starting_frame_range = (int(low), int(high))
        self.wait_s, self.follow_s = seconds("wait_s", wait_s), seconds("follow_s", follow_s)
        self.first_frame_done = first_frame_done
        self.check_finite = check_finite
        self.seed = seed
        self.source = source_of(data_dir)
        self._slots: FrameSlots | None = None
        self._forget()

    def _forget(self) -> None:
        """Nothing has been looked at or handed out."""
        info = torch.utils.data.get_worker_info()
        worker = (0, 1) if info is None else (info.id, info.num_workers)
        self._random = np.random.default_rng([self.seed, worker[0]])
        self._order = ReadingOrder(
            self.source,
            worker,
            loops=self.dataset_loops,
            newest=self.keep_latest_n_trajs,
            shuffled=self.random_shuffle_traj_order,
            random=self._random,
        )
        count = self.num_envs
        self.traj_identifiers = [""] * count
        self._pieces: list[list[Piece]] = [[] for _ in range(count)]
        self._piece = np.zeros(count, np.int64)
        self._cursor = np.zeros(count, np.int64)
        self._length = np.zeros(count, np.int64)
        self._first = np.zeros(count, bool)  # the frame at the cursor is a first one
        self._wanting = np.ones(count, bool)  # needs a trajectory before the next frame

    # -- files --------------------------------------------------------------------------------

    @staticmethod
    def get_frame_range(filename: str) -> tuple[int, int]:
        """(start, end) from a file's name, ``traj_<start>_<end>.npz``."""
        return frame_range(filename)

    def assemble_obs_components(self, traj_data: dict[str, Any]) -> Frames:
        """The frames with one observation put together from its parts (``obs_<part>``)."""
        if not isinstance(self.source, DirectorySource):
            raise LayoutError("a storage has whole observations: there is nothing to assemble")
        return self.source.assemble(canonical(traj_data), self.source.paths[0])

    def read_dataset_directory(self) -> bool:
        """Looks for trajectories. True if there are enough for every env, and as many as
        `keep_latest_n_trajs` says.

        Trajectories that were not there before are to be read next.
        """
        return self._order.look() >= self.num_envs and self._order.has_newest

    @property
    def num_dataset_looped(self) -> int:
        """How often the data was handed out."""
        return self._order.looped

    # -- envs ---------------------------------------------------------------------------------

    def reset_all(self) -> None:
        self._forget()
        if isinstance(self.source, StorageSource):
            self.source.in_worker()
        self._order.wait_for(self.num_envs, self.wait_s, self.read_dataset_directory)
        self.refresh_handlers(self.all_env_ids)

    def refresh_handlers(self, env_ids: Any) -> None:
        """Gives some envs new trajectories. One that has handed out no frame of its own keeps
        that: nothing is skipped unread."""
        for env in self._env_numbers(env_ids):
            if self._first[env]:
                continue
            self._wanting[env] = True
            self._maintain_handler(int(env))

    def _refresh_traj_handler(self, env_idx: int) -> None:
        """Puts an env's cursor into the trajectory ``traj_identifiers[env_idx]``, at a frame of
        `starting_frame_range`, and reads the file that has it."""
        name = self.traj_identifiers[env_idx]
        pieces = self.source.pieces(name)
        if not pieces:
            raise LayoutError(f"{self.source.describe()}: {name} has no frames any more")
        low, high = self.starting_frame_range
        frame = int(self._random.integers(low, high)) if high - low > 1 else low
        frame = min(pieces[0].start + frame, pieces[-1].end - 1)
        number = next(i for i, piece in enumerate(pieces) if frame < piece.end)
        self._pieces[env_idx], self._piece[env_idx] = pieces, number
        self._cursor[env_idx] = frame - pieces[number].start
        self._refresh_traj_data(env_idx)
        self._first[env_idx] = True
        self._wanting[env_idx] = False

    def _refresh_traj_data(self, env_idx: int) -> None:
        """Reads the file that an env's cursor is in. Its frames then are ``traj_data[env_idx]``."""
        name, piece = self.traj_identifiers[env_idx], self._pieces[env_idx][self._piece[env_idx]]
        frames = with_flags(self.source.load(name, piece))
        where = f"{self.source.describe()}: {name}, {piece.file}"
        if self.check_finite:
            must_be_finite(frames, env_idx, piece.start, where)
        if self._slots is None:
            self._slots = FrameSlots(frames, self.num_envs, self.device)
        self._slots.put(env_idx, frames, where)
        self._length[env_idx] = piece.end - piece.start

    @property
    def traj_data(self) -> list[dict[str, torch.Tensor]]:
        """The frames that each env reads at present, by field; views, which may be changed."""
        slots = self._slots
        if slots is None:
            return [{} for _ in range(self.num_envs)]
        return [slots.slot_of(env, int(self._length[env])) for env in range(self.num_envs)]

    def _maintain_handler(self, env_idx: int) -> None:
        """Moves an env on: from the end of a file to the next one; from the end of a trajectory,
        before its next frame, to another trajectory.

        Raises:
            StopIteration: all loops have been handed out.
        """
        if self._wanting[env_idx]:
            self.traj_identifiers[env_idx] = self._order.next(
                self.follow_s, self.read_dataset_directory
            )
            self._refresh_traj_handler(env_idx)
        elif self._cursor[env_idx] >= self._length[env_idx]:
            if self._piece[env_idx] + 1 < len(self._pieces[env_idx]):
                self._piece[env_idx] += 1
                self._cursor[env_idx] = 0
                self._refresh_traj_data(env_idx)
            else:
                self._wanting[env_idx] = True

    # -- batches ------------------------------------------------------------------------------

    def get_buffer(self, num_transitions_per_env: int | None = None) -> DatasetTransition:
        if not self._ready:
            self.reset()
        assert self._slots is not None
        fields = self._slots.fields
        lead = () if num_transitions_per_env is None else (num_transitions_per_env,)

        def new(name: str) -> Any:
            if name not in fields:
                return None
            shape, dtype = fields[name].shape[2:], fields[name].dtype
            return torch.empty(*lead, self.num_envs, *shape, dtype=dtype, device=self.device)

        stored = [*DatasetTransition._fields[:6], *_OBSERVATIONS]
        return DatasetTransition._make(new(name) for name in stored)

    def fill_transition(self, buffer: Any, env_ids: Any = None) -> None:
        if not self._ready:
            self.reset()
        envs = self._env_numbers(env_ids)
        for env in envs[self._wanting[envs]]:
            self._maintain_handler(int(env))
        if type(self)._fill_transition_per_env is RolloutDataset._fill_transition_per_env:
            self._fill(buffer, envs, whole=env_ids is None)
            return
        for env in envs:  # a subclass has its own way
            self._fill_transition_per_env(buffer, int(env))

    def _fill_transition_per_env(self, buffer: Any, env_idx: int) -> None:
        """Writes the next row of one env, and moves its cursor. Without a subclass that has
        another, all envs are read at once."""
        if self._wanting[env_idx]:
            self._maintain_handler(env_idx)
        self._fill(buffer, np.array([env_idx]), whole=False)

    def _fill(self, buffer: Any, envs: np.ndarray[Any, Any], whole: bool) -> None:
        """Writes rows of envs that have a frame."""
        slots = self._slots
        assert slots is not None
        rows: Any = slice(None) if whole else torch.from_numpy(envs).to(self.device)
        at = slots.index(envs, self._cursor[envs])
        if type(buffer) is DatasetTransition:
            targets = dict(zip(DatasetTransition._fields, buffer))
        else:
            targets = {name: part(buffer, name, None) for name in DatasetTransition._fields}
        if all(target is None for target in targets.values()):
            part(buffer, "observation")  # says what is missing
        # Next observations of the file too, before other frames take the place of these.
        read: dict[str, torch.Tensor] = {}
        for name, target in targets.items():
            if name in slots.fields and target is not None:
                read[name] = slots.read(name, at, target if whole else None)
                _put(target, rows, read[name])
        follows = [
            name
            for name in _OBSERVATIONS
            if targets[f"next_{name}"] is not None and f"next_{name}" not in slots.fields
        ]
        for name in ("done", "timeout", *follows):
            if name not in read:
                read[name] = slots.read(name, at)
        done, late = read["done"], read["timeout"]
        over = np.asarray(done.cpu()) | np.asarray(late.cpu())  # by the file, before marks
        self._cursor[envs] += 1
        first = self._first[envs]
        self._first[envs] = False
        for env in envs[self._cursor[envs] >= self._length[envs]]:
            self._maintain_handler(int(env))
        last = self._wanting[envs]
        if last.any():
            ended = torch.from_numpy(last).to(self.device)
            late = late | (ended & ~done)
            done = done | ended
        if self.first_frame_done and first.any():
            done = done | torch.from_numpy(first).to(self.device)
        for name, flags in (("done", done), ("timeout", late)):
            if targets[name] is not None:
                _put(targets[name], rows, flags)
        after = slots.index(envs, np.where(last, 0, self._cursor[envs]))
        ends = np.flatnonzero(last | over)
        for name in follows:
            target = targets[f"next_{name}"]
            new = slots.read(name, after, target if whole else None)
            if len(ends):  # not the next episode's
                own = torch.from_numpy(ends).to(self.device)
                new[own] = read[name][own]
            _put(target, rows, new)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_slots"], state["_ready"] = None, False
        return state


def _put(target: torch.Tensor, rows: Any, values: torch.Tensor) -> None:
    if values.data_ptr() != target.data_ptr():
        target[rows] = values
