"""What the system says about a process."""

from __future__ import annotations

import os
from pathlib import Path


def state(pid: int) -> str:
    """A process's state as one letter, T if it is stopped; nothing if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended and was not yet waited for does not."""
    return state(pid) not in ("", "Z", "X")


def files_of(name: str) -> int:
    """Descriptors of this process whose files have this in their name: what other tests left open
    may be closed at any time."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += name in os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            pass  # it was closed meanwhile, or is that of the list
    return count


def rss(pid: int | str = "self") -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
