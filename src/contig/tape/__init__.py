"""The store: tapes in memory and shared memory, their writers and their index of runs."""

from .queue import BatchQueue
from .storage import Contents, LazyTensorStorage, SharedStorage, Storage, storage_of_fd
from .writer import Writer

__all__ = [
    "BatchQueue",
    "Contents",
    "LazyTensorStorage",
    "SharedStorage",
    "Storage",
    "Writer",
    "storage_of_fd",
]
