"""Time that no setting of the clock changes, within one run of the system."""

from __future__ import annotations

import functools
import time
from pathlib import Path

__all__ = ["boot_id", "uptime_ns"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def boot_id() -> int:
    """Returns the number of this boot of the system; 0 if it cannot be told."""
    try:
        return int(_BOOT.read_text().strip().replace("-", "")[:16], 16)
    except (OSError, ValueError):
        return 0


def uptime_ns() -> int:
    """Nanoseconds since some moment of this run of the system, the same for all processes; while it
    sleeps, too, where the system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)
