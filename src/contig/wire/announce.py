"""How a server is found on its own host: a named segment that says how to attach to its tables.

    word 0  magic            word 2  1: it was closed      word 6  bytes
    word 1  version: 1       word 3  its process           64 bytes on: JSON

Whether it still runs, the segment tells in two ways: by the process it names, and by the lock that
every process holds on the segments it has open. Either may be blind, the first across containers,
the second while a child of the server lives; together they miss nothing that is usual.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from typing import Any

import numpy as np

from .. import _native
from ..tape.segment import Segment

if sys.platform == "linux":
    import fcntl

__all__ = ["FoundServer", "announce", "say_closed"]

_MAGIC = 0x31766573_67746E63  # "cntgsev1"
_CLOSED = 16  # the byte of word 2


def announce(name: str, tables: dict[str, Any]) -> Segment:
    """A named segment that says how to attach to a server's tables."""
    text = json.dumps({"tables": tables}).encode()
    nbytes = 64 + len(text)

    def form(memory: np.ndarray[Any, Any]) -> None:
        memory[64:] = np.frombuffer(text, np.uint8)
        words = memory[:64].view(np.uint64)
        words[[0, 1, 6]] = (_MAGIC, 1, nbytes)
        words[3] = _native.process_id()

    segment, created = Segment.named(name, nbytes, form, nbytes)
    if not created:
        segment.close()
        raise FileExistsError(f"a server named {name!r} is running; choose another name")
    return segment


def say_closed(segment: Segment) -> None:
    """For those that have it mapped."""
    segment.control[_CLOSED] = 1


class FoundServer:
    """A server of this host, looked up by its name. Thread-safe.

    Attributes:
        tables: how to attach to them, by name.
        said_closed: one byte, not 0 once it was closed.

    Raises:
        ConnectionRefusedError: no such server runs.
    """

    def __init__(self, name: str) -> None:
        try:
            segment = Segment.attach(name)
        except FileNotFoundError:
            raise ConnectionRefusedError(
                f"no contig server named {name!r} runs on this host"
            ) from None
        try:
            if int(segment.control[:8].view(np.uint64)[0]) != _MAGIC:
                raise ValueError(f"{name!r} is no contig server (magic)")
            self.tables = dict(json.loads(segment.control[64:].tobytes())["tables"])
            self.said_closed = segment.control.data[_CLOSED : _CLOSED + 1]
            self._process = int(segment.control[24:32].view(np.uint64)[0])
            # Without a lock of its own, to see whether others have one.
            self._fd = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            segment.close()
        self.close = weakref.finalize(self, os.close, self._fd)
        if self.gone:  # what a crashed one left, and a child of it keeps
            self.close()
            raise ConnectionRefusedError(f"the contig server named {name!r} died")

    @property
    def gone(self) -> bool:
        """Whether it was closed, or its process died. Some system calls."""
        if self.said_closed[0] or _native.process_gone(self._process):
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True
