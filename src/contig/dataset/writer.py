"""RolloutWriter: writes the directories that RolloutDataset reads.

metadata.json               parts of observations and their codecs; whatever else is given
trajectory_<n>/             appears when the trajectory is complete
    traj_<start>_<end>.npz  arrays, no pickle
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..convert import is_number
from ..errors import ClosedError, LayoutError
from ..tape.disk import files
from .codecs import check_codec, encode
from .frames import Frames, canonical, save_frames
from .held import HeldDirectory

__all__ = ["RolloutWriter"]

_FIELDS = (
    "observation",
    "privileged_observation",
    "action",
    "reward",
    "done",
    "timeout",
    "next_observation",
    "next_privileged_observation",
)
_STORED = {"observation": "observations", "privileged_observation": "privileged_observations"}


class RolloutWriter:
    """Writes trajectories to a directory, behind those that are there.

    It is the only one that does, until it is closed: the directory itself is locked. One thread at
    a time, of the process that made it.

    Args:
        data_dir: the directory.
        num_envs: envs of `add_step`.
        frames_per_file: a longer trajectory has several files.
        obs_segments: parts of an observation vector in their order: name to shape. Each is stored
            by itself.
        codecs: of some parts, by name: "normalized_image", "one_hot", or a dict for "quantised";
            see `contig.dataset.codecs`.
        metadata: more to put into ``metadata.json``.

    Raises:
        BlockingIOError: another writer has the directory.
        LayoutError: it was written with other parts or codecs.
    """

    def __init__(
        self,
        data_dir: str | Path,
        num_envs: int = 1,
        *,
        frames_per_file: int = 1000,
        obs_segments: Mapping[str, Any] | None = None,
        codecs: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        if num_envs < 1 or frames_per_file < 1:
            raise ValueError(
                f"num_envs={num_envs}, frames_per_file={frames_per_file}: expected at least 1"
            )
        self.path = Path(data_dir).absolute()  # wherever the process goes
        self.num_envs, self.frames_per_file = num_envs, frames_per_file
        self._segments = {k: _shape(v) for k, v in (obs_segments or {}).items()}
        self._codecs = dict(codecs or {})
        for part, codec in self._codecs.items():
            if part not in self._segments:
                raise LayoutError(f"codecs: {part} is not among the obs_segments")
            check_codec(part, codec, self._segments[part])
        files.make_dir(self.path)
        self._held = HeldDirectory(self.path)
        try:
            self._describe(dict(metadata or {}))
        except BaseException:
            self._held.close()
            raise
        taken = [n.removeprefix(".") for n in files.listing(self.path)]
        numbers = [n.split("_")[1].partition(".")[0] for n in taken if n.startswith("trajectory_")]
        self._next = 1 + max((int(n) for n in numbers if n.isdigit()), default=-1)
        self._open: list[_Growing | None] = [None] * num_envs
        self._closed = False
        self._fields: frozenset[str] = frozenset()

    def _describe(self, more: dict[str, Any]) -> None:
        described = dict(more)
        if self._segments:
            described["obs_segments"] = {k: list(v) for k, v in self._segments.items()}
            described["obs_disassemble_mapping"] = self._codecs
        path = self.path / "metadata.json"
        if files.exists(path):
            there = json.loads(files.read(path))
            for key in ("obs_segments", "obs_disassemble_mapping"):
                if (there.get(key) or {}) != json.loads(json.dumps(described.get(key) or {})):
                    raise LayoutError(
                        f"{path}: {key} is {there.get(key)}, this writer's {described.get(key)}; "
                        "write to another directory, or as it was written before"
                    )
        else:
            files.write_new(path, json.dumps(described, indent=1).encode())

    def add_trajectory(self, data: Mapping[str, Any]) -> Path:
        """Writes one whole trajectory, arrays ``[T, ...]``: observation, action, reward, and, if
        there are any, privileged_observation, done, timeout, next_observation.

        Returns:
            its directory.
        """
        self._check_open()
        frames = self._checked(canonical(dict(data)), None)
        growing = self._new()
        try:
            growing.extend(frames, self)
            return growing.finish(self)
        except BaseException:
            growing.discard()
            raise

    def add_step(self, step: Mapping[str, Any]) -> None:
        """Writes one step of `num_envs` envs, arrays ``[num_envs, ...]``. A trajectory is complete
        when `done` or `timeout` is set, or at `close`."""
        self._check_open()
        frames = self._checked(canonical(dict(step)), self.num_envs)
        over = np.zeros(self.num_envs, bool)
        for flag in ("done", "timeout"):
            if flag in frames:
                over |= frames[flag].reshape(self.num_envs, -1)[:, 0] != 0
        for env in range(self.num_envs):
            growing = self._open[env]
            if growing is None:
                growing = self._open[env] = self._new()
            growing.extend({k: v[env : env + 1].copy() for k, v in frames.items()}, self)
            if over[env]:
                growing.finish(self)
                self._open[env] = None

    def _checked(self, frames: Frames, rows: int | None) -> Frames:
        for needed in ("observation", "action", "reward"):
            if needed not in frames:
                raise LayoutError(f"{needed}: missing; it has {', '.join(sorted(frames))}")
        odd = sorted(set(frames) - set(_FIELDS))
        if odd:
            raise LayoutError(f"{odd[0]}: unknown; fields are {', '.join(_FIELDS)}")
        if self._fields and frames.keys() != self._fields:
            other = sorted(frames.keys() ^ self._fields)[0]
            now = "given now, but not" if other in frames else "missing, but given"
            raise LayoutError(f"{other}: {now} before; all trajectories have the same fields")
        count = len(frames["observation"]) if rows is None else rows
        for name, array in frames.items():
            if array.ndim < 1 or len(array) != count or count == 0:
                raise LayoutError(
                    f"{name}: shape {list(array.shape)}, expected [{count or 'at least 1'}, ...]"
                )
            if not is_number(array.dtype) or array.dtype.name.startswith("float8"):
                raise LayoutError(f"{name}: {array.dtype}, expected numbers that .npz files hold")
        if self._segments:
            width = sum(math.prod(shape) for shape in self._segments.values())
            if frames["observation"].shape[1:] != (width,):
                raise LayoutError(
                    f"observation: shape {list(frames['observation'].shape)}, expected "
                    f"[{count}, {width}], the sum of obs_segments"
                )
        self._fields = frozenset(frames)
        return frames

    def encoded(self, frames: Frames) -> Frames:
        """Frames as they are stored."""
        out = {_STORED.get(k, k + "s"): v for k, v in frames.items()}
        if self._segments:
            whole, at = out.pop("observations"), 0
            for part, shape in self._segments.items():
                size = math.prod(shape)
                values = whole[:, at : at + size].reshape(-1, *shape)
                out[f"obs_{part}"] = encode(part, self._codecs.get(part), values)
                at += size
        return out

    def _new(self) -> _Growing:
        number, self._next = self._next, self._next + 1
        return _Growing(self.path, number)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this writer is closed")
        self._held.check()

    def close(self) -> None:
        """Completes trajectories that are still open; they then end without a termination."""
        if self._closed:
            return
        self._closed = True
        try:
            if any(growing is not None for growing in self._open):
                self._held.check()
            for growing in self._open:
                if growing is not None:
                    growing.finish(self)
        finally:
            self._held.close()

    def __enter__(self) -> RolloutWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class _Growing:
    """A trajectory that is being written, in a directory that readers do not look at."""

    def __init__(self, path: Path, number: int) -> None:
        self._final = path / f"trajectory_{number}"
        self._folder = path / f".trajectory_{number}.partial"
        self._pending: list[Frames] = []
        self._rows = self._written = 0

    def extend(self, frames: Frames, writer: RolloutWriter) -> None:
        self._pending.append(frames)
        self._rows += len(frames["observation"])
        while self._rows >= writer.frames_per_file:
            self._flush(writer, writer.frames_per_file)

    def _flush(self, writer: RolloutWriter, rows: int) -> None:
        joined = {
            name: np.concatenate([p[name] for p in self._pending]) for name in self._pending[0]
        }
        now = writer.encoded({k: v[:rows] for k, v in joined.items()})
        files.make_dir(self._folder)
        save_frames(self._folder / f"traj_{self._written}_{self._written + rows}.npz", now)
        self._written += rows
        self._rows -= rows
        self._pending = [{k: v[rows:] for k, v in joined.items()}] if self._rows else []

    def discard(self) -> None:
        files.remove_tree(self._folder)

    def finish(self, writer: RolloutWriter) -> Path:
        if self._rows:
            self._flush(writer, self._rows)
        files.rename(self._folder, self._final)
        files.fsync_dir(self._final.parent)
        return self._final


def _shape(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(int(n) for n in value)
