"""Every error contig raises on purpose.

ContigError
 ├─ EmptyBufferError        nothing has been written yet       (also a RuntimeError)
 ├─ NothingEligibleError    rows, but none the sampler may draw (also a ValueError)
 ├─ LayoutError             data of another layout             (also a ValueError)
 ├─ CodecError              encoded bytes that cannot be decoded (also a ValueError)
 ├─ ClosedError             used after close()                 (also a RuntimeError)
 ├─ DamagedError            shared memory was overwritten      (also a RuntimeError)
 ├─ RateLimitError          the rate limiter's deadline passed (also a TimeoutError)
 ├─ OverloadError           too much is in flight              (also a RuntimeError)
 ├─ ServerError             a server's process failed          (also a RuntimeError)
 ├─ WorkerError             a collector or its worker failed   (also a RuntimeError)
 ├─ ConnectionClosedError   a server is gone                   (also a ConnectionError)
 └─ StateError              an object is not in a state to go on (also a RuntimeError)
TapeBusy                    the tape's lock was not released   (a TimeoutError)
StorageFull                 no memory for another extent       (an OSError)

Native code raises these, and what Python itself raises for the same: ValueError, TypeError,
IndexError, MemoryError, and OSError with the system's number.
"""

from __future__ import annotations

from ._native import StorageFull, TapeBusy

__all__ = [
    "ContigError",
    "EmptyBufferError",
    "NothingEligibleError",
    "LayoutError",
    "CodecError",
    "ClosedError",
    "DamagedError",
    "RateLimitError",
    "OverloadError",
    "ServerError",
    "WorkerError",
    "ConnectionClosedError",
    "StateError",
    "TapeBusy",
    "StorageFull",
]


class ContigError(Exception):
    """Base of contig's own errors."""


class EmptyBufferError(ContigError, RuntimeError):
    """A sample was asked of a buffer that holds no rows."""


class NothingEligibleError(ContigError, ValueError):
    """The buffer holds rows, but none that the sampler is allowed to draw."""


class LayoutError(ContigError, ValueError):
    """Data does not fit the layout it should have."""


class CodecError(ContigError, ValueError):
    """What is stored of a leaf with a codec cannot be decoded."""


class ClosedError(ContigError, RuntimeError):
    """A storage or buffer was used after it was closed."""


class DamagedError(ContigError, RuntimeError):
    """The memory of a storage was overwritten: its rows cannot be trusted any more."""


class RateLimitError(ContigError, TimeoutError):
    """The rate limiter did not let a call through before its deadline."""


class OverloadError(ContigError, RuntimeError):
    """More is in flight than was allowed, and the client was told to raise instead of waiting."""


class ServerError(ContigError, RuntimeError):
    """The process that holds a server's sockets failed."""


class WorkerError(ContigError, RuntimeError):
    """A collector, or one of its worker processes, failed."""


class ConnectionClosedError(ContigError, ConnectionError):
    """The connection to a server is gone, and could not be made again in time."""


class StateError(ContigError, RuntimeError):
    """An object or its memory is not in a state in which a call could go on.

    A writer is used by two threads at once, somebody else wrote over shared memory, or contig has a
    defect: the text says which.
    """


# Native code raises these, so it makes them; what they mean is said here.
TapeBusy.__doc__ = """A process held the lock of a storage for too long; the text names it."""
StorageFull.__doc__ = """There is no memory, or no disk, for more rows; nothing was written."""
