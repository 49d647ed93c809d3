"""A way of sending, as two functions: one for the receiver process, one for each client process.

The names stand in command lines and in `results.json`. A side's module is imported only where one
of its methods is used: echo is installed only for the peers' interpreter, contig only for ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from benchmarks.ingest.sizes import Message


@dataclass(frozen=True)
class Receiver:
    """The receiving end, open."""

    address: str
    """What clients need to find it."""
    take: Callable[[], float]
    """Waits for the next delivery to the consumer; how many items it was, 0 after `end`. One
    thread only."""
    end: Callable[[], None]
    """Makes `take` return 0 once nothing is left. From any thread."""


@dataclass(frozen=True)
class Sender:
    """The sending end, connected."""

    send: Callable[[Any], Any]
    pieces: Sequence[Any]
    """What `send` is given, in turn."""
    items_per_piece: int
    wait: Callable[[], Any]
    """Waits until everything sent has been taken over by the other side."""


@dataclass(frozen=True)
class Method:
    """Both ends."""

    serve: Callable[[Message], AbstractContextManager[Receiver]]
    connect: Callable[[str, Message], AbstractContextManager[Sender]]


SIDES = {
    "raw": ("raw", "raw_coalesced"),
    "echo": ("echo", "echo_tuned"),
    "contig": ("contig", "shared", "shared_runs", "table"),
}

ENVIRONMENT: dict[str, dict[str, str]] = {
    "echo_tuned": {
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    }
}
"""Set for a method's receiver and clients; see echo_side.py."""


def side_of(method: str) -> str:
    """The side whose module has this method."""
    for side, methods in SIDES.items():
        if method in methods:
            return side
    known = ", ".join(name for methods in SIDES.values() for name in methods)
    raise ValueError(f"unknown method {method!r}: expected one of {known}")


def load(method: str) -> Method:
    """Import the side's module and take the method from it."""
    module = importlib.import_module(f"benchmarks.ingest.{side_of(method)}_side")
    found: Method = module.METHODS[method]
    return found
