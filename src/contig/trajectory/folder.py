"""Directories that are whole or not there, and what they say of themselves."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LayoutError
from ..tape.disk import files
from .journal import JOURNAL

__all__ = ["METADATA", "new_directory", "read_json", "shard", "write_json"]

METADATA = "metadata.json"
# What checkpoints and exports consist of; nothing else is ever replaced.
_OURS = re.compile(
    rf"{re.escape(METADATA)}|trajectory_index\.json|{re.escape(JOURNAL)}|layout\.json|extents|lock"
    r"|index\.sqlite(-wal|-shm)?|trajectory_\d+_.*\.(pt|pkl)"
)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill; at the end of the block it takes the place of what is at `path`.

    Raises:
        FileExistsError: there is something else than a checkpoint or an export.
    """
    path = path.resolve()
    if path.exists():
        other = [name for name in files.listing(path) if not _OURS.fullmatch(name)]
        if other:
            raise FileExistsError(
                f"{path}: {other[0]} is there; a checkpoint replaces its whole directory, so give "
                "it one of its own"
            )
    files.make_dir(path.parent)
    tag = uuid.uuid4().hex[:8]
    temporary = path.with_name(f".{path.name}.{tag}.tmp")
    old = path.with_name(f".{path.name}.{tag}.old")
    temporary.mkdir()
    try:
        yield temporary
        files.fsync_dir(temporary)
        if path.exists():
            files.rename(path, old)
        files.rename(temporary, path)
        files.fsync_dir(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


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
