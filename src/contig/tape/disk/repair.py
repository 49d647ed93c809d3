"""Looks through a whole storage, and sets aside what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .directory import DamagedIndexError, Directory, open_index, read_description, read_index
from .rebuild import rebuild
from .storage import DiskStorage

__all__ = ["Damage", "repair", "verify"]

_STEP_BYTES = 8 << 20


class Damage(NamedTuple):
    """What is not as it was written.

    Attributes:
        trajectories: by `id`, with the reason.
        repaired: how many more a repair set aside before.
        rows_checked: how many.
    """

    trajectories: dict[int, str]
    repaired: int
    rows_checked: int


def verify(storage: DiskStorage) -> Damage:
    """Reads every row and compares its checksum. Rows evicted meanwhile are left out."""
    head, tail, _, _ = storage.tape.snapshot()
    found = dict(storage.quarantined)
    step = max(_STEP_BYTES // max(storage.tape.record_size, 1), 1)
    for low in range(tail, head, step):
        for ordinal in storage.damaged(low, min(low + step, head)):
            found.setdefault(ordinal, "a row's checksum is wrong")
    news = {o: reason for o, reason in found.items() if o not in storage.repaired}
    return Damage(news, len(found) - len(news), head - tail)


def repair(path: Path) -> list[str]:
    """Sets aside what is damaged, for good; what was done, line by line.

    Killed at any time, it leaves what it found, or what it was to leave.

    Raises:
        BlockingIOError: another process writes here.
        ValueError: it cannot be repaired.
        OSError: something else is in the way: no room, no permission, and the like.
    """
    done = []
    directory = Directory(path, make=False)
    try:
        directory.check_storage()
        directory.lock()
        described = read_description(directory)
        assert described is not None
        store = int(described.get("store", 0))
        why = _unreadable(directory, store)
        if why is not None:
            saved = rebuild(directory, store)
            done.append(
                f"the index could not be read ({why}): {saved.runs:,} runs of {saved.rows:,} rows "
                f"were saved, the old one is in {saved.aside}"
            )
    finally:
        directory.close()
    with DiskStorage(path) as storage:
        count = storage.clear_beyond()
        if count:
            done.append(
                f"{count:,} rows of which the index does not know are in {path / 'quarantine'}"
            )
        found = verify(storage).trajectories
        storage.quarantine(found, repaired=True)
        storage.flush()
        done += [f"episode {o} is set aside: {r}" for o, r in found.items()]
    return done or ["nothing is damaged"]


def _unreadable(directory: Directory, store: int) -> str | None:
    """Why an index has to be built anew, or None."""
    try:
        index = open_index(directory, True, store)
        try:
            state = read_index(index, True, store)
        finally:
            index.close()
    except DamagedIndexError as error:
        return str(error.__cause__ or error)
    if state.bad:
        return f"{len(state.bad):,} of its entries are damaged"
    return "what producers have sent is damaged" if state.lost_producers else None
