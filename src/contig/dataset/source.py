"""Where trajectories come from: a directory of files, or a storage that others write to.

A source lists trajectories, oldest first, and loads pieces of them. It holds no data.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch
from ..errors import LayoutError
from ..keys import DONE, REWARD, TRUNCATED
from ..tape import Storage
from ..tape.disk import DiskStorage
from ..tree import show_path
from .codecs import check_codec, decode
from .episodes import on_host
from .frames import Frames, frame_range, load_frames

__all__ = ["DirectorySource", "Piece", "FrameSource", "StorageSource", "source_of"]

_SETTLED_NS = 2_000_000_000


class Piece(NamedTuple):
    """Frames [start, end) of a trajectory that are loaded together."""

    start: int
    end: int
    file: str


class FrameSource(ABC):
    """Trajectories by name."""

    @abstractmethod
    def trajectories(self) -> list[str]:
        """Names of all there are now, oldest first."""

    @abstractmethod
    def pieces(self, name: str) -> list[Piece]:
        """The pieces of one, in order."""

    @abstractmethod
    def load(self, name: str, piece: Piece) -> Frames:
        """The frames of a piece: observation, action and the like."""

    @abstractmethod
    def describe(self) -> str:
        """Where this is, for messages."""


def source_of(data: Any) -> FrameSource:
    """A source of what a dataset was given: a path, a storage, or a buffer that has one."""
    storage = data if isinstance(data, Storage) else getattr(data, "storage", None)
    if isinstance(storage, Storage):
        return StorageSource(storage)
    paths = list(data) if isinstance(data, (list, tuple)) else [data]
    if not paths or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(
            f"data_dir={type(data).__name__}: expected a directory or a list of directories, or a "
            "storage or a contig.ReplayBuffer with complete trajectories"
        )
    return DirectorySource(*map(Path, paths))


class DirectorySource(FrameSource):
    """``trajectory_*/traj_<start>_<end>.*`` and, for observations in parts, ``metadata.json``.

    Args:
        paths: directories, in which, or in whose sub-directories, trajectories are. Their names are
            those of their folders, from the directory on; from the root, if there are several.
    """

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self._metadata: dict[str, dict[str, Any]] = {}  # by directory
        self._listed: dict[str, tuple[int, list[str]]] = {}  # by folder: its time, its files

    def describe(self) -> str:
        return ", ".join(map(str, self.paths))

    def metadata(self, directory: str | os.PathLike[str]) -> dict[str, Any]:
        """Returns the content of a directory's ``metadata.json``; empty if there is none.

        Raises:
            LayoutError: it is damaged.
        """
        known = self._metadata.get(os.fspath(directory))
        if known is not None:
            return known
        file = Path(directory, "metadata.json")
        try:
            found = json.loads(file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise LayoutError(f"{file} is damaged: {error}") from None
        if not isinstance(found, dict):
            raise LayoutError(f"{file}: expected an object, got {type(found).__name__}")
        self._metadata[os.fspath(directory)] = found
        return found

    def _folder(self, name: str) -> str:
        return name if len(self.paths) > 1 else os.path.join(self.paths[0], name)

    def trajectories(self) -> list[str]:
        found: list[tuple[int, tuple[int, str], str]] = []
        for path in self.paths:
            if not path.is_dir():
                raise FileNotFoundError(f"{path}: no such directory; expected trajectory_* in it")
            self._look_in(path, os.fspath(path) if len(self.paths) > 1 else "", found)
        return [name for *_, name in sorted(found)]

    def _look_in(
        self, directory: str | Path, name: str, found: list[tuple[int, tuple[int, str], str]]
    ) -> None:
        with os.scandir(directory) as folders:
            for folder in folders:
                try:
                    if not folder.is_dir():
                        continue
                    below = os.path.join(name, folder.name)
                    if not folder.name.startswith("trajectory_"):
                        if not folder.is_symlink():  # which may lead back here
                            self._look_in(folder.path, below, found)
                        continue
                    when = folder.stat().st_mtime_ns
                    if self._files(below, when):
                        found.append((when, _natural(below), below))
                except FileNotFoundError:  # removed meanwhile
                    continue

    def _files(self, name: str, when: int) -> list[str]:
        """Files of frames in a folder that was last changed at `when`."""
        known = self._listed.get(name)
        if known is not None and known[0] == when:
            return known[1]
        asked = time.time_ns()
        listed = [file for file in os.listdir(self._folder(name)) if _is_frames(file)]
        # A file that appears in the same tick of the clock would not be seen: look again then.
        if asked - when > _SETTLED_NS:
            self._listed[name] = (when, listed)
        return listed

    def pieces(self, name: str) -> list[Piece]:
        folder = self._folder(name)
        listed = self._files(name, os.stat(folder).st_mtime_ns)
        out = sorted(Piece(*frame_range(file), file) for file in listed)
        for before, after in itertools.pairwise(out):
            if before.end != after.start:
                raise LayoutError(
                    f"{folder}: {before.file} and {after.file} do not follow each other; a file "
                    "is missing or there twice"
                )
        return out

    def load(self, name: str, piece: Piece) -> Frames:
        folder = self._folder(name)
        path = os.path.join(folder, piece.file)
        frames = load_frames(path)
        if "observation" not in frames:
            frames = self.assemble(frames, os.path.dirname(folder), path)
        for needed in ("observation", "action", "reward"):
            if needed not in frames:
                raise LayoutError(
                    f"{path}: no {needed}; it has {', '.join(sorted(frames)) or 'nothing'}"
                )
        return frames

    def assemble(self, frames: Frames, directory: Any, where: Any = None) -> Frames:
        """Puts the parts of observations (``obs_<part>``) together, in the order of a directory's
        metadata. `where` the frames are from, for messages; None: the directory.

        Raises:
            LayoutError: no metadata, or a part that does not fit it.
        """
        where, metadata = directory if where is None else where, self.metadata(directory)
        segments = metadata.get("obs_segments")
        if not isinstance(segments, dict):
            raise LayoutError(
                f"{where}: no observation, and {Path(directory, 'metadata.json')} has no "
                "obs_segments that say how to put one together; copy the metadata next to the "
                "trajectories"
            )
        codecs = metadata.get("obs_disassemble_mapping") or {}
        rest, parts = dict(frames), []
        for part, shape in segments.items():
            stored = rest.pop(f"obs_{part}", None)
            if stored is None:
                raise LayoutError(f"{where}: no obs_{part}, which obs_segments lists")
            dims = tuple(shape) if isinstance(shape, list) else (int(shape),)
            check_codec(f"{where}: obs_{part}", codecs.get(part), dims)
            parts.append(decode(f"{where}: obs_{part}", codecs.get(part), stored, dims))
        return {**rest, "observation": np.concatenate(parts, 1)}


def _is_frames(name: str) -> bool:
    if name.endswith(".tmp"):
        return False
    try:
        frame_range(name)
    except ValueError:
        return False
    return True


def _natural(name: str) -> tuple[int, str]:
    digits = name.rpartition("_")[2]
    return (int(digits), name) if digits.isdigit() else (-1, name)


class StorageSource(FrameSource):
    """Complete trajectories of a storage, as they are committed."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._found: dict[str, Any] = {}  # entries by id
        self._pid = os.getpid()

    def describe(self) -> str:
        return str(getattr(self.storage, "path", type(self.storage).__name__))

    def in_worker(self) -> None:
        """In a process that was forked: a storage on disk has to be opened again."""
        if isinstance(self.storage, DiskStorage) and os.getpid() != self._pid:
            self._pid = os.getpid()
            self.storage = DiskStorage(self.storage.path, read_only=True)

    def trajectories(self) -> list[str]:
        found = self.storage.episodes()
        found = found[found["complete"]]
        aside = self.storage.quarantined
        self._found = {str(e["id"]): e for e in found if int(e["id"]) not in aside}
        return list(self._found)

    def pieces(self, name: str) -> list[Piece]:
        return [Piece(0, int(self._found[name]["steps"]), name)]

    def load(self, name: str, piece: Piece) -> Frames:
        batch = self.storage.read_episode(int(name))
        if len(batch) != piece.end:
            raise LayoutError(f"{self.describe()}: episode {name} is being evicted")
        out = {
            "observation": _leaf(batch, ("observation",), ("obs",), ("observations",)),
            "action": _leaf(batch, ("action",), ("actions",)),
            "reward": _leaf(batch, REWARD, REWARD[1:], ("rewards",)),
            "done": _leaf(batch, DONE, DONE[1:]),
            "timeout": _leaf(batch, TRUNCATED, TRUNCATED[1:]),
            "privileged_observation": _leaf(
                batch, ("critic_observation",), ("privileged_observation",)
            ),
            "next_observation": _leaf(batch, ("next", "observation"), ("next_observation",)),
            "next_privileged_observation": _leaf(batch, ("next", "critic_observation")),
        }
        for needed in ("observation", "action", "reward"):
            if out[needed] is None:
                raise LayoutError(
                    f"{self.describe()}: no leaf {needed}; it has "
                    f"{', '.join(show_path(leaf.path) for leaf in batch.layout.leaves)}"
                    f"{_groups(batch, needed)}"
                )
        for flag, end in (("done", ("terminated", "truncated")), ("timeout", ("truncated",))):
            # The index knows how it ended, whatever flags the rows have.
            column = np.zeros(len(batch), bool)
            if out[flag] is not None:
                column |= out[flag].reshape(len(batch), -1)[:, 0] != 0
            column[-1] |= any(self._found[name][e] for e in end)
            out[flag] = column
        return {k: v for k, v in out.items() if v is not None}


def _groups(batch: Batch, name: str) -> str:
    """What to do about leaves that are in groups, if these are."""
    if (name,) not in batch:
        return ""
    return (
        f". {name} is a dict, and a dataset hands out one array: store its parts as one, or read "
        "episodes with storage.read_episode(id)"
    )


def _leaf(batch: Batch, *paths: tuple[str, ...]) -> Any:
    for path in paths:
        if path in batch:
            found = on_host(batch[path])
            if isinstance(found, np.ndarray):
                return found
    return None
