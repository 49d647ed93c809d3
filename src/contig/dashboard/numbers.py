"""The counters that the page and ``contig top`` show, read where they are kept."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..tape import Storage
from ..tape.disk import DiskStorage

__all__ = ["Limits", "Numbers", "table_numbers"]


class Limits(Protocol):
    """A rate limiter, as this package needs it."""

    samples_per_insert: float
    min_size: int
    error_buffer: float

    def drift(self, storage: Storage, /) -> float: ...


class Numbers(NamedTuple):
    """One look at the counters. What cannot be known where it is taken is None.

    Attributes:
        tables: by name: `kind`, `rows`, `capacity`, `rows_in`, `rows_out`, `episodes`, `bytes`,
            `drawn` (rows that readers gathered, and their ages in rows, summed), `limiter`.
        server: of a server, what it counts besides.
        clients: of a server, those that are connected.
    """

    tables: dict[str, dict[str, Any]]
    server: dict[str, Any] | None = None
    clients: list[dict[str, Any]] | None = None


def table_numbers(storage: Storage, limiter: Limits | None = None) -> dict[str, Any]:
    """The counters of a storage, in some microseconds.

    Args:
        storage: where the rows are.
        limiter: of the buffer that draws from it.
    """
    storage.poll()
    tape = storage.tape
    head, tail, _, _ = tape.snapshot()
    # A directory that another process writes to and draws from: there it is known.
    alone = isinstance(storage, DiskStorage) and storage.read_only
    told = None
    if limiter is not None:
        names = ("samples_per_insert", "min_size", "error_buffer")
        told = {name: getattr(limiter, name) for name in names}
        told["drift"] = limiter.drift(storage)
    return {
        "kind": "tape",
        "rows": int(max(head - tail, 0)),
        "capacity": None if alone else int(storage.capacity),
        "rows_in": int(head),
        "rows_inserted": None if alone else int(tape.inserted),
        "rows_out": None if alone else int(tape.sampled),
        "episodes": int(tape.trajectories),
        "bytes": int(storage.nbytes),
        "drawn": None if alone else [int(n) for n in tape.drawn],
        "limiter": told,
    }
