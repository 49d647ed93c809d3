"""Directories that are whole or not there, and what they say of themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..errors import LayoutError
from ..replay import folder
from ..tape.disk import files

__all__ = [
    "CHECKPOINT",
    "CONTIG",
    "METADATA",
    "has_rows",
    "is_checkpoint",
    "new_directory",
    "read_json",
    "shard",
    "write_json",
]

METADATA = "metadata.json"
CHECKPOINT = "checkpoint.json"  # of the ReplayBuffer that a buffer is
CONTIG = "contig"  # metadata's `trajectory_format` of a checkpoint, and `exporter` of an export


def new_directory(path: Path, live: Iterable[Path]) -> AbstractContextManager[Path]:
    """A directory to fill with a checkpoint or an export; see `replay.folder`.

    Raises:
        FileExistsError: something else than an earlier one is there.
    """
    return folder.new_directory(path, _KIND, live)


def is_checkpoint(path: Path) -> bool:
    """Returns whether a directory is one of ours, and not RLinf's."""
    if files.exists(path / METADATA):
        return read_json(path / METADATA).get("trajectory_format") == CONTIG
    return files.exists(path / "layout.json")


def has_rows(path: Path) -> bool:
    """Whether a directory is a storage that a buffer can go on with.

    Raises:
        FileExistsError: it is a checkpoint, whose files are not a storage's.
    """
    if files.is_file(path / "layout.json"):
        return True
    if files.is_file(path / CHECKPOINT) or _says_checkpoint(path):
        raise FileExistsError(
            f"{path} is a checkpoint; give auto_save_path a directory of its own, and take this "
            "one in with load_checkpoint. Nothing was changed"
        )
    return False


def _says_checkpoint(path: Path) -> bool:
    try:
        return read_json(path / METADATA).get("trajectory_format") == CONTIG
    except (OSError, LayoutError):
        return False  # there is none, or it is somebody else's


def _fault(path: Path) -> str | None:
    """Why a directory is neither a checkpoint nor an export, or None."""
    try:
        metadata = read_json(path / METADATA)
    except (FileNotFoundError, LayoutError):
        there = ", ".join(sorted(files.listing(path))[:3])
        return f"there is no {METADATA} that can be read, but {there}"
    if metadata.get("trajectory_format") != CONTIG and metadata.get("exporter") != CONTIG:
        return f"{METADATA} there is not that of a checkpoint or an export of contig"
    return None


_KIND = folder.Kind(
    "a checkpoint or an export of a TrajectoryReplayBuffer",
    METADATA,
    re.compile(
        rf"{re.escape(CHECKPOINT)}|(records|index|fields)\.bin|array-\d+\.npy|extents/"
        rf"|({re.escape(METADATA)}|trajectory_index\.json|extents/\d{{8,}}\.rec)(\.tmp)?"
        r"|trajectory_\d+_(?s:[^/]*)\.(pt|pkl)"
    ),
    _fault,
)


def write_json(path: Path, value: Any) -> None:
    files.write_new(path, json.dumps(value).encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        FileNotFoundError: there is none.
        LayoutError: something else is there.
    """
    try:
        value = json.loads(files.read(path))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent}: no checkpoint there ({path.name})") from None
    except ValueError as error:
        raise LayoutError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise LayoutError(f"{path} is damaged: expected an object, got {type(value).__name__}")
    return value


def shard(count: int, rank: int, world_size: int) -> slice:
    """The part of `count` things that belongs to a rank: contiguous, the first ranks get one more.

    Raises:
        ValueError: no such rank.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"local_rank {rank} of world_size {world_size}: expected 0 <= local_rank < world_size"
        )
    each, more = divmod(count, world_size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))
