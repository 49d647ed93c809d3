"""Looks through a whole storage, and sets aside what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .directory import DamagedIndexError, hold_directory, read_description
from .salvage import salvage
from .storage import DiskStorage

__all__ = ["Damage", "repair", "verify"]

_STEP = 1 << 16


class Damage(NamedTuple):
    """What is not as it was written.

    Attributes:
        trajectories: by `id`, with the reason.
        rows_checked: how many.
    """

    trajectories: dict[int, str]
    rows_checked: int


def verify(storage: DiskStorage) -> Damage:
    """Reads every row and compares its checksum. Rows evicted meanwhile are left out."""
    head, tail, _, _ = storage.tape.snapshot()
    found = dict(storage.quarantined)
    for low in range(tail, head, _STEP):
        for ordinal in storage.damaged(low, min(low + _STEP, head)):
            found.setdefault(ordinal, "a row's checksum is wrong")
    return Damage(found, head - tail)


def repair(path: Path) -> list[str]:
    """Sets aside what is damaged, for good; what was done, line by line.

    Raises:
        BlockingIOError: another process writes here.
        ValueError: it cannot be repaired.
    """
    done = []
    try:
        storage = DiskStorage(path)
    except DamagedIndexError:
        with hold_directory(path):
            described = read_description(path)
            assert described is not None  # or there would be no index
            saved = salvage(path, int(described["rows_per_extent"]))
        done.append(
            f"the index could not be read: {saved.runs:,} runs of {saved.rows:,} rows were saved, "
            f"the old one is in {saved.aside}"
        )
        storage = DiskStorage(path)
    try:
        storage.quarantine(verify(storage).trajectories)
        storage.flush()
        done += [f"episode {o} is set aside: {r}" for o, r in storage.quarantined.items()]
    finally:
        storage.close()
    return done or ["nothing is damaged"]
